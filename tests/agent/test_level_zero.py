"""The Intel path: backends/level_zero.py on a loader library that answers as Intel's does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from agent.backends.base import BackendError
from agent.backends.choose import backends_present
from agent.backends.level_zero import LevelZeroBackend
from agent.protocol import GpuHealth, GpuStatus
from tests.agent.level_zero_lab import MIB, IntelMachine

LOST, NEEDS_RESET, NO_PERMISSION, NO_DRIVER = 0x70000001, 0x70000006, 0x70010000, 0x78000001


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IntelMachine:
    found = IntelMachine(tmp_path / "state")
    found.write()
    monkeypatch.setenv("NEBULA_ZE_STATE", str(found.path))
    monkeypatch.setenv("ZES_ENABLE_SYSMAN", "1")
    return found


@pytest.fixture
def backend(ze_loader: Path) -> Iterator[LevelZeroBackend]:
    found = LevelZeroBackend(str(ze_loader))
    yield found
    found.cleanup()


def test_it_reads_the_constant_facts(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    uuid = machine.card()
    backend.initialize()
    (gpu,) = backend.inventory().gpus
    assert (gpu.uuid, gpu.index, gpu.model, gpu.vendor) == (uuid, 0, "Intel(R) Arc(TM) A770 Graphics", "intel")
    assert (gpu.total_mib, gpu.pci_bus_id, gpu.pcie_gen, gpu.pcie_width, gpu.unified) == (16384, "00000000:03:00.0", 4, 16, False)
    assert backend.inventory().driver_version == "1.6.31294"


def test_use_and_power_are_differences_of_counters(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    machine.card()
    backend.initialize()
    (first,) = backend.get_status()
    assert (first.util_pct, first.power_w) == (None, None)
    assert (first.used_mib, first.temp_c, first.core_mhz, first.mem_mhz, first.fan_pct) == (2048, 52, 2400, 2187, 35)
    # In 5 s the engines ran for 2 s, and 600 J were used: 40 %, 120 W.
    machine.set(0, clock=15_000_000, active="3000000", energy=1_100_000_000)
    (second,) = backend.get_status()
    assert (second.util_pct, second.power_w) == (40, 120)
    machine.set(0, clock=20_000_000, active="3000000", energy=1_100_000_000)
    (third,) = backend.get_status()
    assert (third.util_pct, third.power_w) == (0, 0)


def test_the_busiest_of_several_engine_groups_counts(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    machine.card(engines="1,12,3", active="0,0,0", clock=0)  # compute, render, copy
    backend.initialize()
    backend.get_status()
    machine.set(0, clock=1_000_000, active="100000,700000,999999")
    assert backend.get_status()[0].util_pct == 70


@pytest.mark.parametrize(("active", "expected", "counted"), [(1_040_000, 100, 0), (2_000_000, None, 1)])
def test_use_a_little_over_100_is_100_and_far_over_it_is_nonsense(
    machine: IntelMachine, backend: LevelZeroBackend, active: int, expected: int | None, counted: int
) -> None:
    machine.card(active="0", clock=0)
    backend.initialize()
    backend.get_status()
    machine.set(0, clock=1_000_000, active=str(active))
    assert backend.get_status()[0].util_pct == expected
    assert backend.sanity.anomalies.get("util_pct", 0) == counted


def test_a_counter_that_begins_anew_says_nothing_once(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    machine.card()
    backend.initialize()
    backend.get_status()
    machine.set(0, clock=12_000_000, active="5", energy=5)
    assert (backend.get_status()[0].util_pct, backend.get_status()[0].power_w) == (None, None)
    machine.set(0, clock=13_000_000, active="500005", energy=50_000_005)
    (status,) = backend.get_status()
    assert (status.util_pct, status.power_w) == (50, 50)


def test_the_slow_facts(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    uuid = machine.card()
    backend.initialize()
    (health,) = backend.get_health()
    assert health == GpuHealth(uuid=uuid, ecc_corrected=2, ecc_uncorrected=0, pcie_width=8, core_max_mhz=2400, slow_c=105)
    assert (health.pcie_gen, health.energy_j) == (4, 500)


@pytest.mark.parametrize(
    ("absent", "silent"),
    [
        (("total", "physical", "used"), {"used_mib"}),
        (("engines",), {"util_pct"}),
        (("sensors",), {"temp_c"}),
        (("energy",), {"power_w"}),
        (("fan",), {"fan_pct"}),
        (("mem_mhz",), {"mem_mhz"}),
        (("core_mhz", "mem_mhz"), {"core_mhz", "mem_mhz", "throttle"}),
    ],
)
def test_some_models_tell_less(machine: IntelMachine, backend: LevelZeroBackend, absent: tuple[str, ...], silent: set[str]) -> None:
    machine.card(**dict.fromkeys(absent))
    machine.card()
    backend.initialize()
    backend.get_status()
    for index in (0, 1):
        machine.set(index, clock=15_000_000)
    poor, rich = backend.get_status()
    told = [f.name for f in fields(rich) if getattr(rich, f.name) is not None]
    assert {name for name in told if getattr(poor, name) is None} == silent
    assert poor.error is None


GETTERS = {
    "zesMemoryGetState": "used_mib",
    "zesEngineGetActivity": "util_pct",
    "zesTemperatureGetState": "temp_c",
    "zesPowerGetEnergyCounter": "power_w",
    "zesFanGetState": "fan_pct",
    "zesFrequencyGetState": "core_mhz",
}


@pytest.mark.parametrize("getter", GETTERS)
def test_a_failing_call_takes_its_own_field_and_a_lost_card_only_itself(
    machine: IntelMachine, backend: LevelZeroBackend, getter: str
) -> None:
    uuids = [machine.card() for _ in range(3)]
    backend.initialize()
    for code in (0x78000003, 0x70010000, 0x7FFFFFFE):
        machine.unsay("fail")
        machine.say(f"fail 1 {getter} {code:#x}")
        first, second, _ = backend.get_status()
        assert getattr(second, GETTERS[getter]) is None
        assert second.error is None
        assert (first.used_mib, first.temp_c) == (2048, 52)
    for code, error in ((LOST, "lost"), (NEEDS_RESET, "reset_required")):
        machine.unsay("fail")
        machine.say(f"fail 1 {getter} {code:#x}")
        assert [(s.uuid, s.error) for s in backend.get_status()] == [(uuids[0], None), (uuids[1], error), (uuids[2], None)]


def test_a_card_that_the_driver_calls_wedged_needs_a_reset(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    uuid = machine.card(wedged=1)
    backend.initialize()
    assert backend.get_status() == [GpuStatus(uuid=uuid, error="reset_required")]


def test_graphics_inside_the_processor_are_shown_and_take_no_work(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    machine.card(name="Intel(R) UHD Graphics 770", integrated=1, total=None, physical=None, used=None)
    backend.initialize()
    (gpu,) = backend.inventory().gpus
    assert (gpu.unified, gpu.total_mib) == (True, None)
    assert backend.get_status()[0].used_mib is None


def test_devices_that_are_no_gpu_are_left_out(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    machine.card(npu=1)
    uuid = machine.card()
    backend.initialize()
    assert [(g.index, g.uuid) for g in backend.inventory().gpus] == [(0, uuid)]


def test_throttle_reasons_in_words(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    machine.card(throttle=0x8 | 0x2)
    backend.initialize()
    assert backend.get_status()[0].throttle == ("power_cap", "hw_thermal")


def test_a_process_listed_once_for_each_part_of_the_card_is_one_process(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    uuid = machine.card()
    machine.say(f"proc 0 4242 {300 * MIB}", f"proc 0 4242 {200 * MIB}", f"proc 0 17 {MIB}")
    backend.initialize()
    assert [(p.uuid, p.pid, p.used_mib) for p in backend.get_process_list() or ()] == [(uuid, 4242, 500), (uuid, 17, 1)]
    machine.say("fail 0 zesDeviceProcessesGetState 0x78000003")
    assert backend.get_process_list() is None  # not told is not "none"


@pytest.mark.parametrize(
    ("code", "kind", "words"), [(NO_PERMISSION, "no_permission", "render"), (0x70020000, "driver_not_loaded", "driver")]
)
def test_what_keeps_it_shut_is_said_clearly(machine: IntelMachine, backend: LevelZeroBackend, code: int, kind: str, words: str) -> None:
    machine.say(f"init {code:#x}")
    with pytest.raises(BackendError, match=words) as caught:
        backend.initialize()
    assert caught.value.kind == kind


def test_a_loader_without_a_driver_is_a_machine_without_cards(machine: IntelMachine, backend: LevelZeroBackend) -> None:
    machine.say(f"init {NO_DRIVER:#x}")
    backend.initialize()
    assert backend.inventory().gpus == ()


def test_a_library_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="level-zero") as caught:
        LevelZeroBackend(str(tmp_path / "none.so")).initialize()
    assert caught.value.kind == "no_library"


def test_which_backends_a_machine_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """node04 has NVIDIA and Ascend; an Intel loader without an Intel card is nothing, and so is amdsmi without /dev/kfd."""
    libraries = tmp_path / "lib"
    libraries.mkdir()
    monkeypatch.setattr("agent.backends.nvml_lib.LIBRARY_DIRS", (str(libraries),))
    monkeypatch.setattr("agent.backends.level_zero.LOADER_DIRS", (str(libraries),))
    monkeypatch.setattr("agent.backends.ascend.PLACES", (str(libraries / "npu-smi"),))
    monkeypatch.setattr("agent.backends.amd.PLACES", (str(libraries),))
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setenv("PATH", str(libraries))
    root = str(tmp_path)
    assert backends_present(root) == []
    (libraries / "libnvidia-ml.so.1").touch()
    (libraries / "libze_loader.so.1").touch()
    (libraries / "amdsmi").mkdir()
    (libraries / "amdsmi" / "__init__.py").touch()
    assert backends_present(root) == ["nvml"]
    (libraries / "npu-smi").write_text("#!/bin/sh\n")
    (libraries / "npu-smi").chmod(0o755)
    assert backends_present(root) == ["nvml", "ascend"]
    for number, vendor in enumerate(("0x8086", "0x1002")):
        place = tmp_path / f"sys/class/drm/card{number}/device"
        place.mkdir(parents=True)
        (place / "vendor").write_text(f"{vendor}\n")
    assert backends_present(root) == ["nvml", "level_zero", "ascend"]
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert backends_present(root) == ["nvml", "level_zero", "ascend", "amd"]
