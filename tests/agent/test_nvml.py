"""The real NVML path: backends/nvml.py on pynvml on a library that answers as a driver does."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.backends.base import BackendError, HardwareEvent
from agent.backends.nvml import NvmlBackend
from agent.protocol import LinkInfo
from tests.agent.nvml_lab import MIB, Machine
from tests.waiting import wait_until

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 6, 9, 13, 15, 16
VERSION_MISMATCH, UNKNOWN = 18, 999


@pytest.fixture
def machine(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path / "state")
    found.write()
    monkeypatch.setenv("NEBULA_NVML_STATE", str(found.path))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return found


@pytest.fixture
def backend() -> Iterator[NvmlBackend]:
    found = NvmlBackend(xid_wait_ms=2)
    yield found
    found.cleanup()


def test_it_reads_the_constant_facts(machine: Machine, backend: NvmlBackend) -> None:
    uuid = machine.card(pci="0000:3b:00")
    backend.initialize()
    cards = backend.inventory()
    (gpu,) = cards.gpus
    assert (gpu.uuid, gpu.index, gpu.model, gpu.vendor) == (uuid, 0, "NVIDIA GeForce RTX 4090", "nvidia")
    assert (gpu.total_mib, gpu.compute_capability, gpu.pci_bus_id) == (24564, "8.9", "00000000:3B:00.0")
    assert (gpu.pcie_gen, gpu.pcie_width, gpu.unified, gpu.simulated) == (4, 16, False, False)
    assert (cards.driver_version, cards.cuda_version, cards.simulated) == ("570.86.10", "12.8", False)


def test_it_reads_every_value(machine: Machine, backend: NvmlBackend) -> None:
    machine.card()
    backend.initialize()
    (card,) = backend.get_status()
    assert (card.used_mib, card.reserved_mib) == (700, 500)  # the driver's own share is never counted as use
    assert (card.util_pct, card.mem_util_pct, card.temp_c, card.power_w) == (37, 12, 61, 301)
    assert (card.fan_pct, card.core_mhz, card.mem_mhz, card.error) == (42, 2520, 10501, None)


@pytest.mark.parametrize(
    ("absent", "fields"),
    [
        (("total",), ("used_mib", "reserved_mib")),
        (("util",), ("util_pct", "mem_util_pct")),
        (("temp", "temp_v"), ("temp_c",)),
        (("power_mw",), ("power_w",)),
        (("fan",), ("fan_pct",)),
        (("clk_sm",), ("core_mhz",)),
        (("clk_mem",), ("mem_mhz",)),
    ],
)
def test_what_one_card_does_not_support_is_none_and_the_rest_is_told(
    machine: Machine, backend: NvmlBackend, absent: tuple[str, ...], fields: tuple[str, ...]
) -> None:
    machine.card(**dict.fromkeys(absent))
    machine.card()
    backend.initialize()
    poor, rich = backend.get_status()
    values = {name: getattr(poor, name) for name in rich.to_json() if name != "uuid"}
    assert {name for name, value in values.items() if value is None} == set(fields)
    assert all(getattr(rich, name) is not None for name in values)
    assert poor.error is None


GETTERS = [
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetClockInfo",
]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, UNKNOWN, 4242])
@pytest.mark.parametrize("getter", GETTERS)
def test_one_failing_getter_stops_neither_its_card_nor_the_other(machine: Machine, backend: NvmlBackend, getter: str, code: int) -> None:
    machine.card()
    machine.card()
    backend.initialize()
    machine.say(f"fail 0 {getter} {code}")
    first, second = backend.get_status()
    assert first.error is None
    assert second.to_json() == {**second.to_json(), "used_mib": 700, "util_pct": 37, "temp_c": 61, "power_w": 301, "fan_pct": 42}


@pytest.mark.parametrize(("code", "error"), [(GPU_IS_LOST, "lost"), (RESET_REQUIRED, "reset_required")])
@pytest.mark.parametrize("getter", [*GETTERS, "*"])
def test_a_lost_card_says_so_and_the_others_go_on(machine: Machine, backend: NvmlBackend, getter: str, code: int, error: str) -> None:
    uuids = [machine.card() for _ in range(4)]
    backend.initialize()
    machine.say(f"fail 1 {getter} {code}")
    cards = backend.get_status()
    assert [c.uuid for c in cards] == uuids
    assert [c.error for c in cards] == [None, error, None, None]
    assert cards[1].used_mib is None
    assert all(c.used_mib == 700 for c in cards if c.error is None)
    assert backend.get_process_list() == []  # the three others have told


def test_old_drivers_without_memory_version_2_count_the_reserved_part(machine: Machine, backend: NvmlBackend) -> None:
    machine.card()
    machine.say(f"fail 0 nvmlDeviceGetMemoryInfo_v2 {FUNCTION_NOT_FOUND}")
    backend.initialize()
    (card,) = backend.get_status()
    assert (card.used_mib, card.reserved_mib) == (700 + 500, None)
    assert backend.inventory().gpus[0].total_mib == 24564


def test_an_idle_card_with_reserved_memory_is_idle(machine: Machine, backend: NvmlBackend) -> None:
    machine.card(used=0, reserved=500 * MIB)
    backend.initialize()
    (card,) = backend.get_status()
    assert (card.used_mib, card.reserved_mib) == (0, 500)


def test_old_drivers_without_the_new_temperature_call(machine: Machine, backend: NvmlBackend) -> None:
    machine.card(temp_v=None, temp=60)
    backend.initialize()
    assert [backend.get_status()[0].temp_c for _ in range(2)] == [60, 60]


@pytest.mark.parametrize(("name", "expected"), [("NVIDIA GB10", True), ("NVIDIA Mystery 1", False)])
def test_memory_not_supported_is_the_hosts_on_known_boards_and_unknown_elsewhere(
    machine: Machine, backend: NvmlBackend, name: str, expected: bool
) -> None:
    machine.card(name=name, total=None)
    backend.initialize()
    (gpu,) = backend.inventory().gpus
    assert gpu.unified is expected
    assert (gpu.total_mib is not None) is expected
    assert gpu.total_mib != 0


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"util": 200}, "util_pct"),
        ({"util": 2**32 - 1}, "util_pct"),
        ({"temp_v": 2**31 - 1}, "temp_c"),
        ({"power_mw": 2**32 - 1}, "power_w"),
    ],
)
def test_impossible_values_are_dropped_and_counted(machine: Machine, backend: NvmlBackend, wrong: dict[str, Any], name: str) -> None:
    machine.card(**wrong)
    backend.initialize()
    (card,) = backend.get_status()
    assert getattr(card, name) is None
    assert backend.sanity.anomalies == {name: 1}
    assert card.used_mib == 700


def test_compute_and_graphics_processes_are_listed_once_each(machine: Machine, backend: NvmlBackend) -> None:
    first, second = machine.card(), machine.card()
    machine.say(*(f"proc 0 {100 + i} {i * MIB}" for i in range(12)), "gfx 0 101 5242880", "gfx 1 900 na")
    backend.initialize()
    found = backend.get_process_list()
    assert found is not None
    assert {p.pid: p.used_mib for p in found if p.uuid == first} == {100: 0, 101: 5, **{100 + i: i for i in range(2, 12)}}
    assert [(p.uuid, p.pid, p.used_mib) for p in found if p.uuid == second] == [(second, 900, None)]  # None is not 0


def test_the_use_of_a_process_is_its_mean_since_the_last_list(machine: Machine, backend: NvmlBackend) -> None:
    first, second = machine.card(), machine.card()
    machine.say("proc 0 11 1048576", "proc 0 12 1048576", "proc 0 13 1048576", "proc 1 11 1048576")
    machine.say("busy 0 11 80 1000", "busy 0 11 40 2000", "busy 0 12 7 2000", "busy 0 13 4294967295 2000")
    backend.initialize()

    def listed() -> dict[tuple[str, int], int | None]:
        return {(p.uuid, p.pid): p.util_pct for p in backend.get_process_list() or ()}

    # The second card does not tell, and 2**32-1 is no use that a process can have: not told is not 0.
    assert listed() == {(first, 11): 60, (first, 12): 7, (first, 13): None, (second, 11): None}
    assert listed() == {(first, 11): 0, (first, 12): 0, (first, 13): 0, (second, 11): None}  # nobody did anything since
    machine.say("busy 0 12 90 3000")
    assert listed()[first, 12] == 90
    machine.say(f"fail 0 nvmlDeviceGetProcessUtilization {NOT_SUPPORTED}")
    assert listed()[first, 12] is None


LISTS = [f"nvmlDeviceGet{kind}RunningProcesses_v{version}" for kind in ("Compute", "Graphics") for version in (3, 2)]


@pytest.mark.parametrize("error", [NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_a_system_that_lists_no_processes_says_none(machine: Machine, backend: NvmlBackend, error: int) -> None:
    machine.card()
    machine.say(*(f"fail 0 {call} {error}" for call in LISTS))
    backend.initialize()
    assert backend.get_process_list() is None
    assert len(backend.inventory().gpus) == len(backend.get_status()) == 1


@pytest.mark.parametrize("lacks", [[call for call in LISTS if call.endswith("_v3")], [LISTS[2]], [LISTS[2], LISTS[3]]])
def test_an_older_driver_lists_processes_as_it_can_and_hides_no_card(machine: Machine, backend: NvmlBackend, lacks: list[str]) -> None:
    """Before R510 there are no calls of the third version; some systems list no graphics at all."""
    uuid = machine.card()
    machine.say("proc 0 4101 1073741824", *(f"fail 0 {call} {FUNCTION_NOT_FOUND}" for call in lacks))
    backend.initialize()
    listed = backend.get_process_list()
    assert listed is not None
    assert [(p.uuid, p.pid, p.used_mib) for p in listed] == [(uuid, 4101, 1024)]
    assert backend.get_status()[0].error is None


@pytest.mark.parametrize(
    ("level", "kind", "via"),
    [
        (0, "pcie_switch", None),
        (10, "pcie_switch", "pix"),
        (20, "pcie_switch", "pxb"),
        (30, "pcie_host", None),
        (40, "numa", None),
        (50, "system", None),
    ],
)
def test_the_way_between_two_cards(machine: Machine, backend: NvmlBackend, level: int, kind: Any, via: str | None) -> None:
    a, b = machine.card(), machine.card()
    machine.say(f"topo 0 1 {level}")
    backend.initialize()
    assert backend.inventory().links == (LinkInfo(a=a, b=b, kind=kind, via=via),)


def test_nvlinks_are_counted_and_come_before_the_bus(machine: Machine, backend: NvmlBackend) -> None:
    a, b, c = machine.card(), machine.card(), machine.card()
    machine.say("topo 0 1 50", "topo 0 2 50", "topo 1 2 30")
    machine.say(*(f"nvlink 0 {i} 0000:02:00" for i in range(4)), *(f"nvlink 1 {i} 0000:01:00" for i in range(4)))
    backend.initialize()
    assert backend.inventory().links == (
        LinkInfo(a=a, b=b, kind="nvlink", count=4),
        LinkInfo(a=a, b=c, kind="system"),
        LinkInfo(a=b, b=c, kind="pcie_host"),
    )


def test_cards_behind_an_nvswitch_reach_each_other_by_nvlink(machine: Machine, backend: NvmlBackend) -> None:
    a, b = machine.card(), machine.card()
    machine.say(*(f"nvlink {gpu} {i} 0000:c0:00" for gpu in (0, 1) for i in range(6)))
    backend.initialize()
    assert backend.inventory().links == (LinkInfo(a=a, b=b, kind="nvlink", count=6, via="nvswitch"),)


def test_topology_that_is_not_told_is_left_out(machine: Machine, backend: NvmlBackend) -> None:
    machine.card()
    machine.card()
    backend.initialize()
    assert backend.inventory().links == ()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (VERSION_MISMATCH, "driver_mismatch", "driver mismatch"),
        (DRIVER_NOT_LOADED, "driver_not_loaded", "not loaded"),
        (NO_PERMISSION, "no_permission", "/dev/nvidia"),
        (UNKNOWN, "nvml_error", "cannot be opened"),
    ],
)
def test_what_keeps_nvml_shut_is_said_clearly(machine: Machine, backend: NvmlBackend, code: int, kind: str, words: str) -> None:
    machine.say(f"init {code}")
    with pytest.raises(BackendError, match=words) as caught:
        backend.initialize()
    assert caught.value.kind == kind


def test_no_cards_at_the_start_is_no_error_and_later_ones_are_picked_up(machine: Machine, backend: NvmlBackend) -> None:
    backend.initialize()
    assert backend.inventory().gpus == ()
    assert backend.get_status() == []
    uuids = [machine.card(), machine.card()]
    assert [c.uuid for c in backend.get_status()] == uuids
    assert [g.uuid for g in backend.inventory().gpus] == uuids


def test_a_card_that_vanishes_takes_no_other_cards_name(machine: Machine, backend: NvmlBackend) -> None:
    uuids = [machine.card() for _ in range(4)]
    backend.initialize()
    del machine.cards[1]
    machine.write()
    assert [c.uuid for c in backend.get_status()] == [uuids[0], uuids[2], uuids[3]]
    assert [(g.index, g.uuid) for g in backend.inventory().gpus] == [(0, uuids[0]), (1, uuids[2]), (2, uuids[3])]


def test_a_card_whose_handle_fails_is_an_event_and_hides_no_other(machine: Machine, backend: NvmlBackend) -> None:
    machine.card()
    healthy = machine.card()
    machine.say(f"fail 0 nvmlDeviceGetHandleByIndex_v2 {GPU_IS_LOST}")
    backend.initialize()
    assert [g.uuid for g in backend.inventory().gpus] == [healthy]
    (event,) = backend.events()
    assert (event.kind, event.data["index"]) == ("card_unreadable", 0)


def test_xid_events_name_card_and_number(machine: Machine, backend: NvmlBackend) -> None:
    machine.card()
    uuid = machine.card()
    backend.initialize()
    machine.xid(1, 79)
    found: list[HardwareEvent] = []
    wait_until(lambda: found.extend(backend.events()) or found, "the XID event")
    assert [(e.kind, e.gpu, e.data) for e in found] == [("xid", uuid, {"xid": 79})]


def test_opening_again_after_cleanup_works(machine: Machine, backend: NvmlBackend) -> None:
    machine.card()
    for _ in range(2):
        backend.initialize()
        assert backend.get_status()[0].used_mib == 700
        backend.cleanup()
    backend.cleanup()
