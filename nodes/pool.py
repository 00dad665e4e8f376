"""What a card's memory and use count as: the one place that decides, so that the API, the overview, the heat map, a node's
page and nebula-ctl tell the same numbers.

Every card that the pool knows counts in the totals, one that went missing too: it is out of service then, with nothing free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nodes import telemetry
from nodes.models import Gpu, GpuState, NodeState

#: Below this, foreign use is the driver's own and does not count (D1).
FOREIGN_FLOOR_MIB = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """``use``: idle | busy | maintenance. MiB; ``free_mib`` None = not known, because the size is not or the card is gone."""

    use: str
    total_mib: int | None
    free_mib: int | None
    ghost_mib: int
    takes_work: bool  # new work may come to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """idle + busy + maintenance = cards; ``free_mib`` is of the cards that new work may come to."""

    cards: int
    idle: int
    busy: int
    maintenance: int
    ghost: int
    total_mib: int
    free_mib: int


def foreign_counted(status: Mapping[str, Any] | None) -> int:
    """Ghost use in MiB as far as it counts."""
    mib = int((status or {}).get("foreign_mib") or 0)
    return mib if mib > FOREIGN_FLOOR_MIB else 0


def card_use(
    *,
    state: str,
    total_mib: int | None,
    held_mib: int,
    live_slices: int,
    is_exclusive: bool,
    node_takes_work: bool,
    status: Mapping[str, Any] | None,
) -> CardUse:
    """Pure. A card that someone uses is busy even while its node takes no new work; one with a fault is in maintenance."""
    ghost = foreign_counted(status)
    is_healthy = state == GpuState.HEALTHY
    takes_work = is_healthy and node_takes_work
    if live_slices or ghost:
        use = "busy" if is_healthy else "maintenance"
    else:
        use = "idle" if takes_work else "maintenance"
    free: int | None = None
    if total_mib is not None and state != GpuState.MISSING:
        free = 0 if is_exclusive else max(0, total_mib - held_mib - ghost)
    return CardUse(use=use, total_mib=total_mib, free_mib=free, ghost_mib=ghost, takes_work=takes_work)


def gpu_use(gpu: Gpu, status: Mapping[str, Any] | None) -> CardUse:
    """``gpu`` with its node loaded."""
    return card_use(
        state=gpu.state,
        total_mib=gpu.total_mib,
        held_mib=gpu.held_mib,
        live_slices=gpu.live_slices,
        is_exclusive=gpu.is_exclusive,
        node_takes_work=gpu.node.takes_work,
        status=status,
    )


def totals_of(cards: Iterable[CardUse]) -> Totals:
    rows = list(cards)
    uses = [card.use for card in rows]
    return Totals(
        cards=len(rows),
        idle=uses.count("idle"),
        busy=uses.count("busy"),
        maintenance=uses.count("maintenance"),
        ghost=sum(card.ghost_mib > 0 for card in rows),
        total_mib=sum(card.total_mib or 0 for card in rows),
        free_mib=sum(card.free_mib or 0 for card in rows if card.takes_work),
    )


def pool_gpus() -> list[tuple[Gpu, CardUse]]:
    """All cards of the nodes that have not left, each with its node. One query, one round trip to Redis."""
    gpus = list(Gpu.objects.exclude(node__state=NodeState.RETIRED).exclude(state=GpuState.RETIRED).select_related("node").order_by())
    latest = telemetry.gpus_latest(gpus)
    return [(gpu, gpu_use(gpu, latest.get(gpu.pk))) for gpu in gpus]
