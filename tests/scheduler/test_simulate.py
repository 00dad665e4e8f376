"""Backfill keeps its promise, nothing is passed over for ever, simulations repeat, forecasts and alternatives come true."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.scheduler import (
    Arrival,
    Drain,
    Grant,
    Job,
    Policy,
    Request,
    Running,
    Slice,
    Snapshot,
    alternatives,
    estimate_start,
    forecast,
    grant_for,
    plan,
    simulate,
)
from jobs.scheduler.predict import longest_s, remaining_s
from tests.scheduler.cases import Case, plan_check
from tests.scheduler.days import cluster
from tests.scheduler.test_properties import snapshots

HOUR, DAY = 3_600.0, 86_400.0
ORDERS = ("fair", "fifo", "priority", "drf", "capacity")


def workload(seed: int, *, jobs: int, span_s: float, limits: bool) -> list[Arrival]:
    """Jobs of very different lengths by users of very different appetites."""
    rng = random.Random(seed)
    found = []
    for number in range(1, jobs + 1):
        seconds = max(1.0, rng.lognormvariate(6.5, 1.6))
        request = rng.choice((Request(), Request(), Request(gpu_mem_mib=6_000), Request(gpu_count=2), Request(gpu_count=4)))
        job = Job(
            id=number,
            request=request,
            submitted=rng.uniform(0, span_s),
            user=rng.choice((1, 1, 1, 2, 3)),
            time_limit_s=int(seconds * rng.uniform(1, 5)) + 1 if limits else None,
        )
        found.append(Arrival(job=job, seconds=seconds, name=rng.choice(("train", "eval"))))
    return found


# Backfill


def ends_of(snapshot: Snapshot, policy: Policy, result_jobs: dict[int, Job], *, strict: bool) -> dict[int, float]:
    """When each live job counts as ended, worked out anew."""
    ends: dict[int, float] = {}
    for run in snapshot.running:
        elapsed = max(snapshot.now - run.started, 0.0)
        if run.time_limit_s is not None and elapsed >= run.time_limit_s + 300:
            ends[run.job] = float("inf")
            continue
        left = remaining_s(elapsed_s=elapsed, limit_s=run.time_limit_s, predicted_s=run.predicted_s, policy=policy, strict=strict)
        ends[run.job] = snapshot.now + max(left, 1.0)
    for job in result_jobs.values():
        ends[job.id] = snapshot.now + longest_s(job.time_limit_s, job.predicted_s, policy, strict=strict)
    return ends


def crowded(rng: random.Random) -> Snapshot:
    """Some cards free, some in use, wide jobs that must wait, and small ones that would like to pass them."""
    bare = cluster(*[rng.randint(2, 4) for _ in range(rng.randint(1, 3))])
    slices: list[Slice] = []
    running: list[Running] = []
    limits = (None, 60, 600, 5_000, 50_000)
    known = (None, 5.0, 900.0)
    for node in bare.nodes:
        for gpu in node.gpus:
            if rng.random() < 0.6:
                whole = rng.random() < 0.5
                part = Slice(gpu=gpu.id, mib=24_576 if whole else 8_192, exclusive=whole, job=10_000 + gpu.id)
                slices.append(part)
                running.append(
                    Running(
                        job=10_000 + gpu.id,
                        user=rng.randrange(3),
                        slices=(part,),
                        started=1_000.0 - rng.uniform(0, 900),
                        time_limit_s=rng.choice(limits),
                        predicted_s=rng.choice(known),
                    )
                )
    requests = (Request(gpu_count=2), Request(gpu_count=3), Request(gpu_count=4, nodes=2), Request(), Request(), Request(gpu_mem_mib=4_096))
    jobs = [
        Job(
            id=number,
            request=rng.choice(requests),
            submitted=rng.uniform(0, 1_000),
            user=rng.randrange(3),
            time_limit_s=rng.choice(limits),
            predicted_s=rng.choice(known),
        )
        for number in range(1, rng.randint(2, 12))
    ]
    return replace(bare, now=1_000.0, jobs=jobs, slices=tuple(slices), running=tuple(running))


def check_kept(snapshot: Snapshot, policy: Policy) -> None:
    """At the time for which cards are kept, what counts as live by then leaves room on them for the job they are kept for."""
    result = plan(snapshot, policy)
    plan_check(snapshot, policy, result)
    assert result == plan(snapshot, policy)
    bare = plan(snapshot, policy, explain=False)
    assert (bare.placements, bare.refusals) == (result.placements, ())
    assert bare.kept == result.kept[: len(bare.kept)]
    jobs = {job.id: job for job in snapshot.jobs}
    placed = {placement.job: jobs[placement.job] for placement in result.placements}
    ends = ends_of(snapshot, policy, placed, strict=False)
    gpus = {gpu.id: gpu for node in snapshot.nodes for gpu in node.gpus}
    live = [*snapshot.slices]
    for placement in result.placements:
        live += [
            Slice(gpu=grant.gpu, mib=grant.mib, exclusive=grant.exclusive, job=placement.job)
            for rank in placement.ranks
            for grant in rank.grants
        ]
    for kept in result.kept:
        if not -float("inf") < kept.at < float("inf"):
            continue
        # A slice whose job is not live is being given back; a quarantined one stays.
        there = [part for part in live if part.job is None or part.is_quarantined or ends.get(part.job, -1.0) > kept.at]
        for gpu in kept.gpus:
            assert isinstance(grant_for(jobs[kept.job].request, gpus[gpu], there, policy), Grant), (kept, gpu)


@given(seed=st.integers(0, 10**9), order=st.sampled_from(ORDERS))
@settings(max_examples=400, deadline=None)
def test_no_backfill_delays_what_the_same_pass_keeps(seed: int, order: str) -> None:
    check_kept(crowded(random.Random(seed)), Policy(order=order))


@given(snapshot=snapshots(), order=st.sampled_from(ORDERS))
@settings(max_examples=100, deadline=None)
def test_what_is_kept_is_good_for_the_job_on_any_cluster(snapshot: Snapshot, order: str) -> None:
    check_kept(snapshot, Policy(order=order))


def test_who_ends_before_the_cards_are_needed_may_use_them() -> None:
    case = Case().node("a", cards=2).taken("a:0", limit_s=2_000)  # now = 1000: free at 2000
    case.job(cards=2, user=2, time_limit_s=900).job(time_limit_s=1_001, user=3).job(time_limit_s=999, user=4)
    assert case.places() == [None, None, "a:1"]
    assert [(kept.job, kept.at) for kept in case.plan().kept] == [(1, 2_000.0)]


def test_a_job_without_a_limit_counts_as_the_maximum() -> None:
    case = Case(order="fifo", limit_max_s=500.0).node("a", cards=2).taken("a:0", limit_s=2_000).job(cards=2).job()
    assert case.places() == [None, "a:1"]
    case = Case(order="fifo", limit_max_s=5_000.0).node("a", cards=2).taken("a:0", limit_s=2_000).job(cards=2).job()
    assert case.places() == [None, None]


def test_a_prediction_lets_a_job_without_a_limit_pass() -> None:
    case = Case(order="fifo").node("a", cards=2).taken("a:0", limit_s=5_000).job(cards=2).job(predicted_s=60.0)
    assert case.places() == [None, "a:1"]  # 3 × 60 s is long before 5000


# The bound


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("limits", [True, False])
def test_however_many_short_jobs_come_a_long_one_starts(order: str, limits: bool) -> None:
    policy = Policy(order=order, patience_s=500.0, limit_max_s=400.0)
    rng = random.Random(5)
    arrivals = [
        Arrival(job=Job(id=n, request=Request(), submitted=n * 12.0, user=n % 3, time_limit_s=100 if limits else None, priority=5),
                seconds=rng.uniform(10, 100))
        for n in range(1, 280)
    ]  # fmt: skip
    big = Job(id=9_999, request=Request(gpu_count=4), submitted=50.0, user=9, time_limit_s=400 if limits else None, predicted_s=380.0)
    began = simulate([*arrivals, Arrival(job=big, seconds=380.0)], cluster(4), policy).by_job[9_999].start
    # Passed over for at most three times its patience (500 + at most 400); then all that is in its way ends within the maximum.
    assert began <= 50.0 + 3 * (500.0 + 400.0) + 400.0


# The simulator


def test_host_cores_and_memory_of_running_jobs_are_not_given_out_again() -> None:
    (node,) = cluster(4).nodes
    pool = Snapshot(now=0.0, nodes=(replace(node, cpu_cores=32, memory_mib=64_000),), jobs=())
    asks = [Request(cpu_milli=20_000), Request(cpu_milli=20_000), Request(gpu_count=0, host_mem_mib=40_000), Request(host_mem_mib=40_000)]
    arrivals = [
        Arrival(job=Job(id=number, request=request, submitted=float(number)), seconds=100.0) for number, request in enumerate(asks, 1)
    ]
    trace = simulate(arrivals, pool, Policy(order="fifo"))
    # 2 × 20 cores > 32; 2 × 40000 MiB > 64000: of each pair the second waits for the first to end.
    assert {run.job: run.start for run in trace.runs} == {1: 1.0, 2: 101.0, 3: 3.0, 4: 103.0}


def test_what_a_job_without_a_card_holds_at_the_beginning_returns_at_its_end() -> None:
    (node,) = cluster(1).nodes
    asked = Request(gpu_count=0, cpu_milli=20_000)
    run = Running(job=9, user=1, slices=(), started=-50.0, request=asked, nodes=(node.id,))
    pool = Snapshot(now=0.0, nodes=(replace(node, cpu_cores=32, cpu_milli_held=20_000, live_cpu_ranks=1),), jobs=(), running=(run,))
    trace = simulate([Arrival(job=Job(id=1, request=asked), seconds=10.0)], pool, Policy(), ends={9: 70.0})
    assert [item.start for item in trace.runs] == [70.0]


def test_jobs_without_a_card_are_no_more_than_the_cores_at_any_time() -> None:
    (node,) = cluster(1).nodes
    pool = Snapshot(now=0.0, nodes=(replace(node, cpu_cores=4),), jobs=())
    arrivals = [Arrival(job=Job(id=number, request=Request(gpu_count=0), submitted=float(number)), seconds=100.0) for number in range(1, 7)]
    trace = simulate(arrivals, pool, Policy(order="fifo"))
    assert [run.start for run in sorted(trace.runs, key=lambda run: run.job)] == [1.0, 2.0, 3.0, 4.0, 101.0, 102.0]


def test_jobs_without_a_card_weigh_nothing_against_those_who_wait_for_cards() -> None:
    small = [Arrival(job=Job(id=number, request=Request(gpu_count=0), submitted=0.0, user=1), seconds=1.0) for number in range(1, 20)]
    both = [
        Arrival(job=Job(id=100 + user, request=Request(gpu_count=4), submitted=at, user=user), seconds=100.0)
        for user, at in ((1, 50.0), (2, 51.0), (3, 40.0))
    ]
    # User 3 has the cards until 140 s. Then user 1, whose 19 jobs held none, comes before user 2, who came later.
    trace = simulate([*small, *both], cluster(4), Policy())
    assert [trace.by_job[100 + user].start for user in (3, 1, 2)] == [40.0, 140.0, 240.0]


def test_the_same_workload_gives_the_same_trace() -> None:
    arrivals = workload(3, jobs=150, span_s=DAY, limits=False)
    first = simulate(arrivals, cluster(4, 2), Policy())
    assert first == simulate(list(reversed(arrivals)), cluster(4, 2), Policy())
    assert not first.waiting
    assert len(first.runs) == 150
    assert all(run.start >= run.submitted for run in first.runs)


@pytest.mark.parametrize("order", ORDERS)
def test_a_simulated_day_never_oversubscribes_a_card(order: str) -> None:
    trace = simulate(workload(4, jobs=200, span_s=DAY / 2, limits=True), cluster(4, 2), Policy(order=order))
    events: list[tuple[float, int, int, int]] = []
    for run in trace.runs:
        for rank in run.placement.ranks:
            for grant in rank.grants:
                events += [(run.start, 1, grant.gpu, grant.mib), (run.end, 0, grant.gpu, -grant.mib)]
    held: dict[int, int] = {}
    for _at, _kind, gpu, mib in sorted(events):
        held[gpu] = held.get(gpu, 0) + mib
        assert 0 <= held[gpu] <= 24_576
    assert set(held.values()) == {0}


def test_true_runtimes_reach_the_policy_in_no_way() -> None:
    """Of two jobs alike in all that is known, the longer does not come later."""
    jobs = [Job(id=n, request=Request(), submitted=0.0, user=1, time_limit_s=90_000) for n in (1, 2, 3)]
    seconds = {1: 50_000.0, 2: 10.0, 3: 100.0}
    trace = simulate([Arrival(job=job, seconds=seconds[job.id]) for job in jobs], cluster(1), Policy())
    assert [run.job for run in trace.runs] == [1, 2, 3]


# Forecasts


def test_with_known_runtimes_the_forecast_of_a_queue_comes_true() -> None:
    known = [
        Arrival(job=replace(item.job, submitted=0.0, predicted_s=item.seconds, time_limit_s=None), seconds=item.seconds)
        for item in workload(6, jobs=80, span_s=1.0, limits=False)
    ]
    start = replace(cluster(4, 2), jobs=[item.job for item in known])
    told = forecast(start, Policy())
    came = simulate(known, start, Policy()).by_job
    for item in known:
        assert told[item.job.id].p50 == pytest.approx(came[item.job.id].start)
        assert (told[item.job.id].p90 or 0) >= (told[item.job.id].p50 or 0)


def test_with_known_runtimes_the_forecasts_of_a_day_are_unbiased() -> None:
    policy = Policy(order="fifo")
    known = [
        Arrival(job=replace(item.job, predicted_s=item.seconds, time_limit_s=None), seconds=item.seconds)
        for item in workload(8, jobs=160, span_s=DAY / 2, limits=False)
    ]
    trace = simulate(known, cluster(4), policy)
    told = came = 0.0
    for item in known[::6]:
        at = item.job.submitted
        facts = {other.job.id: other for other in known}
        runs = [run for run in trace.runs if run.start < at < run.end]
        slices = {
            run.job: tuple(Slice(gpu=g.gpu, mib=g.mib, exclusive=g.exclusive, job=run.job) for r in run.placement.ranks for g in r.grants)
            for run in runs
        }
        snapshot = replace(
            cluster(4),
            now=at,
            jobs=[facts[run.job].job for run in trace.runs if run.submitted <= at <= run.start],
            slices=tuple(part for parts in slices.values() for part in parts),
            running=tuple(
                Running(job=run.job, user=1, slices=slices[run.job], started=run.start, predicted_s=facts[run.job].seconds) for run in runs
            ),
        )
        estimate = estimate_start(snapshot, item.job.id, policy)
        assert estimate.p50 is not None
        told += estimate.p50 - at
        came += trace.by_job[item.job.id].start - at
    assert came > 0
    assert abs(told - came) <= 0.1 * came


def test_an_estimate_is_none_for_a_job_that_is_held_or_can_never_run() -> None:
    case = Case().node("a").job(hold="held", hold_params={"by": None, "why": None}).job(mib=99_999)
    for job in (1, 2):
        assert estimate_start(case.snapshot(), job, case.policy).p50 is None
    with pytest.raises(KeyError):
        estimate_start(case.snapshot(), 3, case.policy)


def test_alternatives_start_sooner_and_come_true() -> None:
    case = (
        Case().node("a", cards=4, mib=24_564).taken("a:0", limit_s=9_000).taken("a:1", limit_s=50_000).taken("a:2", 8_192, limit_s=99_000)
    )
    case.taken("a:3", limit_s=99_000).job(cards=2)
    snapshot = case.snapshot()
    asked = estimate_start(snapshot, 1, case.policy).p50
    assert asked is not None
    found = list(alternatives(snapshot, 1, case.policy))
    assert found
    for item in found:
        changed = replace(snapshot.jobs[0], request=item.request, submitted=snapshot.now)
        again = replace(snapshot, jobs=[changed])
        assert item.p50 < asked
        assert estimate_start(again, 1, case.policy).p50 == item.p50
        began = [placement.job for placement in plan(again, case.policy).placements]
        assert (item.p50 == snapshot.now) == (began == [1])
    # One card of 12 G or less fits beside the slice on a:2 at once.
    assert any(item.request.gpu_count == 1 and item.p50 == 9_000.0 for item in found)


def test_another_model_is_an_alternative() -> None:
    case = Case().node("a", model="H100").node("b", model="A100").taken("a:0", limit_s=50_000).job(request={"model": "H100"})
    found = list(alternatives(case.snapshot(), 1, case.policy))
    assert [(item.request.model, item.p50) for item in found] == [("A100", 1_000.0)]


# --- drained nodes ----------------------------------------------------------------------------------------------------


def test_a_drained_node_takes_no_work_until_it_is_back_and_what_runs_there_runs_on() -> None:
    jobs = [Arrival(job=Job(id=number, request=Request(), submitted=10.0 * number), seconds=100.0) for number in range(1, 5)]
    drain = Drain(node=1, begin=15.0, end=500.0)
    trace = simulate(jobs, cluster(1), Policy(), drains=iter([drain]))
    assert [(run.job, run.start) for run in trace.runs[:2]] == [(1, 10.0), (2, 500.0)]
    assert trace.runs[0].end == 110.0
    assert trace.waiting == ()


def test_a_node_that_is_drained_for_good_leaves_its_jobs_waiting() -> None:
    jobs = [Arrival(job=Job(id=1, request=Request(gpu_count=2), submitted=5.0), seconds=10.0)]
    trace = simulate(jobs, cluster(2, 1), Policy(), drains=[Drain(node=1, begin=0.0)])
    assert trace.waiting == (1,)
    assert not trace.is_cut


def test_jobs_without_a_card_are_no_past_use() -> None:
    many = [Arrival(job=Job(id=number, request=Request(gpu_count=0), user=1, submitted=1.0), seconds=1.0) for number in range(2, 60)]
    filler = Arrival(job=Job(id=1, request=Request(), user=3, submitted=0.0), seconds=100.0)
    two = [Arrival(job=Job(id=60 + user, request=Request(), user=user, submitted=50.0 + user), seconds=10.0) for user in (1, 2)]
    trace = simulate([filler, *many, *two], cluster(1), Policy())
    assert [run.job for run in trace.runs if run.job > 60] == [61, 62], "of two owners who used no card the first to come is first"
