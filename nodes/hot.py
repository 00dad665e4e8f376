"""Cards that stay too hot: their jobs move to others, until they have cooled. Off unless ``HOT_MOVE_C`` is set.

A card at ``HOT_MOVE_C`` or more at every look for ``HOT_MOVE_S`` is isolated: its jobs are stopped politely and go on elsewhere. Once it
has been ``COOL_BY_C`` cooler for as long, it is tested and comes back. The memory between two looks is in Redis.

  nebula:hot   hash  card UUID → "hot <since>", "out <since>" once it was taken out, "cool <since>"; Unix times
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.conf import settings
from django.db import transaction

from nodes import telemetry
from nodes.care import verdict_apply
from nodes.health import HEALTHY, ISOLATED, SUSPECT, Verdict
from nodes.models import Gpu

KEY = "nebula:hot"
COOL_BY_C = 15
REASON = "hot"


class Reading(NamedTuple):
    """``temp_c`` None = not told now: it begins and ends nothing."""

    gpu: int
    uuid: str
    temp_c: int | None


def hot_look(readings: Iterable[Reading], *, now: float) -> list[int]:
    """One look; returns the cards that were taken out or sent back. No query while nothing is too hot; none at all where it is off."""
    if not settings.HOT_MOVE_C:
        return []
    before: Mapping[str, str] | None = telemetry.ask(lambda c: c.hgetall(KEY), None)
    if before is None:
        return []
    kept: dict[str, str] = {}
    moved: list[int] = []
    for reading in readings:
        known = before.get(reading.uuid, "")
        after = known if reading.temp_c is None else _next(known, reading.temp_c, now=now)
        kind, _space, since = after.partition(" ")
        if reading.temp_c is not None and kind in ("hot", "cool") and now - float(since) >= settings.HOT_MOVE_S:
            has_moved = _act(reading, kind, now=now)
            moved += [reading.gpu] if has_moved else []
            after = "" if kind == "cool" else f"out {now:.0f}" if has_moved else after
        if after:
            kept[reading.uuid] = after
    telemetry.hash_replace(KEY, before, kept)
    return moved


def _next(known: str, temp_c: int, *, now: float) -> str:
    """What is remembered of a card after this reading; "" = nothing."""
    kind = known.partition(" ")[0]
    if temp_c >= settings.HOT_MOVE_C:
        return known if kind == "hot" else f"out {now:.0f}" if kind in ("out", "cool") else f"hot {now:.0f}"
    if kind not in ("out", "cool"):
        return ""  # a run of heat is over
    if temp_c > settings.HOT_MOVE_C - COOL_BY_C:
        return f"out {now:.0f}"  # cooler, not cool
    return known if kind == "cool" else f"cool {now:.0f}"


@transaction.atomic
def _act(reading: Reading, kind: str, *, now: float) -> bool:
    gpu = Gpu.objects.select_for_update().get(pk=reading.gpu)
    params: dict[str, Any] = {"temp_c": reading.temp_c, "limit_c": settings.HOT_MOVE_C}
    at = datetime.fromtimestamp(now, UTC)
    if kind == "hot" and gpu.state in (HEALTHY, SUSPECT):
        return verdict_apply(gpu=gpu, verdict=Verdict(code=REASON, params=params, state=ISOLATED), now=at)
    if kind == "cool" and gpu.state == ISOLATED and gpu.state_reason == REASON:
        return verdict_apply(gpu=gpu, verdict=Verdict(code="cooled", params=params, state=SUSPECT, wants="test"), now=at)
    return False
