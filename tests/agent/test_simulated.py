from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent.backends.base import BackendError, BackendHang, Placed
from agent.backends.scenario import ScenarioError, scenario_parse
from agent.backends.simulated import SimulatedBackend
from agent.probe import InlineProbe
from agent.protocol import GpuGrant

CARD = {"model": "Simulated A100", "total_mib": 81920}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A scenario file and the backend that reads it; each write has a new time stamp, however quick the test is."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self._stamp = path, Clock(), 0
        self.backend = SimulatedBackend(path, salt="test", clock=self.clock)

    def write(self, **scenario: Any) -> None:
        self.text(json.dumps(scenario))

    def text(self, text: str) -> None:
        self.path.write_text(text)
        self._stamp += 1
        os.utime(self.path, ns=(self._stamp, self._stamp))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "scenario.json")


def test_without_a_scenario_there_are_two_simulated_4090() -> None:
    backend = SimulatedBackend(salt="node7")
    backend.initialize()
    cards = backend.inventory()
    assert [(g.model, g.total_mib, g.simulated) for g in cards.gpus] == [("Simulated RTX 4090", 24564, True)] * 2
    assert cards.simulated
    idle = backend.get_status()[0]
    assert idle.used_mib == 0
    assert idle.util_pct == 0


def test_two_nodes_have_different_cards_and_one_node_always_the_same() -> None:
    def uuids(salt: str) -> list[str]:
        return [g.uuid for g in SimulatedBackend(salt=salt).inventory().gpus]

    assert uuids("node7") == uuids("node7")
    assert not set(uuids("node7")) & set(uuids("node8"))


def test_count_makes_many_with_their_own_bus_ids(world: World) -> None:
    world.write(devices=[{**CARD, "count": 300}, {**CARD, "uuid": "GPU-x"}])
    gpus = world.backend.inventory().gpus
    assert len(gpus) == 301
    assert len({g.uuid for g in gpus}) == 301
    assert len({g.pci_bus_id for g in gpus}) == 301
    assert gpus[-1].uuid == "GPU-x"


def test_a_metric_is_a_constant_a_noise_or_a_ramp(world: World) -> None:
    world.write(
        devices=[
            {
                **CARD,
                "metrics": {
                    "temp_c": 40,
                    "power_w": {"base": 100, "noise": 10},
                    "util_pct": {"from": 0, "to": 100, "over_s": 50},
                    "fan_pct": None,
                },
            }
        ]
    )
    seen = []
    for _ in range(8):
        seen.append(world.backend.get_status()[0])
        world.clock.now += 10
    assert {s.temp_c for s in seen} == {40}
    assert {s.fan_pct for s in seen} == {None}
    assert {s.core_mhz for s in seen} == {None}  # not named, so not told
    assert [s.util_pct for s in seen] == [0, 20, 40, 60, 80, 100, 100, 100]
    power = [s.power_w for s in seen]
    assert all(p is not None and 90 <= p <= 110 for p in power)
    assert len(set(power)) > 1


def test_the_same_seed_gives_the_same_picture(tmp_path: Path) -> None:
    def powers(seed: int) -> list[int | None]:
        world = World(tmp_path / f"{seed}.json")
        world.write(devices=[{**CARD, "metrics": {"power_w": {"base": 200, "noise": 100}}}], seed=seed)
        found = []
        for _ in range(5):
            found.append(world.backend.get_status()[0].power_w)
            world.clock.now += 5
        return found

    assert powers(1) == powers(1)
    assert powers(1) != powers(2)


def test_memory_follows_what_runs(world: World) -> None:
    world.write(devices=[{**CARD, "rank_use": 0.5, "metrics": {"util_pct": 0}, "busy": {"util_pct": 90}}])
    uuid = world.backend.inventory().gpus[0].uuid
    idle = world.backend.get_status()[0]
    world.backend.placed([Placed(rank="1.1.0", pids=(os.getpid(),), gpus=(GpuGrant(uuid=uuid, mib=8192),))])
    busy = world.backend.get_status()[0]
    assert (idle.used_mib, idle.util_pct, busy.used_mib, busy.util_pct) == (0, 0, 4096, 90)
    (process,) = world.backend.get_process_list() or []
    assert (process.pid, process.used_mib, process.uuid) == (os.getpid(), 4096, uuid)
    world.backend.placed([])
    assert world.backend.get_status()[0].used_mib == 0
    assert world.backend.get_process_list() == []


