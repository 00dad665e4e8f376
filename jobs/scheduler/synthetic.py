"""A made workload: jobs as research clusters see them, for benches and for trying a policy out where there is no history yet.

What it has in common with published traces (Philly, Helios, Alibaba): runtimes over five orders of magnitude with a heavy tail, a few
users who submit most, jobs in batches of one kind, days and nights, mostly one card, and limits typed from habit. The same seed
gives the same jobs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs.scheduler.simulate import Arrival
from jobs.scheduler.types import Job, Request

LIMITS_S = (900, 3_600, 14_400, 43_200, 86_400, 3 * 86_400, 7 * 86_400)
PARTS = (0.22, 0.32, 0.47, 0.5, 0.65)  # of a card
DAY_S = 86_400.0
BATCH = 4.0  # jobs of one kind that come together, on average
BATCH_GAP_S = 60.0
SHORTEST_S, LONGEST_S = 10.0, 7 * DAY_S


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a user runs again and again: ``middle`` is the logarithm of its usual runtime."""

    name: str
    request: Request
    middle: float
    limit_factor: float


def workload_make(
    *, jobs: int, cards: int, per_node: int, seed: int, load: float = 1.0, users: int = 12, parts: float = 0.2, card_mib: int = 1_000
) -> list[Arrival]:
    """``jobs`` arrivals that ask for ``load`` times what ``cards`` can do while they come, in the order of their submits.

    ``per_node``: the widest job. ``parts``: share of the one-card jobs that want a part of ``card_mib``. Users are numbered from 1,
    the busiest first; projects from 1, each user is in one.
    """
    rng = random.Random(seed)
    kinds = [_kinds(rng, user, per_node, parts, card_mib) for user in range(1, users + 1)]
    appetite = [1.0 / (rank**1.2) for rank in range(1, users + 1)]
    drawn: list[tuple[int, _Kind, float]] = []
    batches: list[int] = []  # where each begins
    while len(drawn) < jobs:
        user = rng.choices(range(users), weights=appetite)[0]
        kind = rng.choice(kinds[user])
        batches.append(len(drawn))
        for _ in range(min(1 + int(rng.expovariate(1 / (BATCH - 1))), jobs - len(drawn))):
            seconds = math.exp(rng.gauss(kind.middle, 0.8))
            drawn.append((user + 1, kind, round(min(max(seconds, SHORTEST_S), LONGEST_S), 1)))
    work = math.fsum(seconds * _cards(kind.request, card_mib) for _user, kind, seconds in drawn)
    span = work / (max(cards, 1) * load)
    begins = sorted(_daytime(rng, span) for _ in batches)
    times: list[float] = []
    for begin, first, after in zip(begins, batches, [*batches[1:], len(drawn)], strict=True):
        at = begin
        for _ in range(first, after):
            times.append(at)
            at += rng.expovariate(1 / BATCH_GAP_S)
    times = _stretched(times, span)
    found = [
        Arrival(
            job=Job(
                id=number,
                request=kind.request,
                submitted=round(at, 1),
                user=user,
                project=1 + user % max(users // 3, 1),
                time_limit_s=_limit(kind, seconds),
            ),
            seconds=seconds,
            name=kind.name,
        )
        for number, (at, (user, kind, seconds)) in enumerate(zip(times, drawn, strict=True), start=1)
    ]
    found.sort(key=lambda item: (item.job.submitted, item.job.id))
    return [replace(item, job=replace(item.job, id=number)) for number, item in enumerate(found, start=1)]


def _kinds(rng: random.Random, user: int, per_node: int, parts: float, card_mib: int) -> list[_Kind]:
    # How wide and how long somebody's work is goes with the person.
    usual = rng.gauss(math.log(1_500), 1.0)
    found = []
    for number in range(rng.randint(2, 5)):
        dice = rng.random()
        cards = 1 if dice < 0.82 else 2 if dice < 0.9 else 4
        request = Request(gpu_count=min(cards, per_node))
        if request.gpu_count == 1 and rng.random() < parts:
            request = Request(gpu_mem_mib=int(rng.choice(PARTS) * card_mib))
        middle = rng.gauss(usual, 1.6) + (0.7 if request.gpu_count > 1 else 0.0)
        found.append(_Kind(f"{['train', 'eval', 'sweep', 'prep', 'infer'][number]}-{user}", request, middle, rng.uniform(1.2, 6)))
    return found


def _cards(request: Request, card_mib: int) -> float:
    return request.gpu_count if request.gpu_mem_mib is None else request.gpu_mem_mib / card_mib


def _limit(kind: _Kind, seconds: float) -> int:
    """What its user types: a round number, usually far too long."""
    wanted = max(math.exp(kind.middle) * kind.limit_factor, seconds)
    return next((limit for limit in LIMITS_S if limit >= wanted), LIMITS_S[-1])


def _daytime(rng: random.Random, span: float) -> float:
    """A moment in the span; the busiest hour of a day sees five times as much as the quietest."""
    while True:
        at = rng.uniform(0, span)
        if rng.random() * 5 < 3 + 2 * math.sin(2 * math.pi * at / DAY_S):
            return at


def _stretched(times: Sequence[float], span: float) -> list[float]:
    """Moved and scaled so that they go from 0 to ``span`` exactly: the load is what was asked for."""
    first, last = min(times), max(times)
    scale = span / (last - first) if last > first else 1.0
    return [(at - first) * scale for at in times]
