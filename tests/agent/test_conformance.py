"""One suite over every backend: what the agent relies on, whoever made the card."""

from __future__ import annotations

import ctypes
import itertools
import json
import pwd
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.backends.amd import AmdBackend
from agent.backends.ascend import AscendBackend
from agent.backends.base import BackendError, HardwareBackend, Placed, bus_key, sane
from agent.backends.level_zero import LevelZeroBackend
from agent.backends.nvml import NvmlBackend
from agent.backends.simulated import SimulatedBackend
from agent.probe import Reader, sample_from, sample_to
from agent.protocol import GpuGrant, GpuStatus
from tests.agent import amd_lab, level_zero_lab, nvml_lab

ASCEND = Path(__file__).parent / "ascend"


@dataclass
class World:
    """Two cards that are well, a process on the second one, and ways to spoil them."""

    backend: HardwareBackend
    vendor: str
    break_first: Callable[[], None]
    mute_first: Callable[[], None]  # it tells only what nobody can do without
    wild_first: Callable[[], str]  # → the field that then holds nonsense
    shut: Callable[[], str]  # the hardware layer does not open → the kind of the error
    open: Callable[[], None]


def nvml_world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    machine = nvml_lab.Machine(tmp_path / "state")
    machine.card()
    machine.card()
    machine.say("proc 1 1 1048576000")
    monkeypatch.setenv("NEBULA_NVML_STATE", str(machine.path))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(request.getfixturevalue("nvml_library"))))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def card(changes: dict[str, object]) -> None:
        machine.cards[0] = {k: v for k, v in {**machine.cards[0], **changes}.items() if v is not None}
        machine.write()

    def wild() -> str:
        card({"util": 200})
        return "util_pct"

    return World(
        backend=NvmlBackend(xid_wait_ms=2),
        vendor="nvidia",
        break_first=lambda: machine.say("fail 0 * 15"),
        mute_first=lambda: card(dict.fromkeys(set(machine.cards[0]) - {"uuid", "name", "pci"})),
        wild_first=wild,
        shut=lambda: machine.say("init 18") or "driver_mismatch",
        open=lambda: machine.unsay("init"),
    )


def level_zero_world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    machine = level_zero_lab.IntelMachine(tmp_path / "state")
    machine.card()
    machine.card()
    machine.say("proc 1 1 1048576000")
    monkeypatch.setenv("NEBULA_ZE_STATE", str(machine.path))
    monkeypatch.setenv("ZES_ENABLE_SYSMAN", "1")

    def wild() -> str:
        machine.set(0, temps="48,4294967295")
        return "temp_c"

    return World(
        backend=LevelZeroBackend(str(request.getfixturevalue("ze_loader"))),
        vendor="intel",
        break_first=lambda: machine.say("fail 0 * 0x70000001"),
        mute_first=lambda: machine.set(0, **dict.fromkeys(set(machine.cards[0]) - {"uuid", "name", "pci"})),
        wild_first=wild,
        shut=lambda: machine.say("init 0x70010000") or "no_permission",
        open=lambda: machine.unsay("init"),
    )


def ascend_world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    told = {"info": (ASCEND / "v23_910b.txt").read_text(), "board": (ASCEND / "board.txt").read_text()}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "machine-id").write_text("c0ffee\n")
    down: list[str] = []

    def run(*args: str) -> str:
        if down:
            raise BackendError("npu-smi did not answer within 8 s.", down[0])
        return told["board"].replace("0123", f"012{args[-1]}") if "board" in args else told["info"]

    def put(old: str, new: str) -> None:
        assert old in told["info"]
        told["info"] = told["info"].replace(old, new)

    def wild() -> str:
        put("93.6        40 ", "93.6      4294967295 ")
        return "temp_c"

    return World(
        backend=AscendBackend(run, clock=itertools.count(0, 60).__next__, root=str(tmp_path)),
        vendor="ascend",
        break_first=lambda: put("| 0                         | 0000:C1:00.0  | 0   ", "| 0                       ??"),
        mute_first=lambda: (put("93.6        40 ", "NA          NA "), put("| 0           0    / 0          3162 / 65536 ", "| NA  NA ")),
        wild_first=wild,
        shut=lambda: down.append("unresponsive") or "unresponsive",
        open=down.clear,
    )


