"""What runs now, as use of the month: it counts against the limit of GPU-hours before it is charged, so that nobody runs past it
by the length of his jobs. Every 30 s, up to the last proof of life as a charge; that one takes its part out at once
(quotas/counters.py)."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from django.db import transaction
from django.db.models import F, Q

from jobs.alive import alive_until, seen_s
from jobs.lifecycle import SliceState
from jobs.models import Slice
from nodes.models import Node
from nodes.sync import nodes_seen
from quotas import calendar
from quotas.models import Quota
from quotas.services import quota_roll
from quotas.sql import Select, rows_update

_active = Select(
    lambda: (
        Slice.objects.filter(state=SliceState.ACTIVE)
        .order_by("pk")
        .values_list(
            "rank__attempt__job__owner_id",
            "rank__attempt__job__project_id",
            "share",
            "active_at",
            "rank__node_id",
            "rank__started_at",
            "rank__began_s",
            "rank__ran_s",
        )
    )
)
#: GPU-seconds; a smaller change is not worth a write.
LEAST_S = 1.0


def live_use_refresh(*, now: datetime) -> int:
    """Returns how many quotas changed. Three queries and a statement; where something changed a query and a statement more."""
    begin = calendar.month_begin(calendar.month_of(now))
    users: dict[int, float] = defaultdict(float)
    projects: dict[int, float] = defaultdict(float)
    parts = _active()
    heard = nodes_seen(Node.objects.filter(pk__in={part[4] for part in parts}).only("pk", "last_seen_at", "last_uptime_s"), now=now)
    for owner, project, share, active_at, node, started_at, began_s, ran_s in parts:
        if ran_s is None:
            ran_s = seen_s(started_at=started_at, began_s=began_s, last=heard.get(node))
        until = min(now, alive_until(started_at, ran_s, now=now))
        used = share * max(0.0, (until - max(active_at, begin)).total_seconds())
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
