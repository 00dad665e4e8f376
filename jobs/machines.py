"""Nodes, their cards and what their hosts have left, as the core wants them: to look at, or locked to be taken from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Q

from jobs.admission import demands_of
from jobs.lifecycle import RANK_FINAL
from jobs.models import Rank
from jobs.scheduler import types as core
from jobs.scheduler.access import NOTHING, ONE_NODE
from nodes import telemetry
from nodes.isolation import Told, is_ready
from nodes.models import Gpu, GpuLink, GpuState, Node, NodeState
from quotas.sql import Select

NODE_FIELDS = (
    "pk",
    "name",
    "state",
    "cordoned",
    "cpu_cores",
    "memory_mib",
    "labels",
    "cuda_version",
    "driver_version",
    "isolation",
    "address",
)
GPU_FIELDS = (
    "pk",
    "node_id",
    "uuid",
    "index",
    "model",
    "vendor",
    "total_mib",
    "nominal_mib",
    "state",
    "max_slices",
    "compute_capability",
    "health_score",
    "pcie_gen",
    "pcie_width",
    "pcie_hops",
    "is_unified",
)
#: Of machines that may ever be given work.
_PLACED_ON = Q(is_metrics_only=False) & ~Q(state=NodeState.RETIRED)
_nodes_rows = Select(lambda: Node.objects.filter(_PLACED_ON).order_by("pk").values_list(*NODE_FIELDS))
_gpus_rows = Select(lambda: Gpu.objects.order_by("pk").values_list(*GPU_FIELDS))
_links_rows = Select(lambda: GpuLink.objects.order_by("pk").values_list("a_id", "b_id", "kind", "a__node_id"))
_hosts_rows = Select(
    lambda: (
        Rank.objects.filter(is_forgotten=False)
        .exclude(observed__in=RANK_FINAL)
        .filter(Q(attempt__job__gpu_count=0) | Q(attempt__job__constraints__has_any_keys=("cpu_milli", "host_mem_mib")))
        .order_by()
        .values_list("node_id", "attempt__job__gpu_count", "attempt__job__constraints")
    )
)
#: First key of the advisory lock of a node without cards; the second is its id.
HOST_LOCK = 0x686F_7374  # "host"


def _whole(text: object) -> int | None:
    """A label's number; None if it is none."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10 else None


def _share(value: object) -> int | None:
    """A per cent that an agent told."""
    return value if isinstance(value, int) and 0 <= value <= 100 else None


def _refusal(state: str, cordoned: bool, isolation: Told) -> str | None:
    if state != NodeState.READY:
        return state
    if cordoned:
        return "cordoned"
    if isolation is None:
        return NodeState.RECOVERING  # who its jobs run as is not told yet
    return None if is_ready(isolation) else "unsafe"


@dataclass(slots=True)
class Host:
    """What live ranks hold of a node: turns of jobs without a card, thousandths of a core, MiB of host memory."""

    cpu_ranks: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0


def hosts_read(node_ids: Iterable[int] | None = None) -> dict[int, Host]:
    """Node id → what its live ranks hold of the host; nodes without such ranks are left out. One query.

    A program that has ended holds nothing of the host any more, though its card may still be waited for.
    """
    wanted = None if node_ids is None else set(node_ids)
    found: dict[int, Host] = defaultdict(Host)
    for node_id, cards, constraints in _hosts_rows():
        if wanted is not None and node_id not in wanted:
            continue  # few ranks ask anything of a host: reading all of them costs no more
        host = found[node_id]
        host.cpu_ranks += cards == 0
        host.cpu_milli += constraints.get("cpu_milli") or 0
        host.memory_mib += constraints.get("host_mem_mib") or 0
    return dict(found)


def _hosts_lock(node_ids: Iterable[int]) -> None:
    """A node without cards has no card row to wait at: two passes at once meet here instead. Nothing on SQLite, where a writer is alone."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for node_id in sorted(node_ids):
                cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [HOST_LOCK, node_id & 0x7FFF_FFFF])


def nodes_read(*, with_latest: bool = False) -> tuple[core.Node, ...]:
    """The pool's nodes with their cards, by id. ``with_latest`` adds what moves: telemetry, and what the hosts have left."""
    node_rows, gpu_rows = _nodes_rows(), _gpus_rows()
    told = telemetry.nodes_latest(row[0] for row in node_rows) if with_latest else {}
    links: dict[int, list[core.Link]] = defaultdict(list)
    for a, b, kind, node_id in _links_rows():
        links[node_id].append(core.Link(a=a, b=b, kind=kind))
    hosts = hosts_read() if with_latest else {}
    headroom = {pk: _share((latest.host or {}).get("power_headroom_pct")) for pk, latest in told.items()}
    return _nodes(node_rows, gpu_rows, latest=telemetry.statuses_of(told), links=links, hosts=hosts, headroom=headroom)


