"""Reads of the pool that are more than one filter."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Count, Q
from django.utils import timezone

from nodes import telemetry
from nodes.liveness import heard_at, is_half_silent, is_watching
from nodes.models import Gpu, GpuState, Node, NodeState

#: Nodes that should be heard of. A DOWN node was fenced by proof, and one that is joining was not heard of yet.
WATCHED = (NodeState.READY, NodeState.RECOVERING, NodeState.UNKNOWN)


def fencing_frozen() -> bool:
    """True while more than half of the nodes (and more than one) are silent: no lease runs out, nothing is called lost.

    Read from the node rows, so it holds whatever happens to Redis. One SELECT.
    """
    counts = _silent_counts()
    return is_half_silent(unknown=counts["unknown"], watched=counts["watched"])


def node_silent_s(node_id: int, *, now: datetime | None = None) -> float | None:
    """Seconds for which we listened and heard nothing from this node; a lease is counted by it.

    None = it can't be told: Redis is away or was emptied, or the liveness checks pause. The count starts anew with the
    checks, so a stopped control plane, a jump of the clock or an emptied Redis never makes a silence longer than it was.
    """
    unix = (now or timezone.now()).timestamp()
    memory = telemetry.watch_read()
    if memory is None:
        return None
    seen, watch = memory
    if not is_watching(watch, now=unix):
        return None
    return max(0.0, unix - heard_at(node_id, seen=seen, watch=watch, now=unix))


def pool_notices() -> list[dict[str, Any]]:
    """What everyone should know: ``[{"code", "params"}]``, put into words at the edge. Two SELECTs."""
    notices: list[dict[str, Any]] = []
    counts = _silent_counts()
    if is_half_silent(unknown=counts["unknown"], watched=counts["watched"]):
        notices.append({"code": "fencing_frozen", "params": counts})
    simulated = Gpu.objects.filter(is_simulated=True).exclude(state=GpuState.MISSING).exclude(node__state=NodeState.RETIRED).count()
    if simulated:
        notices.append({"code": "simulated_cards", "params": {"cards": simulated}})
    return notices


def node_state_counts() -> dict[str, int]:
    """State → nodes; every state is there. RETIRED ones are counted too. One SELECT."""
    found = dict(Node.objects.order_by().values_list("state").annotate(Count("pk")))
    return {state: found.get(state, 0) for state in NodeState.values}


def _silent_counts() -> dict[str, int]:
    return Node.objects.aggregate(unknown=Count("pk", filter=Q(state=NodeState.UNKNOWN)), watched=Count("pk", filter=Q(state__in=WATCHED)))
