"""Which cause really binds: the one reason, with numbers, why a request does not fit a set of nodes now.

A card has at most one cause (``CardView.cause``). A cause *suffices* if the request would fit once all cards with that
cause were good. The answer is
1. ``blocked_by`` if that suffices: the cards are free, but kept for a job ahead;
2. else, of the causes that suffice on cards in service, the one that covers most cards (ties: order of ``IN_THE_WAY``):
   on a full cluster that is what the job waits for, however many cards are cordoned as well;
3. else, if all causes on cards in service suffice together: too few cards at once (``gpu_count``);
4. else the cause that covers most of the cards out of service;
5. else no card here is of the right kind: the commonest mismatch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.scheduler import reasons
from jobs.scheduler.need import Need
from jobs.scheduler.types import Gpu, Node, Reason, Request

HOST = (reasons.HOST_CPU, reasons.HOST_MEMORY)
IN_THE_WAY = (reasons.FOREIGN_USE, reasons.GPU_MEMORY, reasons.SLICE_LIMIT, reasons.WHOLE_CARD_BUSY, *HOST)
OUT_OF_SERVICE = (reasons.NODE_CORDONED, reasons.NODE_NOT_READY, reasons.GPU_UNHEALTHY)
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
    reasons.MEMORY_UNKNOWN,
)


@dataclass(slots=True)
class CardView:
    """A card as one request sees it. ``free_mib`` is what slices leave, foreign use not considered."""

    gpu: Gpu
    need: Need | Reason
    free_mib: int
    foreign_mib: int  # only what counts
    live: int
    aside_for: int | None = None  # the job that the card is kept for
    _cause: str | None = ""  # "" = not looked at yet

    @property
    def really_free_mib(self) -> int:
        return max(self.free_mib - self.foreign_mib, 0)

    def cause(self) -> str | None:
        """The code of what stands in the way on this card; None = it fits now. The node's state is not looked at."""
        if self._cause == "":
            self._cause = self._find()
        return self._cause

    def _find(self) -> str | None:
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
    """A node and its cards as one request sees them; ``name`` None = a card looked at by itself."""

    name: str | None
    refusal: str | None
    takes_work: bool
    cards: Sequence[CardView]
    short: str | None = None  # the code of what the host lacks now: host_cpu or host_memory
    cpu_milli: int | None = None  # free on the host; None = unknown
    memory_mib: int | None = None
    times: int = 1  # nodes that look just like this one


def refusal_code(refusal: str | None) -> str:
    return reasons.NODE_CORDONED if refusal is None or refusal.lower() == "cordoned" else reasons.NODE_NOT_READY


def refusal_reason(node: Node | NodeView, *, nodes: int = 1) -> Reason:
    """Why a node takes no work. ``nodes``: how many nodes have that cause."""
    code = refusal_code(node.refusal)
    if code == reasons.NODE_CORDONED:
        return Reason(code=code, params={"node": node.name, "nodes": nodes})
    return Reason(code=code, params={"node": node.name, "state": node.refusal, "nodes": nodes})


def host_reason(request: Request, code: str, nodes: Sequence[NodeView]) -> Reason:
    """What the hosts lack, with the most that one of them has free."""
    if code == reasons.HOST_CPU:
        best = max(nodes, key=lambda node: -1 if node.cpu_milli is None else node.cpu_milli)
        return Reason(code=code, params={"needed_milli": request.cpu_milli, "largest_free_milli": best.cpu_milli, "node": best.name})
    best = max(nodes, key=lambda node: -1 if node.memory_mib is None else node.memory_mib)
    return Reason(code=code, params={"needed_mib": request.host_mem_mib, "largest_free_mib": best.memory_mib, "node": best.name})


@dataclass(slots=True)
class _Sorted:
    """One node's cards by cause; ``ok`` = good now."""

    node: NodeView
    by_cause: dict[str, list[CardView]]
    ok: int

    def count(self, causes: Iterable[str]) -> int:
        return self.ok + sum(len(self.by_cause.get(cause, ())) for cause in causes)


def _sort_node(node: NodeView) -> _Sorted:
    by_cause: dict[str, list[CardView]] = {}
    ok = 0
    for card in node.cards:
        cause = card.cause()
        if not node.takes_work and cause not in KIND:
            cause = refusal_code(node.refusal)
        elif node.short is not None and (cause is None or cause in IN_THE_WAY):
            cause = node.short  # whatever else ends, the host is too full
        if cause is None:
            ok += 1
        else:
            by_cause.setdefault(cause, []).append(card)
    return _Sorted(node, by_cause, ok)


