"""The pages of limits: what is used and when it starts anew, asking for more, deciding what others ask."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from jobs.lifecycle import JobState
from jobs.model_caps import room_read
from jobs.models import Job
from jobs.quota_missing import HELD_BY_QUOTA, jobs_held, missing_of
from jobs.views import reader
from jobs.wording.resets import reset_text
from nodes import formats
from nodes.text import text_clean
from quotas import approvals, calendar
from quotas.errors import BadValue, DomainError
from quotas.links import BadLink, Opened, link_open
from quotas.models import Membership, Project, Quota, QuotaRequest, User
from quotas.requests import (
    AMOUNT_MOST,
    WHY_LEAST,
    approvers_of,
    grant_end,
    may_decide,
    request_approve,
    request_decline,
    request_make,
    request_withdraw,
    requests_to_decide,
    requests_visible_to,
    until_default,
)
from quotas.selectors import quota_view_of
from quotas.services import quota_for, quota_roll

PAGE = 20
WHAT = QuotaRequest.What


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One limit: ``text`` is what is used of it. ``limit`` None = none. ``what`` and ``model`` as a request for more names them."""

    name: str
    text: str
    pct: float
    limit: int | None
    what: str
    model: str = ""
    extra: int = 0

    @property
    def key(self) -> str:
        """As a link to the form names it: ``gpu_hours``, ``model_cards:a100``."""
        return f"{self.what}:{self.model}" if self.model else self.what

    @property
    def tone(self) -> str:
        return "bad" if self.pct >= 100 else "warn" if self.pct >= 80 else "me"


def _bar(name: str, used: float, limit: int | None, shown: str, *, what: str, model: str = "", extra: int = 0) -> Bar:
    pct = 0.0 if limit is None else 100.0 if limit == 0 else min(100.0, 100 * used / limit)
    return Bar(name=name, text=shown, pct=round(pct, 1), limit=limit, what=what, model=model, extra=extra)


def _of(used: str, limit: str | None) -> str:
    return _("%(used)s of %(limit)s") % {"used": used, "limit": limit} if limit is not None else _("%(used)s, no limit") % {"used": used}


def bars_of(quota: Quota, *, held: dict[str, int]) -> list[Bar]:
    """``held``: card model as the limit names it → cards of it that are held."""
    hours, limit = quota.spent_gpu_s / 3600, quota.gpu_hours_limit
    shown = None if limit is None else formats.gpu_hours(limit)
    bars = [_bar(_("GPU-hours"), hours, limit, _of(formats.number(hours), shown), what=WHAT.GPU_HOURS, extra=quota.extra_gpu_hours)]
    for name, used, most, what, extra in (
        (_("Cards at once"), quota.held_cards, quota.cards_limit, WHAT.CARDS, quota.extra_cards),
        (_("Active jobs"), quota.active_jobs, quota.active_jobs_limit, WHAT.ACTIVE_JOBS, quota.extra_active_jobs),
    ):
        bars.append(_bar(name, used, most, _of(str(used), None if most is None else f"{most:,}"), what=what, extra=extra))
    for model, most in sorted(quota.model_limits.items()):
        used, extra = held.get(model, 0), quota.extra_model_cards.get(model, 0)
        name = _("%(model)s at once") % {"model": model}
        bars.append(_bar(name, used, most, _of(str(used), f"{most:,}"), what=WHAT.MODEL_CARDS, model=model, extra=extra))
    return bars


def _quotas(user: User, *, now: datetime) -> tuple[Quota, list[Quota]]:
    """The reader's own, and those of projects that he is in. Two queries, more in the first call of a month."""
    mine = quota_for(user, now=now)
    quota_roll(Quota.objects.filter(project__memberships__user=user), now=now)
    rows = (
        Quota.objects.filter(project__memberships__user=user, project__is_active=True).select_related("project").order_by("project__name")
    )
    return mine, list(rows)


