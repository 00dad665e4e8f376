"""What was used, written once a slice. The unit is the whole card (D15): a slice costs its share of the card."""

from __future__ import annotations

from datetime import datetime
from math import isfinite

from django.db import transaction
from django.db.models import F

from quotas import calendar
from quotas.models import LedgerEntry, Project, Quota, User
from quotas.services import quota_for, quota_for_project


@transaction.atomic
def charge(
    *,
    slice_id: int,
    job_id: int,
    user: User | int,
    project: Project | int,
    gpu_model: str,
    share: float,
    mib: int,
    started_at: datetime,
    ended_at: datetime,
) -> bool:
    """Charge one slice for the time it was ACTIVE; True if this call wrote it, False if it was charged before.

    Call in the transaction that moves the slice on, so that a slice is never moved without its charge nor charged
    without its move. gpu_seconds = share (0–1; 1 = whole card) × (ended_at − started_at), never negative.
    A time that crosses a month's end (installation's zone) counts to the quota of each month with its part.
    Raises ValueError if the share is not in 0–1.
    """
    if not (isfinite(share) and 0 <= share <= 1):
        raise ValueError(f"share is {share}; expected 0–1")
    user_id = user if isinstance(user, int) else user.pk
    project_id = project if isinstance(project, int) else project.pk
    # A clock that was set back between the two must not give time away, nor break the end of the job.
    ended_at = max(ended_at, started_at)
    seconds = (ended_at - started_at).total_seconds()
    _, is_new = LedgerEntry.objects.get_or_create(
        slice_id=slice_id,
        defaults={
            "job_id": job_id,
            "user_id": user_id,
            "project_id": project_id,
            "gpu_model": gpu_model[:120],
            "share": share,
            "mib": mib,
            "started_at": started_at,
            "ended_at": ended_at,
            "seconds": seconds,
            "gpu_seconds": share * seconds,
        },
    )
    if is_new and share * seconds > 0:
        rows = [quota_for(user_id, now=ended_at)]
        if (of_project := quota_for_project(project_id, now=ended_at)) is not None:
            rows.append(of_project)
        for row in rows:
            _usage_add(quota=row, share=share, started_at=started_at, ended_at=ended_at)
    return is_new


def _usage_add(*, quota: Quota, share: float, started_at: datetime, ended_at: datetime) -> None:
    """Add to the counter only what falls into the month that the counter is for: a late charge of an old month adds
    nothing to this one, and one that began last month adds its part since local midnight of the first."""
    for _ in range(3):
        month = quota.period_start
        if month is None:  # quota_for set it; only an admin could have emptied it since
            return
        begin = max(started_at, calendar.month_begin(month))
        end = min(ended_at, calendar.month_begin(calendar.month_next(month)))
        gpu_s = share * max(0.0, (end - begin).total_seconds())
        # The month is part of the condition: if another transaction began a new one meanwhile, the part is worked out anew.
        if gpu_s == 0 or Quota.objects.filter(pk=quota.pk, period_start=month).update(used_gpu_s=F("used_gpu_s") + gpu_s):
            return
        quota.refresh_from_db(fields=("period_start",))
