"""What the files of jobs take on the control plane: artefacts and output, as GB-hours a local day of each owner and project.

Metered once a day is over, from rows alone: ∫ bytes dt over the day. A file counts from the moment that it arrived.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal

from django.db.models import F, Sum

from jobs.models import Artifact, Rank
from quotas import calendar
from quotas.models import StorageEntry
from quotas.prices import decimal_of

GB = 2**30
#: So many days are caught up on after a control plane was away.
DAYS_BACK = 40
_done: date | None = None  # the last day that this process has metered

Owner = tuple[int, int]  # user, project


def _files(begin: datetime, end: datetime) -> Iterator[tuple[Owner, int, datetime | None]]:
    """(owner, bytes, when they arrived; None = before the day) of all that was there before ``end``. Four queries."""
    for rows, size, at, owner in (
        (Artifact.objects.all(), "size", "created_at", "rank__attempt__job__"),
        (
            Rank.objects.filter(final_log_offset__gt=0).exclude(attempt__job__kept__logs_removed_at__lt=end),
            *("final_log_offset", "exited_at", "attempt__job__"),
        ),
    ):
        columns = (f"{owner}owner_id", f"{owner}project_id")
        before = rows.filter(**{f"{at}__lt": begin}).order_by().values_list(*columns).annotate(total=Sum(size))
        for user, project, total in before:
            yield (user, project), int(total), None
        for user, project, count, moment in rows.filter(**{f"{at}__gte": begin, f"{at}__lt": end}).values_list(*columns, F(size), F(at)):
            yield (user, project), count, moment


def day_meter(day: date) -> int:
    """Writes the day's charges unless they are there; returns how many are new."""
    begin, end = calendar.day_begin(day), calendar.day_begin(day + timedelta(days=1))
    byte_s: dict[Owner, Decimal] = defaultdict(Decimal)
    for owner, count, arrived in _files(begin, end):
        span = end - (arrived or begin)
        byte_s[owner] += count * (Decimal(span.days * 86_400 + span.seconds) + Decimal(span.microseconds) / 1_000_000)
    known = set(StorageEntry.objects.filter(day=day).values_list("user_id", "project_id"))
    rows = [
        {"day": day, "user_id": user, "project_id": project, "gb_hours": gb_hours}
        for (user, project), total in sorted(byte_s.items())
        if (user, project) not in known and (gb_hours := decimal_of(total / 3600 / GB)) > 0
    ]
    StorageEntry.objects.bulk_create([StorageEntry(**row) for row in rows], ignore_conflicts=True)
    return len(rows)


def storage_meter(*, now: datetime) -> int:
    """Meters the days that are over and are not metered yet. No query once that is done, until the next midnight."""
    global _done
    yesterday = now.astimezone(calendar.zone()).date() - timedelta(days=1)
    if _done is not None and _done >= yesterday:
        return 0
    first = yesterday - timedelta(days=DAYS_BACK)
    last = StorageEntry.objects.filter(day__gte=first).order_by("-day").values_list("day", flat=True).first()
    day = max(first, last or first)  # the last one again: a process may have died within it
    made = 0
    while day <= yesterday:
        made += day_meter(day)
        day += timedelta(days=1)
    _done = yesterday
    return made


def storage_forget() -> None:
    """For tests, whose days come and go."""
    global _done
    _done = None