def amd_world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    process = {"name": "python", "pid": 1, "memory_usage": {"vram_mem": 1048576000}}
    smi = amd_lab.FakeAmdsmi(amd_lab.card(0), amd_lab.card(1, amdsmi_get_gpu_process_list=[process]))
    refused = amd_lab.AmdSmiLibraryException("AMDSMI_STATUS_NO_DATA")

    def all_but(kept: set[str]) -> None:
        smi.cards[0] = {name: value if name in kept else refused for name, value in smi.cards[0].items()}

    def wild() -> str:
        smi.cards[0]["amdsmi_get_gpu_activity"] = {"gfx_activity": 200, "umc_activity": 3}
        return "util_pct"

    def shut() -> str:
        smi.broken = amd_lab.AmdSmiLibraryException("AMDSMI_STATUS_DRIVER_NOT_LOADED")
        return "driver_not_loaded"

    def reopen() -> None:
        smi.broken = None

    return World(
        backend=AmdBackend(smi),
        vendor="amd",
        break_first=lambda: all_but({"amdsmi_get_gpu_device_uuid"}),
        mute_first=lambda: all_but({"amdsmi_get_gpu_device_uuid", "amdsmi_get_gpu_device_bdf", "amdsmi_get_gpu_vram_usage"}),
        wild_first=wild,
        shut=shut,
        open=reopen,
    )


def simulated_world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    path = tmp_path / "scenario.json"
    first: dict[str, Any] = {"model": "X", "total_mib": 24564, "metrics": {"temp_c": 40, "util_pct": 3}, "health": {"pcie_width": 8}}
    scenario: dict[str, Any] = {
        "devices": [dict(first), dict(first)],
        "processes": [{"gpu": 1, "pid": 1, "used_mib": 1000}],
        "faults": [],
    }
    seconds = iter(range(10**9))

    def write() -> None:
        path.write_text(json.dumps({**scenario, "seed": next(seconds)}))

    def fault(**what: Any) -> None:
        scenario["faults"].append(what)
        write()

    def mute() -> None:
        scenario["devices"][0] = {"model": "X", "metrics": {"used_mib": None}}
        write()

    def wild() -> str:
        fault(kind="wild", gpu=0, field="util_pct", value=2**32 - 1)
        return "util_pct"

    def reopen() -> None:
        scenario["faults"].clear()
        write()

    write()
    return World(
        backend=SimulatedBackend(path, salt="test"),
        vendor="nvidia",
        break_first=lambda: fault(kind="lost", gpu=0),
        mute_first=mute,
        wild_first=wild,
        shut=lambda: fault(kind="mismatch") or "driver_mismatch",
        open=reopen,
    )


WORLDS = {
    "nvml": nvml_world,
    "level_zero": level_zero_world,
    "ascend": ascend_world,
    "amd": amd_world,
    "simulated": simulated_world,
}


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found: World = WORLDS[request.param](request, tmp_path, monkeypatch)
    yield found
    found.backend.cleanup()


def told(status: GpuStatus) -> dict[str, object]:
    """What a status says, without its name."""
    return {f.name: value for f in fields(status) if f.name != "uuid" and (value := getattr(status, f.name)) not in (None, 0, ())}


def test_the_cards_have_names_numbers_and_sizes(world: World) -> None:
    world.backend.initialize()
    cards = world.backend.inventory()
    assert len(cards.gpus) == 2
    assert len({g.uuid for g in cards.gpus}) == 2
    assert [g.index for g in cards.gpus] == [0, 1]
    assert cards.backends == (world.backend.name,)
    assert cards.simulated is (world.backend.name == "simulated")
    for gpu in cards.gpus:
        assert gpu.vendor == world.vendor
        assert gpu.model
        assert gpu.total_mib is not None
        assert gpu.total_mib > 1000
        assert gpu.uuid.isascii()
        assert len(gpu.uuid) <= 80
        bus_key(gpu.pci_bus_id or "")


def test_the_same_cards_have_the_same_names_after_a_restart(world: World) -> None:
    world.backend.initialize()
    before = world.backend.inventory().gpus
    world.backend.cleanup()
    world.backend.initialize()
    assert world.backend.inventory().gpus == before


def test_there_is_one_sane_status_a_card_in_their_order(world: World) -> None:
    world.backend.initialize()
    for _ in range(2):  # what comes from counters has nothing to say at first
        status = world.backend.get_status()
        assert [s.uuid for s in status] == [g.uuid for g in world.backend.inventory().gpus]
        for card in status:
            assert (card.throttle is None) is (world.backend.name in ("ascend", "amd"))
            assert card == sane(card)
            assert card.error is None
            assert card.used_mib is not None
            assert card.temp_c is not None
            assert card.foreign_mib == 0  # the agent's to find out


