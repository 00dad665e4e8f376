"""When a waiting job will probably start, and what would start sooner. Found by simulating on: the same ``plan()``, nothing else.

Two runs of the simulation. *p50*: every job runs as long as predicted (one that has outlived its prediction, as long again as it
has lived). *p90*: every job runs as long as nine in ten do, by the spread of runtimes around a prediction, but never above its limit.
Jobs that nobody has submitted yet are drawn from those of the last days (coming.py): under an order that lets short jobs pass, they push a
long job back. Without ``Snapshot.recent`` nothing more is expected to come.

A simulation that a ``Budget`` ends early tells what it has seen, and of the rest that it starts later than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from jobs.scheduler.coming import coming
from jobs.scheduler.need import need_on, nominal_mib, request_error
from jobs.scheduler.never import never_reason
from jobs.scheduler.predict import History, likely_s
from jobs.scheduler.reasons import CARDS_EXCEEDED
from jobs.scheduler.simulate import Arrival, Trace, simulate
from jobs.scheduler.types import Job, Placement, Policy, Reason, Request, Running, Snapshot

#: Nine of ten jobs run at most so many times their prediction: e^(1.28 × 0.8), 0.8 being the usual spread of the logarithm.
P90_FACTOR = math.exp(1.2816 * 0.8)
MOST_PASSES = 10_000
MOST_ALTERNATIVES = 5
SOONER_S = 60.0  # an alternative that gains less is no news


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What the same job could ask for instead, submitted now, and when it would start then."""

    request: Request
    p50: float
    p90: float | None
    placement: Placement | None = None  # where, in the p50 simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long an estimate may take: ``seconds`` by ``clock``, half of it for p50. With ``aside``, which starts a simulation beside
    the caller's own work, both have all of it."""

    clock: Callable[[], float]
    seconds: float
    aside: Callable[[Callable[[], Trace]], Aside] | None = None


class Aside(Protocol):
    """A simulation that runs elsewhere."""

    def result(self) -> Trace:
        """Wait for it."""

    def drop(self) -> None:
        """It is not wanted any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Start times, seconds since the epoch; None = not within what was simulated (held, never, or very far away).

    ``after``: the simulation was cut off; what is None here is no sooner than this. None = it ran to its end.
    """

    job: int
    p50: float | None
    p90: float | None
    after: float | None = None
    placement: Placement | None = None  # where, in the p50 simulation


def forecast(snapshot: Snapshot, policy: Policy, *, most_passes: int = MOST_PASSES, budget: Budget | None = None) -> dict[int, Estimate]:
    """The estimate of every waiting job, from two simulations."""
    early, late = _both(snapshot, policy, None, most_passes, budget)
    return {job.id: _estimate(job, early, late) for job in snapshot.jobs}


def estimate_start(
    snapshot: Snapshot,
    job: int,
    policy: Policy,
    *,
    most_passes: int = MOST_PASSES,
    budget: Budget | None = None,
    horizon: float = math.inf,
) -> Estimate:
    """When this waiting job will start; to ask before submitting, put it into the snapshot. Raises KeyError if it isn't there.

    ``horizon``: whether it starts after this time is of no interest.
    """
    found = next((item for item in snapshot.jobs if item.id == job), None)
    if found is None:
        raise KeyError(job)
    return _estimate(found, *_both(snapshot, policy, job, most_passes, budget, horizon))


def _both(
    snapshot: Snapshot, policy: Policy, job: int | None, most_passes: int, budget: Budget | None, horizon: float = math.inf
) -> tuple[Trace, Trace]:
    until = math.inf if budget is None else budget.clock() + budget.seconds
    aside = None if budget is None else budget.aside

    def run(factor: float, until: float, horizon: float) -> Trace:
        def is_enough(now: float, _come: int) -> bool:
            return now > horizon or (budget is not None and budget.clock() >= until)

        return _run(snapshot, policy, factor, job, most_passes, is_enough)

    def late() -> Trace:
        return run(P90_FACTOR, until, math.inf)

    beside = None if aside is None else aside(late)
    early = run(1.0, until if budget is None or beside is not None else until - budget.seconds / 2, horizon)
    if job is not None and job not in early.by_job:
        if beside is not None:
            beside.drop()
        return early, early  # what does not start with the shorter runtimes is not asked of the longer ones
    return early, late() if beside is None else beside.result()


def _estimate(job: Job, early: Trace, late: Trace) -> Estimate:
    first, second = early.by_job.get(job.id), late.by_job.get(job.id)
    cut = early if first is None else late
    is_open = cut.is_cut and (first is None or second is None) and job.id in cut.waiting
    return Estimate(
        job=job.id,
        p50=None if first is None else first.start,
        # More time for others can let this job slip in earlier: the later of the two is the careful one.
        p90=None if second is None or first is None else max(first.start, second.start),
        after=cut.finished_at if is_open else None,
        placement=None if first is None else first.placement,
    )


def _run(
    snapshot: Snapshot,
    policy: Policy,
    factor: float,
    stop_after: int | None,
    most_passes: int,
    watch: Callable[[float, int], bool] | None = None,
) -> Trace:
    waiting = [job for job in snapshot.jobs if job.hold is None]
    arrivals = [Arrival(job=_known(job), seconds=_runtime(job, factor)) for job in waiting]
    ends = {run.job: snapshot.now + remaining_likely_s(run, snapshot.now, policy, factor) for run in snapshot.running}
    wanted: int | set[int] | None = stop_after
    if snapshot.recent:
        arrivals += [
            replace(item, job=_known(item.job))
            for item in coming(snapshot, policy, runtime_s=lambda came: _limited(came.seconds * factor, came.job))
        ]
        if wanted is None:
            # What comes later is simulated for what waits now, no longer than that takes.
            never: dict[Request, bool] = {}
            for job in waiting:
                if job.request not in never:
                    never[job.request] = never_reason(job.request, snapshot.nodes, policy) is not None
            wanted = {job.id for job in waiting if not never[job.request]}
    return simulate(arrivals, snapshot, policy, history=History(), ends=ends, stop_after=wanted, most_passes=most_passes, watch=watch)


