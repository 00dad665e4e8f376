"""A job's life as a lane: waits and attempts to scale, from its events. Pure but for formatting in the active zone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.utils import timezone
from django.utils.translation import gettext as _

from jobs.lifecycle import FINAL, JobState
from jobs.models import Job, JobEvent
from jobs.wording import event_text
from nodes import formats

#: Between two ticks of the axis, in seconds; the first that gives at most five is taken.
STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
#: A plan is drawn at most so many times as long as what happened: else the past would be a hairline.
PLAN_MOST = 2.0
THIN_PCT = 0.4
#: A narrower bar has no room for words; they are its tooltip.
TEXT_PCT = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """``kind``: wait | run | stop | plan. ``x`` and ``w`` in per cent of the lane; ``text`` only where it has room."""

    kind: str
    x: float
    w: float
    text: str = ""
    title: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    x: float
    tone: str
    icon: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    bars: tuple[Bar, ...]
    pins: tuple[Pin, ...]
    ticks: tuple[Tick, ...]
    now_x: float | None  # None = it is over


@dataclass(slots=True)
class _Span:
    state: str
    epoch: int
    begin: datetime
    end: datetime


def timeline(
    job: Job, events: Sequence[JobEvent], *, now: datetime, places: dict[int, str], ran: Mapping[int, float] | None = None
) -> Timeline:
    """``events`` oldest first; ``places``: attempt → where it ran; ``ran``: attempt → seconds that its program ran, as the page says
    them elsewhere. The bar's width is the time from its place to its end, which is a little longer."""
    spans = _spans(job, events, now=now)
    begin = spans[0].begin
    end = max(spans[-1].end, begin + timedelta(milliseconds=50))
    limit = _limit(job)
    is_over = job.state in FINAL
    last = end
    if limit is not None and limit > end:
        # A long plan is cut at the edge: the past must stay readable.
        last = min(limit, end + PLAN_MOST * max(end - begin, timedelta(seconds=30)))
    elif not is_over:
        last = end + (end - begin) * 0.15
    whole = (last - begin).total_seconds()

    def x(at: datetime) -> float:
        return round(100 * min(1.0, max(0.0, (at - begin).total_seconds() / whole)), 2)

    bars = [_bar(span, x(span.begin), x(span.end), places, ran or {}, goes_on=not is_over and span is spans[-1]) for span in spans]
    if limit is not None and limit > end and not is_over:
        words = _("until its time limit, %(at)s") if limit <= last else _("goes on beyond this axis until its time limit, %(at)s →")
        text = words % {"at": formats.clock_text(limit, now=now)}
        bars.append(Bar(kind="plan", x=x(end), w=round(100 - x(end), 2), text=text, title=text))
    pins = tuple(pin for event in events if (pin := _pin(event, x(event.at))) is not None)
    return Timeline(bars=tuple(bars), pins=pins, ticks=ticks(begin, last, now=now), now_x=None if is_over else x(end))


def _limit(job: Job) -> datetime | None:
    if job.time_limit_s is None or job.started_at is None or job.state not in (JobState.RUNNING, JobState.STOPPING):
        return None
    return job.started_at + timedelta(seconds=job.time_limit_s)


def _spans(job: Job, events: Sequence[JobEvent], *, now: datetime) -> list[_Span]:
    """Waits, and attempts from their place to their end; the stop is its own span."""
    moves = [event for event in events if event.to_state]
    begin = job.submitted_at
    spans = [_Span(JobState.WAITING, 0, begin, begin)]
    for event in moves:
        at = max(event.at, spans[-1].begin)
        spans[-1].end = at
        if event.to_state in FINAL:
            return [span for span in spans if span.end > span.begin] or spans[-1:]
        kind = {JobState.STARTING: JobState.RUNNING}.get(JobState(event.to_state), JobState(event.to_state))
        if (kind, event.epoch) != (spans[-1].state, spans[-1].epoch) and not (kind is JobState.WAITING and spans[-1].state == kind):
            spans.append(_Span(kind, event.epoch, at, at))
    spans[-1].end = max(now, spans[-1].begin)
    # Only the wait that goes on may be without a length yet.
    return [span for span in spans if span.end > span.begin] or spans[-1:]


def _bar(span: _Span, left: float, right: float, places: dict[int, str], ran: Mapping[int, float], *, goes_on: bool) -> Bar:
    seconds = (span.end - span.begin).total_seconds()
    length = formats.duration(ran.get(span.epoch, seconds) if span.state == JobState.RUNNING else seconds)
    if span.state == JobState.WAITING:
        text = (_("Waiting for %(duration)s") if goes_on else _("Waited %(duration)s")) % {"duration": length}
        return Bar(kind="wait", x=left, w=round(right - left, 2), text=text if right - left >= TEXT_PCT else "", title=text)
    width = max(THIN_PCT, round(right - left, 2))
    if span.state == JobState.STOPPING:
        return Bar(kind="stop", x=left, w=width, tone="warn", title=_("Stopping for %(duration)s") % {"duration": length})
    values = {"number": span.epoch, "duration": length, "place": places.get(span.epoch, "")}
    text = _("Attempt %(number)d, %(place)s, %(duration)s") if values["place"] else _("Attempt %(number)d, %(duration)s")
    return Bar(kind="run", x=left, w=width, text=text % values if width >= TEXT_PCT else "", title=text % values, tone="info")


_PINS = {
    "requeued": ("warn", "rotate"),
    "failed": ("bad", "badc"),
    "succeeded": ("ok", "okc"),
    "cancelled": ("", "ban"),
    "node_silent": ("warn", "help"),
}


def _pin(event: JobEvent, x: float) -> Pin | None:
    found = _PINS.get(event.code)
    if found is None:
        return None
    title = f"{timezone.localtime(event.at):%H:%M:%S} {event_text(event)}"
    return Pin(x=x, tone=found[0], icon=found[1], title=title)


def ticks(begin: datetime, end: datetime, *, now: datetime) -> tuple[Tick, ...]:
    """Round times in the reader's zone, at most five, none at the very edges."""
    whole = (end - begin).total_seconds()
    step = next((step for step in STEPS if whole / step <= 5), math.ceil(whole / 5))
    zone = timezone.get_current_timezone()
    first = _round_up(begin, step, zone)
    found = []
    at = first
    while at <= end:
        x = 100 * (at - begin).total_seconds() / whole
        if 2 <= x <= 98:
            local = timezone.localtime(at)
            text = f"{local:%H:%M:%S}" if step < 60 else f"{local:%H:%M}" if step < 86_400 else formats.date_text(at, now=now)
            found.append(Tick(x=round(x, 2), text=text))
        at += timedelta(seconds=step)
    return tuple(found)


def _round_up(at: datetime, step: int, zone: ZoneInfo | object) -> datetime:
    local = timezone.localtime(at)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    passed = (at - midnight).total_seconds()
    return midnight + timedelta(seconds=math.ceil(passed / step) * step)
