"""What no card or node of this cluster can ever hold, whatever ends: refused at submit with the numbers, instead of waiting for ever.

Judged on all known nodes and cards whatever their state: a drained node comes back. A card whose memory size is unknown
holds nothing; but while no size at all is known among the cards of the right kind, or no card or node is known yet, the
answer is "wait", not "never".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter

from jobs.scheduler import reasons
from jobs.scheduler.access import ORDER
from jobs.scheduler.need import DEFAULT_POLICY, Need, cards_per_node, kind_mismatch, need_on, node_mismatch, nominal_mib, request_error
from jobs.scheduler.types import Gpu, Node, Policy, Reason, Request

_NEVER_KIND = {
    reasons.VENDOR: reasons.NEVER_VENDOR,
    reasons.MODEL: reasons.NEVER_MODEL,
    reasons.ARCH: reasons.NEVER_ARCH,
    reasons.CUDA: reasons.NEVER_CUDA,
    reasons.DRIVER: reasons.NEVER_DRIVER,
    reasons.LABEL: reasons.NEVER_LABEL,
    reasons.NODE_CPU: reasons.NEVER_NODE_CPU,
    reasons.NODE_MEMORY: reasons.NEVER_NODE_MEMORY,
    reasons.ACCOUNT: reasons.NEVER_ACCOUNT,
    reasons.ISOLATION: reasons.NEVER_ISOLATION,
    reasons.SECRET_ISOLATION: reasons.NEVER_SECRET_ISOLATION,
    reasons.SHARED_ADDRESS: reasons.NEVER_SHARED_ADDRESS,
}


def kind_of(gpu: Gpu) -> tuple[object, ...]:
    """Cards of one kind, on nodes of the same traits, answer a request alike while they are empty and in service."""
    return (gpu.total_mib, gpu.model, gpu.max_slices, gpu.compute_capability, gpu.nominal_mib, gpu.vendor)


_gpu_place = attrgetter("index", "id")


class NodeTraits:
    """What of a node these requests ask about: nodes that differ in nothing else are of one kind for them."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._fields: list[str] = []
        keys: set[str] = set()
        asked: set[str] = set()
        for request in requests:
            keys.update(key for key, _value in request.labels)
            asked.update(field for name, field in _NODE_FIELDS.items() if getattr(request, name) is not None)
            if request.lacks:
                asked.add("demands")
        self._labels = sorted(keys)
        self._fields = sorted(asked)

    def of(self, node: Node) -> tuple[object, ...]:
        if not self._labels and not self._fields:
            return ()
        return (*(getattr(node, field) for field in self._fields), *(node.labels.get(key) for key in self._labels))


_NODE_FIELDS = {"cuda_min": "cuda_version", "driver_min": "driver_version", "cpu_milli": "cpu_cores", "host_mem_mib": "memory_mib"}


class Inventory:
    """All known cards, counted by kind on each node, so that many requests are judged cheaply.

    ``samples``: one card of each kind, and a node it is on; ``counts``: (a node, how many cards of each kind it has, how many nodes have
    just as many), the kinds by their place in ``samples``; ``nodes`` by id.
    """

    def __init__(
        self, nodes: Sequence[Node], samples: Sequence[tuple[Gpu, Node]], counts: Sequence[tuple[Node, Counter[int], int]]
    ) -> None:
        self.nodes = nodes
        self.samples = samples
        self.counts = counts


def inventory_of(nodes: Iterable[Node], traits: NodeTraits) -> Inventory:
    """Count the cards of these nodes. A pass has done so already (pool.py)."""
    here = sorted(nodes, key=attrgetter("id"))
    number: dict[object, int] = {}
    samples: list[tuple[Gpu, Node]] = []
    alike: dict[tuple[int, ...], list[Node]] = {}
    for node in here:
        mine = traits.of(node)
        kinds = []
        for gpu in sorted(node.gpus, key=_gpu_place):
            kind = number.setdefault((kind_of(gpu), mine), len(samples))
            kinds.append(kind)
            if kind == len(samples):
                samples.append((gpu, node))
        alike.setdefault(tuple(kinds), []).append(node)
    return Inventory(here, samples, [(same[0], Counter(kinds), len(same)) for kinds, same in alike.items()])


