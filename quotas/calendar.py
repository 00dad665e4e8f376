"""The month that quotas count in: a calendar month of the installation's zone (settings.INSTALLATION_ZONE). Pure."""

from __future__ import annotations

from datetime import date, datetime
from zoneinfo import ZoneInfo

from django.conf import settings


def zone() -> ZoneInfo:
    return ZoneInfo(settings.INSTALLATION_ZONE)


def month_of(now: datetime) -> date:
    """First day of the local month that ``now`` (aware) is in."""
    return now.astimezone(zone()).date().replace(day=1)


def month_begin(month: date) -> datetime:
    """Local midnight at which the month begins, aware."""
    return datetime(month.year, month.month, 1, tzinfo=zone())


def day_begin(day: date) -> datetime:
    """Local midnight at which the day begins, aware."""
    return datetime(day.year, day.month, day.day, tzinfo=zone())


def month_next(month: date) -> date:
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


def resets_at(now: datetime) -> datetime:
    """When the counters of the month of ``now`` start anew, in the installation's zone."""
    return month_begin(month_next(month_of(now)))
