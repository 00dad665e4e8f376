"""Until when a node stays too full for a request: the end of what runs there, as forecasts expect it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from jobs.scheduler.estimate import remaining_likely_s
from jobs.scheduler.need import Need, cards_per_node, foreign_counted_mib, free_mib, need_on, node_mismatch, request_error
from jobs.scheduler.types import Gpu, Node, Policy, Request, Slice, Snapshot


class Ends:
    """When slices end by the estimates of ``forecast`` (p50). Made once for a snapshot; then each question costs one node."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._now = snapshot.now
        self._policy = policy
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._ends = {run.job: snapshot.now + remaining_likely_s(run, snapshot.now, policy, 1.0) for run in snapshot.running}
        self._on: dict[int, list[Slice]] = defaultdict(list)
        for part in snapshot.slices:
            self._on[part.gpu].append(part)

    def room_at(self, request: Request, node: str) -> float | None:
        """When the node's cards have room for one rank of the request, if nothing new is put there; seconds since the epoch.

        None = the end of no job brings that, or it has the room now. The host's cores and memory are not looked at.
        """
        found = self._nodes.get(node)
        at = None if found is None else self._node_at(request, found)
        return at if at is not None and at > self._now else None

    def room_anywhere_at(self, request: Request) -> float | None:
        """When as many nodes as the request asks for have room for a rank each; None as in ``room_at``."""
        times = sorted(at for node in self._nodes.values() if (at := self._node_at(request, node)) is not None)
        if request.nodes < 1 or len(times) < request.nodes or times[request.nodes - 1] <= self._now:
            return None
        return times[request.nodes - 1]

    def next_end(self) -> float:
        """When the first of the running jobs is expected to end; inf = none runs."""
        return min(self._ends.values(), default=math.inf)

    def _node_at(self, request: Request, node: Node) -> float | None:
        if not node.takes_work or request.gpu_count < 1 or request_error(request) is not None or node_mismatch(request, node) is not None:
            return None
        times = sorted(at for gpu in node.gpus if (at := self._card_at(request, gpu)) is not None)
        wanted = cards_per_node(request)
        return times[wanted - 1] if len(times) >= wanted else None

    def _card_at(self, request: Request, gpu: Gpu) -> float | None:
        need = need_on(request, gpu, self._policy)
        if not isinstance(need, Need) or not gpu.is_schedulable:
            return None
        foreign = foreign_counted_mib(gpu, self._policy)
        here = self._on[gpu.id]
        dated = [(self._end(part), part) for part in here if part.job is not None and not part.is_quarantined]
        dated.sort(key=lambda item: (item[0], item[1].job or 0, item[1].mib))
        for gone in range(len(dated) + 1):
            rest = _without(here, (part for _at, part in dated[:gone]))
            if need.take(free_mib=free_mib(gpu, rest) - foreign, live=len(rest)) is not None:
                return self._now if gone == 0 else dated[gone - 1][0]
        return None

    def _end(self, part: Slice) -> float:
        """A slice whose job has ended already waits for its memory only: that is now."""
        return self._ends.get(part.job or 0, self._now)


def _without(slices: Iterable[Slice], gone: Iterable[Slice]) -> list[Slice]:
    """Slices of one card may be equal: each of ``gone`` takes off one."""
    rest = list(slices)
    for part in gone:
        rest.remove(part)
    return rest