def binding_reason(request: Request, nodes: Iterable[NodeView], *, per_node: int, nodes_needed: int = 1) -> Reason:
    """The binding reason. Call only where the request does not fit: fewer than ``nodes_needed`` nodes have ``per_node`` good cards."""
    views = [_sort_node(node) for node in nodes]
    totals: Counter[str] = Counter()
    for view in views:
        totals.update({cause: len(cards) * view.node.times for cause, cards in view.by_cause.items()})

    # Nodes with as many good cards and as many of each cause count alike.
    counted: dict[tuple[object, ...], tuple[_Sorted, int]] = {}
    for view in views:
        counts = (view.ok, *((cause, len(cards)) for cause, cards in view.by_cause.items()))
        same = counted.get(counts)
        counted[counts] = (view, view.node.times if same is None else same[1] + view.node.times)

    def suffices(*causes: str) -> bool:
        return sum(times for view, times in counted.values() if view.count(causes) >= per_node) >= nodes_needed

    if suffices(reasons.BLOCKED_BY):
        return _detail(request, views, reasons.BLOCKED_BY, totals, per_node, nodes_needed)
    alone = [cause for cause in IN_THE_WAY if totals[cause] and suffices(reasons.BLOCKED_BY, cause)]
    if alone:
        return _detail(request, views, max(alone, key=lambda cause: totals[cause]), totals, per_node, nodes_needed)
    if suffices(reasons.BLOCKED_BY, *IN_THE_WAY):
        return _count_reason(views, per_node, nodes_needed)
    for group in (OUT_OF_SERVICE, KIND):
        present = [cause for cause in group if totals[cause]]
        if present and (group is KIND or suffices(reasons.BLOCKED_BY, *IN_THE_WAY, *group)):
            # Enough cards, some of them of the wrong kind: the number is what is short.
            if group is KIND and any(view.count((reasons.BLOCKED_BY, *IN_THE_WAY, *OUT_OF_SERVICE)) for view in views):
                break
            return _detail(request, views, max(present, key=lambda cause: totals[cause]), totals, per_node, nodes_needed)
    if not any(view.node.cards for view in views):
        return Reason(code=reasons.NO_GPU, params={"nodes": sum(view.node.times for view in views)})
    return _count_reason(views, per_node, nodes_needed)


def _count_reason(views: Sequence[_Sorted], per_node: int, nodes_needed: int) -> Reason:
    best = max(views, key=lambda view: view.ok)
    free_nodes = sum(view.node.times for view in views if view.ok >= per_node)
    params = {"needed": per_node, "free": best.ok, "node": best.node.name, "nodes": nodes_needed, "nodes_free": free_nodes}
    return Reason(code=reasons.GPU_COUNT, params=params)


def _detail(request: Request, views: Sequence[_Sorted], cause: str, totals: Counter[str], per_node: int, nodes_needed: int) -> Reason:
    """The numbers of the cause, from the node that is nearest to being enough."""
    holders = [view for view in views if view.by_cause.get(cause)]
    enough = [view for view in holders if view.count((reasons.BLOCKED_BY, cause)) >= per_node] or holders
    if cause in (reasons.GPU_MEMORY, reasons.WHOLE_CARD_BUSY):
        if cause == reasons.WHOLE_CARD_BUSY and (per_node > 1 or nodes_needed > 1):
            return _count_reason(views, per_node, nodes_needed)

        # Of `per_node` cards on one node, the good ones come first; the last one needed sets the number.
        def nth(view: _Sorted) -> CardView:
            ranked = sorted(view.by_cause[cause], key=lambda card: (-card.really_free_mib, card.gpu.index))
            short = per_node - view.count((reasons.BLOCKED_BY,))
            return ranked[min(max(short, 1), len(ranked)) - 1]

        best = max(enough, key=lambda view: nth(view).really_free_mib)
        card = nth(best)
        where = {"largest_free_mib": card.really_free_mib, "node": best.node.name, "gpu": card.gpu.index}
        if cause == reasons.GPU_MEMORY:
            return Reason(code=cause, params={"needed_mib": request.gpu_mem_mib, "count": per_node, **where})
        return Reason(code=cause, params={"needed_mib": request.gpu_mem_mib, "cards": totals[cause], **where})
    if cause in HOST:
        return host_reason(request, cause, [view.node for view in holders])
    best = max(enough, key=lambda view: max(card.really_free_mib for card in view.by_cause[cause]))
    card = max(best.by_cause[cause], key=lambda item: item.really_free_mib)
    name, gpu = best.node.name, card.gpu
    if cause == reasons.BLOCKED_BY:
        return Reason(code=cause, params={"job": card.aside_for, "node": name})
    if cause == reasons.SLICE_LIMIT:
        limit = card.need.max_live if isinstance(card.need, Need) else gpu.max_slices
        numbers = {"limit": limit, "needed_mib": request.gpu_mem_mib, "free_mib": card.really_free_mib}
        return Reason(code=cause, params={**numbers, "node": name, "gpu": gpu.index})
    if cause == reasons.FOREIGN_USE:
        numbers = {"needed_mib": request.gpu_mem_mib, "largest_free_mib": card.really_free_mib, "foreign_mib": gpu.foreign_mib}
        return Reason(code=cause, params={**numbers, "node": name, "gpu": gpu.index})
    if cause in (reasons.NODE_CORDONED, reasons.NODE_NOT_READY):
        return refusal_reason(best.node, nodes=sum(view.node.times for view in holders))
    if cause == reasons.GPU_UNHEALTHY:
        return Reason(code=cause, params={"node": name, "gpu": gpu.index, "state": gpu.state, "cards": totals[cause]})
    if cause == reasons.MEMORY_UNKNOWN:
        return Reason(code=cause, params={"node": name, "gpu": gpu.index, "cards": totals[cause]})
    return card.need if isinstance(card.need, Reason) else Reason(code=cause)
