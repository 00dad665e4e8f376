"""Asking for more than a limit allows: request → lead, where the project has one → admin. Every write of it.

A step is a compare-and-swap on (state, nonce): of two people who decide at once one does, and a link by mail works once.
"""

from __future__ import annotations

import secrets
import unicodedata
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_noop

from quotas import calendar
from quotas.audit import audit
from quotas.errors import BadValue, DomainError
from quotas.models import Membership, Project, Quota, QuotaRequest, QuotaRequestEvent, User
from quotas.services import extras_refresh, quota_for

State, What = QuotaRequest.State, QuotaRequest.What
AMOUNT_MOST = 1_000_000
UNTIL_MOST_DAYS = 400
WHY_LEAST, WHY_MOST = 10, 2000
OPEN_MOST = 5
DAY_MOST = 50  # made within a day, those that were withdrawn included
#: A request that names no day asks for this month, or for the next one too where fewer days than this are left.
DAYS_LEFT_LEAST = 7


class NotOpen(DomainError):
    """The request was decided or withdrawn before. params: ``request``, ``state``."""

    default_code = "request_not_open"
    default_status = 409
    sentences = {"request_not_open": gettext_noop("Request #{request} is not open any more: {state}.")}


class NotYours(DomainError):
    """This person may not decide it at this step."""

    default_code = "request_not_yours"
    default_status = 403
    sentences = {"request_not_yours": gettext_noop("Request #{request} is not yours to decide at this step.")}


def until_default(now: datetime) -> datetime:
    """What a request asks for that names no day: this month's end, or the next one's when fewer than ``DAYS_LEFT_LEAST`` days are left."""
    end = calendar.resets_at(now)
    return end if end - now >= timedelta(days=DAYS_LEFT_LEAST) else calendar.resets_at(end)


