"""Who is told of which alerts: staff and the lab's channels of all, owners of those of their jobs where the rule says so.

Once an episode, and once more when it has become critical. What is muted is told when its mute is over, if it is still open then.
Many of one rule in one look are one message: when a rack loses its air, nobody reads forty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from nodes.models import Alert, AlertJob, AlertMute
from nodes.text import json_clean
from quotas import notify

ONE_BY_ONE = 5
PLACES_NAMED = 12


def people_tell(rows: Iterable[Alert], *, at: datetime) -> None:
    """``rows``: what is open, with its rule. Nothing to tell: no statement."""
    due = [row for row in rows if row.told_level < row.level]
    if not due:
        return
    mutes = mutes_now(at=at)
    groups: dict[tuple[int | None, int], list[Alert]] = defaultdict(list)
    for row in due:
        if not any(is_muted(row, mute) for mute in mutes):
            groups[row.rule_id, row.level].append(row)
    staff = notify.staff() if groups else []
    for group in groups.values():
        with transaction.atomic():
            ids = [row.pk for row in group]
            # Of two lookers at once the second finds nothing left to tell.
            if not Alert.objects.filter(pk__in=ids, told_level__lt=group[0].level).update(told_level=F("level")):
                continue
            _group_tell(group, staff=staff)
        for row in group:
            row.told_level = row.level


def _group_tell(group: Sequence[Alert], *, staff: Sequence[int]) -> None:
    of_owner: dict[int, list[Alert]] = defaultdict(list)
    first = group[0]
    if first.rule is not None and first.rule.tells_owner:
        by_id = {row.pk: row for row in group}
        for alert, user in AlertJob.objects.filter(alert__in=by_id).order_by("alert").values_list("alert", "user").distinct():
            if user not in staff:
                of_owner[user].append(by_id[alert])
    if len(group) > ONE_BY_ONE:
        _many_tell(group, staff, lab=True)
    else:
        for row in group:
            _one_tell(row, staff, lab=True)
    for user, rows in of_owner.items():
        if len(rows) > ONE_BY_ONE:
            _many_tell(rows, [user], lab=False)
        else:
            for row in rows:
                _one_tell(row, [user], lab=False)


def _kind(row: Alert) -> str:
    return "alert_critical" if row.level == Alert.Level.CRITICAL else "alert"


def _one_tell(row: Alert, people: Iterable[int], *, lab: bool) -> None:
    params = {"alert": row.pk, "metric": row.metric, "level": row.level, "value": row.value, **row.params}
    notify.notify(_kind(row), people, json_clean(params), key=f"alert:{row.pk}:{row.level}", path=f"/alerts/{row.pk}/", lab=lab)


def _many_tell(rows: Sequence[Alert], people: Iterable[int], *, lab: bool) -> None:
    first = rows[0]
    about = [str(row.params.get("place") or row.params.get("owner") or row.subject) for row in rows[:PLACES_NAMED]]
    params = {"n": len(rows), "metric": first.metric, "level": first.level, "title": first.params.get("title"), "places": about}
    path = f"/alerts/?rule={first.rule.code}" if first.rule is not None else "/alerts/"
    notify.notify(f"{_kind(first)}_many", people, json_clean(params), key=f"alerts:{first.pk}:{first.level}", path=path, lab=lab)


def mutes_now(*, at: datetime | None = None) -> list[AlertMute]:
    """The mutes that hold. One SELECT."""
    at = at or timezone.now()
    query = AlertMute.objects.filter(Q(until__isnull=True) | Q(until__gt=at), lifted_at__isnull=True)
    return list(query.select_related("rule", "node", "gpu__node", "by"))


def is_muted(alert: Alert, mute: AlertMute) -> bool:
    """Whether the mute matches; it does if everything that it names does. Pure."""
    return (
        (mute.rule_id is None or mute.rule_id == alert.rule_id)
        and (mute.node_id is None or mute.node_id == alert.node_id)
        and (mute.gpu_id is None or mute.gpu_id == alert.gpu_id)
    )
