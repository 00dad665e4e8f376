"""Reading samples as curves: which level answers a question, and the points of it.

A range is read from the coarsest level that is fine enough, its newest part (not rolled up yet) from the finer ones. What a level
no longer keeps is answered by the next coarser one: the step that is answered may be larger than the one that was asked for.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db.models import Max, QuerySet
from django.utils.dateparse import parse_datetime

from nodes.models import Level
from nodes.sample_sql import rows_read
from nodes.samples import kept_s, step_of

#: Points of one answer.
POINTS_MOST = 2000
#: Points that are aimed at where no step is asked for; a curve is not wider than that on any screen.
POINTS_GOOD = 1500
#: Steps that are chosen from; the first is how often samples are taken.
STEPS_S = (60, 300, 600, 1800, 3600, 7200, 21_600, 86_400)
RANGE_MOST_S = 800 * 86_400
_EPOCH = re.compile(r"[0-9]{1,11}(\.[0-9]{1,6})?")
#: Times are from 1970 to here, however they are written: their neighbours are times, too, whatever the zone.
_LAST = 10**11


class BadRange(ValueError):
    """The range or step can't be answered. ``code``: time | order | long | step | many; ``params``: its numbers."""

    def __init__(self, field: str, code: str, **params: Any) -> None:
        super().__init__(code)
        self.field, self.code, self.params = field, code, params


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """since ≤ t < until, whole seconds of Unix time; ``step_s`` ≥ what was asked for, and ``since`` is a multiple of it."""

    since: int
    until: int
    step_s: int

    @property
    def steps(self) -> int:
        return -(-(self.until - self.since) // self.step_s)


@dataclass(slots=True)
class Curve:
    """The points of one subject, by time: ``at`` and, of the same length, a list for each figure. A step without a sample is
    left out; a figure that was not told in a step is None."""

    at: list[int] = field(default_factory=list)
    figures: dict[str, list[int | None]] = field(default_factory=dict)

    def to_json(self) -> dict[str, list[Any]]:
        return {"at": self.at, **self.figures}


def time_parse(text: str, *, name: str) -> int:
    """ISO 8601 (without a zone: UTC) or Unix time, as whole seconds. Raises BadRange."""
    if _EPOCH.fullmatch(text):
        return int(float(text))
    try:
        found = parse_datetime(text.replace(" ", "+"))  # a + in a query string arrives as a blank
    except ValueError:
        found = None
    if found is None:
        raise BadRange(name, "time", value=text[:40])
    try:
        seconds = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except OverflowError:
        seconds = -1
    if not 0 <= seconds < _LAST:
        raise BadRange(name, "time", value=text[:40])
    return seconds


def span_parse(query: Any, *, now: datetime) -> Span:
    """``from``, ``to``, ``step`` of a query string; without them the last hour, and a step that gives a fair number of points.

    Raises BadRange.
    """
    until = time_parse(query["to"], name="to") if query.get("to") else int(now.timestamp())
    since = time_parse(query["from"], name="from") if query.get("from") else until - 3600
    step: int | None = None
    if text := query.get("step"):
        if not re.fullmatch(r"[0-9]{1,7}", text) or not 1 <= int(text) <= 86_400:
            raise BadRange("step", "step", value=text[:40])
        step = int(text)
    return span_make(since=since, until=until, step_s=step, now=int(now.timestamp()))


def span_make(*, since: int, until: int, step_s: int | None = None, now: int) -> Span:
    """Raises BadRange."""
    if until <= since:
        raise BadRange("from", "order")
    if until - since > RANGE_MOST_S or until > 2**40:
        raise BadRange("from", "long", days=RANGE_MOST_S // 86_400)
    if step_s is None:
        steps = (step_of(Level.RAW), *STEPS_S)
        step_s = next((step for step in steps if (until - since) <= step * POINTS_GOOD), steps[-1])
    level = level_for(step_s, since=since, now=now)
    step_s = math.ceil(max(step_s, step_of(level)) / step_of(level)) * step_of(level)
    span = Span(since=since // step_s * step_s, until=until, step_s=step_s)
    if span.steps > POINTS_MOST:
        good = math.ceil((until - since) / POINTS_MOST / 60) * 60
        raise BadRange("step", "many", points=span.steps, limit=POINTS_MOST, step=good)
    return span


def level_for(step_s: int, *, since: int, now: int) -> Level:
    """The coarsest level that is fine enough; a coarser one if that one no longer keeps the beginning."""
    fine = [level for level in Level if step_of(level) <= step_s] or [Level.RAW]
    level = fine[-1]
    while level < Level.HOUR and since < now - kept_s(level):
        level = Level(level + 1)
    return level


def curves_read(query: QuerySet[Any], *, span: Span, figures: Sequence[str], by: Sequence[str] = ()) -> dict[tuple[Any, ...], Curve]:
    """The curve of each subject of ``query`` (samples of one table, filtered by subject), under its values of ``by``.

    At most six queries, whatever the number of subjects and points.
    """
    # 1. The coarse rows as far as they go, then finer ones. Roll-ups are made for all subjects at once: where they end holds for each.
    rows: dict[tuple[Any, ...], dict[int, tuple[Any, ...]]] = defaultdict(dict)
    begin = span.since
    for level in sorted((level for level in Level if step_of(level) <= span.step_s), reverse=True):
        part = query.filter(level=level, at__gte=begin, at__lt=span.until)
        for row in rows_read(part, figures=figures, step_s=span.step_s, by=by):
            key, at, point = row[: len(by)], int(row[len(by)]), row[len(by) + 1 :]
            before = rows[key].get(at)
            rows[key][at] = point if before is None else _joined(before, point, figures)
        last = query.model._default_manager.filter(level=level).aggregate(at=Max("at"))["at"]
        begin = max(begin, last + step_of(level)) if last is not None else begin
        if begin >= span.until:
            break
    # 2. Columns.
    found = {}
    for key, points in rows.items():
        at = sorted(points)
        columns = {name: [_whole(points[t][1 + place]) for t in at] for place, name in enumerate(figures)}
        found[key] = Curve(at=at, figures=columns)
    return found


def _joined(a: tuple[Any, ...], b: tuple[Any, ...], figures: Sequence[str]) -> tuple[Any, ...]:
    """Two parts of one step: (samples in it, *figures)."""
    merged: list[Any] = [a[0] + b[0]]
    for place, name in enumerate(figures, start=1):
        x, y = a[place], b[place]
        if x is None or y is None:
            merged.append(y if x is None else x)
        elif "_max" in name or "_min" in name:
            merged.append(max(x, y) if "_max" in name else min(x, y))
        else:
            merged.append((x * a[0] + y * b[0]) / merged[0])
    return tuple(merged)


def _whole(value: Any) -> int | None:
    return None if value is None else math.floor(value + 0.5)
