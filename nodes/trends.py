"""What runs of figures tell of cards: slowing down for heat, a memory clock held low, memory that grows. Processes that no job
owns are looked at in the same turn (nodes/foreign.py).

Every 30 s, from what Redis holds; the memory between two looks is in Redis, too (an emptied one only begins anew). The database is
written when something begins, is over, or changes a card's score.

  nebula:trends   hash  card UUID → JSON of its Trend; cards without anything to remember have none
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from nodes import telemetry
from nodes.doubts import SESSION
from nodes.foreign import foreign_look
from nodes.health import RUN, Figures, Trend, health_score, trend_next
from nodes.hot import Reading, hot_look
from nodes.memory_faults import memory_look
from nodes.models import Gpu, GpuState, HealthEvent, Node, NodeState, XidPolicy
from nodes.text import json_clean

log = logging.getLogger(__name__)

TRENDS_KEY, TURN_KEY = "nebula:trends", "nebula:trends:turn"
EVERY_S = 30
WEEK = timedelta(days=7)


def trends_tick(*, now: float) -> int:
    """One look at all cards; more than one call within 30 s does nothing. Returns how many events it wrote. ``now``: Unix time."""
    turn = int(now) // EVERY_S
    if not telemetry.ask(lambda c: c.set(f"{TURN_KEY}:{turn}", "1", nx=True, ex=2 * EVERY_S), None):
        return 0
    rows = Node.objects.exclude(state=NodeState.RETIRED).order_by().values_list("pk", "name", "is_metrics_only")
    nodes = {pk: name for pk, name, _only in rows}
    # A machine that only reports is its owner's: nothing there is foreign.
    pooled = {pk: name for pk, name, is_metrics_only in rows if not is_metrics_only}
    cards = list(
        Gpu.objects.filter(node__in=nodes)
        .exclude(state=GpuState.RETIRED)
        .order_by("pk")
        .values_list("pk", "node_id", "uuid", "held_mib", "live_slices", "health_score")
    )
    latest = telemetry.nodes_latest(nodes)
    slow = telemetry.cards_health([(pk, node, uuid) for pk, node, uuid, *_ in cards])
    before = telemetry.ask(lambda c: c.hgetall(TRENDS_KEY), None)
    if before is None:
        return 0
    kept: dict[str, str] = {}
    temps: list[Reading] = []
    scores: dict[int, tuple[int, tuple[str, ...], Mapping[str, Any]]] = {}
    events: list[tuple[int, int, str, dict[str, Any]]] = []
    for pk, node, uuid, held_mib, slices, score in cards:
        trend = _trend_read(before.get(uuid))
        found = latest.get(node)
        status = found.gpus.get(uuid) if found is not None and now - found.at < telemetry.STALE_AFTER_S else None
        facts = slow.get(pk, {})
        if status is not None and status.get("error") is None:
            figures = _figures(status, facts, (held_mib, slices))
            trend, began, over = trend_next(trend, figures)
            told = {"temp_c": figures.temp_c, "core_mhz": figures.core_mhz, "mem_mhz": figures.mem_mhz, "used_mib": figures.used_mib}
            events += [(node, pk, name, told) for name in began]
            events += [(node, pk, "trend_over", {"what": name}) for name in over]
            has_more = trend.used_mib is not None and trend.used_mib > held_mib
            if trend.runs or trend.told or has_more:
                kept[uuid] = json.dumps({"runs": trend.runs, "told": trend.told, "used_mib": trend.used_mib, "held": trend.held})
        elif uuid in before:
            kept[uuid] = before[uuid]  # silence neither begins nor ends anything
        temps.append(Reading(pk, uuid, status.get("temp_c") if status is not None else None))
        scores[pk] = (score, trend.told, facts)
    telemetry.hash_replace(TRENDS_KEY, before, kept)
    _scores_save(scores, now=now)
    hot_look(temps, now=now)
    memory_look(slow, now=datetime.fromtimestamp(now, UTC))
    events += foreign_look(pooled, {uuid: pk for pk, node, uuid, *_ in cards if node in pooled}, now=now)
    _events_write(events, now=now)
    return len(events)


def _trend_read(text: str | None) -> Trend:
    try:
        found = json.loads(text or "{}")
        held = found.get("held")
        return Trend(
            runs={str(name): max(-RUN, min(RUN, int(n))) for name, n in found.get("runs", {}).items()},
            told=tuple(str(name) for name in found.get("told", ())),
            used_mib=found.get("used_mib"),
            held=(int(held[0]), int(held[1])) if held else None,
        )
    except (ValueError, TypeError, AttributeError, IndexError):
        return Trend()  # another version wrote it


def _figures(status: Mapping[str, Any], facts: Mapping[str, Any], held: tuple[int, int]) -> Figures:
    names = ("util_pct", "temp_c", "used_mib", "core_mhz", "mem_mhz")
    most = {name: facts.get(name) for name in ("core_max_mhz", "mem_max_mhz")}
    return Figures(**{name: status.get(name) for name in names}, **most, throttle=status.get("throttle", ()), held=held)


def _scores_save(scores: Mapping[int, tuple[int, tuple[str, ...], Mapping[str, Any]]], *, now: float) -> None:
    since = datetime.fromtimestamp(now, UTC) - WEEK
    users = set(XidPolicy.objects.filter(is_users=True).values_list("xid", flat=True))
    rows = HealthEvent.objects.filter(kind="xid", gpu__isnull=False, at__gte=since).order_by("-at").values_list("gpu_id", "data")[:5000]
    faults = Counter(gpu for gpu, data in rows if data.get("xid") not in users and not data.get("drill"))
    for pk, (old, told, facts) in scores.items():
        new = health_score(
            faults_week=faults[pk], told=told, remap_pending=bool(facts.get("remap_pending")), remap_failed=bool(facts.get("remap_failed"))
        )
        if new != old:
            Gpu.objects.filter(pk=pk).update(health_score=new)


def _events_write(events: Iterable[tuple[int, int, str, dict[str, Any]]], *, now: float) -> None:
    at = datetime.fromtimestamp(now, UTC)
    first = int(now * 1000) * 1000
    rows = [
        HealthEvent(node_id=node, gpu_id=gpu, session=SESSION, eid=first + n, kind=kind, data=json_clean(data), at=at)
        for n, (node, gpu, kind, data) in enumerate(events)
    ]
    if rows:
        HealthEvent.objects.bulk_create(rows, ignore_conflicts=True)
