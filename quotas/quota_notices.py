"""What people are told of limits: who decides of a request, who asked of its way, owners of 80 and 100 % of the month."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import Case, F, IntegerField, Value, When
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from quotas import calendar
from quotas.links import link_token
from quotas.models import Membership, Quota, QuotaRequestEvent, User
from quotas.notify import Kind, notify
from quotas.request_words import amount_text, owner_text
from quotas.requests import approvers_of
from quotas.services import HOURS_LEFT_S, HOURS_LIMIT_S

#: So many % of the month's hours are told of.
LEVELS: Final = (80, 100)


def _ask(p: Mapping[str, Any]) -> str:
    return amount_text(str(p["what"]), int(p["amount"]), str(p.get("model", "")))


def _asked_title(p: Mapping[str, Any]) -> str:
    return _("%(by)s asks: %(ask)s") % {"by": p["by"], "ask": _ask(p)}


def _decided_title(p: Mapping[str, Any]) -> str:
    texts = {
        "passed": _("Passed on to the admins: %(ask)s"),
        "approved": _("Approved: %(ask)s"),
        "declined": _("Declined: %(ask)s"),
        "ended_early": _("Ended early: %(ask)s"),
    }
    return texts[str(p["code"])] % {"ask": _ask(p)}


def _decided_text(p: Mapping[str, Any]) -> str:
    until = _("In force until %(until)s.") % {"until": p["until"]} if p.get("until") else ""
    note = f"{p['by']}: {p['note']}" if p.get("note") else ""
    return " ".join(part for part in (until, note) if part)


KINDS: Final = {
    "quota_asked": Kind(event="quota", title=_asked_title, text="{why}", icon="stamp"),
    "quota_decided": Kind(event="quota", title=_decided_title, text=_decided_text, icon="stamp"),
    "quota_80": Kind(
        event="quota",
        title=gettext_lazy("{owner}: 80% of this month's GPU-hours are used"),
        text=gettext_lazy("{used} of {limit} GPU-hours; they start anew at {resets}. More can be asked for under Quota."),
        tone="warn",
        icon="pie",
    ),
    "quota_100": Kind(
        event="quota",
        title=gettext_lazy("{owner}: this month's GPU-hours are used up"),
        text=gettext_lazy("{used} of {limit} GPU-hours. Waiting jobs are held until {resets}, or until more is granted: ask under Quota."),
        tone="bad",
        icon="pie",
    ),
}


def request_tell(event: QuotaRequestEvent) -> None:
    """Tells of a step of a request; call in its transaction. Who may decide gets a link of his own that decides once."""
    request = event.request
    about = {"what": request.what, "amount": event.amount or request.amount, "model": request.model, "by": _name(event.by)}
    if event.code in ("asked", "passed"):
        request.refresh_from_db(fields=("nonce", "state"))
        for person in approvers_of(request):
            params = {**about, "amount": request.amount, "by": _name(request.by), "why": request.why}
            params |= {"open_path": f"/quota/requests/{request.pk}/"}
            notify("quota_asked", [person], params, path=f"/quota/decide/{link_token(request, person)}/", at=event.at)
    if event.code in ("passed", "approved", "declined", "ended_early"):
        until = f"{event.until.astimezone(calendar.zone()):%Y-%m-%d %H:%M} {calendar.zone().key}" if event.until else ""
        params = {**about, "code": event.code, "note": event.text, "until": until}
        notify("quota_decided", {request.by, *_owners(request.quota)}, params, path=f"/quota/requests/{request.pk}/", at=event.at)


def _name(user: User | None) -> str:
    return user.email if user is not None else ""


def _owners(quota: Quota) -> list[User]:
    """The user, or the project's leads."""
    if quota.user is not None:
        return [quota.user]
    return list(User.objects.filter(memberships__project_id=quota.project_id, memberships__role=Membership.Role.LEAD))


def limits_tell(*, now: datetime) -> int:
    """Tells owners that passed 80 or 100 % of the month's GPU-hours since; how many. One query while nobody has. A limit that was
    raised since is told of anew."""
    month = calendar.month_of(now)
    reached = Case(
        When(used_gpu_s__gte=HOURS_LEFT_S, then=Value(100)),
        When(used_gpu_s__gte=HOURS_LIMIT_S * 0.8 - F("live_gpu_s"), then=Value(80)),
        default=Value(0),
        output_field=IntegerField(),
    )
    rows = Quota.objects.filter(gpu_hours__isnull=False, period_start=month).annotate(reached=reached).filter(reached__gt=F("told_pct"))
    told = 0
    for quota in rows.select_related("user", "project").order_by("pk"):
        level = quota.reached  # type: ignore[attr-defined]
        with transaction.atomic():
            if not Quota.objects.filter(pk=quota.pk, period_start=month, told_pct=quota.told_pct).update(told_pct=level):
                continue
            limit = quota.gpu_hours_limit
            params = {
                "owner": owner_text(quota),
                "used": round(quota.spent_gpu_s / 3600, 1),
                "limit": limit,
                "resets": f"{calendar.resets_at(now):%Y-%m-%d %H:%M} {calendar.zone().key}",
            }
            told += notify(
                f"quota_{level}", _owners(quota), params, key=f"quota_{level}:{quota.pk}:{month}:{limit}", path="/quota/", at=now
            )
    return told
