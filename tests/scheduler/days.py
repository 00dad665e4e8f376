"""Simulated days on a steadily used cluster, and what the scheduler knows at a moment of one: for tests of forecasts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jobs.scheduler import Arrival, Came, Gpu, Job, Node, Policy, Request, Running, Slice, Snapshot, Trace, estimate_start, simulate
from jobs.scheduler.fairshare import Usage

DAY = 86_400.0
SIZES = (Request(), Request(), Request(gpu_mem_mib=6_000), Request(gpu_count=2), Request(gpu_count=4))
CARDS_EACH = (1 + 1 + 0.25 + 2 + 4) / 5


def cluster(*cards: int, mib: int = 24_576) -> Snapshot:
    nodes = tuple(
        Node(
            id=number,
            name=f"n{number}",
            cpu_cores=64,
            gpus=tuple(Gpu(id=number * 100 + i, uuid=f"G{number}-{i}", index=i, model="RTX 4090", total_mib=mib) for i in range(count)),
        )
        for number, count in enumerate(cards, start=1)
    )
    return Snapshot(now=0.0, nodes=nodes, jobs=())


def steady(seed: int, *, cards: int, load: float, days: float, median_s: float = 1_800.0, spread: float = 1.0) -> list[Arrival]:
    """Jobs that come at random and keep ``load`` of the cards busy, by users of very different appetites; runtimes are known."""
    rng = random.Random(seed)
    mean_s = median_s * math.exp(spread**2 / 2)
    at, found = 0.0, []
    while True:
        at += rng.expovariate(load * cards / (mean_s * CARDS_EACH))
        if at > days * DAY:
            return found
        seconds = max(1.0, rng.lognormvariate(math.log(median_s), spread))
        user = min(int(rng.expovariate(0.5)), 5)
        job = Job(id=len(found) + 1, request=rng.choice(SIZES), submitted=at, user=user, predicted_s=seconds)
        found.append(Arrival(job=job, seconds=seconds))


def moments(
    arrivals: Sequence[Arrival], trace: Trace, bare: Snapshot, policy: Policy, jobs: Sequence[int]
) -> Iterator[tuple[int, Snapshot]]:
    """(job, what was known when it had just been submitted): what waited and ran, past use, and all that came before."""
    facts = {item.job.id: item for item in arrivals}
    totals = {gpu.id: gpu.total_mib or 1 for node in bare.nodes for gpu in node.gpus}
    slices = {
        run.job: tuple(
            Slice(gpu=grant.gpu, mib=grant.mib, exclusive=grant.exclusive, job=run.job)
            for rank in run.placement.ranks
            for grant in rank.grants
        )
        for run in trace.runs
    }
    cards = {job: sum(1.0 if part.exclusive else part.mib / totals[part.gpu] for part in parts) for job, parts in slices.items()}
    for number in jobs:
        now = facts[number].job.submitted
        usage = Usage(policy)
        moves = [(run.start, 1, run.job) for run in trace.runs if run.start < now] + [
            (run.end, 0, run.job) for run in trace.runs if run.end <= now
        ]
        for at, begins, job in sorted(moves):
            user = facts[job].job.user
            usage.hold(user, cards[job] if begins else -cards[job], at)
            if not begins:
                usage.finish(user, at)
        live = [run for run in trace.runs if run.start < now < run.end]
        yield (
            number,
            replace(
                bare,
                now=now,
                jobs=[facts[run.job].job for run in trace.runs if run.submitted <= now <= run.start],
                slices=tuple(part for run in live for part in slices[run.job]),
                running=tuple(
                    Running(
                        job=run.job,
                        user=facts[run.job].job.user,
                        slices=slices[run.job],
                        started=run.start,
                        predicted_s=facts[run.job].seconds,
                    )
                    for run in live
                ),
                usage=usage.weights(now),
                recent=tuple(Came(job=item.job, seconds=item.seconds) for item in arrivals if item.job.submitted < now),
                recent_s=now,
            ),
        )


def told_and_expected(*, seeds: Sequence[int], policy: Policy, futures: int, past: float, most_s: float) -> tuple[float, float, float]:
    """(told, told by one who expects nothing, true): mean waits, seconds, at moments of steady days on two nodes of four cards.

    The true wait is a mean over what may come: as many futures by the law by which the past came. One future alone scatters too much; and
    waits count up to ``most_s``, else one job in a hundred makes up half of the sum.
    """
    law: dict[str, float] = {"load": 0.8, "spread": 0.7, "median_s": 600.0}
    cards = (4, 4)
    told = blind = true = 0.0
    count = 0
    for seed in seeds:
        arrivals = steady(seed, cards=sum(cards), days=past + 1, **law)
        bare = cluster(*cards)
        trace = simulate(arrivals, bare, policy)
        day = [item.job.id for item in arrivals if past * DAY <= item.job.submitted < (past + 0.8) * DAY]
        for job, known in moments(arrivals, trace, bare, policy, day[len(day) // 3 :: max(1, len(day) // 3)][:2]):
            now = known.now
            waits = []
            for number in range(futures):
                coming = steady(1_000 * seed + number, cards=sum(cards), days=3, **law)
                later = [
                    replace(item, job=replace(item.job, id=1_000_000 + item.job.id, submitted=now + item.job.submitted)) for item in coming
                ]
                here = [Arrival(job=item, seconds=item.predicted_s or 1.0) for item in known.jobs]
                ends = {run.job: run.started + (run.predicted_s or 1.0) for run in known.running}
                waits.append(simulate([*here, *later], known, policy, ends=ends, stop_after=job).by_job[job].start - now)
            with_recent, without = (estimate_start(view, job, policy).p50 for view in (known, replace(known, recent=())))
            assert with_recent is not None
            assert without is not None
            told += min(with_recent - now, most_s)
            blind += min(without - now, most_s)
            true += sum(min(wait, most_s) for wait in waits) / futures
            count += 1
    return told / count, blind / count, true / count
