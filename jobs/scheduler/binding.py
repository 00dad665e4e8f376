"""Which cause really binds: the one reason, with numbers, why a request does not fit a set of nodes now.

A card has at most one cause (``CardView.cause``). A cause *suffices* if the request would fit once all cards with that
cause were good. The answer is
1. ``blocked_by`` if that suffices: the cards are free, but kept for a job ahead;
2. else, of the causes that suffice on cards in service, the one that covers most cards (ties: order of ``IN_THE_WAY``):
   on a full cluster that is what the job waits for, however many cards are cordoned as well;
3. else, if all causes on cards in service suffice together: too few cards at once (``gpu_count``);
4. else the cause that covers most of the cards out of service;
5. else no card here is of the right kind: the commonest mismatch.

Cards that look alike are judged once, and of a node only the numbers of its cards' looks are read: a pass asks this of each request
that fails, over all nodes. Where nothing but the cards counts, a ``Tally`` serves all requests with the same needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from jobs.scheduler import reasons
from jobs.scheduler.access import ORDER
from jobs.scheduler.need import Need, host_short
from jobs.scheduler.types import Gpu, Node, Reason, Request

HOST = (reasons.HOST_CPU, reasons.HOST_MEMORY)
IN_THE_WAY = (reasons.FOREIGN_USE, reasons.GPU_MEMORY, reasons.SLICE_LIMIT, reasons.WHOLE_CARD_BUSY, *HOST)
OUT_OF_SERVICE = (reasons.NODE_CORDONED, reasons.NODE_NOT_READY, reasons.NODE_UNSAFE, reasons.GPU_UNHEALTHY)
KIND = (
    reasons.GPU_TOO_SMALL,
    reasons.MODEL,
    reasons.ARCH,
    reasons.VENDOR,
    reasons.CUDA,
    reasons.DRIVER,
    reasons.LABEL,
    reasons.NODE_CPU,
    reasons.NODE_MEMORY,
    *ORDER,
    reasons.MEMORY_UNKNOWN,
)


@dataclass(slots=True)
class CardView:
    """Cards that look alike, as one request sees them. ``free_mib`` is what slices leave, foreign use not considered."""

    gpu: Gpu  # one of them
    need: Need | Reason
    free_mib: int
    foreign_mib: int  # only what counts
    live: int
    aside_for: int | None = None  # the job that the card is kept for

    @property
    def really_free_mib(self) -> int:
        return max(self.free_mib - self.foreign_mib, 0)

    def cause(self) -> str | None:
        """The code of what stands in the way on this card; None = it fits now. The node's state is not looked at."""
        need = self.need
        if isinstance(need, Reason):
            return need.code
        if not self.gpu.is_schedulable:
            return reasons.GPU_UNHEALTHY
        if need.take(free_mib=self.free_mib - self.foreign_mib, live=self.live) is not None:
            return None if self.aside_for is None else reasons.BLOCKED_BY
        if self.live >= need.max_live:
            if not need.exclusive:
                return reasons.SLICE_LIMIT if self.free_mib >= need.least_mib else reasons.GPU_MEMORY
            # Alone on the card or not at all; memory binds only if even sharing would not be enough.
            return reasons.WHOLE_CARD_BUSY if need.least_mib == need.mib or self.free_mib >= need.least_mib else reasons.GPU_MEMORY
        return reasons.FOREIGN_USE if self.free_mib >= need.least_mib else reasons.GPU_MEMORY


@dataclass(slots=True)
class NodeView:
    """A node as any request sees it; ``name`` None = a card looked at by itself. ``looks``: of each card, which CardView it is like."""

    name: str | None
    refusal: str | None
    takes_work: bool
    gpus: Sequence[Gpu] = ()
    looks: Sequence[int] = ()
    cpu_milli: int | None = None  # free on the host; None = unknown
    memory_mib: int | None = None


_REFUSALS = {"cordoned": reasons.NODE_CORDONED, "unsafe": reasons.NODE_UNSAFE}


def refusal_code(refusal: str | None) -> str:
    return _REFUSALS.get((refusal or "cordoned").lower(), reasons.NODE_NOT_READY)