def nodes_lock(ids: Iterable[int], *, with_hosts: bool) -> tuple[dict[int, core.Node], dict[int, str]]:
    """These nodes as they are now, with their cards' rows locked in id order (PostgreSQL), and the addresses of those that have
    one. ``with_hosts``: what the hosts have left is read behind the locks. No telemetry, no links."""
    node_rows = list(Node.objects.filter(_PLACED_ON, pk__in=list(ids)).order_by("pk").values_list(*NODE_FIELDS))
    found = [row[0] for row in node_rows]
    gpu_rows = list(Gpu.objects.select_for_update().filter(node_id__in=found).order_by("pk").values_list(*GPU_FIELDS))
    _hosts_lock(set(found) - {row[1] for row in gpu_rows})
    nodes = _nodes(node_rows, gpu_rows, latest={}, links={}, hosts=hosts_read(found) if with_hosts else {})
    return {node.id: node for node in nodes}, {row[0]: row[-1] for row in node_rows if row[-1]}


def _nodes(
    node_rows: Iterable[tuple[Any, ...]],
    gpu_rows: Iterable[tuple[Any, ...]],
    *,
    latest: Mapping[int, Mapping[str, Mapping[str, Any]]],
    links: Mapping[int, Sequence[core.Link]],
    hosts: Mapping[int, Host],
    headroom: Mapping[int, int | None] | None = None,
) -> tuple[core.Node, ...]:
    cards: dict[int, list[core.Gpu]] = defaultdict(list)
    unseen: Mapping[str, Any] = {}
    for pk, node_id, uuid, index, model, vendor, total, nominal, state, max_slices, arch, health, gen, width, hops, unified in gpu_rows:
        seen = latest.get(node_id, {}).get(uuid, unseen)
        cards[node_id].append(
            core.Gpu(
                id=pk,
                uuid=uuid,
                index=index,
                model=model,
                vendor=vendor,
                total_mib=total,
                nominal_mib=nominal,
                is_schedulable=state == GpuState.HEALTHY and not seen.get("error"),
                state=state,
                foreign_mib=seen.get("foreign_mib") or 0,
                max_slices=max_slices,
                compute_capability=arch or None,
                temp_c=seen.get("temp_c"),
                util_pct=seen.get("util_pct"),
                health=health,
                pcie_gen=gen,
                pcie_width=width,
                pcie_hops=hops,
                is_integrated=unified,
            )
        )
    nothing = Host()
    node_rows = list(node_rows)
    alone = _called_by_nobody({row[0]: row[-1] for row in node_rows})
    return tuple(
        core.Node(
            id=pk,
            name=name,
            gpus=tuple(cards[pk]),
            links=tuple(links.get(pk, ())),
            takes_work=_refusal(state, cordoned, isolation) is None,
            refusal=_refusal(state, cordoned, isolation),
            cpu_cores=cores,
            memory_mib=memory,
            labels=labels,
            live_cpu_ranks=hosts.get(pk, nothing).cpu_ranks,
            cpu_milli_held=hosts.get(pk, nothing).cpu_milli,
            memory_mib_held=hosts.get(pk, nothing).memory_mib,
            cuda_version=cuda or None,
            driver_version=driver or None,
            network_group=labels.get("network") or None,
            network_mbps=_whole(labels.get("network_mbps")),
            power_headroom_pct=(headroom or {}).get(pk),
            demands=demands_of(isolation) | alone.get(pk, NOTHING),
        )
        for pk, name, state, cordoned, cores, memory, labels, cuda, driver, isolation, _address in node_rows
    )


_ONE_NODE = frozenset({ONE_NODE})


def _called_by_nobody(addresses: Mapping[int, str]) -> Mapping[int, frozenset[str]]:
    """What the nodes demand that tell a loopback address while others tell a real one: jobs of one node. On one machine, where all tell
    it, they do reach each other."""
    alone = {pk: _ONE_NODE for pk, address in addresses.items() if address.startswith("127.") or address == "::1"}
    return alone if len(alone) < len(addresses) else {}


def nodes_all() -> tuple[core.Node, ...]:
    """All known nodes whatever their state: what the pool could ever hold."""
    return nodes_read()
