"""What is kept for a job that has to wait, and who may pass it meanwhile (D24).

The first blocked job of a pool keeps the cards it will get soonest: per node those that are free soonest, on the node (or
nodes) where that is earliest. They are *kept until* the time at which the last of them is free by this pass's estimates. A later
job gets a kept card only if, by the same estimates, it ends by then; any other card it may have. So no backfill of a pass delays
what that pass keeps. One job per pool keeps cards: a job whose suitable kinds of card include a kind already kept for
another waits behind that one.

Estimates: a job ends at its limit, without one at the queue's maximum (D24); sooner where its predicted runtime says so
(predict.py). Predictions err, so a job that has waited too long (order.py) is planned for by limits alone: then nothing passes
that could be in its way. Its wait is bounded: a kept card takes nothing that may outlive its time, so that time never grows, and
another set is chosen only if it is free earlier.

Nothing is kept for a job that is held, can never run, or waits for what no end of a job brings: cards or nodes out of
service, foreign use, quarantined memory.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence

from jobs.scheduler.need import Need
from jobs.scheduler.pool import Pool, PoolCard
from jobs.scheduler.predict import longest_s, remaining_s
from jobs.scheduler.shapes import Shape
from jobs.scheduler.types import Job, Kept, Place, Policy, Reason, Running, Slice, Snapshot

#: When a job ends: (end by this pass's estimates, start), both seconds; least = soonest.
EndKey = tuple[float, float]
FREE_NOW: EndKey = (-math.inf, -math.inf)
RELEASING: EndKey = (-math.inf, 0.0)  # its job has ended: the card waits for its memory only
OVERDUE: EndKey = (math.inf, math.inf)
#: A job that lives so long past its limit is stuck; nobody knows when it ends.
OVERDUE_AFTER_S = 300
SOON_S = 1.0  # a job that should have ended already ends in a moment, not in the past


class Ends:
    """When each live job may end, those placed in this pass included. ``is_strict``: by limits alone."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._now = snapshot.now
        self._policy = policy
        self._is_strict = False
        self._running = {run.job: run for run in snapshot.running}
        self.placed: dict[int, Job] = {}  # by this pass, those that hold cards: the pass adds them
        self._keys: dict[int, EndKey] = {}

    @property
    def is_strict(self) -> bool:
        return self._is_strict

    @is_strict.setter
    def is_strict(self, strict: bool) -> None:
        if strict != self._is_strict:
            self._keys.clear()
        self._is_strict = strict

    def _key(self, run: Running) -> EndKey:
        now, policy = self._now, self._policy
        elapsed = now - run.started if now > run.started else 0.0
        limit = run.time_limit_s
        if limit is None:
            if elapsed >= policy.limit_max_s:
                return (math.inf, run.started)
        elif elapsed >= limit + OVERDUE_AFTER_S:
            return OVERDUE
        if run.predicted_s is None:
            left = (policy.limit_max_s if limit is None else limit) - elapsed
        else:
            left = remaining_s(elapsed_s=elapsed, limit_s=limit, predicted_s=run.predicted_s, policy=policy, strict=self._is_strict)
        return (now + (left if left > SOON_S else SOON_S), run.started)

    def job_end(self, job: Job) -> float:
        """When the job would count as ended if it started now."""
        if job.predicted_s is None:
            return self._now + (self._policy.limit_max_s if job.time_limit_s is None else job.time_limit_s)
        return self._now + longest_s(job.time_limit_s, job.predicted_s, self._policy, strict=self._is_strict)

    def user_of(self, part: Slice) -> int | None:
        """Whose live job has it."""
        run = self._running.get(part.job or 0)
        placed = self.placed.get(part.job or 0)
        return run.user if run is not None else placed.user if placed is not None else None

    def of(self, part: Slice) -> EndKey | None:
        """None = quarantined, or no job owns it: nothing that ends will free it."""
        job = part.job
        if job is None or part.is_quarantined:
            return None
        key = self._keys.get(job)
        if key is None:
            run = self._running.get(job)
            if run is not None:
                key = self._key(run)
            else:
                placed = self.placed.get(job)
                key = RELEASING if placed is None else (self.job_end(placed), self._now)
            self._keys[job] = key
        return key