def refusal_reason(node: Node | NodeView, *, nodes: int = 1) -> Reason:
    """Why a node takes no work. ``nodes``: how many nodes have that cause."""
    code = refusal_code(node.refusal)
    if code != reasons.NODE_NOT_READY:
        return Reason(code=code, params={"node": node.name, "nodes": nodes})
    return Reason(code=code, params={"node": node.name, "state": node.refusal, "nodes": nodes})


def host_reason(request: Request, code: str, nodes: Sequence[NodeView]) -> Reason:
    """What the hosts lack, with the most that one of them has free."""
    if code == reasons.HOST_CPU:
        best = max(nodes, key=lambda node: -1 if node.cpu_milli is None else node.cpu_milli)
        return Reason(code=code, params={"needed_milli": request.cpu_milli, "largest_free_milli": best.cpu_milli, "node": best.name})
    best = max(nodes, key=lambda node: -1 if node.memory_mib is None else node.memory_mib)
    return Reason(code=code, params={"needed_mib": request.host_mem_mib, "largest_free_mib": best.memory_mib, "node": best.name})


#: What of a node counts beside its cards: (why it takes no work, what its host lacks); None = nothing.
Side = tuple[str | None, str | None]
FINE: Side = (None, None)


class Tally:
    """How many cards have which cause, and how many of each node: one number a node, ``width`` bits of it for each cause.

    ``counts``: how many cards have each look, if all nodes are alike beside their cards, else empty; for one card of one node that is
    enough.
    """

    def __init__(self, request: Request, nodes: Sequence[NodeView], looks: Sequence[CardView], counts: Sequence[int] = ()) -> None:
        self.nodes = nodes
        self.looks = looks
        self.counts = counts
        self._request = request
        self._has_host = request.cpu_milli is not None or request.host_mem_mib is not None
        self._causes = [look.cause() for look in looks]
        self._width = 0
        self._shift: dict[str | None, int] = {}
        self._counted: dict[str | None, list[int]] = {}
        self._by_side: dict[Side, list[str | None]] = {}
        self.sides: list[Side] = []
        self.sums: list[int] = []
        self.groups: Counter[int] = Counter()
        if not self.counts:
            self.look_at_nodes()

    def look_at_nodes(self) -> None:
        """Fill ``sums``, ``sides`` and ``groups``, unless that is done."""
        if self.sums:
            return
        self._width = max([len(node.looks) for node in self.nodes], default=0).bit_length()
        if self.counts:
            weights = [1 << self._shift_of(cause) for cause in self._causes]
            for node in self.nodes:
                total = 0
                for look in node.looks:
                    total += weights[look]
                self.sums.append(total)
            self.sides = [FINE] * len(self.nodes)
        else:
            self._look_closely()
        self.groups = Counter(self.sums)  # nodes with as many good cards and as many of each cause count alike
        mask = (1 << self._width) - 1
        self._counted = {cause: [(total >> shift) & mask for total in self.groups] for cause, shift in self._shift.items()}

    def _look_closely(self) -> None:
        by_side: dict[Side, list[int]] = {}
        for node in self.nodes:
            side = FINE
            if not node.takes_work:
                side = (refusal_code(node.refusal), None)
            elif self._has_host and node.name is not None:
                side = (None, host_short(self._request, node.cpu_milli, node.memory_mib))
            weights = by_side.get(side)
            if weights is None:
                weights = by_side[side] = [1 << self._shift_of(cause) for cause in self.causes(side)]
            self.sides.append(side)
            self.sums.append(sum(map(weights.__getitem__, node.looks)))

    def causes(self, side: Side) -> list[str | None]:
        """The cause of each look on a node of that side."""
        found = self._by_side.get(side)
        if found is None:
            refusal, short = side
            found = self._causes
            if refusal is not None:
                found = [cause if cause in KIND else refusal for cause in found]
            elif short is not None:
                # Whatever else ends, the host is too full.
                found = [short if cause is None or cause in IN_THE_WAY else cause for cause in found]
            self._by_side[side] = found
        return found

    def _shift_of(self, cause: str | None) -> int:
        return self._shift.setdefault(cause, self._width * len(self._shift))

    def counted(self, *causes: str | None) -> Sequence[int]:
        """For each of ``groups`` the cards of one node with one of the causes; None = good cards. Call ``look_at_nodes`` before."""
        columns = [self._counted[cause] for cause in causes if cause in self._counted]
        if len(columns) == 1:
            return columns[0]
        return [sum(counts) for counts in zip(*columns, strict=True)] if columns else [0] * len(self.groups)

    def totals(self) -> dict[str | None, int]:
        """Cards with each cause, on all nodes; the cause None = good cards."""
        found: dict[str | None, int] = {}
        if self.counts:
            for cause, times in zip(self._causes, self.counts, strict=True):
                if times:
                    found[cause] = found.get(cause, 0) + times
            return found
        for cause, counts in self._counted.items():
            found[cause] = sum(map(mul, counts, self.groups.values()))
        return found

    def nodes_with(self, least: int, *causes: str | None) -> int:
        """Nodes with at least so many cards with one of the causes."""
        self.look_at_nodes()
        return sum([times for count, times in zip(self.counted(*causes), self.groups.values(), strict=True) if count >= least])

    def first(self, group: int) -> NodeView:
        """The first node of one of ``groups``, by its place among them."""
        return self.nodes[self.sums.index([*self.groups][group])]


