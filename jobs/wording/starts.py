"""When a job will probably start, and until when something is in its way. Times are in the active zone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from nodes.formats import clock_text

#: What starts so soon starts now: the next pass comes within it.
SOON_S = 5.0


def about(at: float | datetime, *, now: datetime | None = None) -> str:
    """``15:10`` of today, else the date with it; in UTC, which is nobody's own, with its name."""
    moment = datetime.fromtimestamp(at, tz=UTC) if isinstance(at, float | int) else at
    text = clock_text(moment, now=now).replace("\N{NO-BREAK SPACE}", " ")
    return f"{text} UTC" if timezone.localtime(moment).tzname() == "UTC" else text


def start_text(p50: float | None, p90: float | None, after: float | None, *, now: datetime) -> str:
    """Empty where nothing is known: held, or nothing that is known to end lets it start."""
    if p50 is None:
        return "" if after is None else _("Starts later than %(time)s.") % {"time": about(after, now=now)}
    if p50 <= now.timestamp() + SOON_S:
        return _("Starts now.")
    first = about(p50, now=now)
    last = None if p90 is None else about(p90, now=now)
    if last is None or last == first:
        return _("Starts ≈ %(first)s.") % {"first": first}
    return _("Starts ≈ %(first)s; nine times in ten by %(last)s.") % {"first": first, "last": last}


def with_time(text: str, params: Mapping[str, Any]) -> str:
    """The reason with ``until_at`` (it stays so until then) or ``starts_at`` (when the job ahead starts), ISO times."""
    for key, sentence in (("until_at", _("%(reason)s until about %(time)s.")), ("starts_at", _("%(reason)s; it starts ≈ %(time)s."))):
        at = parse_datetime(str(params[key])) if params.get(key) else None
        if at is not None and at.tzinfo is not None:
            return sentence % {"reason": text.rstrip(".。"), "time": about(at)}
    return text
