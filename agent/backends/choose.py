"""Which kinds of cards this machine has, and the backend for each. Imports a backend only when it is asked for."""

from __future__ import annotations

import os
from pathlib import Path

from agent.backends.base import HardwareBackend

#: In the order in which their cards are listed.
REAL = ("nvml", "level_zero", "ascend", "amd")
#: GpuInfo.vendor → backend.
BACKEND_OF = {"nvidia": "nvml", "intel": "level_zero", "ascend": "ascend", "amd": "amd"}

_INTEL, _AMD = 0x8086, 0x1002


def backends_present(root: str = "/") -> list[str]:
    """The backends whose library or tool, and for Intel and AMD whose cards, are on this machine. Loads nothing."""
    if os.name == "nt":
        from agent.windows import nvml_find

        return ["nvml"] if nvml_find(dict(os.environ)) is not None else []
    from agent.backends.amd import amdsmi_find
    from agent.backends.ascend import npu_smi_find
    from agent.backends.level_zero import loader_present
    from agent.backends.nvml_lib import nvml_present

    vendors = _drm_vendors(root)
    found: list[str] = []
    if nvml_present():
        found.append("nvml")
    if _INTEL in vendors and loader_present():
        found.append("level_zero")
    if npu_smi_find() is not None:
        found.append("ascend")
    if _AMD in vendors and os.path.exists(os.path.join(root, "dev/kfd")) and amdsmi_find() is not None:
        found.append("amd")
    return found


def _drm_vendors(root: str) -> set[int]:
    """PCI vendors of the graphics devices, the one inside an Intel processor included."""
    found: set[int] = set()
    for path in Path(root, "sys/class/drm").glob("card*/device/vendor"):
        try:
            found.add(int(path.read_text(encoding="ascii"), 16))
        except (OSError, ValueError):
            continue
    return found


def backend_make(name: str) -> HardwareBackend:
    """A backend that asks real hardware. Raises ValueError for an unknown name."""
    if name == "nvml":
        from agent.backends.kernel_log import KMSG
        from agent.backends.nvml import NvmlBackend

        return NvmlBackend(kernel_log=None if os.name == "nt" else KMSG, driver_model=os.environ.get("NEBULA_AGENT_DRIVER_MODEL") == "read")
    if name == "level_zero":
        from agent.backends.level_zero import LevelZeroBackend

        return LevelZeroBackend()
    if name == "ascend":
        from agent.backends.ascend import AscendBackend

        return AscendBackend()
    if name == "amd":
        from agent.backends.amd import AmdBackend

        return AmdBackend()
    raise ValueError(f"{name!r} is not one of {', '.join(REAL)}")