def holds(world: World, *mib: int, exclusive: bool = False) -> None:
    """Ranks with so much of the first card each."""
    uuid = world.backend.inventory().gpus[0].uuid
    grants = [GpuGrant(uuid=uuid, mib=size, exclusive=exclusive) for size in mib]
    world.backend.placed([Placed(rank=f"{i}.1.0", pids=(os.getpid(),), gpus=(grant,)) for i, grant in enumerate(grants, 1)])


def test_a_card_warms_up_and_cools_down_with_its_lag(world: World) -> None:
    lag = {"lag_s": 60}
    world.write(devices=[{**CARD, "metrics": {"temp_c": {"base": 30, **lag}}, "busy": {"temp_c": {"base": 80, **lag}}}])

    def temp() -> int | None:
        return world.backend.get_status()[0].temp_c

    assert temp() == 30
    holds(world, 8192)
    assert temp() == 30
    world.clock.now += 60
    assert temp() == 62  # 80 - 50 / e
    world.clock.now += 600
    assert temp() == 80
    holds(world)
    world.clock.now += 60
    assert temp() == 48  # 30 + 50 / e
    world.clock.now += 600
    assert temp() == 30


def test_how_often_the_card_is_read_does_not_change_how_it_warms_up(world: World) -> None:
    lag = {"lag_s": 60}
    world.write(devices=[{**CARD, "metrics": {"temp_c": {"base": 30, **lag}}, "busy": {"temp_c": {"base": 80, **lag}}}])
    world.backend.get_status()
    holds(world, 8192)
    for _ in range(60):
        world.clock.now += 1
        last = world.backend.get_status()[0].temp_c
    assert last == 62


def test_use_comes_in_waves(world: World) -> None:
    world.write(devices=[{**CARD, "metrics": {"util_pct": {"base": 50, "wave": 20, "period_s": 40}}}])
    seen = []
    for _ in range(4):
        seen.append(world.backend.get_status()[0].util_pct)
        world.clock.now += 10
    assert seen == [50, 70, 50, 30]


def test_waves_stay_within_what_a_card_can_report(world: World) -> None:
    world.write(devices=[{**CARD, "metrics": {"util_pct": {"base": 95, "wave": 20, "period_s": 40}}}])
    assert world.backend.get_status()[0].util_pct == 95
    world.clock.now += 10
    assert world.backend.get_status()[0].util_pct == 100
    assert world.backend.sanity.anomalies == {}


def test_a_part_of_a_card_makes_a_part_of_the_heat(world: World) -> None:
    world.write(devices=[{**CARD, "by_share": True, "metrics": {"util_pct": 0, "power_w": 20}, "busy": {"util_pct": 80, "power_w": 320}}])

    def seen() -> tuple[int | None, int | None]:
        status = world.backend.get_status()[0]
        return status.util_pct, status.power_w

    assert seen() == (0, 20)
    holds(world, 20480)  # a quarter of the memory: half of the way
    assert seen() == (40, 170)
    holds(world, 20480, 20480, 20480, 20480)
    assert seen() == (80, 320)
    holds(world, 4096, exclusive=True)  # who has it alone keeps it busy alone
    assert seen() == (80, 320)
    holds(world)
    assert seen() == (0, 20)


def test_foreign_use_keeps_a_card_at_work_too(world: World) -> None:
    card = {**CARD, "by_share": True, "metrics": {"util_pct": 0}, "busy": {"util_pct": 80}}
    world.write(devices=[card], processes=[{"gpu": 0, "pid": 4242, "used_mib": 20480}])
    assert world.backend.get_status()[0].util_pct == 40


def test_memory_fills_up_while_a_rank_loads(world: World) -> None:
    world.write(devices=[{**CARD, "rank_use": 0.5, "fill_s": 40}])
    holds(world, 8192)
    seen = []
    for _ in range(4):
        (process,) = world.backend.get_process_list() or []
        seen.append((world.backend.get_status()[0].used_mib, process.used_mib))
        world.clock.now += 20
    assert seen == [(0, 0), (2048, 2048), (4096, 4096), (4096, 4096)]
    holds(world)
    assert world.backend.get_status()[0].used_mib == 0


