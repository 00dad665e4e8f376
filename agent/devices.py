"""Which device files belong to which card, as "c MAJOR:MINOR": what a rank must not open is those of cards that it was not given.

Read from /proc and /sys: NVIDIA's driver numbers its files by itself; everybody else's cards are known to the kernel's graphics layer.
Files that all cards of a vendor share (nvidiactl, nvidia-uvm, kfd) stay open to everybody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent.backends.base import bus_slot
from agent.protocol import GpuInfo

_NVIDIA_MAJOR = 195
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)


def devices_of(gpu: GpuInfo, root: str = "/") -> tuple[str, ...]:
    """Empty where the system does not tell."""
    slot = bus_slot(gpu.pci_bus_id)
    if slot is None or gpu.simulated:
        return ()
    address = "{:04x}:{:02x}:{:02x}.0".format(*slot)
    found: list[str] = []
    try:
        minor = _MINOR.search(Path(root, "proc/driver/nvidia/gpus", address, "information").read_text(encoding="utf-8", errors="replace"))
        if minor is not None:
            found.append(f"c {_NVIDIA_MAJOR}:{minor[1]}")
    except OSError:
        pass
    for file in sorted(Path(root, "sys/bus/pci/devices", address, "drm").glob("*/dev")):
        try:
            number = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if re.fullmatch(r"\d+:\d+", number):
            found.append(f"c {number}")
    return tuple(found)


def devices_denied(gpus: Sequence[GpuInfo], granted: Iterable[str], root: str = "/") -> tuple[str, ...]:
    """Of a rank that was given the cards ``granted`` (their uuids). A part of a card (MIG) is opened through its whole card's file."""
    mine = set(granted)
    mine |= {gpu.parent for gpu in gpus if gpu.uuid in mine and gpu.parent is not None}
    kept = {device for gpu in gpus if gpu.uuid in mine for device in devices_of(gpu, root)}
    others = [device for gpu in gpus if gpu.uuid not in mine and gpu.parent is None for device in devices_of(gpu, root)]
    return tuple(device for device in dict.fromkeys(others) if device not in kept)