def why_length(text: str) -> int:
    """Characters of a reason. A wide one, as Chinese has them, counts as two: it says as much as two or more letters."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text.strip())


def request_make(
    *,
    by: User,
    what: str,
    amount: int,
    why: str,
    now: datetime,
    model: str = "",
    until: datetime | None = None,
    project: Project | None = None,
    of_project: bool = False,
) -> QuotaRequest:
    """A request for ``amount`` more, on top of the limit, until ``until`` (None = ``until_default``).

    ``of_project``: for the quota of ``project``, which its leads may ask for; else for one's own, and ``project`` only says whose
    lead looks at it first. Raises BadValue (field in ``params["field"]``).
    """
    until = until or until_default(now)
    why, model = why.strip(), model.strip().lower()
    if what not in What.values:
        raise BadValue("request_what", params={"field": "what", "value": what[:40], "known": ", ".join(What.values)})
    if not 1 <= amount <= AMOUNT_MOST:
        raise BadValue("request_amount", params={"field": "amount", "value": amount, "most": AMOUNT_MOST})
    if not now < until <= now + timedelta(days=UNTIL_MOST_DAYS):
        raise BadValue("request_until", params={"field": "until", "value": until.isoformat(), "days": UNTIL_MOST_DAYS})
    if why_length(why) < WHY_LEAST or len(why) > WHY_MOST:
        length = why_length(why) if len(why) <= WHY_MOST else len(why)
        raise BadValue("request_why", params={"field": "why", "length": length, "least": WHY_LEAST, "most": WHY_MOST})
    mine = Membership.objects.filter(project=project, user=by, project__is_active=True) if project is not None else None
    if mine is not None and not mine.exists():
        raise BadValue("request_project", params={"field": "project", "value": project.name if project else ""})
    if of_project and (project is None or not (by.is_staff or (mine is not None and mine.filter(role=Membership.Role.LEAD).exists()))):
        raise BadValue("request_lead_only", params={"field": "project", "value": project.name if project else ""})
    with transaction.atomic():
        quota = Quota.objects.filter(project=project).first() if of_project else quota_for(by, now=now)
        if quota is None or not _has_limit(quota, what, model):
            raise BadValue("request_no_limit", params={"field": "what", "model": model})
        # Locked: two forms at once don't make six open requests of at most five.
        Quota.objects.select_for_update().filter(pk=quota.pk).values_list("pk").first()
        if QuotaRequest.objects.filter(by=by, state__in=QuotaRequest.OPEN).count() >= OPEN_MOST:
            raise BadValue("request_many", params={"field": "what", "most": OPEN_MOST})
        if (count := QuotaRequest.objects.filter(by=by, created_at__gt=now - timedelta(days=1)).count()) >= DAY_MOST:
            raise BadValue("request_day_many", 429, {"field": "what", "count": count, "most": DAY_MOST})
        has_lead = project is not None and not of_project and leads_of(project).exclude(pk=by.pk).exists()
        request = QuotaRequest.objects.create(
            quota=quota,
            by=by,
            project=project,
            what=what,
            model=model if what == What.MODEL_CARDS else "",
            amount=amount,
            until=until,
            why=why,
            state=State.LEAD if has_lead else State.ADMIN,
            nonce=_nonce(),
            created_at=now,
        )
        _event(request, "asked", by=by, now=now, amount=amount, until=until, text=why)
    return request


def _has_limit(quota: Quota, what: str, model: str) -> bool:
    if what == What.MODEL_CARDS:
        return model in quota.model_caps
    limits = {What.GPU_HOURS: quota.gpu_hours, What.CARDS: quota.max_cards, What.ACTIVE_JOBS: quota.max_active_jobs}
    return limits[What(what)] is not None


def _nonce() -> str:
    return secrets.token_urlsafe(16)


def _event(
    request: QuotaRequest,
    code: str,
    *,
    by: User | None,
    now: datetime,
    amount: int | None = None,
    until: datetime | None = None,
    text: str = "",
) -> None:
    event = QuotaRequestEvent.objects.create(request=request, at=now, code=code, by=by, amount=amount, until=until, text=text[:WHY_MOST])
    params = {"step": code, "of": request.what, "model": request.model, "amount": amount, "until": until, "note": text[:200]}
    audit(by, _AUDITED[code], f"quota request {request.pk}", params, now=now)
    _tell(event)


def _nobody(event: QuotaRequestEvent) -> None:
    """Until ``configure`` was called."""


_tell: Callable[[QuotaRequestEvent], None] = _nobody
_AUDITED = {
    "asked": "quota.requested",
    "passed": "quota.approved",
    "approved": "quota.approved",
    "declined": "quota.denied",
    "withdrawn": "quota.withdrawn",
    "ended_early": "quota.ended",
}


def configure(*, tell: Callable[[QuotaRequestEvent], None]) -> None:
    """``tell`` gets every step, inside its transaction (quotas/quota_notices.py, which knows this module)."""
    global _tell
    _tell = tell


def leads_of(project: Project) -> QuerySet[User]:
    return User.objects.filter(memberships__project=project, memberships__role=Membership.Role.LEAD, is_active=True)


def approvers_of(request: QuotaRequest) -> list[User]:
    """Who may decide the present step, by address. One query."""
    admins = User.objects.filter(is_active=True, is_staff=True)
    if request.state == State.LEAD and request.project is not None:
        return list(leads_of(request.project).exclude(pk=request.by_id).order_by("email"))
    return list(admins.order_by("email")) if request.state == State.ADMIN else []


def may_decide(request: QuotaRequest, user: User) -> bool:
    """An admin any open request; a lead, what a member of the project asks and not he himself. One query for one who is no admin."""
    if not user.is_active or not request.is_open:
        return False
    if user.is_staff:
        return True
    is_step = request.state == State.LEAD and request.project_id is not None and request.by_id != user.pk
    return is_step and Membership.objects.filter(project_id=request.project_id, user=user, role=Membership.Role.LEAD).exists()


def requests_to_decide(user: User) -> QuerySet[QuotaRequest]:
    """The open requests that this person may decide, the oldest first."""
    found = QuotaRequest.objects.filter(state__in=QuotaRequest.OPEN)
    if not user.is_staff:
        mine = Membership.objects.filter(user=user, role=Membership.Role.LEAD, project__is_active=True).values("project_id")
        found = found.filter(state=State.LEAD, project_id__in=mine).exclude(by=user)
    return found.select_related("by", "project", "quota__user", "quota__project").order_by("id")


def requests_visible_to(user: User) -> QuerySet[QuotaRequest]:
    """One's own, those of projects that one leads, and for an admin all; the newest first."""
    found = QuotaRequest.objects.select_related("by", "project", "quota__user", "quota__project", "decided_by").order_by("-id")
    if user.is_staff:
        return found
    led = Membership.objects.filter(user=user, role=Membership.Role.LEAD).values("project_id")
    return found.filter(Q(by=user) | Q(quota__user=user) | Q(project_id__in=led) | Q(quota__project_id__in=led))


