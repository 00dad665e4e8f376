"""Estimates that are cut off tell no lies, and "until about" is when the memory comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.scheduler import Budget, Request, alternatives, estimate_start, forecast
from jobs.scheduler.until import Ends
from tests.scheduler.cases import Case


class Ticks:
    """A clock that goes on by one second each time it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def long_queue() -> Case:
    """One card that is taken until 3000; jobs of 1000 s each behind it."""
    return Case(order="fifo").node("a").taken("a:0", started=0.0, limit_s=3_000).job(count=40, predicted_s=1_000.0)


def test_what_is_not_reached_in_time_starts_later_than_what_was() -> None:
    case = long_queue()
    whole = forecast(case.snapshot(), case.policy)
    told = forecast(case.snapshot(), case.policy, budget=Budget(clock=Ticks(), seconds=40.0))
    reached = [job for job, found in told.items() if found.p50 is not None]
    assert reached == list(range(1, len(reached) + 1))
    assert 5 < len(reached) < 40
    for job, found in told.items():
        if found.p50 is not None:
            assert found.p50 == whole[job].p50
        else:
            assert found.p90 is None
            assert found.after is not None
            assert found.after <= (whole[job].p50 or 0)


def test_what_ran_to_its_end_is_not_said_to_be_cut() -> None:
    case = long_queue().job(hold="held", hold_params={"by": None, "why": None})
    told = forecast(case.snapshot(), case.policy)
    assert {found.after for found in told.values()} == {None}
    assert told[41].p50 is None


def test_an_estimate_says_where() -> None:
    case = Case(order="fifo").node("a").node("b").taken("a:0", limit_s=9_000).taken("b:0", limit_s=5_000).job()
    found = estimate_start(case.snapshot(), 1, case.policy)
    assert found.p50 == 5_000.0
    assert found.placement is not None
    assert [rank.node for rank in found.placement.ranks] == [2]


def test_beyond_the_horizon_nothing_is_asked() -> None:
    case = long_queue()
    found = estimate_start(case.snapshot(), 20, case.policy, horizon=6_500.0)
    # 3000 + 19 × 1000 = 22000 would be its start; the first event after 6500 is at 7000.
    assert (found.p50, found.after) == (None, 7_000.0)


def test_the_same_cards_on_more_nodes_are_an_alternative() -> None:
    case = Case().node("a", cards=2).node("b", cards=2).taken("a:0", limit_s=50_000).taken("b:1", limit_s=50_000).job(cards=2)
    found = list(alternatives(case.snapshot(), 1, case.policy))
    assert (found[0].request.nodes, found[0].request.gpu_count, found[0].p50) == (2, 2, case.now)
    assert found[0].placement is not None
    assert [rank.node for rank in found[0].placement.ranks] == [1, 2]


def test_fewer_cards_may_be_within_the_limit_that_holds_a_job() -> None:
    case = Case().node("a", cards=4).job(cards=4, hold="cards_exceeded", hold_params={"needed": 4, "room": 2})
    found = list(alternatives(case.snapshot(), 1, case.policy))
    assert [item.request.gpu_count for item in found] == [2, 1]


# Until when


def test_memory_is_back_when_enough_has_ended() -> None:
    case = (
        Case()
        .node("a", mib=24_576)
        .taken("a:0", 8_192, limit_s=4_000)
        .taken("a:0", 8_192, limit_s=2_000)
        .taken("a:0", 4_096, limit_s=9_000)
    )
    ends = Ends(case.snapshot(), case.policy)
    # 4 GiB are free; 4 + 8 at 2000, 4 + 8 + 8 at 4000, alone at 9000.
    assert ends.room_at(Request(gpu_mem_mib=12_288), "a") == 2_000.0
    assert ends.room_at(Request(gpu_mem_mib=16_384), "a") == 9_000.0  # above half of it: the whole card
    assert ends.room_at(Request(), "a") == 9_000.0


def test_of_several_cards_the_last_counts() -> None:
    case = Case().node("a", cards=3).taken("a:0", limit_s=4_000).taken("a:1", limit_s=2_000).taken("a:2", limit_s=9_000)
    ends = Ends(case.snapshot(), case.policy)
    assert [ends.room_at(Request(gpu_count=cards), "a") for cards in (1, 2, 3, 4)] == [2_000.0, 4_000.0, 9_000.0, None]


@pytest.mark.parametrize("part", [{"is_quarantined": True}, {"job": None}])
def test_what_no_end_of_a_job_frees_has_no_time(part: dict[str, object]) -> None:
    case = Case().node("a").taken("a:0", limit_s=4_000)
    case.slices[0] = replace(case.slices[0], **part)
    assert Ends(case.snapshot(), case.policy).room_at(Request(), "a") is None


def test_a_node_that_has_room_or_takes_no_work_has_no_time() -> None:
    case = Case().node("a").node("b", refusal="cordoned").taken("b:0", limit_s=4_000)
    ends = Ends(case.snapshot(), case.policy)
    assert [ends.room_at(Request(), name) for name in ("a", "b", "c")] == [None, None, None]
    assert ends.room_at(Request(gpu_count=0), "a") is None