def _page(
    request: HttpRequest, *, status: int = 200, form: dict[str, Any] | None = None, errors: dict[str, str] | None = None
) -> HttpResponse:
    user, now = reader(request), timezone.now()
    mine, of_projects = _quotas(user, now=now)
    room = room_read(
        {user.pk: mine.model_limits} if mine.model_caps else {},
        {quota.project_id: quota.model_limits for quota in of_projects if quota.model_caps and quota.project_id is not None},
    )
    held = {asked: n for asked, n, _most in room.limits_of(user=user.pk, project=0)}
    requests = requests_visible_to(user).filter(Q(by=user) | Q(quota__user=user))
    bars = bars_of(mine, held=held)
    held_jobs = jobs_held(user)
    missing = missing_of(mine, held_jobs)
    led = set(Membership.objects.filter(user=user, role=Membership.Role.LEAD).values_list("project_id", flat=True))
    context = {
        "now": now,
        "quota": quota_view_of(mine, now=now),
        "left": None if mine.gpu_hours_limit is None else max(0.0, mine.gpu_hours_limit - mine.spent_gpu_s / 3600),
        "day_pace": _pace(mine, now=now),
        "bars": bars,
        "extra_until": mine.extras_until,
        "resets": reset_text(calendar.resets_at(now)),
        "resets_in_s": (calendar.resets_at(now) - now).total_seconds(),
        "projects": [
            (quota.project, bars_of(quota, held={a: n for a, n, _m in room.limits_of(user=0, project=quota.project_id or 0)}))
            for quota in of_projects
        ],
        "held_jobs": held_jobs[:PAGE],
        "held_count": len(held_jobs),
        "page": Paginator(requests, PAGE).get_page(request.GET.get("page")),
        "to_decide": requests_to_decide(user).count(),
        "can_ask": [(bar, missing.get(bar.key)) for bar in bars if bar.limit is not None],
        "can_ask_for": [
            (quota.project, [bar for bar in bars_of(quota, held={}) if bar.limit is not None])
            for quota in of_projects
            if quota.project_id in led
        ],
        "via": _via(user),
        "form": form or _form_first(request, missing, now=now),
        "errors": errors or {},
        "why_least": WHY_LEAST,
        "amount_most": AMOUNT_MOST,
        "today": timezone.localtime(now, calendar.zone()).date().isoformat(),
    }
    return render(request, "quota/page.html", context, status=status)


def _form_first(request: HttpRequest, missing: dict[str, int], *, now: datetime) -> dict[str, Any]:
    """What the form begins with: the limit that the link names, else the first that holds something back, and how much is missing."""
    what = request.GET.get("what", "") or next(iter(missing), "")
    amount = request.GET.get("amount", "")
    if not (amount.isascii() and amount.isdigit() and len(amount) < 8 and 1 <= int(amount) <= AMOUNT_MOST):
        amount = str(missing.get(what, ""))
    return {"what": what, "amount": amount, "until": approvals.last_day(until_default(now)).isoformat()}


def _pace(quota: Quota, *, now: datetime) -> float | None:
    """GPU-hours that the month comes to at the present pace; None within its first day."""
    begin = calendar.month_begin(calendar.month_of(now))
    days = (now - begin).total_seconds() / 86_400
    if days < 1:
        return None
    return quota.spent_gpu_s / 3600 / days * (calendar.resets_at(now) - begin).total_seconds() / 86_400


def _via(user: User) -> list[Project]:
    """Projects whose lead could look at a request first: those with another lead than the reader. One query."""
    mine = Project.objects.filter(is_active=True, personal_of__isnull=True, memberships__user=user)
    led = Membership.objects.filter(role=Membership.Role.LEAD, user__is_active=True).exclude(user=user).values("project_id")
    return list(mine.filter(pk__in=led).order_by("name").distinct())


@login_required
@require_safe
def quota_page(request: HttpRequest) -> HttpResponse:
    return _page(request)


@login_required
@require_POST
def quota_ask(request: HttpRequest) -> HttpResponse:
    user, now = reader(request), timezone.now()
    form = {name: text_clean(request.POST.get(name, "")) for name in ("what", "amount", "until", "why", "project")}
    of_project, slash, rest = form["what"].rpartition("/")  # "nlp/gpu_hours": for the project's own limit
    what, _colon, model = rest.partition(":")
    try:
        amount = approvals.amount_of(form["amount"])
        until = approvals.until_of(form["until"]) if form["until"].strip() else None
        name = of_project if slash else form["project"]
        project = Project.objects.filter(name=name, memberships__user=user).first() if name else None
        made = request_make(
            by=user,
            what=what,
            model=model,
            amount=amount,
            until=until,
            why=form["why"].replace("\r\n", "\n"),
            project=project,
            of_project=bool(slash),
            now=now,
        )
    except BadValue as error:
        return _page(request, status=400, form=form, errors={str(error.params.get("field", "what")): error.message})
    to = _("a lead of %(project)s") % {"project": made.project} if made.state == QuotaRequest.State.LEAD else _("the admins")
    messages.info(request, _("Request #%(id)d is with %(to)s now.") % {"id": made.pk, "to": to})
    return HttpResponseRedirect(reverse("quota"))


@login_required
@require_http_methods(["GET", "POST"])
def quota_request(request: HttpRequest, id: int) -> HttpResponse:
    """One request with its history; POST does what the reader may do with it."""
    user, now = reader(request), timezone.now()
    found = requests_visible_to(user).filter(pk=id).first()
    if found is None:
        raise Http404
    if request.method == "POST":
        return _act(request, found, user, now=now)
    return render(request, "quota/request.html", _request_context(found, user))


