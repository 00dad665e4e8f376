"""Whose turn it is, who may pass whom, and that passing starves nobody."""

from __future__ import annotations

import random

import pytest

from jobs.scheduler import Job, Policy, Request, Running, Slice, Snapshot, plan, reasons
from tests.scheduler.cases import Case


def test_priority_comes_first_then_submit_time_then_id() -> None:
    case = Case(order="fifo").node("a")
    case.job(submitted=5.0).job(submitted=3.0, priority=1).job(submitted=3.0).job(submitted=2.0, priority=1).job(submitted=2.0, priority=1)
    case.expect(None, None, None, "a", None)
    positions = {refusal.job: refusal.position for refusal in case.plan().refusals}
    assert positions == {5: 1, 2: 2, 3: 3, 1: 4}


def test_an_order_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"'lifo'.*fifo"):
        plan(Snapshot(now=0, nodes=(), jobs=()), Policy(order="lifo"))


def test_a_small_job_passes_one_that_cannot_run_now() -> None:
    case = Case(order="fifo").node("a", cards=2).node("b").taken("a:0").job(cards=2).job(mib=4_096).expect(None, "b:0")
    case.expect_reason(reasons.GPU_COUNT, needed=2, free=1, node="a", nodes=1)  # one card of a is free, the other is not


def test_a_later_job_gets_no_card_that_the_head_waits_for() -> None:
    case = Case(order="fifo").node("a", cards=2).taken("a:0", 4_096).job(cards=2).job(mib=4_096).job().expect(None, None, None)
    case.expect_reason(reasons.BLOCKED_BY, job=2, node="a")
    assert case.refusal(2).reason.params == {"job": 1, "node": "a"}
    assert case.refusal(3).reason.params == {"job": 1, "node": "a"}


def test_the_head_waits_for_the_card_that_is_free_soonest() -> None:
    case = (
        Case(order="fifo")
        .node("a")
        .node("b")
        .node("c")
        .taken("a:0", 4_096, limit_s=9_000)
        .taken("b:0", 4_096, limit_s=2_000)
        .taken("c:0", 4_096)
    )
    case.job().job(mib=4_096, count=2).expect(None, "a", "a")


def test_without_limits_the_head_waits_for_the_job_that_started_first() -> None:
    case = Case(order="fifo").node("a").node("b").taken("a:0", 4_096, started=20.0).taken("b:0", 4_096, started=10.0)
    case.job().job(mib=4_096).expect(None, "a")


def test_a_job_far_past_its_limit_is_not_waited_for() -> None:
    case = (
        Case(order="fifo").node("a").node("b").taken("a:0", 4_096, limit_s=100).taken("b:0", 4_096, limit_s=5_000)
    )  # now = 1000: 900 s overdue
    case.job().job(mib=4_096).expect(None, "a")


def test_a_slice_being_released_is_waited_for_first() -> None:
    case = Case(order="fifo").node("a").node("b").taken("a:0", 4_096, limit_s=2_000).taken("b:0", 4_096)
    case.running.pop()  # b's job has ended, its memory is not back yet
    case.job().job(mib=4_096).expect(None, "a")


def test_nobody_waits_for_quarantined_memory() -> None:
    case = Case(order="fifo").node("a").node("b").taken("a:0", 4_096, is_quarantined=True).taken("b:0", 4_096)
    case.job().job(mib=4_096).expect(None, "a")
    Case(order="fifo").node("a").taken("a:0", 4_096, is_quarantined=True).job().job(mib=4_096).expect(None, "a")


def test_a_slice_job_at_the_head_keeps_its_card_from_smaller_ones() -> None:
    case = Case(order="fifo").node("a").taken("a:0", 12_288).taken("a:0", 4_096).job(mib=12_288).job(mib=4_096).expect(None, None)
    case.expect_reason(reasons.BLOCKED_BY, job=2)