def never_reason(
    request: Request, nodes: Sequence[Node] | Inventory, policy: Policy = DEFAULT_POLICY, needs: Sequence[Need | Reason] | None = None
) -> Reason | None:
    """Why this cluster can never hold the request; None = it can, or nothing is known yet.

    ``needs``: what the request takes from each of an inventory's samples, where that is known already.
    """
    error = request_error(request)
    if error is not None:
        return error
    here = nodes if isinstance(nodes, Inventory) else inventory_of(nodes, NodeTraits([request]))
    if not here.nodes:
        return None
    if request.nodes > len(here.nodes):
        return Reason(code=reasons.TOO_MANY_NODES, params={"needed": request.nodes, "have": len(here.nodes)})
    if request.gpu_count == 0:
        return _host_reason(request, here)
    if not here.samples:
        return None

    # 1. Is any card of the right kind, and large enough?
    if needs is None:
        needs = [node_mismatch(request, node) or need_on(request, gpu, policy) for gpu, node in here.samples]
    good = {kind for kind, need in enumerate(needs) if isinstance(need, Need)}
    if not good:
        right = [sample for sample in here.samples if _mismatch(request, *sample) is None]
        if not right:
            return _kind_reason(request, here.samples)
        sized = [sample for sample in right if sample[0].total_mib]
        if not sized:
            return None
        gpu, node = max(sized, key=lambda pair: _nominal(pair[0]))
        where = {"largest_nominal_mib": _nominal(gpu), "node": node.name, "gpu": gpu.index}
        return Reason(code=reasons.NEVER_GPU_MEMORY, params={"needed_mib": request.gpu_mem_mib, **where})

    # 2. Are there enough of them on one node, and enough such nodes?
    suitable = [(sum(number for kind, number in count.items() if kind in good), node, times) for node, count, times in here.counts]
    per_node = cards_per_node(request)
    enough = sum(times for number, _node, times in suitable if number >= per_node)
    if enough >= request.nodes:
        return None
    if enough and request.nodes > 1:
        return Reason(code=reasons.NEVER_NODES, params={"needed": request.nodes, "have": enough, "per_node": per_node})
    largest, node, _times = max(suitable, key=lambda item: item[0])
    hint = _nodes_hint(request.gpu_count, [number for number, _node, times in suitable for _ in range(times)])
    return Reason(code=reasons.NEVER_GPU_COUNT, params={"needed": per_node, "largest": largest, "node": node.name, "hint_nodes": hint})


def _nominal(gpu: Gpu) -> int:
    total = gpu.total_mib or 0
    return max(gpu.nominal_mib or nominal_mib(total), total)


def _mismatch(request: Request, gpu: Gpu | None, node: Node) -> Reason | None:
    return (kind_mismatch(request, gpu) if gpu is not None else None) or node_mismatch(request, node)


def _kind_reason(request: Request, places: Sequence[tuple[Gpu | None, Node]] | Sequence[tuple[Gpu, Node]]) -> Reason | None:
    """No card (or node, for a job without cards) passes all filters together: name the first that none
    passes, else the one that fails last.

    None = a host's size is not known yet: wait.
    """
    alone = {
        reasons.VENDOR: Request(vendor=request.vendor),
        reasons.MODEL: Request(model=request.model),
        reasons.ARCH: Request(arch=request.arch),
        reasons.CUDA: Request(cuda_min=request.cuda_min),
        reasons.DRIVER: Request(driver_min=request.driver_min),
        reasons.LABEL: Request(labels=request.labels),
        reasons.NODE_CPU: Request(cpu_milli=request.cpu_milli),
        reasons.NODE_MEMORY: Request(host_mem_mib=request.host_mem_mib),
        **{code: Request(lacks=request.lacks & {code}) for code in ORDER},
    }
    codes = [code for code, part in alone.items() if all(_mismatch(part, *place) is not None for place in places)]
    if not codes:
        # Each is here, but never on one card: say what is short among the cards that pass the filters before it.
        met = [mismatch.code for place in places if (mismatch := _mismatch(request, *place)) is not None]
        codes = [max(met, key=list(alone).index)]
        places = [place for place in places if (mismatch := _mismatch(request, *place)) is not None and mismatch.code == codes[0]]
    code = codes[0]
    failed = [(mismatch, node) for gpu, node in places if (mismatch := _mismatch(alone[code], gpu, node)) is not None]
    if code in (reasons.NODE_CPU, reasons.NODE_MEMORY):
        needed, have = ("needed_milli", "have_milli") if code == reasons.NODE_CPU else ("needed_mib", "have_mib")
        if any(mismatch.params[have] is None for mismatch, _node in failed):
            return None
        mismatch, node = max(failed, key=lambda item: item[0].params[have])
        numbers = {needed: mismatch.params[needed], have.replace("have", "largest"): mismatch.params[have]}
        return Reason(code=_NEVER_KIND[code], params={**numbers, "node": node.name})
    if code in ORDER:
        return Reason(code=_NEVER_KIND[code], params=failed[0][0].params)
    values = sorted({mismatch.params["have"] for mismatch, _node in failed if mismatch.params["have"] is not None})
    return Reason(code=_NEVER_KIND[code], params={"asked": failed[0][0].params["asked"], "have": values})


def _host_reason(request: Request, here: Inventory) -> Reason | None:
    """A job without cards: whether enough hosts could ever hold a rank of it."""
    good = sum(node_mismatch(request, node) is None for node in here.nodes)
    if good >= request.nodes:
        return None
    if good:
        return Reason(code=reasons.NEVER_NODES, params={"needed": request.nodes, "have": good, "per_node": 0})
    return _kind_reason(request, [(None, node) for node in here.nodes])


def _nodes_hint(gpu_count: int, suitable: Sequence[int]) -> int | None:
    """The smallest --nodes with which the cards could be had: it divides them evenly, and so many nodes have enough."""
    for nodes in range(2, min(gpu_count, len(suitable)) + 1):
        if gpu_count % nodes == 0 and sum(number >= gpu_count // nodes for number in suitable) >= nodes:
            return nodes
    return None