def binding_reason(request: Request, tally: Tally, *, per_node: int, nodes_needed: int = 1) -> Reason:
    """The binding reason. Call only where the request does not fit: fewer than ``nodes_needed`` nodes have ``per_node`` good cards."""
    totals = tally.totals()

    def suffices(*causes: str) -> bool:
        if per_node == 1 and nodes_needed == 1:
            return any(map(totals.get, (None, *causes)))
        return tally.nodes_with(per_node, None, *causes) >= nodes_needed

    def detail(cause: str) -> Reason:
        return _detail(request, tally, cause, totals, per_node, nodes_needed)

    if suffices(reasons.BLOCKED_BY):
        return detail(reasons.BLOCKED_BY)
    alone = [cause for cause in IN_THE_WAY if totals.get(cause) and suffices(reasons.BLOCKED_BY, cause)]
    if alone:
        return detail(max(alone, key=lambda cause: totals[cause]))
    if suffices(reasons.BLOCKED_BY, *IN_THE_WAY):
        return _count_reason(tally, per_node, nodes_needed)
    for group in (OUT_OF_SERVICE, KIND):
        present = [cause for cause in group if totals.get(cause)]
        if present and (group is KIND or suffices(reasons.BLOCKED_BY, *IN_THE_WAY, *group)):
            # Enough cards, some of them of the wrong kind: the number is what is short.
            if group is KIND and tally.nodes_with(1, None, reasons.BLOCKED_BY, *IN_THE_WAY, *OUT_OF_SERVICE):
                break
            return detail(max(present, key=lambda cause: totals[cause]))
    if not any(node.looks for node in tally.nodes):
        return Reason(code=reasons.NO_GPU, params={"nodes": len(tally.nodes)})
    return _count_reason(tally, per_node, nodes_needed)


def _count_reason(tally: Tally, per_node: int, nodes_needed: int) -> Reason:
    tally.look_at_nodes()
    free = tally.counted(None)
    most = max(free)
    numbers = {"needed": per_node, "free": most, "node": tally.first(free.index(most)).name}
    return Reason(code=reasons.GPU_COUNT, params={**numbers, "nodes": nodes_needed, "nodes_free": tally.nodes_with(per_node, None)})