@pytest.mark.parametrize(
    "blocked",
    [
        {"hold": "held", "hold_params": {"by": "ann", "why": None}},
        {"mib": 99_999},  # never
        {"cards": 9},  # never
        {"request": {"model": "H100"}},  # its only node is cordoned
        {"mib": 20_000},  # only foreign use is in the way
    ],
)
def test_nothing_is_kept_for_a_job_that_no_end_of_a_job_helps(blocked: dict[str, object]) -> None:
    case = Case(order="fifo").node("a", foreign_mib=8_192).node("b", model="H100", refusal="cordoned").job(**blocked).job(mib=4_096)  # type: ignore[arg-type]
    case.expect(None, "a")


def test_each_pool_has_its_own_head() -> None:
    case = Case(order="fifo").node("a", model="H100").node("b", model="A100").taken("a:0", 4_096).taken("b:0", 4_096)
    case.job(request={"model": "H100"}).job(request={"model": "A100"}).job(mib=4_096).expect(None, None, None)
    assert case.refusal(3).reason.code == reasons.BLOCKED_BY


def test_one_pool_keeps_cards_for_its_first_job_only() -> None:
    case = Case(order="fifo").node("a").node("b").taken("a:0", 4_096, limit_s=2_000).taken("b:0", 4_096, limit_s=3_000)
    case.job().job(cards=2, nodes=2).job(mib=4_096).expect(None, None, "b")  # else the second job would keep b as well


def test_held_and_impossible_jobs_are_not_ahead_of_anybody() -> None:
    case = Case(order="fifo").node("a").taken("a:0").job(hold="held").job(mib=99_999).job().job()
    assert [(refusal.job, refusal.position) for refusal in case.plan().refusals] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert case.refusal(2).never
    assert not case.refusal(3).never


def run_queue(*, cards: int, head: Request, head_at: float, small_mib: int, limit_s: int | None, until: float, seed: int) -> float | None:
    """Endless small jobs of random length (at most 100 s) on a full cluster, and one large job: when it starts."""
    rng = random.Random(seed)
    case = Case(order="fifo").node("a", cards=cards)
    ends: dict[int, float] = {}
    live: dict[int, Running] = {}
    queue: list[Job] = []
    number, now = 0, 0.0
    while now < until:
        for job in [job for job, end in ends.items() if end <= now]:
            del ends[job], live[job]
        while len(queue) < 12:
            number += 1
            queue.append(Job(id=number, request=Request(gpu_mem_mib=small_mib), submitted=now, time_limit_s=limit_s))
        if now == head_at:
            queue.append(Job(id=10_000_000, request=head, submitted=now, priority=1))
        slices = tuple(part for run in live.values() for part in run.slices)
        result = plan(Snapshot(now=now, nodes=tuple(case.nodes), jobs=queue, slices=slices, running=tuple(live.values())), case.policy)
        for placement in result.placements:
            if placement.job == 10_000_000:
                return now
            grants = [grant for rank in placement.ranks for grant in rank.grants]
            parts = tuple(Slice(gpu=grant.gpu, mib=grant.mib, exclusive=grant.exclusive, job=placement.job) for grant in grants)
            live[placement.job] = Running(job=placement.job, user=1, slices=parts, started=now, time_limit_s=limit_s)
            ends[placement.job] = now + rng.randrange(10, 101)
        queue = [job for job in queue if job.id not in live]
        now += 1.0
    return None


@pytest.mark.parametrize("limit_s", [None, 100])
@pytest.mark.parametrize(("cards", "head"), [(1, Request()), (3, Request()), (3, Request(gpu_count=2)), (2, Request(gpu_mem_mib=12_000))])
def test_a_large_job_starts_within_the_longest_small_job_however_many_small_ones_come(
    cards: int, head: Request, limit_s: int | None
) -> None:
    began = run_queue(cards=cards, head=head, head_at=50.0, small_mib=4_096, limit_s=limit_s, until=400.0, seed=7)
    # All that the head waits for started before it came, and lives 100 s at most.
    assert began is not None
    assert began <= 50.0 + 100.0
