"""Whose turn it is, and what is kept for a job that has to wait.

The queue: higher priority first, then the earlier submit, then the lower id.

Keeping cards aside. A later job may pass one that cannot run now, but must not starve it. So a blocked job keeps aside the
cards that it waits for: per node the cards that will be free soonest, on the node (or nodes) where that is earliest. No later
job gets a card that is kept aside, not even while it is free. One job per pool does so: a job whose suitable kinds of card include
a kind already kept for another waits behind that one.

Why the head's wait is bounded: a card's time is the end of the last job that must leave it (its start + time limit; without a
limit it comes after all with one, and the job that started first counts as ending first). A kept card takes nothing new, so
its time never grows, and another set is chosen only if its time is earlier. All that the head waits for started before it
became the head.

Nothing is kept for a job that is held, can never run, or waits for what no end of a job brings: cards or nodes out of
service, foreign use, quarantined memory. Part of the design: easy to replace by a backfill with a forward reservation.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from jobs.scheduler.need import Need
from jobs.scheduler.candidates import Shape
from jobs.scheduler.pool import Pool, PoolCard
from jobs.scheduler.types import Job, Policy, Slice, Snapshot

ORDERS = ("fifo",)
#: When a job ends: (end by its limit, start), both seconds; least = soonest. (inf, start) without a limit.
EndKey = tuple[float, float]
FREE_NOW: EndKey = (-math.inf, -math.inf)
RELEASING: EndKey = (-math.inf, 0.0)  # its job has ended: the card waits for its memory only
OVERDUE: EndKey = (math.inf, math.inf)
#: A job that lives so long past its limit is stuck; nobody knows when it ends.
OVERDUE_AFTER_S = 300


def queue_order(jobs: Iterable[Job], policy: Policy) -> list[Job]:
    """The jobs in the order in which they are tried. Raises ValueError for an order that does not exist."""
    if policy.order not in ORDERS:
        raise ValueError(f"Policy.order is {policy.order!r}; it can be {', '.join(ORDERS)}.")
    return sorted(jobs, key=lambda job: (-job.priority, job.submitted, job.id))


class Ends:
    """When each live job may end, those placed in this pass included."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._now = snapshot.now
        self._by_job: dict[int, EndKey] = {run.job: self._key(run.started, run.time_limit_s) for run in snapshot.running}

    def _key(self, started: float, limit_s: int | None) -> EndKey:
        if limit_s is None:
            return (math.inf, started)
        return (started + limit_s, started) if self._now < started + limit_s + OVERDUE_AFTER_S else OVERDUE

    def add(self, job: Job) -> None:
        self._by_job[job.id] = self._key(self._now, job.time_limit_s)

    def of(self, part: Slice) -> EndKey | None:
        """None = quarantined, or no job owns it: nothing that ends will free it."""
        if part.job is None or part.is_quarantined:
            return None
        return self._by_job.get(part.job, RELEASING)


def free_at(card: PoolCard, need: Need, ends: Ends) -> EndKey | None:
    """When the card could take the need, if nothing new were put on it; None = the end of no job brings that."""
    free, live = card.free_mib, card.live
    if need.take(free_mib=free, live=live) is not None:
        return FREE_NOW
    dated = [(key, part.job or 0, part.mib) for part in card.slices if (key := ends.of(part)) is not None]
    for key, _job, mib in sorted(dated):
        free += mib
        live -= 1
        if need.take(free_mib=free, live=live) is not None:
            return key
    return None


def cards_waited_for(shape: Shape, pool: Pool, ends: Ends) -> list[PoolCard] | None:
    """The cards to keep for a blocked request; None = keep nothing: another job of its pool keeps some, or no end of a job helps."""
    good = {kind: need for kind, need in enumerate(shape.needs) if isinstance(need, Need)}
    if not pool.kept_kinds.isdisjoint(good):
        return None
    k, wanted = shape.per_node, shape.request.nodes
    found: list[tuple[EndKey, int, list[PoolCard]]] = []
    for node in pool.nodes:
        if not node.node.takes_work:
            continue
        dated: list[tuple[EndKey, float, int, int, PoolCard]] = []
        for card in node.cards:
            need = good.get(card.kind)
            if need is not None and card.is_open and (when := free_at(card, need, ends)) is not None:
                dated.append((when, -card.score(), card.gpu.index, card.gpu.id, card))
        if len(dated) >= k:
            chosen = heapq.nsmallest(k, dated)
            found.append((chosen[-1][0], node.node.id, [item[4] for item in chosen]))
    if len(found) < wanted:
        return None
    found.sort(key=lambda item: item[:2])
    return [card for _key, _node, cards in found[:wanted] for card in cards]
