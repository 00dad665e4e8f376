"""One scheduling pass: every waiting job is placed, or refused with the reason that binds. Pure: no clock, no I/O, no randomness.

INVARIANT: the same snapshot and policy give the same plan, in whatever order nodes, cards, slices and jobs are given.
"""

from __future__ import annotations

import gc
from dataclasses import replace

from jobs.scheduler import reasons
from jobs.scheduler.backfill import Ends, Reservations
from jobs.scheduler.backlog import Backlog, waiting_of
from jobs.scheduler.order import JobQueue, alive_of
from jobs.scheduler.place import Placer
from jobs.scheduler.types import Job, Place, Placement, Plan, Policy, Reason, Refusal, Request, Snapshot, new


def plan(snapshot: Snapshot, policy: Policy, *, explain: bool = True) -> Plan:
    """Decide the pass. Raises ValueError for an order or a strategy of the policy that does not exist.

    1. Order the queue (order.py); shares count anew after each placement (fairshare.py).
    2. A held job is refused with its hold; a job that its owner's share or its queue has no room for, with that.
       A request that failed before in this pass fails again: nothing is freed meanwhile.
    3. Place a job on the best candidate sets, all ranks or none; its cards fill up for those after it.
    4. Of jobs that do not fit the first of its pool keeps what it waits for (backfill.py), and who comes later gets a kept card only
       if it ends before it is needed.
    5. At the end those that do not fit get the reason that binds, with the numbers that this pass leaves behind.

    ``explain`` False leaves the refusals out, and what is kept once nothing more can be placed: for simulations. The placements
    are the same.
    """
    # A pass makes many small objects and no rubbish: looking through them all again and again costs a third of its time.
    was_on = gc.isenabled()
    gc.disable()
    try:
        return _Pass(snapshot, policy, explain=explain).run()
    finally:
        if was_on:
            gc.enable()


class _Asked:
    """What this pass knows of one request. ``failed``: it found no place, ``failed_kept``: not even on kept cards. ``never``: why it can
    never run, where that was asked; ``waiting``: whose reason is told at the end; ``heads``: the jobs of these that cards are kept for.

    ``until``: when cards that are kept, and that it could use, are needed; None = none is kept, or it uses no cards.
    """

    __slots__ = (
        "cards", "failed", "failed_kept", "has_cards", "heads", "kinds", "never", "request", "shape", "shape_kept", "until", "waiting",
    )  # fmt: skip

    def __init__(self, request: Request, placer: Placer, queue: JobQueue, reservations: Reservations) -> None:
        self.has_cards = request.gpu_count > 0
        self.cards = 0.0 if queue.shares is None else queue.shares.cards(request)
        self.kinds = frozenset[int]() if queue.shares is None else queue.shares.kinds(request)
        self.shape = placer.shape(request)
        self.shape_kept = placer.shape(request, takes_kept=True)
        self.request = request
        self.failed = False
        self.failed_kept = False
        self.never: Reason | None = None
        self.waiting: list[Refusal] = []
        self.heads: list[int] = []
        self.until = reservations.until(self.shape.needs) if self.has_cards else None


