"""Puts jobs on the pool one after the other, and says why one does not fit. Whose turn it is, and what is kept for whom, is not known here.

For the pass: ``Placer.place(job, shape)`` answers with a placement (and fills the pool), or None. Once nothing more is placed or set
aside, ``Placer.why(request)`` answers with the reason, which is the same for all jobs of that request.
"""

from __future__ import annotations

import heapq

from jobs.scheduler import reasons
from jobs.scheduler.backlog import Waiting
from jobs.scheduler.binding import NodeView, binding_reason, host_reason, refusal_code, refusal_reason
from jobs.scheduler.candidates import Candidates
from jobs.scheduler.looks import Looks
from jobs.scheduler.need import cards_per_node, cpu_ranks_max, host_short, node_mismatch
from jobs.scheduler.never import Inventory, never_reason
from jobs.scheduler.pool import Pool, PoolNode
from jobs.scheduler.shapes import Shape
from jobs.scheduler.types import Job, Placement, Policy, RankPlacement, Reason, Request, Snapshot

_NOWHERE: frozenset[int] = frozenset()
CpuEntry = tuple[float, int, int, int, PoolNode]


class Placer:
    """Raises ValueError for a ``policy.strategy`` that does not exist."""

    def __init__(self, snapshot: Snapshot, policy: Policy, waiting: Waiting) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.pool = Pool(snapshot, policy, waiting)
        self.candidates = Candidates(self.pool)
        self._looks: Looks | None = None
        self._inventory: Inventory | None = None
        self._never: dict[int, Reason | None] = {}
        self._cpu_heap: list[CpuEntry] | None = None

    def shape(self, request: Request, avoid: frozenset[int] = _NOWHERE, *, takes_kept: bool = False) -> Shape:
        return self.candidates.shape(request, avoid, takes_kept=takes_kept)

    def place(self, job: Job, shape: Shape) -> Placement | None:
        """The placement, written into the pool; None = it does not fit now. ``shape``: of the job's request, see ``Candidates.shape``; one
        that is found by cards goes to ``Candidates.best_card`` and ``Pool.place_one`` instead."""
        if not shape.is_valid:
            return None
        if shape.is_plain_cpu:
            return self._place_cpu(job)
        sets = self.candidates.best_sets(shape)
        return None if sets is None else self.pool.place(job.id, shape, sets)

    def never(self, request: Request) -> Reason | None:
        """Why this cluster can never hold the request; None = it can, or nothing is known yet."""
        number = self.pool.number(request)
        if number not in self._never:
            if self._inventory is None:
                self._inventory = self.pool.inventory()
            self._never[number] = never_reason(request, self._inventory, self.policy, self.pool.needs(request))
        return self._never[number]

    def why(self, request: Request, own: int | None = None) -> Reason:
        """The reason that binds. Call only for a request that was not placed, and only when the pool does not change any more.

        ``own``: the job, where cards are kept for it: it does not wait for itself.
        """
        never = self.never(request)
        if never is not None:
            return never
        if not self.snapshot.nodes:
            return Reason(code=reasons.NO_NODE)
        if request.gpu_count == 0:
            return self._why_no_nodes(request)
        if self._looks is None:
            self._looks = Looks(self.pool)
        tally = self._looks.tally(request, own)
        return binding_reason(request, tally, per_node=cards_per_node(request), nodes_needed=request.nodes)

    # Jobs without cards and without a say on the host

    def _place_cpu(self, job: Job) -> Placement | None:
        """Ranks without cards, on the nodes with the fewest of them per core; None = too few nodes have room for one."""
        request = job.request
        wanted = request.nodes
        has_filter = bool(request.labels or request.cuda_min or request.driver_min or request.lacks)
        if self._cpu_heap is None:
            self._cpu_heap = [_cpu_entry(node) for node in self.pool.nodes if node.node.takes_work and node.has_cpu_room]
            heapq.heapify(self._cpu_heap)
        heap = self._cpu_heap
        if len(heap) < wanted:
            return None
        chosen: list[PoolNode] = []
        avoided: list[CpuEntry] = []
        unfit: list[CpuEntry] = []
        while len(chosen) < wanted and heap:
            entry = heapq.heappop(heap)
            if has_filter and node_mismatch(request, entry[4].node) is not None:
                unfit.append(entry)
            elif entry[3] in job.avoid_nodes:
                avoided.append(entry)
            else:
                chosen.append(entry[4])
        while len(chosen) < wanted and avoided:
            chosen.append(avoided.pop(0)[4])
        for entry in (*avoided, *unfit):
            heapq.heappush(heap, entry)
        is_placed = len(chosen) == wanted
        for node in chosen:
            node.cpu_ranks += is_placed
            if node.has_cpu_room:
                heapq.heappush(heap, _cpu_entry(node))
        if not is_placed:
            return None
        chosen.sort(key=lambda node: node.node.id)
        ranks = tuple(RankPlacement(index=index, node=node.node.id, grants=()) for index, node in enumerate(chosen))
        return Placement(job=job.id, ranks=ranks)

    def _why_no_nodes(self, request: Request) -> Reason:
        """A job without cards waits only for nodes that take work and have room on the host for it."""
        good = [item for item in self.pool.nodes if node_mismatch(request, item.node) is None]
        away = [item.node for item in good if not item.node.takes_work]
        here = [item for item in good if item.node.takes_work]
        if len(here) >= request.nodes:
            short = [(item, code) for item in here if (code := host_short(request, item.cpu_milli, item.memory_mib)) is not None]
            if len(here) - len(short) < request.nodes:
                code = short[0][1]
                views = [
                    NodeView(item.node.name, None, True, (), (), item.cpu_milli, item.memory_mib) for item, why in short if why == code
                ]
                return host_reason(request, code, views)
            free = sum(item.has_cpu_room for item in here)
            largest = max((item.node for item in here), key=lambda node: (cpu_ranks_max(node), -node.id))
            params = {"needed": request.nodes, "free": free, "limit": cpu_ranks_max(largest), "node": largest.name}
            return Reason(code=reasons.CPU_BUSY, params=params)
        if request.nodes > 1:
            return Reason(code=reasons.NODES_SHORT, params={"needed": request.nodes, "free": len(here)})
        if not away:
            # No node is known to be large enough, but of some the size is not known yet.
            return node_mismatch(request, self.pool.nodes[0].node) or Reason(code=reasons.NO_NODE)
        code = refusal_code(away[0].refusal)
        return refusal_reason(away[0], nodes=sum(refusal_code(node.refusal) == code for node in away))


def _cpu_entry(node: PoolNode) -> CpuEntry:
    # Unknown cores count as one, the careful guess. Of equally busy nodes the one with fewer cards is taken.
    busy = node.cpu_ranks / max(node.node.cpu_cores or 1, 1)
    return (busy, node.cpu_ranks, len(node.cards), node.node.id, node)
