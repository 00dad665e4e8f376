"""Who is kept for keeps that place: cards that drain for a job are not given back to those they drained of, again and again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.scheduler import Arrival, Gpu, Job, Node, Policy, Request, Running, Slice, Snapshot, Trace, plan, simulate
from jobs.scheduler.types import Place, Plan

BIG, SMALL = 1_000, 204
CARDS = 4
ORDERS = ("fair", "capacity", "drf")


def node(cards: int = CARDS) -> Node:
    return Node(id=1, name="a", gpus=tuple(Gpu(id=i, uuid=f"GPU-{i}", index=i, model="RTX 4090", total_mib=24_564) for i in range(cards)))


def crowd(order: str, *, seed: int, big_at: float, gap_s: float, limit_s: int | None, seconds: float) -> Trace:
    """One owner's small jobs of about nine minutes, another's job of all cards."""
    rng = random.Random(seed)
    arrivals = [
        Arrival(
            job=Job(id=i + 1, request=Request(), submitted=i * gap_s, user=1, project=1, time_limit_s=1200),
            seconds=rng.uniform(400, 700),
            name="small",
        )
        for i in range(SMALL)
    ]
    big = Job(id=BIG, request=Request(gpu_count=CARDS), submitted=big_at, user=2, project=2, time_limit_s=limit_s)
    arrivals.append(Arrival(job=big, seconds=seconds, name="big"))
    return simulate(arrivals, Snapshot(now=0.0, nodes=(node(),), jobs=()), Policy(order=order))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("big_at", "gap_s"), [(0.0, 0.0), (3000.0, 0.0), (3000.0, 60.0)], ids=["at once", "later", "a stream"])
@pytest.mark.parametrize(("limit_s", "seconds"), [(8 * 3600, 4 * 3600.0), (None, 36_000.0), (1200, 600.0)])
def test_a_job_of_all_cards_starts_after_at_most_twelve_small_ones_of_another_owner(
    order: str, big_at: float, gap_s: float, limit_s: int | None, seconds: float
) -> None:
    for seed in (1, 2):
        trace = crowd(order, seed=seed, big_at=big_at, gap_s=gap_s, limit_s=limit_s, seconds=seconds)
        start = trace.by_job[BIG].start
        small = [run for run in trace.runs if run.job != BIG and run.start <= start]
        assert len([run for run in small if run.start >= big_at]) <= 12
        # Cards stand idle while they drain for it, two times at most, and at no other time.
        busy_s = sum(min(run.end, start) - run.start for run in small)
        drains_s = 2 * CARDS * 700
        assert busy_s >= 0.9 * (CARDS * start - drains_s)
        assert trace.waiting == ()


@pytest.mark.parametrize("order", ORDERS)
def test_the_small_jobs_lose_little_by_it(order: str) -> None:
    trace = crowd(order, seed=1, big_at=0.0, gap_s=0.0, limit_s=8 * 3600, seconds=4 * 3600.0)
    ideal_s = sum(run.end - run.start for run in trace.runs if run.job != BIG) / CARDS
    assert max(run.end for run in trace.runs) <= 1.1 * (ideal_s + 4 * 3600)


# --- what one pass leaves to the next -----------------------------------------------------------------------------------


def drained(places: dict[int, Place], *, usage: dict[int, float] | None = None, running: int = 1) -> Snapshot:
    """Cards 0 to 2 have drained of the first user's jobs for job 9 of the second; job 5 of the first user waits, too."""
    parts = tuple(Slice(gpu=3 - i, mib=24_564, exclusive=True, job=100 + i) for i in range(running))
    live = tuple(Running(job=100 + i, user=1, slices=(part,), started=900.0, time_limit_s=1200) for i, part in enumerate(parts))
    jobs = (
        Job(id=5, request=Request(), submitted=1.0, user=1, time_limit_s=86_400, predicted_s=80_000.0),
        Job(id=9, request=Request(gpu_count=CARDS), submitted=2.0, user=2, time_limit_s=86_400, predicted_s=80_000.0),
    )
    return Snapshot(now=1_000.0, nodes=(node(),), jobs=jobs, slices=parts, running=live, usage=usage or {}, places=places)


def started(result: Plan) -> list[int]:
    return [placed.job for placed in result.placements]


def test_a_place_that_was_lost_to_those_whose_cards_drained_is_not_lost_again() -> None:
    # The second user's weight has become so large that the first one's job is first by the order.
    heavy = {1: 1.0, 2: 1e9}
    before = {9: Place(gpus=(0, 1, 2, 3), users=(1,))}
    lost = plan(drained(before, usage=heavy), Policy())
    assert started(lost) == [5]
    assert lost.places[9].since == 1_000.0
    held = plan(drained({9: lost.places[9]}, usage=heavy), Policy())
    assert started(held) == []
    assert [(kept.job, kept.gpus) for kept in held.kept] == [(9, (0, 1, 2, 3))]