def _request_context(found: QuotaRequest, user: User) -> dict[str, Any]:
    return {
        "one": approvals.asked_of(found),
        "row": found,
        "steps": list(found.events.select_related("by").order_by("id")),
        "may_decide": may_decide(found, user),
        "may_withdraw": found.is_open and found.by_id == user.pk,
        "may_end": user.is_staff and found.state == QuotaRequest.State.APPROVED,
        "is_final_step": user.is_staff,
        "with_whom": [person.email for person in approvers_of(found)[:5]],
        "held_jobs": _held_jobs(found) if may_decide(found, user) else 0,
    }


def _held_jobs(found: QuotaRequest) -> int:
    """How many jobs wait for this limit."""
    whose = Q(owner_id=found.quota.user_id) if found.quota.user_id else Q(project_id=found.quota.project_id)
    return Job.objects.filter(whose, state=JobState.WAITING, wait_code__in=HELD_BY_QUOTA).count()


def _act(request: HttpRequest, found: QuotaRequest, user: User, *, now: datetime) -> HttpResponse:
    act, note = request.POST.get("act", ""), text_clean(request.POST.get("note", "")).strip()[: approvals.NOTE_MOST]
    try:
        if act in ("approve", "decline"):
            decided = approvals.decide(user=user, ids=[found.pk], act=act, values=request.POST, now=now)
            for text in decided.refused:
                messages.error(request, text)
        elif act == "withdraw":
            request_withdraw(request=found, by=user, now=now)
        elif act == "end":
            grant_end(request=found, by=user, now=now, note=note)
    except DomainError as error:
        messages.error(request, error.message)
    return HttpResponseRedirect(reverse("quota-request", args=[found.pk]))


@login_required
@require_http_methods(["GET", "POST"])
def quota_approvals(request: HttpRequest) -> HttpResponse:
    """What the reader may decide: as a lead, what members ask; as an admin, all."""
    user = reader(request)
    if request.method == "POST":
        act = request.POST.get("act", "")
        ids = [int(text) for text in request.POST.getlist("id") if text.isascii() and text.isdigit() and len(text) < 19]
        if act in ("approve", "decline") and not ids:
            messages.warning(request, approvals.nothing_chosen_text())
        elif act in ("approve", "decline"):
            decided = approvals.decide(user=user, ids=ids, act=act, values=request.POST, now=timezone.now())
            for text in decided.refused:
                messages.error(request, text)
            if decided.done:
                text = ngettext("%(count)d request is decided.", "%(count)d requests are decided.", decided.done)
                messages.info(request, text % {"count": decided.done})
        return HttpResponseRedirect(reverse("quota-approvals"))
    return render(request, "quota/approvals.html", {"approvals": approvals.waiting_for(user)})


@require_http_methods(["GET", "POST"])
def quota_decide(request: HttpRequest, token: str) -> HttpResponse:
    """By a link from a mail, signed in or not. GET shows, POST decides, once."""
    try:
        opened = link_open(token)
    except BadLink:
        answer = render(request, "quota/decide.html", {"is_bad": True}, status=404)
        return _private(answer)
    request.audit_via = "link"  # type: ignore[attr-defined]
    context: dict[str, Any] = {"opened": opened, "row": opened.request, "one": approvals.asked_of(opened.request)}
    if request.method == "POST" and opened.is_open:
        context |= _decide_by_link(opened, request.POST)
    elif request.method == "POST":
        context |= {"is_late": True}
    status = 410 if not opened.is_open else 400 if context.get("error") else 200
    return _private(render(request, "quota/decide.html", context, status=status))


def _private(answer: HttpResponse) -> HttpResponse:
    """The address is a secret: nobody keeps it, and no other site is told of it. Ours is: without a referrer browsers post a form with
    ``Origin: null``, which is no origin that a form may come from."""
    answer["Referrer-Policy"], answer["Cache-Control"] = "same-origin", "no-store"
    return answer


def _decide_by_link(opened: Opened, values: Any) -> dict[str, Any]:
    now, note = timezone.now(), text_clean(values.get("note", "")).strip()[: approvals.NOTE_MOST]
    try:
        if values.get("act") == "approve":
            wanted = approvals.wanted_of(opened.request, values)
            request_approve(request=opened.request, by=opened.user, now=now, note=note, **wanted)
        elif values.get("act") == "decline":
            request_decline(request=opened.request, by=opened.user, now=now, note=note)
        else:
            return {}
    except DomainError as error:
        return {"error": error.message}
    return {"is_done": True}
