"""What runs now, as use of the month: it counts against the limit of GPU-hours before it is charged, so that nobody runs past it
by the length of his jobs. Every 30 s; a charge takes its part out at once (quotas/counters.py)."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from django.db import transaction
from django.db.models import F, Q

from jobs.lifecycle import SliceState
from jobs.models import Slice
from quotas import calendar
from quotas.models import Quota
from quotas.services import quota_roll
from quotas.sql import Select, rows_update

_active = Select(
    lambda: (
        Slice.objects.filter(state=SliceState.ACTIVE)
        .order_by("pk")
        .values_list("rank__attempt__job__owner_id", "rank__attempt__job__project_id", "share", "active_at")
    )
)
#: GPU-seconds; a smaller change is not worth a write.
LEAST_S = 1.0


def live_use_refresh(*, now: datetime) -> int:
    """Returns how many quotas changed. Two queries and a statement; where something changed a query and a statement more."""
    begin = calendar.month_begin(calendar.month_of(now))
    users: dict[int, float] = defaultdict(float)
    projects: dict[int, float] = defaultdict(float)
    for owner, project, share, active_at in _active():
        used = share * max(0.0, (now - max(active_at, begin)).total_seconds())
        users[owner] += used
        projects[project] += used
    # Who runs over the month's end has a new month, though nothing was submitted or charged in it yet.
    quota_roll(Quota.objects.filter(Q(user_id__in=users) | Q(project_id__in=projects)), now=now)
    rows = Quota.objects.filter(Q(user_id__in=users) | Q(project_id__in=projects) | Q(live_gpu_s__gt=0)).order_by("pk")
    changed = []
    for pk, user, project, live in rows.values_list("pk", "user_id", "project_id", "live_gpu_s"):
        found = users.get(user, 0.0) if user is not None else projects.get(project, 0.0)
        if abs(found - live) >= LEAST_S or (found == 0 and live):
            changed.append((pk, found))
    if not changed:
        return 0
    with transaction.atomic():
        # Locked before, in everybody's order: the statement itself takes rows in no certain one.
        locked = Quota.objects.select_for_update().filter(pk__in=[pk for pk, _found in changed])
        list(locked.order_by(F("project_id").asc(nulls_first=True), "user_id").values_list("pk"))
        return rows_update(Quota, changed, assign="live_gpu_s = v.column2")
