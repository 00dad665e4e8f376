"""What a job may ask of the card and of its host, and the strategies by name."""

from __future__ import annotations

import dataclasses

import pytest

from jobs.scheduler import Policy, Request, Snapshot, never_reason, plan, reasons
from jobs.scheduler.backlog import Waiting
from jobs.scheduler.need import node_mismatch, version_key
from jobs.scheduler.never import kind_of
from jobs.scheduler.pool import Pool
from jobs.scheduler.types import Gpu, Node
from tests.scheduler.cases import Case


def test_versions_compare_by_number() -> None:
    assert version_key("12.10") > version_key("12.9")
    assert version_key("12.0") == version_key("12")
    assert version_key("535.104.05") < version_key("550.54.14")


@pytest.mark.parametrize(
    ("asked", "have", "code"),
    [
        ({"cuda_min": "12.1"}, {"cuda_version": "11.8"}, reasons.CUDA),
        ({"cuda_min": "12.1"}, {"cuda_version": None}, reasons.CUDA),
        ({"driver_min": "550"}, {"driver_version": "535.104.05"}, reasons.DRIVER),
        ({"labels": (("room", "a"),)}, {"labels": {"room": "b"}}, reasons.LABEL),
        ({"cpu_milli": 16_001}, {"cpu_cores": 16}, reasons.NODE_CPU),
        ({"host_mem_mib": 1_025}, {"memory_mib": 1_024}, reasons.NODE_MEMORY),
        ({"host_mem_mib": 1}, {"memory_mib": None}, reasons.NODE_MEMORY),
        ({"cuda_min": "12.1", "cpu_milli": 16_000}, {"cuda_version": "12.1", "cpu_cores": 16}, None),
    ],
)
def test_a_node_that_can_never_serve_says_why(asked: dict[str, object], have: dict[str, object], code: str | None) -> None:
    reason = node_mismatch(Request(**asked), Node(id=1, name="a", **have))  # type: ignore[arg-type]
    assert (reason.code if reason is not None else None) == code


def test_an_old_cuda_is_passed_by_and_named_when_nothing_newer_is_there() -> None:
    case = Case().node("a", host={"cuda_version": "11.8"}).node("b", host={"cuda_version": "12.4"})
    case.job(request={"cuda_min": "12.1"}).expect("b:0")
    case = Case().node("a", host={"cuda_version": "11.8"}).job(request={"cuda_min": "12.1"})
    case.expect_reason(reasons.NEVER_CUDA, never=True, asked="12.1", have=["11.8"])


def test_a_label_that_nobody_carries_is_named() -> None:
    case = Case().node("a", host={"labels": {"room": "b"}}).job(request={"labels": (("room", "a"),)})
    case.expect_reason(reasons.NEVER_LABEL, never=True, asked="room=a", have=["b"])


def test_one_of_several_models_will_do() -> None:
    Case().node("a", model="RTX 3080").node("b", model="NVIDIA H100").job(request={"model": "A100|H100"}).expect("b:0")


def test_host_cores_and_memory_fill_up() -> None:
    case = Case().node("a", cards=4, cpu_cores=16, host={"memory_mib": 65_536})
    case.job(request={"cpu_milli": 8_000}, count=3).expect("a", "a", None)
    case.expect_reason(reasons.HOST_CPU, job=3, needed_milli=8_000, largest_free_milli=0, node="a")
    case = Case().node("a", cards=4, host={"memory_mib": 65_536, "memory_mib_held": 30_000})
    case.job(request={"host_mem_mib": 30_000}, count=2).expect("a", None)
    case.expect_reason(reasons.HOST_MEMORY, job=2, needed_mib=30_000, largest_free_mib=5_536, node="a")  # 65536 − 30000 − 30000


def test_a_host_that_is_too_small_is_named_with_the_largest() -> None:
    case = Case().node("a", cpu_cores=8).node("b", cpu_cores=16).job(request={"cpu_milli": 32_000})
    case.expect_reason(reasons.NEVER_NODE_CPU, never=True, needed_milli=32_000, largest_milli=16_000, node="b")
    case = Case().node("a", cpu_cores=8).job(cards=0, request={"cpu_milli": 9_000})
    case.expect_reason(reasons.NEVER_NODE_CPU, never=True, needed_milli=9_000, largest_milli=8_000, node="a")