def test_a_kind_says_what_its_devices_leave_open(world: World) -> None:
    kind = {**CARD, "vendor": "nvidia", "metrics": {"temp_c": 30, "power_w": 20}}
    world.write(
        kinds={"a100": kind}, devices=[{"kind": "a100", "count": 2}, {"kind": "a100", "total_mib": 40960, "metrics": {"temp_c": 50}}]
    )
    gpus = world.backend.inventory().gpus
    assert [(g.model, g.total_mib) for g in gpus] == [("Simulated A100", 81920)] * 2 + [("Simulated A100", 40960)]
    assert [(s.temp_c, s.power_w) for s in world.backend.get_status()] == [(30, 20), (30, 20), (50, 20)]


def test_foreign_processes_hold_memory(world: World) -> None:
    world.write(devices=[CARD], processes=[{"gpu": 0, "pid": 4242, "used_mib": 12000, "user": "eve", "command": "python"}])
    (process,) = world.backend.get_process_list() or []
    assert (process.pid, process.used_mib, process.user, process.command) == (4242, 12000, "eve", "python")
    assert world.backend.get_status()[0].used_mib == 12000


def test_hardware_that_lists_no_processes(world: World) -> None:
    world.write(devices=[CARD], process_list=False)
    assert world.backend.get_process_list() is None


def test_memory_that_is_not_told_is_none_whatever_runs(world: World) -> None:
    world.write(devices=[{"model": "Simulated iGPU", "vendor": "intel", "metrics": {"used_mib": None}}])
    gpu = world.backend.inventory().gpus[0]
    world.backend.placed([Placed(rank="1.1.0", pids=(1,), gpus=(GpuGrant(uuid=gpu.uuid, mib=100),))])
    assert (gpu.total_mib, gpu.vendor) == (None, "intel")
    assert world.backend.get_status()[0].used_mib is None


def test_a_card_vanishes_for_a_while_and_the_others_keep_their_names(world: World) -> None:
    world.write(devices=[{**CARD, "count": 4}], faults=[{"kind": "vanish", "gpu": 1, "at_s": 10, "for_s": 20}])
    uuids = [g.uuid for g in world.backend.inventory().gpus]
    world.clock.now += 10
    assert [g.uuid for g in world.backend.inventory().gpus] == [uuids[0], uuids[2], uuids[3]]
    assert [s.uuid for s in world.backend.get_status()] == [uuids[0], uuids[2], uuids[3]]
    world.clock.now += 20
    assert [g.uuid for g in world.backend.inventory().gpus] == uuids


def test_a_lost_card_says_so(world: World) -> None:
    world.write(devices=[{**CARD, "count": 2}], faults=[{"kind": "lost", "gpu": 0}])
    first, second = world.backend.get_status()
    assert (first.error, first.used_mib, second.error, second.used_mib) == ("lost", None, None, 0)


def test_wild_values_are_dropped_and_counted(world: World) -> None:
    world.write(devices=[{**CARD, "metrics": {"util_pct": 5}}], faults=[{"kind": "wild", "field": "util_pct", "value": 4294967295}])
    assert world.backend.get_status()[0].util_pct is None
    assert world.backend.sanity.anomalies == {"util_pct": 1}


def test_memory_can_leak(world: World) -> None:
    world.write(devices=[CARD], faults=[{"kind": "leak", "mib": 3000, "at_s": 5}])
    assert world.backend.get_status()[0].used_mib == 0
    world.clock.now += 5
    assert world.backend.get_status()[0].used_mib == 3000


def test_an_xid_happens_once_at_its_time(world: World) -> None:
    world.write(devices=[{**CARD, "count": 2}], faults=[{"kind": "xid", "gpu": 1, "xid": 79, "at_s": 10}])
    uuid = world.backend.inventory().gpus[1].uuid
    assert world.backend.events() == []
    world.clock.now += 10
    assert [(e.kind, e.gpu, e.data) for e in world.backend.events()] == [("xid", uuid, {"xid": 79})]
    world.clock.now += 10
    assert world.backend.events() == []


def test_a_hang_makes_the_cards_unresponsive_and_blocks_nobody(world: World) -> None:
    world.write(devices=[CARD], faults=[{"kind": "hang", "at_s": 5, "for_s": 600}])
    probe = InlineProbe(world.backend, deadline_s=10, clock=world.clock)
    probe.request(processes=False)
    assert len(probe.poll()[0]) == 1
    world.clock.now += 5
    with pytest.raises(BackendHang):
        world.backend.get_status()
    probe.request(processes=False)
    assert not probe.unresponsive
    world.clock.now += 10
    probe.request(processes=True)
    assert probe.unresponsive
    assert probe.poll() == ([], [])
    world.clock.now += 600
    probe.request(processes=False)
    assert not probe.unresponsive
    (sample,) = probe.poll()[0]
    assert sample.processes_read  # asked for during the hang


