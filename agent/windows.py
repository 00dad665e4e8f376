"""What Windows tells of the machine, without a program started: memory, processors, and display adapters with a problem.

Each function takes the library it asks, so that what is made of the answers is tested anywhere; None where nothing is told.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
#: "Windows has stopped this device because it has reported problems" (Device Manager's code 43).
CODE_43 = 43
#: The class of display adapters, and which of them are asked for: those of the class that are present.
DISPLAY_CLASS = "{4d36e968-e325-11ce-bfc1-08002be10318}"
_CLASS_PRESENT = 0x200 | 0x100
_HAS_PROBLEM = 0x400


def _library(name: str) -> Any:
    """A library of Windows; None elsewhere."""
    loader = getattr(ctypes, "windll", None)
    return getattr(loader, name, None) if loader is not None else None


class _Memory(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("page_total", ctypes.c_uint64),
        ("page_free", ctypes.c_uint64),
        ("virtual_total", ctypes.c_uint64),
        ("virtual_free", ctypes.c_uint64),
        ("extended_free", ctypes.c_uint64),
    )


def memory_mib(kernel32: Any = None) -> tuple[int, int] | None:
    """(all, in use)."""
    kernel32 = kernel32 or _library("kernel32")
    found = _Memory(length=ctypes.sizeof(_Memory))
    if kernel32 is None or not kernel32.GlobalMemoryStatusEx(ctypes.byref(found)):
        return None
    return found.total // MIB, (found.total - found.free) // MIB


def cpu_ticks(kernel32: Any = None) -> tuple[int, int] | None:
    """(busy, all) of all processors since the start, in 100 ns."""
    kernel32 = kernel32 or _library("kernel32")
    idle, kernel, user = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()  # FILETIME: low word first
    if kernel32 is None or not kernel32.GetSystemTimes(ctypes.byref(idle), ctypes.byref(kernel), ctypes.byref(user)):
        return None
    both = kernel.value + user.value  # the kernel's share has the idle time in it
    return both - idle.value, both


def display_problems(cfgmgr: Any = None) -> tuple[int, ...]:
    """The problem codes that Device Manager shows for display adapters, one each; empty where none has one."""
    cfgmgr = cfgmgr or _library("cfgmgr32")
    if cfgmgr is None:
        return ()
    length = ctypes.c_uint32()
    if cfgmgr.CM_Get_Device_ID_List_SizeW(ctypes.byref(length), DISPLAY_CLASS, _CLASS_PRESENT) != 0 or not length.value:
        return ()
    names = ctypes.create_unicode_buffer(length.value)
    if cfgmgr.CM_Get_Device_ID_ListW(DISPLAY_CLASS, names, length, _CLASS_PRESENT) != 0:
        return ()
    found: list[int] = []
    for name in "".join(names[: length.value]).split("\0"):
        node, status, problem = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint32()
        if not name or cfgmgr.CM_Locate_DevNodeW(ctypes.byref(node), name, 0) != 0:
            continue
        is_told = cfgmgr.CM_Get_DevNode_Status(ctypes.byref(status), ctypes.byref(problem), node, 0) == 0
        if is_told and status.value & _HAS_PROBLEM:
            found.append(problem.value)
    return tuple(found)


def advice(problems: Sequence[int]) -> tuple[str, ...]:
    """Codes for a node's page. XID 43 is another thing."""
    return ("device_code_43",) if CODE_43 in problems else ()


def nvml_find(env: dict[str, str]) -> str | None:
    """Where the driver puts NVML: the system's folder, and a folder of its own before R460."""
    places = (
        Path(env.get("WINDIR") or env.get("SYSTEMROOT") or "C:/Windows", "System32", "nvml.dll"),
        Path(env.get("PROGRAMW6432") or env.get("PROGRAMFILES") or "C:/Program Files", "NVIDIA Corporation", "NVSMI", "nvml.dll"),
    )
    return next((str(path) for path in places if path.exists()), None)
