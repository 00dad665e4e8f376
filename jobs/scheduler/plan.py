"""One scheduling pass: every waiting job is placed, or refused with the reason that binds. Pure: no clock, no I/O, no randomness.

INVARIANT: the same snapshot and policy give the same plan, in whatever order nodes, cards, slices and jobs are given.
"""

from __future__ import annotations

from jobs.scheduler import reasons
from jobs.scheduler.backfill import Ends, Reservations
from jobs.scheduler.order import JobQueue
from jobs.scheduler.place import Placer
from jobs.scheduler.types import Job, Placement, Plan, Policy, Reason, Refusal, Request, Snapshot

#: The reason of every refusal of a plan that was asked not to explain.
UNEXPLAINED = Reason(code="waiting")


def plan(snapshot: Snapshot, policy: Policy, *, explain: bool = True) -> Plan:
    """Decide the pass. Raises ValueError for an order or a strategy of the policy that does not exist.

    1. Order the queue (order.py); shares count anew after each placement (fairshare.py).
    2. A held job is refused with its hold; a job that its owner's share or its queue has no room for, with that.
       A request that failed before in this pass fails again: nothing is freed meanwhile.
    3. Place a job on the best candidate sets, all ranks or none; its cards fill up for those after it.
    4. A job that does not fit gets its binding reason; the first of its pool keeps what it waits for (backfill.py), and who
       comes later gets a kept card only if it ends before it is needed.

    ``explain`` False leaves the reasons out, which cost as much as the rest, for simulations. The placements are the same.
    """
    return _Pass(snapshot, policy, explain=explain).run()


class _Pass:
    def __init__(self, snapshot: Snapshot, policy: Policy, *, explain: bool) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.explain = explain
        self.placer = Placer(snapshot, policy)
        self.queue = JobQueue(snapshot, policy, self.placer.pool)
        self.ends = Ends(snapshot, policy)
        self.reservations = Reservations(self.placer.pool, self.ends)
        # (number of the request, whether kept cards were offered) -> why it failed
        self.failed: dict[tuple[int, bool], Reason] = {}

    def run(self) -> Plan:
        placements: list[Placement] = []
        refusals: list[Refusal] = []
        position = 1
        for job in self.queue:
            if job.hold is not None:
                refusals.append(Refusal(job=job.id, reason=Reason(code=job.hold, params=job.hold_params), position=position))
                continue
            outcome = self._try(job)
            if isinstance(outcome, Placement):
                placements.append(outcome)
                self.queue.placed(job)
                if job.request.gpu_count > 0:
                    self.ends.add(job)
                continue
            never = outcome.code in reasons.NEVER
            refusals.append(Refusal(job=job.id, reason=outcome, position=position, never=never))
            # Held and impossible jobs are in nobody's way: they don't count as being ahead.
            position += not never
        return Plan(placements=tuple(placements), refusals=tuple(refusals), kept=tuple(self.reservations.kept))

    def _try(self, job: Job) -> Placement | Reason:
        request = job.request
        # 1. What was tried already.
        until = self.reservations.until(self.placer.pool.needs(request)) if request.gpu_count > 0 else None
        passes = until is not None and self.ends.job_end(job) <= until
        number = self.placer.pool.number(request)
        failure = self.failed.get((number, passes)) or (self.failed.get((number, True)) if not passes else None)
        if failure is not None:
            return failure
        # 2. Who leaves room for others.
        if request.gpu_count > 0:
            room = self._no_room(job)
            if room is not None:
                return room
        # 3. Place it.
        placed = self.placer.place(job, takes_kept=passes)
        if placed is not None:
            return placed
        reason = self._why(request)
        self.failed[(number, passes)] = reason
        # 4. Keep what it waits for. Only now: it is not blocked by itself.
        if until is None and self.policy.keeps_for_head and reason.code not in reasons.NEVER and request.gpu_count > 0:
            self._keep(job)
        return reason

    def _why(self, request: Request) -> Reason:
        return self.placer.why(request) if self.explain else UNEXPLAINED

    def _no_room(self, job: Job) -> Reason | None:
        full = self.queue.queue_room(job)
        if full is not None:
            name, held, most = full
            return Reason(code=reasons.QUEUE_FULL, params={"queue": name, "held": round(held, 2), "most": round(most, 2)})
        if self.queue.must_leave(job):
            if self.explain and (never := self.placer.never(job.request)) is not None:
                return never
            held, share = self.queue.held_and_share(job)
            return Reason(code=reasons.ABOVE_SHARE, params={"held": round(held, 2), "share": round(share, 2)})
        return None

    def _keep(self, job: Job) -> None:
        if not self.snapshot.nodes:
            return
        self.ends.is_strict = self.queue.is_strict(job)
        if self.reservations.keep_for(job, self.placer.shape(job.request, job.avoid_nodes)):
            self.queue.kept_for(job)
        else:
            self.ends.is_strict = False
