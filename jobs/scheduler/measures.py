"""What a schedule was like: waits, slowdown, utilisation, energy and fairness, from when each job came, started and ended.

Definitions are those of the scheduling literature, so that numbers can be compared: bounded slowdown with a floor of 10 s (Feitelson),
max-min deviation from fair shares over contended time, Jain's index over users. Nothing here decides or simulates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from jobs.scheduler.fairshare import max_min
from jobs.scheduler.runs import Ran

SLOWDOWN_FLOOR_S = 10.0  # a job shorter than this counts as this long: else those of a second rule the mean
LEAST_JOBS = 20  # users with fewer jobs say too little about how a policy treats them
SLA_S = (120.0, 300.0)  # a start is good within the first, unacceptable after the second
NEAR = 1e-6  # of a card


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """One schedule in numbers; None = can't be said (nobody waited for anybody, one user only, no job started …)."""

    jobs: float
    never_started: float
    wait_avg_s: float | None
    wait_p50_s: float | None
    wait_p90_s: float | None
    wait_p99_s: float | None
    wait_max_s: float | None
    within_2min: float | None  # share of the jobs, [0, 1]
    within_5min: float | None
    slowdown_avg: float | None  # bounded, ≥ 1
    makespan_s: float | None  # from the first submit to the last end
    utilisation: float | None  # of the cards, from the first submit to the last one, [0, 1]
    utilisation_makespan: float | None  # from the first submit to the last end
    card_hours_held: float | None  # from the first submit to the last end
    card_hours_on: float | None  # all cards, as long
    card_hours_on_idle_nodes: float | None  # cards of nodes on which nothing ran: those could have slept
    maxmin_dev: float | None  # half of Σ|held − fair share| ÷ cards while more is asked for than there is; 0 = fair at any moment
    jain: float | None  # Jain's index of 1 ÷ slowdown over users with 20 jobs or more; 1 = all alike
    contended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerMeasures:
    """How one user or project fared."""

    owner: int
    jobs: float
    wait_avg_s: float
    wait_p90_s: float
    slowdown_avg: float
    card_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A schedule and how each owner fared in it, by owner."""

    measures: Measures
    users: Mapping[int, OwnerMeasures]
    projects: Mapping[int, OwnerMeasures]


def percentile(values: Sequence[float], share: float) -> float:
    """The value of which ``share`` [0, 1] of the values are smaller; ``values`` sorted and not empty."""
    return values[min(len(values) - 1, int(share * len(values)))]


# Judging


def judge(runs: Sequence[Ran], cards: Mapping[int, int], *, since: float | None = None) -> Judged:
    """All measures of a schedule. ``cards``: node -> cards there. ``since``: when the period began (default: the first submit)."""
    return Judged(
        measures=_measures(runs, cards, since),
        users=owners_judge(runs, key="user"),
        projects=owners_judge(runs, key="project"),
    )


def _slowdown(run: Ran, start: float, end: float) -> float:
    return max(1.0, (end - run.submitted) / max(end - start, SLOWDOWN_FLOOR_S))


def _measures(runs: Sequence[Ran], cards: Mapping[int, int], since: float | None) -> Measures:
    judged = [run for run in runs if run.is_judged]
    done = [(run, run.start, run.end) for run in judged if run.start is not None and run.end is not None]
    waits = sorted(start - run.submitted for run, start, _end in done)
    capacity = sum(cards.values())
    first = since if since is not None else min((run.submitted for run in judged), default=0.0)
    last_submit = max((run.submitted for run in judged), default=first)
    last_end = max((end for _run, _start, end in done), default=first)
    spans = [(run, run.start, run.end) for run in runs if run.start is not None and run.end is not None]

    def held(until: float) -> float:
        """Card-seconds from ``first`` on."""
        return math.fsum(max(min(end, until) - max(start, first), 0.0) * run.cards for run, start, end in spans)

    def share(until: float) -> float | None:
        return held(until) / ((until - first) * capacity) if until > first and capacity else None

    deviation, contended = maxmin_deviation(runs, float(capacity), since=first)
    known = bool(done)
    return Measures(
        jobs=len(judged),
        never_started=len(judged) - len(done),
        wait_avg_s=math.fsum(waits) / len(waits) if known else None,
        wait_p50_s=percentile(waits, 0.5) if known else None,
        wait_p90_s=percentile(waits, 0.9) if known else None,
        wait_p99_s=percentile(waits, 0.99) if known else None,
        wait_max_s=waits[-1] if known else None,
        within_2min=_within(waits, len(judged), SLA_S[0]),
        within_5min=_within(waits, len(judged), SLA_S[1]),
        slowdown_avg=math.fsum(_slowdown(*item) for item in done) / len(done) if known else None,
        makespan_s=last_end - first if known else None,
        utilisation=share(last_submit),
        utilisation_makespan=share(last_end),
        card_hours_held=held(last_end) / 3600 if known else None,
        card_hours_on=(last_end - first) * capacity / 3600 if known else None,
        card_hours_on_idle_nodes=_idle_node_hours(spans, cards, first, last_end) if known else None,
        maxmin_dev=deviation,
        jain=jain_index(runs),
        contended_s=contended,
    )


def _within(waits: Sequence[float], jobs: int, limit_s: float) -> float | None:
    """One that never started did not start in time."""
    return sum(wait <= limit_s for wait in waits) / jobs if jobs else None


def _idle_node_hours(spans: Sequence[tuple[Ran, float, float]], cards: Mapping[int, int], first: float, last: float) -> float | None:
    """Card-hours on nodes with nothing on them; None where it isn't known what ran on which node."""
    if any(not run.nodes and run.cards for run, _start, _end in spans):
        return None
    by_node: dict[int, list[tuple[float, float]]] = {node: [] for node in cards}
    for run, start, end in spans:
        for node in run.nodes:
            if node in by_node and end > first:
                by_node[node].append((max(start, first), min(end, last)))
    idle = 0.0
    for node, intervals in by_node.items():
        busy, until = 0.0, first
        for start, end in sorted(intervals):
            busy += max(end - max(start, until), 0.0)
            until = max(until, end)
        idle += (last - first - busy) * cards[node]
    return idle / 3600


