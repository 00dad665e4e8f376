"""One scheduling pass: every waiting job is placed, or refused with the reason that binds. Pure: no clock, no I/O, no randomness.

INVARIANT: the same snapshot and policy give the same plan, in whatever order nodes, cards, slices and jobs are given.
"""

from __future__ import annotations

from jobs.scheduler import reasons
from jobs.scheduler.binding import binding_reason, refusal_code, refusal_reason
from jobs.scheduler.need import cpu_ranks_max, request_error
from jobs.scheduler.never import Inventory, never_reason
from jobs.scheduler.order import Ends, cards_waited_for, queue_order
from jobs.scheduler.pool import Pool
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
        self.pool = Pool(snapshot, policy)
        self.ends = Ends(snapshot)
        self.inventory: Inventory | None = None

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
        request = job.request
        if request_error(request) is not None:
            return self._why(job)
        if request.gpu_count > 0:
            shape = self.pool.shape(request, job.avoid_nodes)
            sets = self.pool.best_sets(shape)
            if sets is not None:
                self.ends.add(job)
                return self.pool.place(job.id, shape, sets)
        else:
            placed = self.pool.place_cpu(job.id, nodes=request.nodes, avoid=job.avoid_nodes)
            if placed is not None:
                return placed
        return self._why(job)

    def _why(self, job: Job) -> Reason:
        """The reason of a job that was not placed; keeps aside what it waits for."""
        request = job.request
        if self.inventory is None:
            self.inventory = Inventory(self.snapshot.nodes)
        never = never_reason(request, self.inventory, self.policy)
        if never is not None:
            return never
        if not self.snapshot.nodes:
            return Reason(code=reasons.NO_NODE)
        if request.gpu_count == 0:
            return self._why_no_nodes(request)
        shape = self.pool.shape(request, job.avoid_nodes)
        # Before anything is kept for this job: it is not blocked by itself.
        reason = binding_reason(request, self.pool.views(request), per_node=shape.per_node, nodes_needed=request.nodes)
        waited_for = cards_waited_for(shape, self.pool, self.ends)
        if waited_for is not None:
            self.pool.set_aside(waited_for, job.id)
        return reason

    def _why_no_nodes(self, request: Request) -> Reason:
        """A job without cards waits only for nodes that take work and have a core left for it."""
        away = [item.node for item in self.pool.nodes if not item.node.takes_work]
        if len(self.pool.nodes) - len(away) >= request.nodes:
            free = sum(item.node.takes_work and item.has_cpu_room for item in self.pool.nodes)
            largest = max((item.node for item in self.pool.nodes if item.node.takes_work), key=lambda node: (cpu_ranks_max(node), -node.id))
            params = {"needed": request.nodes, "free": free, "limit": cpu_ranks_max(largest), "node": largest.name}
            return Reason(code=reasons.CPU_BUSY, params=params)
        if request.nodes > 1:
            free = len(self.pool.nodes) - len(away)
            return Reason(code=reasons.NODES_SHORT, params={"needed": request.nodes, "free": free})
        code = refusal_code(away[0].refusal)
        return refusal_reason(away[0], nodes=sum(refusal_code(node.refusal) == code for node in away))