def _known(job: Job) -> Job:
    """The simulation must order the job as the pass would: by what is known of it now."""
    return job if job.predicted_s is not None else replace(job, predicted_s=likely_s(job))


def _runtime(job: Job, factor: float) -> float:
    return _limited(likely_s(job) * factor, job)


def _limited(seconds: float, job: Job) -> float:
    return max(seconds if job.time_limit_s is None else min(seconds, job.time_limit_s), 1.0)


def remaining_likely_s(run: Running, now: float, policy: Policy, factor: float) -> float:
    """Seconds that a running job goes on for, if it runs ``factor`` times as long as predicted; never past its limit."""
    elapsed = max(now - run.started, 0.0)
    most = policy.limit_max_s if run.time_limit_s is None else float(run.time_limit_s)
    likely = run.predicted_s if run.predicted_s is not None else most
    left = likely * factor - elapsed
    if left <= 0:
        left = elapsed * factor
    return max(min(left, most - elapsed), 1.0)


# Alternatives


def alternatives(
    snapshot: Snapshot,
    job: int,
    policy: Policy,
    *,
    most: int = MOST_ALTERNATIVES,
    most_passes: int = MOST_PASSES,
    budget: Budget | None = None,
    first: Estimate | None = None,
    predicted: Mapping[Request, float] | None = None,
) -> Iterator[Alternative]:
    """What would start sooner, each simulated as if submitted now instead of the job; the nearest to what was asked come first.

    Lazy, so that each can be shown as soon as it is found. ``budget`` is for each of them; ``first`` is the job's own estimate,
    if it is known; ``predicted``, how long it would run if it asked for something else. Raises KeyError for a job that is not in the
    snapshot.
    """
    asked = next((item for item in snapshot.jobs if item.id == job), None)
    if asked is None:
        raise KeyError(job)
    if first is None:
        first = estimate_start(snapshot, job, policy, most_passes=most_passes, budget=budget)
    start = first.p50 if first.p50 is not None else first.after
    horizon = math.inf if start is None else start - SOONER_S
    if horizon < snapshot.now:
        return
    found = 0
    for request in candidates(asked.request, snapshot, policy):
        changed = replace(
            asked,
            request=request,
            submitted=snapshot.now,
            avoid_nodes=frozenset(),
            predicted_s=(predicted or {}).get(request, asked.predicted_s),
            **_hold(asked, request),
        )
        other = replace(snapshot, jobs=[changed if item.id == job else item for item in snapshot.jobs])
        there = estimate_start(other, job, policy, most_passes=most_passes, budget=budget, horizon=horizon)
        if there.p50 is not None and there.p50 <= horizon:
            yield Alternative(request=request, p50=there.p50, p90=there.p90, placement=there.placement)
            found += 1
            if found >= most:
                return


def _hold(job: Job, request: Request) -> dict[str, Any]:
    """Fewer cards may be as many as the owner may still hold."""
    if job.hold != CARDS_EXCEEDED or request.gpu_count > (job.hold_params.get("room") or 0):
        return {}
    return {"hold": None, "hold_params": {}}


def candidates(request: Request, snapshot: Snapshot, policy: Policy) -> list[Request]:
    """Less demanding requests that this cluster could hold, the nearest first: more nodes, less memory, fewer cards, other models."""
    gpus = [gpu for node in snapshot.nodes for gpu in node.gpus if gpu.total_mib]
    suitable = [gpu for gpu in gpus if not isinstance(need_on(request, gpu, policy), Reason)]
    found: list[Request] = []
    # 1. The same cards, spread over as few more nodes as will do.
    spread = range(request.nodes + 1, min(request.gpu_count, len(snapshot.nodes)) + 1)
    found += [replace(request, nodes=nodes) for nodes in spread if request.gpu_count % nodes == 0][:2]
    # 2. Less memory: the largest slice of each kind of card, then its half.
    if request.gpu_count:
        nominals = sorted({gpu.nominal_mib or nominal_mib(gpu.total_mib or 0) for gpu in suitable}, reverse=True)
        sizes = {int(size * policy.whole_above * part) for size in nominals for part in (1, 0.5)}
        asked = request.gpu_mem_mib
        found += [
            replace(request, gpu_mem_mib=size, is_exclusive=False)
            for size in sorted(sizes, reverse=True)
            if size >= policy.min_slice_mib and (asked is None or size < asked)
        ]
    # 3. Fewer cards, as few times fewer as will do.
    for cards in _fewer(request.gpu_count):
        nodes = min(request.nodes, cards)
        found.append(replace(request, gpu_count=cards, nodes=nodes if cards % nodes == 0 else 1))
    # 4. Other models.
    if request.model is not None or request.arch is not None:
        found += [replace(request, model=model, arch=None) for model in sorted({gpu.model for gpu in gpus if gpu not in suitable})]
    return [item for item in dict.fromkeys(found) if request_error(item) is None and never_reason(item, snapshot.nodes, policy) is None]


def _fewer(cards: int) -> Iterable[int]:
    while cards > 1:
        cards //= 2
        yield cards
