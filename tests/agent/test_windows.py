"""What is made of Windows' answers. The libraries are stand-ins that keep to the documented calls; Windows itself is not here."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from agent import windows
from agent.advice import card_findings
from agent.hostload import cpu_share
from agent.protocol import GpuHealth, GpuInfo

GIB = 1024**3


class Kernel32:
    """As documented: a structure is filled in only if its length is set; times are FILETIMEs of 100 ns, the kernel's with the idle."""

    def __init__(self, *, total: int = 64 * GIB, free: int = 40 * GIB, times: tuple[int, int, int] = (0, 0, 0), works: int = 1) -> None:
        self.total, self.free, self.times, self.works = total, free, times, works

    def GlobalMemoryStatusEx(self, found: Any) -> int:
        if found._obj.length != 64:
            return 0
        found._obj.total, found._obj.free = self.total, self.free
        return self.works

    def GetSystemTimes(self, *places: Any) -> int:
        for place, value in zip(places, self.times, strict=True):
            place._obj.value = value
        return self.works


class Cfgmgr32:
    def __init__(self, devices: dict[str, tuple[int, int]]) -> None:
        """Device id → (status flags, problem)."""
        self.devices = devices
        self._list = "".join(f"{name}\0" for name in devices) + "\0"

    def CM_Get_Device_ID_List_SizeW(self, length: Any, kind: str, flags: int) -> int:
        assert (kind, flags) == (windows.DISPLAY_CLASS, 0x300)
        length._obj.value = len(self._list)
        return 0

    def CM_Get_Device_ID_ListW(self, kind: str, names: Any, length: Any, flags: int) -> int:
        ctypes.memmove(names, ctypes.create_unicode_buffer(self._list), len(self._list) * ctypes.sizeof(ctypes.c_wchar))
        return 0

    def CM_Locate_DevNodeW(self, node: Any, name: str, flags: int) -> int:
        if name not in self.devices:
            return 13  # CR_NO_SUCH_DEVNODE
        node._obj.value = list(self.devices).index(name)
        return 0

    def CM_Get_DevNode_Status(self, status: Any, problem: Any, node: Any, flags: int) -> int:
        status._obj.value, problem._obj.value = list(self.devices.values())[node.value]
        return 0


WELL = (0x0180200A, 0)
STOPPED = (0x01802400, 43)


def test_memory_and_processors() -> None:
    assert windows.memory_mib(Kernel32()) == (64 * 1024, 24 * 1024)
    assert windows.memory_mib(Kernel32(works=0)) is None
    before = windows.cpu_ticks(Kernel32(times=(100, 150, 50)))  # 50 of the kernel's 150 were work
    after = windows.cpu_ticks(Kernel32(times=(175, 225, 75)))
    assert (before, after) == ((100, 200), (125, 300))
    assert cpu_share(before, after) == 25


@pytest.mark.parametrize(
    ("devices", "problems", "codes"),
    [
        ({}, (), ()),
        ({r"PCI\VEN_10DE&DEV_2684\1": WELL}, (), ()),
        ({r"PCI\VEN_10DE&DEV_2684\1": WELL, r"PCI\VEN_10DE&DEV_2684\2": STOPPED}, (43,), ("device_code_43",)),
        ({r"PCI\VEN_8086&DEV_A780\3": (0x01802400, 22)}, (22,), ()),  # switched off by a person
        ({r"PCI\VEN_10DE&DEV_2684\1": (0x0180200A, 43)}, (), ()),  # a number without the flag is an old one
    ],
)
def test_a_card_that_windows_has_stopped_is_advice(
    devices: dict[str, tuple[int, int]], problems: tuple[int, ...], codes: tuple[str, ...]
) -> None:
    found = windows.display_problems(Cfgmgr32(devices))
    assert (found, windows.advice(found)) == (problems, codes)


def test_elsewhere_nothing_is_told() -> None:
    assert (windows.memory_mib(), windows.cpu_ticks(), windows.display_problems()) == (None, None, ())


def test_nvml_is_found_where_drivers_put_it(tmp_path: Path) -> None:
    env = {"WINDIR": str(tmp_path / "Windows"), "PROGRAMW6432": str(tmp_path / "Program Files")}
    assert windows.nvml_find(env) is None
    old = tmp_path / "Program Files" / "NVIDIA Corporation" / "NVSMI" / "nvml.dll"
    old.parent.mkdir(parents=True)
    old.touch()
    assert windows.nvml_find(env) == str(old)
    new = tmp_path / "Windows" / "System32" / "nvml.dll"
    new.parent.mkdir(parents=True)
    new.touch()
    assert windows.nvml_find(env) == str(new)


@pytest.mark.parametrize(("model", "codes"), [("wddm", ["wddm"]), ("tcc", []), (None, [])])
def test_a_card_that_is_driven_as_a_display_is_advice(model: str | None, codes: list[str]) -> None:
    card = GpuInfo(uuid="GPU-1", index=0, model="RTX A6000", vendor="nvidia")
    assert [finding.code for finding in card_findings(card, GpuHealth(uuid="GPU-1", driver_model=model))] == codes