class _Pass:
    def __init__(self, snapshot: Snapshot, policy: Policy, *, explain: bool) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.explain = explain
        waiting = waiting_of(snapshot.jobs, policy)
        self.placer = Placer(snapshot, policy, waiting)
        self.queue = JobQueue(snapshot, policy, self.placer.pool, waiting)
        self.ends = Ends(snapshot, policy)
        self.reservations = Reservations(self.placer.pool, self.ends)
        # What is asked for most, one card, without a detour.
        self._best_card = self.placer.candidates.best_card
        self._place_one = self.placer.pool.place_one
        self._has_queues = policy.order == "capacity"
        self._has_cpu_jobs = any(request.gpu_count == 0 for request in self.placer.pool.requests)
        self._placements: list[Placement] = []
        self._users: dict[int, int] = {}  # of these, by job
        self._alive_found: tuple[int, int] | None = None
        self._places: dict[int, Place] = {}
        self._asked: dict[Request, _Asked] = {}
        self._by_serial: dict[int, _Asked] = {}

    def run(self) -> Plan:
        placements, users = self._placements, self._users
        refusals: list[Refusal] = []
        position = 1
        explain = self.explain
        by_serial, queue, ends = self._by_serial, self.queue, self.ends
        for job in queue:
            if job.hold is not None:
                if explain:
                    refusals.append(Refusal(job.id, Reason(code=job.hold, params=job.hold_params), position, False))
                continue
            try:
                asked = by_serial[job.request.serial]
            except KeyError:
                asked = self._asked_of(job.request)
            reason: Reason | None = None
            if not asked.failed_kept:
                # May it use kept cards? If not, what failed before fails again.
                passes = asked.until is not None and ends.job_end(job) <= asked.until
                if passes or not asked.failed:
                    tried = self._try(job, asked, passes=passes)
                    if isinstance(tried, Placement):
                        placements.append(tried)
                        users[job.id] = job.user
                        queue.placed(job, asked.cards)
                        if asked.has_cards:
                            ends.placed[job.id] = job
                        if not explain and self._is_over(failed=False):
                            break
                        continue
                    reason = tried
                    if not explain and self._is_over(failed=True):
                        break
            if not explain:
                continue
            refusal = new(Refusal)
            refusal.job = job.id
            refusal.position = position
            refusal.never = asked.never is not None
            if reason is None:
                asked.waiting.append(refusal)
            else:
                refusal.reason = reason
            refusals.append(refusal)
            # Held and impossible jobs are in nobody's way: they don't count as being ahead.
            if asked.never is None:
                position += 1
        for asked in self._asked.values():
            self._explain(asked)
        kept = tuple(self.reservations.kept)
        return Plan(placements=tuple(placements), refusals=tuple(refusals), kept=kept, places=self._places_left())

    def _places_left(self) -> dict[int, Place]:
        """What the next pass has to know of the jobs that cards are kept for, or were."""
        before = self.snapshot.places
        if before:
            started = {placed.job for placed in self._placements}
            jobs = self.snapshot.jobs
            found = jobs.named(before) if isinstance(jobs, Backlog) else [job for job in jobs if job.id in before]
            waiting = {job.id for job in found if job.hold is None} - started
            for job in waiting - self._places.keys():
                place = self._place_of(job, Place())
                if place.since is not None:
                    self._places[job] = place
        return self._places

    @property
    def _alive(self) -> tuple[int, int]:
        if self._alive_found is None:
            self._alive_found = alive_of(self.snapshot)
        return self._alive_found

    def _place_of(self, job: int, drained: Place) -> Place:
        """The job's place. It was lost if, so far in this pass, one of those whose jobs drained off its cards got some of them back."""
        before, alive = self.snapshot.places.get(job), self._alive
        if before is None:
            return replace(drained, jobs=alive)
        since = before.since
        if since is None and before.gpus:
            for placed in self._placements:
                is_back = self._users[placed.job] in before.users
                if is_back and any(grant.gpu in before.gpus for rank in placed.ranks for grant in rank.grants):
                    since = self.snapshot.now
        users = {*before.users, *drained.users} if set(drained.gpus) & set(before.gpus) else {*drained.users}
        return Place(gpus=drained.gpus, users=tuple(sorted(users)), since=since, jobs=alive)

    def _explain(self, asked: _Asked) -> None:
        """Say why the jobs wait that do not fit."""
        if asked.waiting:
            reason = self.placer.why(asked.request)
            for refusal in asked.waiting:
                refusal.reason = reason
            for refusal in asked.waiting if asked.heads else ():
                if refusal.job in asked.heads:
                    refusal.reason = self.placer.why(asked.request, refusal.job)

    def _is_over(self, *, failed: bool) -> bool:
        """Whether nothing more can be placed. ``failed``: ask each request; mere placements fill cards."""
        pool = self.placer.pool
        if not pool.free_cards and not self._has_cpu_jobs:
            return True
        if not failed or len(self._asked) < len(pool.requests):
            return False
        return all(asked.failed_kept or self._is_hopeless(request, asked) for request, asked in self._asked.items())

    def _is_hopeless(self, request: Request, asked: _Asked) -> bool:
        """Whether it has failed, and none of its jobs ends soon enough for cards that are kept."""
        jobs = self.snapshot.jobs
        if not asked.failed or not isinstance(jobs, Backlog):
            return False
        return asked.until is None or self.snapshot.now + jobs.shortest_s(request) > asked.until

    def _asked_of(self, request: Request) -> _Asked:
        found = self._asked.get(request)
        if found is None:
            found = self._asked[request] = _Asked(request, self.placer, self.queue, self.reservations)
        self._by_serial[request.serial] = found
        return found

    def _try(self, job: Job, asked: _Asked, *, passes: bool) -> Placement | Reason | None:
        """A Reason: others come first; None = it does not fit. ``passes``: it may use kept cards.

        Call only while ``asked.failed_kept`` is False, and if it passes or nothing failed.
        """
        request = job.request
        # 1. Who leaves room for others.
        if asked.has_cards:
            if self._has_queues and (full := self.queue.queue_room(job)) is not None:
                name, held, most = full
                return Reason(code=reasons.QUEUE_FULL, params={"queue": name, "held": round(held, 2), "most": round(most, 2)})
            if self.queue.must_leave(job, asked.cards, asked.kinds):
                return self._above_share(job, asked)
        # 2. Place it.
        if job.avoid_nodes:
            shape = self.placer.shape(request, job.avoid_nodes, takes_kept=passes)
        else:
            shape = asked.shape_kept if passes else asked.shape
        if shape.by_card:
            card = self._best_card(shape)
            if card is not None:
                return self._place_one(job.id, shape, card)
        else:
            placed = self.placer.place(job, shape)
            if placed is not None:
                return placed
        never = self._never(asked)
        asked.failed = True
        asked.failed_kept = passes or never is not None
        # 3. Keep what it waits for.
        if asked.until is None and self.policy.keeps_for_head and never is None and asked.has_cards:
            self._keep(job, asked)
        return None

    def _never(self, asked: _Asked) -> Reason | None:
        if self.explain:
            asked.never = self.placer.never(asked.request)
        return asked.never

    def _above_share(self, job: Job, asked: _Asked) -> Reason:
        never = self._never(asked)
        if never is not None:
            return never
        held, share = self.queue.held_and_share(job)
        return Reason(code=reasons.ABOVE_SHARE, params={"held": round(held, 2), "share": round(share, 2)})

    def _keep(self, job: Job, mine: _Asked) -> None:
        if not self.snapshot.nodes:
            return
        self.ends.is_strict = self.queue.is_strict(job)
        if self.reservations.keep_for(job, self.placer.shape(job.request, job.avoid_nodes)):
            self.queue.kept_for(job)
            place = self._place_of(job.id, self.reservations.drained.get(job.id, Place()))
            if place.gpus or place.since is not None:
                self._places[job.id] = place
            mine.heads.append(job.id)
            for asked in self._asked.values():
                asked.until = self.reservations.until(asked.shape.needs) if asked.has_cards else None
        else:
            self.ends.is_strict = False
