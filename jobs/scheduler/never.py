"""What no card or node of this cluster can ever hold, whatever ends: refused at submit with the numbers, instead of waiting for ever.

Judged on all known nodes and cards whatever their state: a drained node comes back. A card whose memory size is unknown
holds nothing; but while no size at all is known among the cards of the right kind, or no card or node is known yet, the
answer is "wait", not "never".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from jobs.scheduler import reasons
from jobs.scheduler.need import DEFAULT_POLICY, Need, cards_per_node, kind_mismatch, need_on, nominal_mib, request_error
from jobs.scheduler.types import Gpu, Node, Policy, Reason, Request

_NEVER_KIND = {reasons.VENDOR: reasons.NEVER_VENDOR, reasons.MODEL: reasons.NEVER_MODEL, reasons.ARCH: reasons.NEVER_ARCH}
_KIND_OF: dict[str, Callable[[Gpu], str | None]] = {
    reasons.NEVER_VENDOR: lambda gpu: gpu.vendor,
    reasons.NEVER_MODEL: lambda gpu: gpu.model,
    reasons.NEVER_ARCH: lambda gpu: gpu.compute_capability,
}


class Inventory:
    """All known cards, counted by kind on each node, so that many requests are judged cheaply."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.id)
        self.samples: dict[object, tuple[Gpu, Node]] = {}
        self.counts: list[tuple[Node, Counter[object]]] = []
        for node in self.nodes:
            count: Counter[object] = Counter()
            for gpu in sorted(node.gpus, key=lambda gpu: (gpu.index, gpu.id)):
                kind = kind_of(gpu)
                count[kind] += 1
                self.samples.setdefault(kind, (gpu, node))
            self.counts.append((node, count))


def kind_of(gpu: Gpu) -> tuple[object, ...]:
    """Cards of one kind answer a request alike while they are empty and in service."""
    return (gpu.vendor, gpu.model, gpu.compute_capability, gpu.total_mib, gpu.nominal_mib, gpu.max_slices)


def never_reason(request: Request, nodes: Sequence[Node] | Inventory, policy: Policy = DEFAULT_POLICY) -> Reason | None:
    """Why this cluster can never hold the request; None = it can, or nothing is known yet."""
    error = request_error(request)
    if error is not None:
        return error
    here = nodes if isinstance(nodes, Inventory) else Inventory(nodes)
    if not here.nodes:
        return None
    if request.nodes > len(here.nodes):
        return Reason(code=reasons.TOO_MANY_NODES, params={"needed": request.nodes, "have": len(here.nodes)})
    if request.gpu_count == 0 or not here.samples:
        return None

    # 1. Is any card of the right kind, and large enough?
    needs = {kind: need_on(request, gpu, policy) for kind, (gpu, _node) in here.samples.items()}
    good = {kind for kind, need in needs.items() if isinstance(need, Need)}
    if not good:
        right = [kind for kind in needs if kind_mismatch(request, here.samples[kind][0]) is None]
        if not right:
            return _kind_reason(request, here)
        sized = [kind for kind in right if here.samples[kind][0].total_mib]
        if not sized:
            return None
        gpu, node = max((here.samples[kind] for kind in sized), key=lambda pair: _nominal(pair[0]))
        where = {"largest_nominal_mib": _nominal(gpu), "node": node.name, "gpu": gpu.index}
        return Reason(code=reasons.NEVER_GPU_MEMORY, params={"needed_mib": request.gpu_mem_mib, **where})

    # 2. Are there enough of them on one node, and enough such nodes?
    suitable = [(sum(number for kind, number in count.items() if kind in good), node) for node, count in here.counts]
    per_node = cards_per_node(request)
    enough = sum(number >= per_node for number, _node in suitable)
    if enough >= request.nodes:
        return None
    if enough and request.nodes > 1:
        return Reason(code=reasons.NEVER_NODES, params={"needed": request.nodes, "have": enough, "per_node": per_node})
    largest, node = max(suitable, key=lambda pair: pair[0])
    hint = _nodes_hint(request.gpu_count, [number for number, _node in suitable])
    return Reason(code=reasons.NEVER_GPU_COUNT, params={"needed": per_node, "largest": largest, "node": node.name, "hint_nodes": hint})


def _nominal(gpu: Gpu) -> int:
    total = gpu.total_mib or 0
    return max(gpu.nominal_mib or nominal_mib(total), total)


def _kind_reason(request: Request, here: Inventory) -> Reason:
    """No card passes vendor, model and arch together: name the first that no card passes, else the one that fails last."""
    cards = [gpu for gpu, _node in here.samples.values()]
    alone = {
        reasons.VENDOR: Request(vendor=request.vendor),
        reasons.MODEL: Request(model=request.model),
        reasons.ARCH: Request(arch=request.arch),
    }
    codes = [code for code, part in alone.items() if all(kind_mismatch(part, gpu) is not None for gpu in cards)]
    if not codes:
        # Each is here, but never on one card: say what is short among the cards that pass the filters before it.
        met = [mismatch.code for gpu in cards if (mismatch := kind_mismatch(request, gpu)) is not None]
        codes = [max(met, key=list(alone).index)]
        cards = [gpu for gpu in cards if (mismatch := kind_mismatch(request, gpu)) is not None and mismatch.code == codes[0]]
    code = _NEVER_KIND[codes[0]]
    asked = {reasons.VENDOR: request.vendor, reasons.MODEL: request.model, reasons.ARCH: request.arch}[codes[0]]
    have = sorted({value for gpu in cards if (value := _KIND_OF[code](gpu)) is not None})
    return Reason(code=code, params={"asked": asked, "have": have})


def _nodes_hint(gpu_count: int, suitable: Sequence[int]) -> int | None:
    """The smallest --nodes with which the cards could be had: it divides them evenly, and so many nodes have enough."""
    for nodes in range(2, min(gpu_count, len(suitable)) + 1):
        if gpu_count % nodes == 0 and sum(number >= gpu_count // nodes for number in suitable) >= nodes:
            return nodes
    return None