def maxmin_deviation(runs: Iterable[Ran], capacity: float, *, since: float = -math.inf) -> tuple[float | None, float]:
    """(half of Σ|held − max-min fair share| over users ÷ ``capacity``, averaged over the seconds in which users ask for more than
    there is; those seconds). Range [0, 1]; None = there were none, or there is one user only. What is before ``since`` is not counted."""
    events: list[tuple[float, int, float, float]] = []  # (at, user, change of what is wanted, of what is held)
    for run in runs:
        events.append((run.submitted, run.user, run.cards, 0.0))
        if run.start is not None and run.end is not None:
            events += [(run.start, run.user, 0.0, run.cards), (run.end, run.user, -run.cards, -run.cards)]
    events.sort()
    wanted = {user: 0.0 for _at, user, _want, _held in events}
    held = dict(wanted)
    if len(wanted) < 2 or capacity <= 0:
        return None, 0.0
    total = span = 0.0
    before = max(events[0][0], since)
    for at, user, want, hold in events:
        if at > before:
            if sum(wanted.values()) > capacity + NEAR:
                fair = max_min(wanted, capacity)
                total += (at - before) * sum(abs(held[owner] - fair[owner]) for owner in wanted) / 2 / capacity
                span += at - before
            before = at
        # Sums of thousandths don't come back to 0 exactly, and a want below 0 would lend its share to the others.
        wanted[user] = max(wanted[user] + want, 0.0)
        held[user] = max(held[user] + hold, 0.0)
    return (total / span if span else None), span


def jain_index(runs: Iterable[Ran]) -> float | None:
    """(Σx)² ÷ nΣx² of x = 1 ÷ average bounded slowdown over the users with 20 jobs or more: (0, 1]. None = fewer than two such users."""
    slowdowns: dict[int, list[float]] = {}
    for run in runs:
        if run.is_judged and run.start is not None and run.end is not None:
            slowdowns.setdefault(run.user, []).append(_slowdown(run, run.start, run.end))
    speeds = [len(values) / math.fsum(values) for _user, values in sorted(slowdowns.items()) if len(values) >= LEAST_JOBS]
    if len(speeds) < 2:
        return None
    return math.fsum(speeds) ** 2 / (len(speeds) * math.fsum(speed * speed for speed in speeds))


def owners_judge(runs: Iterable[Ran], *, key: str) -> dict[int, OwnerMeasures]:
    """How each ``user`` or ``project`` fared, by number; one without a started job is not in it."""
    by_owner: dict[int, list[tuple[Ran, float, float]]] = {}
    for run in runs:
        if run.is_judged and run.start is not None and run.end is not None:
            owner = run.user if key == "user" else run.project
            by_owner.setdefault(owner, []).append((run, run.start, run.end))
    found = {}
    for owner, items in sorted(by_owner.items()):
        waits = sorted(start - run.submitted for run, start, _end in items)
        found[owner] = OwnerMeasures(
            owner=owner,
            jobs=len(items),
            wait_avg_s=math.fsum(waits) / len(waits),
            wait_p90_s=percentile(waits, 0.9),
            slowdown_avg=math.fsum(_slowdown(*item) for item in items) / len(items),
            card_hours=math.fsum((end - start) * run.cards for run, start, end in items) / 3600,
        )
    return found


# Several replicas of one workload


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def judged_mean(replicas: Sequence[Judged]) -> Judged:
    """Each number's mean over the replicas in which it is known. Raises ValueError for none at all."""
    if not replicas:
        raise ValueError("There is no replica to take the mean of.")
    if len(replicas) == 1:
        return replicas[0]
    first = replicas[0].measures
    means: dict[str, Any] = {item.name: _mean([getattr(one.measures, item.name) for one in replicas]) for item in fields(first)}
    return Judged(
        measures=replace(first, **means),
        users=_owners_mean([one.users for one in replicas]),
        projects=_owners_mean([one.projects for one in replicas]),
    )


def _owners_mean(replicas: Sequence[Mapping[int, OwnerMeasures]]) -> dict[int, OwnerMeasures]:
    found = {}
    for owner in sorted({owner for one in replicas for owner in one}):
        there = [one[owner] for one in replicas if owner in one]
        numbers: dict[str, Any] = {
            item.name: _mean([getattr(one, item.name) for one in there]) for item in fields(there[0]) if item.name != "owner"
        }
        found[owner] = replace(there[0], **numbers)
    return found