def test_others_than_those_whose_cards_drained_come_when_the_order_says_so() -> None:
    snapshot = drained({9: Place(gpus=(0, 1, 2, 3), users=(3,), since=500.0)}, usage={1: 1.0, 2: 1e9})
    assert started(plan(snapshot, Policy())) == [5]


def test_a_place_ends_with_its_job_or_its_hold() -> None:
    snapshot = drained({9: Place(gpus=(0, 1, 2, 3), users=(1,), since=500.0)}, running=0)
    assert started(plan(snapshot, Policy()))[0] == 9
    assert 9 not in plan(snapshot, Policy()).places
    held = replace(snapshot, jobs=tuple(replace(job, hold="held") if job.id == 9 else job for job in snapshot.jobs))
    result = plan(held, Policy())
    assert (started(result), dict(result.places)) == ([5], {})


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Snapshot, Policy]:
    cards = draw(st.integers(2, 6))
    users = st.integers(1, 3)
    limits = st.sampled_from((None, 600, 3600, 86_400))
    taken = draw(st.lists(st.tuples(users, limits), max_size=cards))
    slices = tuple(Slice(gpu=i, mib=24_564, exclusive=True, job=500 + i) for i in range(len(taken)))
    running = tuple(
        Running(job=500 + i, user=user, project=user, slices=(slices[i],), started=990.0 - i, time_limit_s=limit)
        for i, (user, limit) in enumerate(taken)
    )
    jobs = [
        Job(
            id=i + 1,
            request=Request(gpu_count=draw(st.integers(1, cards))),
            submitted=float(i),
            user=(user := draw(users)),
            project=user,
            time_limit_s=draw(limits),
            predicted_s=draw(st.sampled_from((None, 60.0, 5_000.0))),
        )
        for i in range(draw(st.integers(1, 8)))
    ]
    weights = {user: draw(st.floats(1.0, 50.0)) for user in (1, 2, 3)}
    policy = Policy(order=draw(st.sampled_from(("fair", "fifo", "priority", "drf", "capacity"))))
    return Snapshot(now=1_000.0, nodes=(node(cards),), jobs=tuple(jobs), slices=slices, running=running, usage=weights), policy


def after(snapshot: Snapshot, result: Plan, *, usage: dict[int, float], seconds: float) -> Snapshot:
    """The snapshot of the next pass where nothing has happened but what this one decided, and weights that moved."""
    jobs = {job.id: job for job in snapshot.jobs}
    slices, running = list(snapshot.slices), list(snapshot.running)
    for placed in result.placements:
        job = jobs.pop(placed.job)
        parts = tuple(Slice(gpu=g.gpu, mib=g.mib, exclusive=g.exclusive, job=job.id) for rank in placed.ranks for g in rank.grants)
        slices += parts
        running.append(
            Running(
                job=job.id,
                user=job.user,
                project=job.project,
                queue=job.queue,
                slices=parts,
                started=snapshot.now,
                time_limit_s=job.time_limit_s,
                predicted_s=job.predicted_s,
                request=job.request,
            )
        )
    moved = {"now": snapshot.now + seconds, "usage": usage, "places": result.places}
    return replace(snapshot, jobs=tuple(jobs.values()), slices=tuple(slices), running=tuple(running), **moved)


@settings(max_examples=300, deadline=None)
@given(case=crowded(), weights=st.lists(st.floats(1.0, 50.0), min_size=3, max_size=3), seconds=st.sampled_from((0.0, 3.0, 30.0)))
def test_no_decision_of_one_pass_is_undone_by_the_next_without_an_event(
    case: tuple[Snapshot, Policy], weights: list[float], seconds: float
) -> None:
    snapshot, policy = case
    first = plan(snapshot, policy)
    second = plan(after(snapshot, first, usage=dict(zip((1, 2, 3), weights, strict=True)), seconds=seconds), policy)
    ends = {job.id: job for job in snapshot.jobs}
    for job, place in first.places.items():
        if not place.gpus:
            continue
        kept = next((kept for kept in second.kept if kept.job == job), None)
        assert kept is not None or job in started(second)
        assert kept is None or set(kept.gpus) == set(place.gpus) or kept.at <= next(k.at for k in first.kept if k.job == job)
        for placed in second.placements:
            on_kept = {grant.gpu for rank in placed.ranks for grant in rank.grants} & set(place.gpus)
            if placed.job != job and on_kept and kept is not None:
                # A backfill: it ends before the cards are needed.
                limit = ends[placed.job].time_limit_s
                assert kept.at >= snapshot.now + min(limit or policy.limit_max_s, 600.0 if ends[placed.job].predicted_s else 1e12)
