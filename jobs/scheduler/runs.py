"""What became of a workload's jobs: when each came, started and ended, and what it took. From a simulation, or from records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jobs.scheduler.fairshare import Usage
from jobs.scheduler.need import Need, need_on
from jobs.scheduler.simulate import Arrival, Trace
from jobs.scheduler.types import Policy, Request, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One job's way through the queue. Times in seconds; ``cards`` is what it takes, a slice counts by its memory.

    ``start`` None = it never started, ``end`` None with it. ``is_judged`` False: it only takes room (it ran before the period began).
    ``has_finished`` False: it is none of the jobs that its owner has finished (it ran again after a fault, say).
    """

    job: int
    user: int
    project: int
    submitted: float
    start: float | None
    end: float | None
    cards: float
    nodes: tuple[int, ...] = ()
    is_judged: bool = True
    has_finished: bool = True


def cards_asked(request: Request, cluster: Snapshot, policy: Policy) -> float:
    """What a request takes, in cards, on the first card that could serve it; all its cards where none could."""
    if not request.gpu_count:
        return 0.0
    for node in cluster.nodes:
        for gpu in node.gpus:
            need = need_on(request, gpu, policy)
            if isinstance(need, Need):
                each = 1.0 if need.exclusive or not gpu.total_mib else min(need.mib / gpu.total_mib, 1.0)
                return each * request.gpu_count
    return float(request.gpu_count)


def runs_of(trace: Trace, arrivals: Iterable[Arrival], cluster: Snapshot, policy: Policy) -> list[Ran]:
    """What a simulation did with its arrivals, those that never started included, in the order of arrival."""
    totals = {gpu.id: gpu.total_mib or 0 for node in cluster.nodes for gpu in node.gpus}
    asked: dict[Request, float] = {}
    found: list[Ran] = []
    for arrival in arrivals:
        job, run = arrival.job, trace.by_job.get(arrival.job.id)
        start: float | None = None
        end: float | None = None
        nodes: tuple[int, ...] = ()
        if run is not None:
            grants = [grant for rank in run.placement.ranks for grant in rank.grants]
            cards = math.fsum(1.0 if grant.exclusive or not totals[grant.gpu] else grant.mib / totals[grant.gpu] for grant in grants)
            start, end, nodes = run.start, run.end, tuple(rank.node for rank in run.placement.ranks)
        else:
            if job.request not in asked:
                asked[job.request] = cards_asked(job.request, cluster, policy)
            cards = asked[job.request]
        found.append(
            Ran(job=job.id, user=job.user, project=job.project, submitted=job.submitted, start=start, end=end, cards=cards, nodes=nodes)
        )
    return found


def cards_by_node(cluster: Snapshot) -> dict[int, int]:
    """Node -> cards that are in service there."""
    return {node.id: sum(gpu.is_schedulable and bool(gpu.total_mib) for gpu in node.gpus) for node in cluster.nodes if node.takes_work}


def offered_load(runs: Iterable[Ran], seconds: Mapping[int, float], capacity: int) -> float | None:
    """Work that comes ÷ work that the cards can do while it comes: 1 = just as much. ``seconds``: job -> runtime."""
    judged = [run for run in runs if run.is_judged]
    first, last = min((run.submitted for run in judged), default=0.0), max((run.submitted for run in judged), default=0.0)
    if last <= first or not capacity:
        return None
    return math.fsum(run.cards * seconds[run.job] for run in judged) / ((last - first) * capacity)


def weights_at(runs: Iterable[Ran], policy: Policy, at: float) -> tuple[dict[int, float], dict[int, float]]:
    """(user -> weight, project -> weight) by past use (D4) up to then, from what ran before; a run without an end still runs."""
    events: list[tuple[float, bool, Ran]] = []  # (when, has it ended, run)
    for run in sorted(runs, key=lambda run: run.job):
        if run.start is not None and run.start <= at:
            events.append((run.start, False, run))
            if run.end is not None and run.end <= at:
                events.append((run.end, True, run))
    users, projects = Usage(policy), Usage(policy)
    for moment, has_ended, run in sorted(events, key=lambda event: event[:2]):
        for usage, owner in ((users, run.user), (projects, run.project)):
            usage.hold(owner, -run.cards if has_ended else run.cards, moment)
            if has_ended and run.has_finished:
                usage.finish(owner, moment)
    return users.weights(at), projects.weights(at)
