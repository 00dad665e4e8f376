"""Reads of the pool that are more than one filter."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q

from nodes.liveness import is_half_silent
from nodes.models import Gpu, GpuState, Node, NodeState

#: Nodes that should be heard of. A DOWN node was fenced by proof, and one that is joining was not heard of yet.
WATCHED = (NodeState.READY, NodeState.RECOVERING, NodeState.UNKNOWN)


def fencing_frozen() -> bool:
    """True while more than half of the nodes (and more than one) are silent: no lease runs out, nothing is called lost.

    Read from the node rows, so it holds whatever happens to Redis. One SELECT.
    """
    counts = _silent_counts()
    return is_half_silent(unknown=counts["unknown"], watched=counts["watched"])


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


def _silent_counts() -> dict[str, int]:
    return Node.objects.aggregate(unknown=Count("pk", filter=Q(state=NodeState.UNKNOWN)), watched=Count("pk", filter=Q(state__in=WATCHED)))
