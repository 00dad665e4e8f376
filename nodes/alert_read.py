"""Reads of alerts: who may see which, the filters, and rows as pages and the API show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Case, Exists, IntegerField, OuterRef, QuerySet, Value, When

from nodes.alert_tell import is_muted, mutes_now
from nodes.alert_words import advice_of, row_sentence, row_title, why_text
from nodes.models import Alert, AlertJob, AlertMute, AlertRule
from quotas.models import User

#: ``active`` = open or acknowledged.
STATES: Final = ("active", "open", "acknowledged", "resolved", "all")
FILTERS: Final = ("state", "level", "rule", "node")


class BadFilter(Exception):
    """``field`` has a value that is none of ``known``."""

    def __init__(self, field: str, known: Iterable[str]) -> None:
        self.field, self.known = field, list(known)
        super().__init__(field)


def alerts_visible_to(user: User) -> QuerySet[Alert]:
    """Staff see all; others what is about their own jobs, also jobs that have ended since."""
    query = Alert.objects.all()
    return query if user.is_staff else query.filter(Exists(AlertJob.objects.filter(alert=OuterRef("pk"), user=user)))


def alerts_filtered(user: User, asked: Mapping[str, str]) -> QuerySet[Alert]:
    """Open first, then acknowledged, then resolved; critical first, then the latest. Raises BadFilter."""
    query = alerts_visible_to(user)
    state = asked.get("state") or "active"
    if state not in STATES:
        raise BadFilter("state", STATES)
    if state == "active":
        query = query.exclude(state=Alert.State.RESOLVED)
    elif state != "all":
        query = query.filter(state=state.upper())
    if level := asked.get("level"):
        levels = {"warning": Alert.Level.WARNING, "critical": Alert.Level.CRITICAL}
        if level not in levels:
            raise BadFilter("level", levels)
        query = query.filter(level=levels[level])
    if rule := asked.get("rule"):
        query = query.filter(rule__code=rule)
    if node := asked.get("node"):
        query = query.filter(node__name=node)
    order = Case(
        When(state=Alert.State.OPEN, then=Value(0)),
        When(state=Alert.State.ACKNOWLEDGED, then=Value(1)),
        default=Value(2),
        output_field=IntegerField(),
    )
    return query.select_related("rule", "node", "gpu", "acked_by").order_by(order, "-level", "-pk")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """``jobs``: those that the reader may see. ``muted``: the mute that keeps people quiet about it."""

    alert: Alert
    title: str
    sentence: str
    advice: str
    why: str
    jobs: tuple[int, ...]
    muted: AlertMute | None


def alert_rows(alerts: Iterable[Alert], user: User) -> list[AlertRow]:
    """Two queries however many."""
    found = list(alerts)
    people = AlertJob.objects.filter(alert__in=[alert.pk for alert in found], job__isnull=False)
    if not user.is_staff:
        people = people.filter(user=user)
    jobs: dict[int, list[int]] = defaultdict(list)
    for alert_id, job in people.order_by("job").values_list("alert_id", "job"):
        jobs[alert_id].append(int(job or 0))
    mutes = mutes_now() if any(alert.state != Alert.State.RESOLVED for alert in found) else []
    return [
        AlertRow(
            alert=alert,
            title=row_title(alert),
            sentence=row_sentence(alert),
            advice=advice_of(alert.metric),
            why=why_text(alert.resolved_why) if alert.resolved_why else "",
            jobs=tuple(jobs[alert.pk]),
            muted=next((mute for mute in mutes if is_muted(alert, mute)), None) if alert.resolved_at is None else None,
        )
        for alert in found
    ]


def rules_known() -> list[AlertRule]:
    return list(AlertRule.objects.order_by("code"))


def alert_json(row: AlertRow) -> dict[str, Any]:
    """``alert`` with rule, node, gpu and acked_by loaded."""
    alert = row.alert
    return {
        "id": alert.pk,
        "rule": alert.rule.code if alert.rule is not None else None,
        "metric": alert.metric,
        "state": alert.state,
        "level": alert.level_name,
        "title": row.title,
        "text": row.sentence,
        "advice": row.advice,
        "subject": alert.subject,
        "node": alert.node.name if alert.node is not None else None,
        "gpu": alert.gpu.index if alert.gpu is not None else None,
        "jobs": list(row.jobs),
        "value": alert.value,
        "peak": alert.peak,
        "limit": alert.params.get("limit"),
        "times": alert.times,
        "opened_at": alert.opened_at,
        "acked_at": alert.acked_at,
        "acked_by": alert.acked_by.email if alert.acked_by is not None else None,
        "note": alert.note,
        "resolved_at": alert.resolved_at,
        "resolved_why": alert.resolved_why or None,
        "muted": row.muted is not None,
    }
