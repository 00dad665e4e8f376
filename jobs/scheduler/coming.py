"""What is likely to be submitted next: each coming hour is as the same hour of the day was on one of the last days, drawn by lot.

Where short jobs and owners below their share pass, a forecast that knows only what waits already is too early: it told 0.3 to 0.8 of the
true waits on busy clusters (docs/scheduling.md). Hours are drawn whole, so that bursts stay bursts, nights stay nights, and users and
sizes come together as they do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from jobs.scheduler.runs import cards_asked
from jobs.scheduler.simulate import Arrival
from jobs.scheduler.types import Came, Job, Policy, Request, Snapshot

HOUR_S = 3600.0
DAY_H = 24
SPAN_H = 72  # of the future; what waits longer is not told to the minute anyway
SEED = 1
#: Of all cards. People who find a full cluster come back later: what was asked for at its worst does not go on for days.
LOAD_MOST = 0.9


def coming(
    snapshot: Snapshot, policy: Policy, *, runtime_s: Callable[[Came], float], seed: int = SEED, span_h: int = SPAN_H
) -> list[Arrival]:
    """Arrivals of the next ``span_h`` hours, drawn from ``snapshot.recent``; their ids are below 0. The same for the same seed.

    ``runtime_s``: how long one will run. No more is drawn than keeps ``LOAD_MOST`` of the cards busy.
    """
    hours = math.ceil(snapshot.recent_s / HOUR_S)
    if not snapshot.recent or hours < 1:
        return []
    # 1. The past, cut into hours that end now: the last one is blocks[-1].
    blocks: list[list[tuple[float, Came]]] = [[] for _ in range(hours)]
    for came in sorted(snapshot.recent, key=lambda item: (item.job.submitted, item.job.id)):
        ago = snapshot.now - came.job.submitted
        hour = hours - 1 - int(ago // HOUR_S)
        if ago >= 0 and hour >= 0:
            blocks[hour].append(((hours - hour) * HOUR_S - ago, came))
    # 2. The future: the same hour of the days before, no day twice before each has come once; where less than a day is known, any hour.
    rng = random.Random(seed)
    like = [[at for at in range(hours) if (hours - at) % DAY_H == -hour % DAY_H] or [*range(hours)] for hour in range(DAY_H)]
    lots: list[list[int]] = [[] for _ in like]
    drawn: list[tuple[float, Came]] = []
    for hour in range(span_h):
        lot = lots[hour % DAY_H]
        if not lot:
            lot += rng.sample(like[hour % DAY_H], len(like[hour % DAY_H]))
        drawn += [(snapshot.now + hour * HOUR_S + since, came) for since, came in blocks[lot.pop()]]
    # 3. No more than can be done.
    load = offered_load([came for _at, came in drawn], span_h * HOUR_S, snapshot, policy)
    share = min(LOAD_MOST / load, 1.0) if load > 0 else 1.0
    kept = [(at, came) for at, came in drawn if rng.random() < share]
    return [
        Arrival(job=_again(came.job, at=at, number=-number), seconds=runtime_s(came)) for number, (at, came) in enumerate(kept, start=1)
    ]


def _again(job: Job, *, at: float, number: int) -> Job:
    return replace(job, id=number, submitted=at, hold=None, hold_params={}, avoid_nodes=frozenset())


def offered_load(jobs: Iterable[Came], span_s: float, snapshot: Snapshot, policy: Policy) -> float:
    """Card-seconds that these jobs need ÷ card-seconds that there are; more than 1 = they need longer than the time they come in."""
    known: dict[Request, float] = {}
    total = 0.0
    for came in jobs:
        request = came.job.request
        if request not in known:
            known[request] = cards_asked(request, snapshot, policy)
        total += known[request] * came.seconds
    cards = sum(gpu.is_schedulable for node in snapshot.nodes if node.takes_work for gpu in node.gpus)
    return total / max(cards * span_s, 1.0)
