"""When the month's counter starts anew, in words: in the installation's zone, which decides, and named, wherever it is told."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from nodes import formats
from quotas import calendar


def reset_text(at: datetime) -> str:
    """``1 Aug 2026, 00:00 Asia/Shanghai``."""
    with timezone.override(calendar.zone()):
        local = timezone.localtime(at)
        day = formats.date_text(at, now=at.replace(year=at.year - 2))  # always with its year
        clock = f"{local:%H:%M} {calendar.zone().key}"
    return f"{day} {clock}" if formats.is_chinese() else f"{day}, {clock}"


def reset_text_of(text: str | None) -> str:
    """The same of an ISO time, as params of refusals have it."""
    at = parse_datetime(text) if text else None
    return text or _("never") if at is None or at.tzinfo is None else reset_text(at)
