"""One scheduling pass: every waiting job is placed, or refused with the reason that binds. Pure: no clock, no I/O, no randomness.

INVARIANT: the same snapshot and policy give the same plan, in whatever order nodes, cards, slices and jobs are given.
"""

from __future__ import annotations

from jobs.scheduler import reasons
from jobs.scheduler.order import Ends, cards_waited_for, queue_order
from jobs.scheduler.place import Placer
from jobs.scheduler.types import Job, Placement, Plan, Policy, Reason, Refusal, Request, Snapshot


def plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide the pass. Raises ValueError for a ``policy.order`` that does not exist.

    1. Order the queue.
    2. A held job is refused with its hold. A request that failed before in this pass fails again: nothing is freed meanwhile.
    3. Place a job on the best candidate sets, all ranks or none; its cards fill up for those after it.
    4. A job that does not fit gets its binding reason; what it waits for is kept aside (order.py), so that no later job
       can starve it.
    """
    return _Pass(snapshot, policy).run()


class _Pass:
    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.placer = Placer(snapshot, policy)
        self.ends = Ends(snapshot)

    def run(self) -> Plan:
        placements: list[Placement] = []
        refusals: list[Refusal] = []
        failed: dict[Request, tuple[Reason, bool]] = {}
        position = 1
        for job in queue_order(self.snapshot.jobs, self.policy):
            if job.hold is not None:
                hold = Reason(code=job.hold, params=job.hold_params)
                refusals.append(Refusal(job=job.id, reason=hold, position=position))
                continue
            failure = failed.get(job.request)
            if failure is None:
                outcome = self._try(job)
                if isinstance(outcome, Placement):
                    placements.append(outcome)
                    continue
                failure = failed[job.request] = (outcome, outcome.code in reasons.NEVER)
            reason, never = failure
            refusals.append(Refusal(job=job.id, reason=reason, position=position, never=never))
            # Held and impossible jobs are in nobody's way: they don't count as being ahead.
            position += not never
        return Plan(placements=tuple(placements), refusals=tuple(refusals))

    def _try(self, job: Job) -> Placement | Reason:
        placed = self.placer.place(job)
        if placed is not None:
            if job.request.gpu_count > 0:
                self.ends.add(job)
            return placed
        # Before anything is kept for this job: it is not blocked by itself.
        reason = self.placer.why(job.request)
        if reason.code not in reasons.NEVER and job.request.gpu_count > 0 and self.snapshot.nodes:
            shape = self.placer.shape(job.request, job.avoid_nodes)
            waited_for = cards_waited_for(shape, self.placer.pool, self.ends)
            if waited_for is not None:
                self.placer.pool.set_aside(waited_for, job.id)
        return reason
