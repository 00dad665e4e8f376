"""The machine around the cards: RDMA ports, NUMA nodes, memory and cores. Reads /proc and /sys only."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from agent import windows
from agent.backends.base import bus_slot
from agent.protocol import RdmaInfo

_DEVICE = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def rdma_ports(root: str = "/") -> tuple[RdmaInfo, ...]:
    """The ports of all InfiniBand and RoCE devices, as /sys/class/infiniband has them."""
    found: list[RdmaInfo] = []
    for port in sorted(Path(root, "sys/class/infiniband").glob("*/ports/*")):
        state = _line(port / "state")  # "4: ACTIVE"
        rate = re.match(r"(\d+)", _line(port / "rate") or "")  # "200 Gb/sec (4X HDR)"; 2.5 is told as 2
        found.append(
            RdmaInfo(
                name=f"{port.parent.parent.name}:{port.name}",
                state=state.rpartition(" ")[2] if state else None,
                rate_gbps=int(rate[1]) if rate else None,
                layer=_line(port / "link_layer"),
            )
        )
    return tuple(found)


def has_rdma(root: str = "/") -> bool:
    try:
        return any(Path(root, "sys/class/infiniband").iterdir())
    except OSError:
        return False


def numa_nodes(root: str = "/") -> int | None:
    """How many NUMA nodes the host has; None where the kernel does not tell."""
    count = sum(1 for path in Path(root, "sys/devices/system/node").glob("node*") if path.name[4:].isdigit())
    return count or None


def pcie_hops(pci_bus_id: str | None, root: str = "/") -> int | None:
    """PCIe switches between a device and the processor, from the way that the kernel names it by: 0 = its slot is the processor's
    own. None where the kernel does not know the device."""
    slot = bus_slot(pci_bus_id)
    place = Path(root, "sys/bus/pci/devices", "{:04x}:{:02x}:{:02x}.0".format(*slot)) if slot is not None else None
    if place is None or not place.exists():
        return None
    ports = [part for part in place.resolve().parts if _DEVICE.fullmatch(part)]
    # The card itself and its root port; each switch has one port towards the processor and one towards the card.
    return max(0, -(-(len(ports) - 2) // 2))


def memory_mib() -> int | None:
    if os.name == "nt":
        found = windows.memory_mib()
        return found[0] if found is not None else None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)


def cpu_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def os_name() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        name = platform.system()  # Windows, or a Linux that does not name itself
    return f"{name}, {platform.release()}"


def _line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