def test_an_edit_is_taken_up_and_starts_the_clock_anew(world: World) -> None:
    world.write(devices=[CARD])
    assert len(world.backend.get_status()) == 1
    world.clock.now += 100
    world.write(devices=[{**CARD, "count": 3}], faults=[{"kind": "lost", "gpu": 0, "at_s": 10}])
    assert [s.error for s in world.backend.get_status()] == [None] * 3
    world.clock.now += 10
    assert [s.error for s in world.backend.get_status()] == ["lost", None, None]


def test_half_a_file_keeps_the_last_good_one_and_warns_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write(devices=[{**CARD, "count": 2}])
    assert len(world.backend.get_status()) == 2
    world.text('{"devices": [')
    for _ in range(3):
        assert len(world.backend.get_status()) == 2
    assert len([r for r in caplog.records if "last good one" in r.getMessage()]) == 1
    world.path.unlink()
    assert len(world.backend.get_status()) == 2
    world.write(devices=[CARD])
    assert len(world.backend.get_status()) == 1


def test_a_first_file_that_is_wrong_is_one_clear_error(world: World) -> None:
    world.text("{")
    with pytest.raises(BackendError, match="cannot be used"):
        world.backend.initialize()


def test_links_name_cards_by_index_or_uuid(world: World) -> None:
    world.write(
        devices=[{**CARD, "uuid": "GPU-a"}, {**CARD, "uuid": "GPU-b"}], links=[{"a": 0, "b": "GPU-b", "kind": "nvlink", "count": 4}]
    )
    (link,) = world.backend.inventory().links
    assert (link.a, link.b, link.kind, link.count) == ("GPU-a", "GPU-b", "nvlink", 4)


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ([], "must be an object"),
        ({}, "devices must be a list"),
        ({"devices": [], "colour": 1}, "unknown keys colour"),
        ({"devices": [{"count": -1}]}, "count must be"),
        ({"devices": [{"count": True}]}, "count must be"),
        ({"devices": [{"memory": 3}]}, "unknown keys memory"),
        ({"devices": [{"total_mib": "much"}]}, "total_mib must be int"),
        ({"devices": [{"metrics": {"speed": 3}}]}, "speed is not a metric"),
        ({"devices": [{"metrics": {"temp_c": "hot"}}]}, "must be a number"),
        ({"devices": [{"metrics": {"temp_c": {"from": 1}}}]}, "must be {"),
        ({"devices": [{"rank_use": 9}]}, "rank_use"),
        ({"devices": [{"metrics": {"temp_c": {"base": 1, "wave": 2}}}]}, "must be {"),
        ({"devices": [{"metrics": {"temp_c": {"base": 1, "lag_s": 0}}}]}, "times above 0"),
        ({"devices": [{"metrics": {"used_mib": {"base": 1, "lag_s": 5}}}]}, "use fill_s"),
        ({"devices": [{"fill_s": -1}]}, "fill_s must be"),
        ({"devices": [{"by_share": 1}]}, "by_share must be"),
        ({"devices": [{"kind": "a100"}]}, "kinds has none"),
        ({"devices": [], "kinds": {"a100": 1}}, "kinds must be"),
        ({"devices": [{"uuid": "GPU-a"}, {"uuid": "GPU-a"}]}, "same uuid"),
        ({"devices": [{}], "links": [{"a": 0, "b": 7, "kind": "nvlink"}]}, "no device has this index"),
        ({"devices": [{}, {}], "links": [{"a": 0, "b": 1, "kind": "rope"}]}, "expected one of"),
        ({"devices": [{}], "processes": [{"gpu": 0}]}, "pid is missing"),
        ({"devices": [{}], "faults": [{"kind": "flood"}]}, "known are"),
        ({"devices": [{}], "faults": [{"kind": "wild", "field": "colour"}]}, "field must be"),
        ({"devices": [{}], "faults": [{"kind": "lost", "gpu": 4}]}, "no device"),
        ({"devices": [{}], "faults": [{"kind": "lost", "when": 4}]}, "unknown keys when"),
        ({"devices": [{}], "faults": [{}]}, "kind"),
    ],
)
def test_a_scenario_that_makes_no_sense_says_what_is_wrong(scenario: Any, words: str) -> None:
    with pytest.raises(ScenarioError, match=words.replace("{", r"\{")):
        scenario_parse(scenario)