def request_approve(
    *, request: QuotaRequest, by: User, now: datetime, amount: int | None = None, until: datetime | None = None, note: str = ""
) -> QuotaRequest:
    """A lead passes it on to the admins; an admin grants it: ``amount`` and ``until`` None = as asked.

    Waiting jobs of the owner start with the next pass. Raises NotOpen, NotYours, BadValue.
    """
    if not request.is_open:
        raise _not_open(request)
    if not may_decide(request, by):
        raise NotYours(params={"request": request.pk})
    amount, until = request.amount if amount is None else amount, until or request.until
    if not 1 <= amount <= AMOUNT_MOST:
        raise BadValue("request_amount", params={"field": "amount", "value": amount, "most": AMOUNT_MOST})
    if not now < until <= now + timedelta(days=UNTIL_MOST_DAYS):
        raise BadValue("request_until", params={"field": "until", "value": until.isoformat(), "days": UNTIL_MOST_DAYS})
    with transaction.atomic():
        _quota_lock(request)
        if by.is_staff:
            changes = {
                "state": State.APPROVED, "granted_amount": amount, "granted_until": until, "decided_by": by, "decided_at": now,
            }  # fmt: skip
            _step(request, **changes)
            _event(request, "approved", by=by, now=now, amount=amount, until=until, text=note)
            extras_refresh(request.quota_id, now=now)
        else:
            _step(request, state=State.ADMIN)
            _event(request, "passed", by=by, now=now, text=note)
    return request


def request_decline(*, request: QuotaRequest, by: User, now: datetime, note: str = "") -> QuotaRequest:
    """Raises NotOpen, NotYours."""
    if not request.is_open:
        raise _not_open(request)
    if not may_decide(request, by):
        raise NotYours(params={"request": request.pk})
    with transaction.atomic():
        _step(request, state=State.DECLINED, decided_by=by, decided_at=now)
        _event(request, "declined", by=by, now=now, text=note)
    return request


def request_withdraw(*, request: QuotaRequest, by: User, now: datetime) -> QuotaRequest:
    """Who asked takes it back while it is open. Raises NotOpen, NotYours."""
    if request.by_id != by.pk:
        raise NotYours(params={"request": request.pk})
    if not request.is_open:
        raise _not_open(request)
    with transaction.atomic():
        _step(request, state=State.WITHDRAWN)
        _event(request, "withdrawn", by=by, now=now)
    return request


def grant_end(*, request: QuotaRequest, by: User, now: datetime, note: str = "") -> QuotaRequest:
    """An admin ends a grant before its time. Raises NotOpen when it is not in force, NotYours."""
    if not by.is_staff:
        raise NotYours(params={"request": request.pk})
    with transaction.atomic():
        _quota_lock(request)
        _step(request, state=State.ENDED, was=(State.APPROVED,), granted_until=now)
        _event(request, "ended_early", by=by, now=now, text=note)
        extras_refresh(request.quota_id, now=now)
    return request


def _step(request: QuotaRequest, *, was: Sequence[str] = QuotaRequest.OPEN, **changes: object) -> None:
    """The compare-and-swap of a step. Raises NotOpen when somebody was before us."""
    changes["nonce"] = _nonce()
    same = QuotaRequest.objects.filter(pk=request.pk, state=request.state, nonce=request.nonce, state__in=was)
    if same.update(**changes) != 1:
        request.refresh_from_db()
        raise _not_open(request)
    for name, value in changes.items():
        setattr(request, name, value)


def _quota_lock(request: QuotaRequest) -> None:
    """Before the request's own row: an admission that finds a grant over takes them in this order, too."""
    Quota.objects.select_for_update().filter(pk=request.quota_id).values_list("pk").first()


def _not_open(request: QuotaRequest) -> NotOpen:
    return NotOpen(params={"request": request.pk, "state": str(State(request.state).label)})


def grants_expire(*, now: datetime) -> int:
    """Takes back what was granted until now or earlier; how many quotas changed. One query while nothing has run out."""
    due = list(Quota.objects.filter(extras_until__lte=now).order_by("pk").values_list("pk", flat=True))
    for pk in due:
        extras_refresh(pk, now=now)
    return len(due)
