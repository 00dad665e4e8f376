"""Clusters as files: reads and writes the layout of docs/simulating.md. Text in, text out; opens no file itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from jobs.scheduler.need import nominal_mib
from jobs.scheduler.types import Gpu, Node, Snapshot

MILLI_CARD_MIB = 1_000  # a card of a cluster that names no memory: a thousandth of it is one MiB
MOST_CARDS = 1_000  # of one node: card ids are node × 1000 + index

#: One node class of document 001 each: share of the nodes in per cent, cards, model, MiB a card, compute capability, host MiB, cores.
_ABC = (
    (40, 8, "NVIDIA A100-SXM4-40GB", 40_960, "8.0", 256 * 1024, 64),
    (30, 4, "NVIDIA Tesla V100-SXM2-32GB", 32_768, "7.0", 128 * 1024, 32),
    (30, 8, "NVIDIA Tesla T4", 15_360, "7.5", 64 * 1024, 32),
)
PRESETS = ("abc",)


class WorkloadError(ValueError):
    """The file can't be used. ``code`` is one of jobs.simulation_words', ``params`` its numbers."""

    def __init__(self, code: str, **params: Any) -> None:
        super().__init__(f"{code} {params}")
        self.code = code
        self.params = params


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``is_exact``: cards have no memory, only thousandths, and the slicing rules say nothing about those."""

    snapshot: Snapshot
    is_exact: bool = False


def cluster_read(text: str) -> Cluster:
    """{"nodes": [4, 8, …]} (cards of each) or {"nodes": [{"gpus": 8, "model": …, "total_mib": …, "count": 2}, …]}. Raises WorkloadError."""
    try:
        entries = json.loads(text)["nodes"]
    except (ValueError, KeyError, TypeError) as error:
        raise WorkloadError("cluster_json") from error
    if not isinstance(entries, list) or not entries:
        raise WorkloadError("cluster_json")
    nodes: list[Node] = []
    for number, entry in enumerate(entries):
        for copy in range(_whole(entry.get("count", 1), "count", number, 1, 100_000) if isinstance(entry, dict) else 1):
            nodes.append(_node(entry, number, copy, len(nodes)))
    is_exact = all(isinstance(entry, int) for entry in entries)
    return Cluster(snapshot=Snapshot(now=0.0, nodes=tuple(nodes), jobs=()), is_exact=is_exact)


def _whole(value: object, key: str, number: int, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise WorkloadError("cluster_number", node=number, field=key, value=str(value)[:60], least=least, most=most)
    return value


def _node(entry: object, number: int, copy: int, node_id: int) -> Node:
    if isinstance(entry, int):
        entry = {"gpus": entry, "total_mib": MILLI_CARD_MIB, "nominal_mib": MILLI_CARD_MIB, "model": "card"}
    if not isinstance(entry, dict):
        raise WorkloadError("cluster_node", node=number)
    cards = entry.get("gpus", 0)
    if isinstance(cards, list):
        kinds = cards
        _whole(len(cards), "gpus", number, 0, MOST_CARDS)
    else:
        kinds = [entry] * _whole(cards, "gpus", number, 0, MOST_CARDS)
    gpus = tuple(_gpu(kind, number, node_id, index) for index, kind in enumerate(kinds))
    name = str(entry.get("name") or f"n{node_id}")
    facts: dict[str, Any] = {
        key: _whole(entry[key], key, number, 0, 10**9) for key in ("cpu_cores", "memory_mib", "network_mbps") if entry.get(key) is not None
    }
    facts |= {key: str(entry[key]) for key in ("cuda_version", "driver_version", "network_group") if entry.get(key)}
    labels = entry.get("labels") or {}
    if not isinstance(labels, dict):
        raise WorkloadError("cluster_node", node=number)
    return Node(
        id=node_id,
        name=name if copy == 0 else f"{name}-{copy + 1}",
        gpus=gpus,
        labels={str(key): str(value) for key, value in labels.items()},
        **facts,
    )


def _gpu(kind: object, number: int, node_id: int, index: int) -> Gpu:
    if not isinstance(kind, dict):
        raise WorkloadError("cluster_node", node=number)
    total = _whole(kind.get("total_mib"), "total_mib", number, 1, 10**9)
    nominal = kind.get("nominal_mib")
    return Gpu(
        id=node_id * MOST_CARDS + index,
        uuid=f"GPU-{node_id}-{index}",
        index=index,
        model=str(kind.get("model") or "card"),
        vendor=str(kind.get("vendor") or "nvidia"),
        total_mib=total,
        nominal_mib=nominal_mib(total) if nominal is None else _whole(nominal, "nominal_mib", number, 1, 10**9),
        compute_capability=kind.get("compute_capability") or None,
        max_slices=_whole(kind.get("max_slices", 4), "max_slices", number, 1, 1000),
    )


def cluster_preset(name: str, nodes: int) -> Cluster:
    """``abc``: the classes A, B and C by their shares of so many nodes. Raises WorkloadError."""
    if name not in PRESETS:
        raise WorkloadError("preset", name=name[:60], known=", ".join(PRESETS))
    if not len(_ABC) <= nodes <= 100_000:
        raise WorkloadError("preset_nodes", nodes=nodes, least=len(_ABC), most=100_000)
    # Each class gets its share rounded down, at least one; what is left over goes to the first, the largest.
    counts = [max(nodes * share // 100, 1) for share, *_ in _ABC]
    counts[0] += nodes - sum(counts)
    entries = [
        {
            "name": f"class-{letter}", "count": count, "gpus": cards, "model": model, "total_mib": mib, "compute_capability": arch,
            "memory_mib": host_mib, "cpu_cores": cores,
        }
        for letter, count, (_share, cards, model, mib, arch, host_mib, cores) in zip("abc", counts, _ABC, strict=True)
    ]  # fmt: skip
    return cluster_read(json.dumps({"nodes": entries}))


def cluster_write(cluster: Snapshot) -> str:
    """The cluster in our layout, for ``cluster_read``."""
    entries = []
    for node in cluster.nodes:
        cards = [
            {
                "model": gpu.model, "vendor": gpu.vendor, "total_mib": gpu.total_mib, "nominal_mib": gpu.nominal_mib,
                "compute_capability": gpu.compute_capability, "max_slices": gpu.max_slices,
            }
            for gpu in node.gpus
            if gpu.total_mib
        ]  # fmt: skip
        facts = {
            "cpu_cores": node.cpu_cores, "memory_mib": node.memory_mib, "labels": dict(node.labels), "cuda_version": node.cuda_version,
            "driver_version": node.driver_version, "network_group": node.network_group, "network_mbps": node.network_mbps,
        }  # fmt: skip
        entries.append({"name": node.name, "gpus": cards, **{key: value for key, value in facts.items() if value not in (None, {})}})
    return json.dumps({"nodes": entries}, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
