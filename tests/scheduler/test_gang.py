"""Jobs of several cards and nodes: all or nothing, evenly spread, on the cards that belong together."""

from __future__ import annotations

import pytest

from jobs.scheduler import reasons
from jobs.scheduler.topology import choose_set, set_nearness
from tests.scheduler.cases import Case


def test_the_cards_of_a_job_are_distinct() -> None:
    Case().node("a", cards=2).job(mib=4_096, cards=2).expect("a:0,a:1")


def test_without_nodes_all_cards_are_on_one_node() -> None:
    Case().node("a", cards=1).node("b", cards=2).job(cards=2).expect("b:0,b:1")


def test_it_places_all_ranks_or_none() -> None:
    case = Case().node("a", cards=2).node("b", cards=2).taken("b:1").job(cards=4, nodes=2).job(cards=1, request={"model": "4090"})
    assert case.places()[0] is None
    case.expect_reason(reasons.GPU_COUNT, needed=2, free=2, node="a", nodes=2, nodes_free=1)


def test_nodes_means_exactly_so_many_with_the_cards_spread_evenly() -> None:
    Case().node("a", cards=8).node("b", cards=2).job(cards=4, nodes=2).expect("a:0,a:1|b:0,b:1")


def test_ranks_are_numbered_by_node() -> None:
    case = Case().node("a", temp_c=80).node("b", temp_c=30).node("c", temp_c=40).job(cards=2, nodes=2)
    assert case.places() == ["b:0|c:0"]
    assert [rank.index for rank in case.plan().placements[0].ranks] == [0, 1]


def test_several_nodes_prefer_one_model() -> None:
    case = Case().node("a", model="RTX 3080", temp_c=30).node("b", temp_c=60).node("c", temp_c=60).job(cards=2, nodes=2)
    case.expect("b:0|c:0")


def test_several_nodes_take_mixed_models_when_they_must() -> None:
    Case().node("a", model="RTX 3080").node("b").job(cards=2, nodes=2).expect("a:0|b:0")


def test_nvlink_comes_before_the_same_switch() -> None:
    links = {(0, 1): "pcie_switch", (0, 2): "system", (0, 3): "system", (1, 2): "system", (1, 3): "system", (2, 3): "nvlink"}
    Case().node("a", cards=4, links=links).job(cards=2).job(cards=2).expect("a:2,a:3", "a:0,a:1")


def test_the_same_switch_comes_before_the_host() -> None:
    Case().node("a", cards=3, links={(0, 1): "pcie_host", (1, 2): "pcie_switch", (0, 2): "system"}).job(cards=2).expect("a:1,a:2")


def test_the_same_model_comes_before_a_nearer_mixed_pair() -> None:
    models = ["RTX 4090", "RTX 3080", "RTX 4090"]
    Case().node("a", cards=3, models=models, links={(0, 1): "nvlink", (0, 2): "system"}).job(cards=2).expect("a:0,a:2")


def test_a_node_with_nvlink_comes_before_one_without() -> None:
    Case().node("a", cards=2, links={(0, 1): "system"}).node("b", cards=3, links={(0, 1): "nvlink"}).job(cards=2).expect("b:0,b:1")


def test_equally_near_sets_differ_by_their_cards() -> None:
    links = {(0, 1): "nvlink", (2, 3): "nvlink"}
    hot = [{"temp_c": 85}, {"temp_c": 30}, {"temp_c": 40}, {"temp_c": 40}]  # means 57.5 and 40
    Case().node("a", cards=4, links=links, per_card=hot).job(cards=2).expect("a:2,a:3")


def test_large_sets_are_grown_to_the_linked_half() -> None:
    island = range(8, 16)
    near = {(a, b): (1.0 if a in island and b in island else 0.1) for a in range(16) for b in range(a + 1, 16)}
    chosen, nearness = choose_set(list(range(16)), [1.0] * 16, 8, near)  # C(16, 8) = 12870: not all sets are compared
    assert sorted(chosen) == list(island)
    assert nearness == pytest.approx(1.0)


def test_nearness_is_the_mean_over_pairs() -> None:
    assert set_nearness([1, 2, 3], {(1, 2): 1.0, (1, 3): 0.5, (2, 3): 0.0}) == pytest.approx((1.0 + 0.5 + 0.0) / 3)


def test_cpu_jobs_go_to_the_node_with_the_fewest_ranks_per_core() -> None:
    case = Case().node("a", cpu_cores=4, live_cpu_ranks=2).node("b", cpu_cores=16, live_cpu_ranks=4).job(cards=0, count=5)
    case.expect("b", "b", "b", "b", "a")  # b: 4/16 … 7/16 are below a's 2/4; then 8/16 = 2/4 and a has fewer ranks


def test_a_node_runs_one_cpu_job_a_core_and_at_least_four() -> None:
    case = Case().node("a", cpu_cores=6, live_cpu_ranks=3).node("b", cpu_cores=None, live_cpu_ranks=4).job(cards=0, count=4)
    case.expect("a", "a", "a", None)  # 6 - 3 = 3 left on a; b has no known cores and its four
    case.expect_reason(reasons.CPU_BUSY, job=4, needed=1, free=0, limit=6, node="a")


def test_cpu_jobs_run_where_there_is_no_card_or_no_card_is_free() -> None:
    Case().node("a", cards=0).job(cards=0).expect("a")
    Case().node("a").taken("a:0").job(cards=0).expect("a")


def test_a_cpu_job_on_several_nodes_gets_distinct_ones() -> None:
    Case().node("a").node("b", refusal="cordoned").node("c").job(cards=0, nodes=2).expect("a|c")
    case = Case().node("a").node("b", refusal="cordoned").job(cards=0, nodes=2).expect(None)
    case.expect_reason(reasons.NODES_SHORT, needed=2, free=1)


@pytest.mark.parametrize("cards", [0, 1])
def test_a_node_where_the_launch_failed_comes_last_but_is_not_refused(cards: int) -> None:
    Case().node("a").node("b").job(cards=cards, avoid_nodes=frozenset({1})).expect("b")
    Case().node("a").job(cards=cards, avoid_nodes=frozenset({1})).expect("a")
