"""The queue's latest forecast, in Redis: made in the background by jobs/forecaster.py, served from here. Works with Redis away or empty.

Key of ``settings.LIVE_REDIS_URL``: ``nebula:outlooks``, a hash of ``at`` (Unix time of the snapshot), ``head`` (the first jobs of the
queue in its order), and of each waiting job's id a JSON list of ``FIELDS``. It is replaced as a whole, so that one answer never mixes
two forecasts. A job costs one round trip, a page of jobs does too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import redis

from jobs.scheduler.outlook import QueueOutlook
from jobs.scheduler.reasons import BLOCKED_BY
from nodes import telemetry

KEY = "nebula:outlooks"
#: An older one is shown as being made anew.
FRESH_S = 15.0
#: Nobody makes a new one any more: then none is better than an old one.
TTL_S = 300
FIELDS = ("position", "p50", "p90", "after", "code", "until", "behind", "place")
WRITE_CHUNK = 2_000
#: So many jobs at the head of the queue are named in its order.
HEAD_MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What was found for a waiting job at ``at``. Times are Unix times; see jobs.scheduler.outlook for each."""

    at: float
    position: int | None = None
    p50: float | None = None
    p90: float | None = None
    after: float | None = None
    code: str = ""
    until: float | None = None
    behind: int | None = None
    place: str = ""

    def age_s(self, now: datetime) -> float:
        return max(0.0, now.timestamp() - self.at)

    def is_stale(self, now: datetime) -> bool:
        return self.age_s(now) > FRESH_S


def told_read(ids: Iterable[int]) -> dict[int, Told]:
    """Of those jobs that the latest forecast knows. One round trip to Redis, no query."""
    wanted = list(ids)
    if not wanted:
        return {}
    at, *rows = telemetry.ask(lambda c: c.hmget(KEY, ["at", *map(str, wanted)]), [None])
    found: dict[int, Told] = {}
    for pk, text in zip(wanted, rows, strict=False):
        if text is None:
            continue
        try:
            found[pk] = Told(at=float(at), **dict(zip(FIELDS, json.loads(text), strict=True)))
        except (ValueError, TypeError):
            continue  # another version wrote it; the next forecast replaces it
    return found


def head_read() -> list[int]:
    """The jobs at the head of the queue, the first first, by the latest forecast; empty where there is none."""
    text = telemetry.ask(lambda c: c.hget(KEY, "head"), None)
    try:
        return [int(pk) for pk in json.loads(text)] if text else []
    except (ValueError, TypeError):
        return []


def outlooks_write(queue: QueueOutlook, places: Mapping[int, str]) -> bool:
    """Replace the forecast. False if Redis is away."""
    rows = {
        str(pk): json.dumps(
            [one.position, one.p50, one.p90, one.after, one.code, one.until, one.behind, places.get(pk, "")], separators=(",", ":")
        )
        for pk, one in queue.jobs.items()
    }
    in_order = sorted((one.position, pk) for pk, one in queue.jobs.items() if one.position is not None)
    head = [pk for _position, pk in in_order[:HEAD_MOST]]
    fresh = f"{KEY}:new"

    def write(c: redis.Redis) -> bool:
        pipe = c.pipeline(transaction=False)
        pipe.delete(fresh)
        items = [("at", f"{queue.at:.3f}"), ("head", json.dumps(head)), *rows.items()]
        for start in range(0, len(items), WRITE_CHUNK):
            pipe.hset(fresh, mapping=dict(items[start : start + WRITE_CHUNK]))
        pipe.expire(fresh, TTL_S)
        pipe.rename(fresh, KEY)
        pipe.execute()
        return True

    return telemetry.ask(write, False)


def outlooks_confirm(at: float) -> bool:
    """Nothing has changed since: the forecast is as good as one made at ``at``. False if there is none, or Redis is away."""

    def write(c: redis.Redis) -> bool:
        if not c.expire(KEY, TTL_S):
            return False
        c.hset(KEY, "at", f"{at:.3f}")
        return True

    return telemetry.ask(write, False)


def outlooks_forget() -> None:
    """Nobody waits."""
    telemetry.ask(lambda c: c.delete(KEY), None)


def iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(round(at), tz=UTC).isoformat().replace("+00:00", "Z")


def reason_dated(code: str, params: Mapping[str, Any], told: Told | None, *, now: datetime) -> dict[str, Any]:
    """The reason's numbers, with the time that goes with them where it is known and still ahead: ``until_at``, until when that
    is in the way, or for ``blocked_by`` ``starts_at``, when the job ahead starts. jobs.wording puts both into words."""
    if told is None or told.code != code or told.until is None or told.until <= now.timestamp():
        return dict(params)
    if code != BLOCKED_BY:
        return {**params, "until_at": iso(told.until)}
    return {**params, "starts_at": iso(told.until)} if told.behind == params.get("job") else dict(params)