def test_a_host_of_unknown_size_is_waited_for() -> None:
    assert never_reason(Request(host_mem_mib=1), Case().node("a").nodes) is None


def test_a_job_without_cards_leaves_the_cores_that_cards_need() -> None:
    case = Case().node("a", cards=4, cpu_cores=16).node("b", cards=0, cpu_cores=16)
    case.job(cards=0, request={"cpu_milli": 12_000}).job(request={"cpu_milli": 8_000}, count=2).expect("b", "a", "a")


def test_an_exclusive_job_gets_the_whole_card_for_little_memory() -> None:
    assert Case().node("a").job(mib=4_096, request={"is_exclusive": True}).job(mib=4_096).expect("a", None).mib() == [24_576]


def test_a_hot_or_sick_card_is_the_last_choice_however_well_it_packs() -> None:
    hot = [{"temp_c": 86}, {"temp_c": 60}]
    Case().node("a", cards=2, per_card=hot).taken("a:0", 4_096).job(mib=4_096).expect("a:1")
    Case().node("a", cards=2, per_card=[{"health": 40}, {}]).taken("a:0", 4_096).job(mib=4_096).expect("a:1")
    Case().node("a", per_card=hot).job(mib=4_096).expect("a:0")


def test_of_cards_that_pack_alike_the_node_with_more_power_left_is_taken() -> None:
    Case().node("a", host={"power_headroom_pct": 5}).node("b", host={"power_headroom_pct": 60}).job().expect("b:0")


def test_several_nodes_stay_in_one_network_group_on_the_fast_links() -> None:
    group = [{"network_group": name, "network_mbps": speed} for name, speed in (("x", 1_000), ("y", 10_000), ("x", 1_000), ("y", 10_000))]
    case = Case().node("a", host=group[0]).node("b", host=group[1]).node("c", host=group[2]).node("d", host=group[3])
    case.job(cards=2, nodes=2).expect("b:0|d:0")


def test_the_same_queue_by_four_strategies() -> None:
    def place(strategy: str) -> list[str | None]:
        case = Case(strategy=strategy).node("a", cards=2).node("b", cards=2).taken("b:0", 12_288).taken("a:0", 4_096)
        return case.job(mib=8_192).job(mib=16_384).places()

    assert place("first-fit") == ["a:0", "a:1"]
    assert place("best-fit") == ["b:0", "a:1"]  # leaves 4096; 12288 at a:0
    assert place("load-balance") == ["a:1", "b:1"]
    assert place("fragmentation-aware") == place("default")


def test_a_strategy_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"'magic'.*best-fit"):
        plan(Snapshot(now=0, nodes=(), jobs=()), Policy(strategy="magic"))


def test_packing_keeps_room_for_what_is_said_to_come() -> None:
    # Only one-card jobs wait; jobs of four cards are said to come, so that the node with four empty cards is left alone.
    case = Case().node("a", cards=4).node("b", cards=4).taken("b:3").job()
    snapshot = case.snapshot()
    from dataclasses import replace

    result = plan(replace(snapshot, mix=((Request(), 1.0), (Request(gpu_count=4), 1.0))), Policy())
    assert [placement.ranks[0].node for placement in result.placements] == [2]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Gpu)])
def test_a_pass_tells_the_kinds_of_cards_apart_as_the_refusal_at_submit_does(field: str) -> None:
    one = Gpu(id=1, uuid="GPU-1", index=0, model="A100", total_mib=40960, nominal_mib=40960, compute_capability="8.0", temp_c=40)
    value = getattr(one, field)
    two = dataclasses.replace(one, **{field: f"{value}x" if isinstance(value, str) else (value or 0) + 1, "id": 2, "index": 1})
    snapshot = Snapshot(now=0.0, nodes=(Node(id=1, name="node", gpus=(one, two)),), jobs=())
    pool = Pool(snapshot, Policy(), Waiting())
    assert (len(pool.kinds) == 1) == (kind_of(one) == kind_of(two))