def _detail(request: Request, tally: Tally, cause: str, totals: dict[str | None, int], per_node: int, nodes_needed: int) -> Reason:
    """The numbers of the cause, from the node that is nearest to being enough."""
    if cause == reasons.WHOLE_CARD_BUSY and (per_node > 1 or nodes_needed > 1):
        return _count_reason(tally, per_node, nodes_needed)
    holders: set[int] = set()
    if tally.sums:
        holders = {total for total, count in zip(tally.groups, tally.counted(cause), strict=True) if count}
        if cause in HOST:
            return host_reason(request, cause, [node for node, total in zip(tally.nodes, tally.sums, strict=True) if total in holders])
        useful = zip(tally.groups, tally.counted(None, reasons.BLOCKED_BY, cause), strict=True)
        enough = {total for total, count in useful if count >= per_node and total in holders} or holders
        find = _nth_largest if cause == reasons.GPU_MEMORY and per_node > 1 else _largest
        node, at = find(tally, cause, enough, per_node)
    else:
        node, at = _largest_alone(tally, cause)
    card, gpu = tally.looks[node.looks[at]], node.gpus[at]
    where = {"node": node.name, "gpu": gpu.index}
    if cause == reasons.GPU_MEMORY:
        numbers = {"needed_mib": request.gpu_mem_mib, "count": per_node, "largest_free_mib": card.really_free_mib}
        return Reason(code=cause, params={**numbers, **where})
    if cause == reasons.WHOLE_CARD_BUSY:
        numbers = {"needed_mib": request.gpu_mem_mib, "cards": totals[cause], "largest_free_mib": card.really_free_mib}
        return Reason(code=cause, params={**numbers, **where})
    if cause == reasons.BLOCKED_BY:
        return Reason(code=cause, params={"job": card.aside_for, "node": node.name})
    if cause == reasons.SLICE_LIMIT:
        limit = card.need.max_live if isinstance(card.need, Need) else gpu.max_slices
        return Reason(code=cause, params={"limit": limit, "needed_mib": request.gpu_mem_mib, "free_mib": card.really_free_mib, **where})
    if cause == reasons.FOREIGN_USE:
        numbers = {"needed_mib": request.gpu_mem_mib, "largest_free_mib": card.really_free_mib, "foreign_mib": gpu.foreign_mib}
        return Reason(code=cause, params={**numbers, **where})
    if cause in (reasons.NODE_CORDONED, reasons.NODE_NOT_READY, reasons.NODE_UNSAFE):
        return refusal_reason(node, nodes=sum([times for total, times in tally.groups.items() if total in holders]))
    if cause == reasons.GPU_UNHEALTHY:
        return Reason(code=cause, params={**where, "state": gpu.state, "cards": totals[cause]})
    if cause == reasons.MEMORY_UNKNOWN:
        return Reason(code=cause, params={**where, "cards": totals[cause]})
    return card.need if isinstance(card.need, Reason) else Reason(code=cause)


def _largest_alone(tally: Tally, cause: str) -> tuple[NodeView, int]:
    """As ``_largest``, where the nodes were not looked at: any node with such a card is enough."""
    free = {at: tally.looks[at].really_free_mib for at, its in enumerate(tally.causes(FINE)) if its == cause and tally.counts[at]}
    for most in sorted(set(free.values()), reverse=True):
        wanted = {at for at, mib in free.items() if mib == most}
        for node in tally.nodes:
            if not wanted.isdisjoint(node.looks):
                return node, next(at for at, look in enumerate(node.looks) if look in wanted)
    raise AssertionError(f"no card has the cause {cause}")


def _largest(tally: Tally, cause: str, enough: set[int], _per_node: int) -> tuple[NodeView, int]:
    """Of the cards with the cause, on nodes with one of these sums, the one with most memory really free; the first of several."""
    free = [look.really_free_mib for look in tally.looks]
    with_cause = {side: [at for at, its in enumerate(tally.causes(side)) if its == cause] for side in set(tally.sides)}
    for most in sorted({free[at] for looks in with_cause.values() for at in looks}, reverse=True):
        wanted = {side: {at for at in looks if free[at] == most} for side, looks in with_cause.items()}
        for node, side, total in zip(tally.nodes, tally.sides, tally.sums, strict=True):
            if total in enough and not wanted[side].isdisjoint(node.looks):
                return node, next(at for at, look in enumerate(node.looks) if look in wanted[side])
    raise AssertionError(f"no card has the cause {cause}")


def _nth_largest(tally: Tally, cause: str, enough: set[int], per_node: int) -> tuple[NodeView, int]:
    """Of ``per_node`` cards on one node the good ones come first; the last one needed sets the number. The node where it is largest."""
    best: tuple[int, NodeView, int] | None = None
    good = dict(zip(tally.groups, tally.counted(None, reasons.BLOCKED_BY), strict=True))
    for node, side, total in zip(tally.nodes, tally.sides, tally.sums, strict=True):
        if total not in enough:
            continue
        causes = tally.causes(side)
        frees = [(tally.looks[look].really_free_mib, at) for at, look in enumerate(node.looks) if causes[look] == cause]
        ranked = sorted([(-free, node.gpus[at].index, at) for free, at in frees])
        short = per_node - good[total]
        free, _index, at = ranked[min(max(short, 1), len(ranked)) - 1]
        if best is None or -free > best[0]:
            best = (-free, node, at)
    if best is None:
        raise AssertionError(f"no card has the cause {cause}")
    return best[1], best[2]
