"""Whether a request fits a card or a node now. One copy, used by ``plan`` and again when a plan is applied.

INVARIANT: after any grant made here, Σ slices ≤ total, at most ``max_slices`` slices live on the card, and an exclusive
slice (which takes ``total_mib``) is alone. With ``Policy.slicing_rules`` off, the number of slices is not limited.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobs.scheduler import reasons
from jobs.scheduler.binding import CardView, NodeView, Tally, binding_reason, host_reason, refusal_reason
from jobs.scheduler.need import (
    DEFAULT_POLICY,
    Need,
    cards_per_node,
    cpu_ranks_max,
    foreign_counted_mib,
    free_mib,
    host_free,
    host_short,
    need_on,
    node_mismatch,
    nominal_mib,
    request_error,
)
from jobs.scheduler.types import Gpu, Grant, Node, Policy, RankPlacement, Reason, Request, Slice

__all__ = ["fits", "grant_for", "nominal_mib", "rank_fits"]


def _card_view(request: Request, gpu: Gpu, taken: Sequence[Slice], policy: Policy, node: Node | None = None) -> CardView:
    return CardView(
        gpu=gpu,
        need=(None if node is None else node_mismatch(request, node)) or need_on(request, gpu, policy),
        free_mib=free_mib(gpu, taken),
        foreign_mib=foreign_counted_mib(gpu, policy),
        live=len(taken),
    )


def grant_for(request: Request, gpu: Gpu, taken: Iterable[Slice], policy: Policy = DEFAULT_POLICY) -> Grant | Reason:
    """The grant that one card gives the request now, or why it gives none. ``taken`` may hold other cards' slices too."""
    view = _card_view(request, gpu, [part for part in taken if part.gpu == gpu.id], policy)
    if view.cause() is None and isinstance(view.need, Need):
        mib = view.need.take(free_mib=view.free_mib - view.foreign_mib, live=view.live)
        if mib is not None:
            return Grant(gpu=gpu.id, mib=mib, exclusive=view.need.exclusive)
    return binding_reason(request, Tally(request, [NodeView(None, None, True, [gpu], [0])], [view]), per_node=1)


def fits(request: Request, node: Node, taken: Sequence[Slice], policy: Policy = DEFAULT_POLICY) -> Reason | None:
    """Whether this node can take one rank of the request now; None = yes. ``taken`` may hold other nodes' slices too."""
    error = request_error(request)
    if error is not None:
        return error
    cpu_milli, memory_mib = host_free(node)
    short = host_short(request, cpu_milli, memory_mib)
    if request.gpu_count == 0:
        return _host_fits(request, node)
    mine: dict[int, list[Slice]] = {gpu.id: [] for gpu in node.gpus}
    for part in taken:
        if part.gpu in mine:
            mine[part.gpu].append(part)
    cards = [_card_view(request, gpu, mine[gpu.id], policy, node) for gpu in node.gpus]
    per_node = cards_per_node(request)
    if node.takes_work and short is None and sum(card.cause() is None for card in cards) >= per_node:
        return None
    view = NodeView(node.name, node.refusal, node.takes_work, node.gpus, range(len(cards)), cpu_milli, memory_mib)
    return binding_reason(request, Tally(request, [view], cards), per_node=per_node)


def _host_fits(request: Request, node: Node) -> Reason | None:
    """Whether the node takes work and its host can take one rank now; None = yes. Cards are not looked at."""
    if not node.takes_work:
        return refusal_reason(node)
    mismatch = node_mismatch(request, node)
    if mismatch is not None:
        return mismatch
    cpu_milli, memory_mib = host_free(node)
    short = host_short(request, cpu_milli, memory_mib)
    if short is None:
        return None
    return host_reason(request, short, [NodeView(node.name, node.refusal, node.takes_work, (), (), cpu_milli, memory_mib)])


def rank_fits(request: Request, rank: RankPlacement, node: Node, taken: Sequence[Slice], policy: Policy = DEFAULT_POLICY) -> Reason | None:
    """Whether exactly these grants are still good on this node; None = yes. For applying a plan that may have grown old.

    A grant that could be larger by now (a neighbour has left since) is still good: it is within the rules.
    """
    host = _host_fits(request, node)
    if host is not None:
        return host
    if request.gpu_count == 0:
        limit = cpu_ranks_max(node)
        params = {"needed": request.nodes, "free": 0, "limit": limit, "node": node.name}
        return Reason(code=reasons.CPU_BUSY, params=params) if node.live_cpu_ranks >= limit else None
    by_id = {gpu.id: gpu for gpu in node.gpus}
    asked = [grant.gpu for grant in rank.grants]
    if len(set(asked)) != len(asked) or len(asked) != cards_per_node(request):
        return Reason(code=reasons.GPU_COUNT, params=_count_params(request, node, free=len(set(asked))))
    for grant in rank.grants:
        gpu = by_id.get(grant.gpu)
        if gpu is None:
            return Reason(code=reasons.GRANT_GONE, params={"node": node.name, "gpu": grant.gpu})
        now = grant_for(request, gpu, taken, policy)
        if isinstance(now, Reason):
            return Reason(code=now.code, params={**now.params, "node": node.name} if "node" in now.params else now.params)
        need = need_on(request, gpu, policy)
        least = need.least_mib if isinstance(need, Need) and not now.exclusive else now.mib
        if now.exclusive != grant.exclusive or not least <= grant.mib <= now.mib:
            return Reason(code=reasons.GRANT_GONE, params={"node": node.name, "gpu": grant.gpu})
    return None


def _count_params(request: Request, node: Node, *, free: int) -> dict[str, object]:
    return {"needed": cards_per_node(request), "free": free, "node": node.name, "nodes": request.nodes, "nodes_free": 0}