class Reservations:
    """What this pass keeps, by pool of cards."""

    def __init__(self, pool: Pool, ends: Ends) -> None:
        self._pool = pool
        self._ends = ends
        self._until: dict[int, float] = {}  # kind -> the earliest time at which a kept card of it is needed
        self.kept: list[Kept] = []
        self.drained: dict[int, Place] = {}  # by job, where some of its cards stand free for it: these cards, and whose jobs are on them

    def until(self, needs: Sequence[Need | Reason]) -> float | None:
        """Until when kept cards may be used by a job with these needs; None = nothing is kept in its way."""
        if not self._until:
            return None
        times = [at for kind, at in self._until.items() if isinstance(needs[kind], Need)]
        return min(times) if times else None

    def keep_for(self, job: Job, shape: Shape) -> bool:
        """Keep what the blocked job waits for; False = nothing can be kept for it."""
        found = cards_waited_for(shape, self._pool, self._ends)
        if found is None:
            return False
        at, cards = found
        gpus = tuple(sorted(card.gpu.id for card in cards))
        if any(card.free_mib > 0 for card in cards):
            users = {self._ends.user_of(part) for card in cards for part in card.slices}
            self.drained[job.id] = Place(gpus=gpus, users=tuple(sorted(user for user in users if user is not None)))
        self._pool.set_aside(cards, job.id)
        # A time that nobody knows is no licence to pass.
        until = at if at < math.inf else -math.inf
        for card in cards:
            self._until[card.kind] = min(until, self._until.get(card.kind, math.inf))
        self.kept.append(Kept(job=job.id, gpus=gpus, at=at))
        return True


def free_at(card: PoolCard, need: Need, ends: Ends) -> EndKey | None:
    """When the card could take the need, if nothing new were put on it; None = the end of no job brings that."""
    free, live = card.free_mib, card.live
    if free >= need.least_mib and live < need.max_live:
        return FREE_NOW
    if live == 1 and card.slices_before:
        # Mostly so: one slice, that of a job.
        part = card.slices_before[0]
        return ends.of(part) if free + part.mib >= need.least_mib and need.max_live > 0 else None
    dated = [(key, part.job or 0, part.mib) for part in card.slices if (key := ends.of(part)) is not None]
    dated.sort()
    for key, _job, mib in dated:
        free += mib
        live -= 1
        if need.take(free_mib=free, live=live) is not None:
            return key
    return None


def cards_waited_for(shape: Shape, pool: Pool, ends: Ends) -> tuple[float, list[PoolCard]] | None:
    """The cards to keep for a blocked request and when the last is free; None = keep nothing: another job of its pool keeps
    some, or no end of a job helps."""
    good = {kind: need for kind, need in enumerate(shape.needs) if isinstance(need, Need)}
    k, wanted = shape.per_node, shape.request.nodes
    if not shape.is_valid or not pool.kept_kinds.isdisjoint(good):
        return None
    # 1. The nodes where the last of the cards that are free soonest is free soonest; of equals the lower id, which comes first.
    nearest: list[tuple[EndKey, int, list[tuple[EndKey, PoolCard]]]] = []  # sorted
    latest: EndKey | None = None  # from here on a card is of no use: there are enough nodes that are free sooner
    for node in pool.nodes:
        spare = len(node.cards) - k  # so many cards may be of no use
        if spare < 0 or not node.node.takes_work:
            continue
        dated: list[tuple[EndKey, PoolCard]] = []
        for card in node.cards:
            need = good.get(card.kind)
            when = None if need is None or not card.is_open else free_at(card, need, ends)
            if when is not None and (latest is None or when < latest):
                dated.append((when, card))
            elif spare:
                spare -= 1
            else:
                break
        else:
            last = sorted([when for when, _card in dated])[k - 1]
            insort(nearest, (last, node.node.id, dated))
            del nearest[wanted:]
            if len(nearest) == wanted:
                latest = nearest[-1][0]
    if len(nearest) < wanted:
        return None
    # 2. Which cards these are: of cards that are free at the same time, the best.
    cards = []
    for _last, _node, dated in nearest:
        ranked = sorted([(when, pool.cost_of(card), card.number, card) for when, card in dated])
        cards += [item[3] for item in ranked[:k]]
    return nearest[-1][0][0], cards