def test_a_broken_card_says_so_and_hides_nothing_of_the_other(world: World) -> None:
    world.backend.initialize()
    world.backend.get_status()
    before = world.backend.get_status()[1]
    world.break_first()
    first, second = world.backend.get_status()
    assert first.error in ("lost", "unreadable")
    assert set(told(first)) == {"error"}
    # Counters that stand still make 0 of a rate; everything else is as before.
    assert {n: v for n, v in told(second).items() if n not in ("util_pct", "power_w")} == {
        n: v for n, v in told(before).items() if n not in ("util_pct", "power_w")
    }
    assert second.error is None
    listed = world.backend.get_process_list()
    assert listed is not None
    assert {p.uuid for p in listed} == {second.uuid}
    assert second.uuid in {h.uuid for h in world.backend.get_health()}


def test_what_a_card_does_not_tell_is_none_and_never_0(world: World) -> None:
    world.mute_first()
    world.backend.initialize()
    first = world.backend.get_status()[0]
    assert first.error is None
    silent = ("util_pct", "mem_util_pct", "temp_c", "power_w", "fan_pct", "core_mhz", "mem_mhz")
    assert [getattr(first, name) for name in silent] == [None] * len(silent)
    if first.used_mib is None:
        assert world.backend.inventory().gpus[0].total_mib is None  # unknown: shown, never scheduled
    for health in world.backend.get_health():
        if health.uuid == first.uuid:
            assert {getattr(health, f.name) for f in fields(health) if f.name not in ("uuid", "anomalies")} == {None}


def test_nonsense_is_dropped_counted_and_told_once(world: World) -> None:
    world.backend.initialize()
    name = world.wild_first()
    for _ in range(3):
        first, second = world.backend.get_status()
        assert getattr(first, name) is None
        assert first.error is None
        assert getattr(second, name) is not None
    assert world.backend.sanity.anomalies == {name: 3}
    (event,) = world.backend.events()
    assert (event.kind, event.gpu, event.data["field"]) == ("anomaly", first.uuid, name)
    healths = {h.uuid: h for h in world.backend.get_health()}
    if first.uuid in healths:
        assert healths[first.uuid].anomalies == 3


def test_processes_are_listed_with_the_card_that_they_are_on(world: World) -> None:
    world.backend.initialize()
    second = world.backend.inventory().gpus[1]
    world.backend.get_status()
    listed = world.backend.get_process_list()
    assert listed is not None
    (process,) = listed
    assert (process.uuid, process.rank) == (second.uuid, None)  # whose it is, the agent finds out
    assert process.used_mib is None or process.used_mib >= 1000
    if process.pid == 1 and world.backend.name != "simulated":
        uid = Path("/proc/1").stat().st_uid  # in a user namespace it is not 0, and need not have a name
        assert process.user in (str(uid), *(account.pw_name for account in pwd.getpwall() if account.pw_uid == uid))


def test_a_layer_that_does_not_open_says_why_and_opens_later(world: World) -> None:
    kind = world.shut()

    def read() -> None:
        world.backend.initialize()
        world.backend.get_status()

    with pytest.raises(BackendError) as caught:
        read()
    assert caught.value.kind == kind
    assert len(str(caught.value)) > 20
    world.open()
    world.backend.initialize()
    assert [s.error for s in world.backend.get_status()] == [None, None]


def test_a_layer_that_is_closed_gives_no_figures(world: World) -> None:
    world.backend.cleanup()
    world.backend.cleanup()
    if world.backend.name in ("simulated", "ascend"):  # there is nothing to open: each look is a new one
        assert len(world.backend.get_status()) in (0, 2)
        return
    with pytest.raises(BackendError):
        world.backend.get_status()


def test_a_sample_survives_the_way_from_the_child(world: World) -> None:
    world.backend.initialize()
    sample = Reader(world.backend).take(processes=True, at=5.0)
    assert sample.error is None
    assert sample.health is not None
    line = json.dumps(sample_to(sample))
    assert sample_from(json.loads(line), at=5.0) == sample


def test_a_fault_of_our_own_is_an_error_with_a_name_and_logged_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.backend.initialize()
    reader = Reader(world.backend)

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(world.backend, "get_health", fail)
    sample = reader.take(processes=False, at=0.0)
    assert (sample.error, sample.health, len(sample.status)) == (None, None, 2)  # the slow facts alone are missing
    monkeypatch.setattr(world.backend, "get_status", fail)
    for at in (1.0, 2.0, 3.0):
        assert reader.take(processes=False, at=at).error_kind == "backend_error"
    assert len([r for r in caplog.records if r.exc_info]) == 2


def test_ranks_and_events_are_no_trouble(world: World) -> None:
    world.backend.initialize()
    world.backend.placed([Placed(rank="1.1.0", pids=(1,), gpus=(GpuGrant(uuid="GPU-nowhere", mib=1),))])
    world.backend.get_status()
    assert world.backend.events() == []
