"""Alerts to look at, to acknowledge and to mute. Each form works without a script."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from nodes.alert_metrics import METRICS
from nodes.alert_read import FILTERS, BadFilter, alert_rows, alerts_filtered, alerts_visible_to, rules_known
from nodes.alert_tell import mutes_now
from nodes.alert_words import figure_text, mute_text, rule_text, rule_title
from nodes.alerts import alert_acknowledge, alert_reopen, mute_create, mute_lift
from nodes.errors import AlertRefused
from nodes.models import Alert, AlertMute, AlertRule, Gpu, Node, NodeState
from nodes.text import text_clean
from nodes.views import staff_only

PAGE = 50
MUTES_SHOWN = 20
#: How long a mute may be chosen for; 0 = until it is lifted.
HOURS = (1, 4, 24, 168, 0)


def _asked(request: HttpRequest) -> dict[str, str]:
    return {name: text_clean(request.GET.get(name, ""))[:80] for name in FILTERS}


@require_safe
@login_required
def alert_list(request: HttpRequest) -> HttpResponse:
    """Open ones first; filters as the API has them. Fetched again when one changes."""
    asked = _asked(request)
    try:
        query = alerts_filtered(request.user, asked)
    except BadFilter:
        asked = {**asked, "state": "", "level": ""}
        query = alerts_filtered(request.user, asked)
    page = Paginator(query, PAGE).get_page(request.GET.get("page"))
    context = {
        "rows": alert_rows(page.object_list, request.user),
        "page": page,
        "asked": {**asked, "state": asked["state"] or "active"},
        "rules": [(rule.code, rule_title(rule)) for rule in rules_known()],
        "mutes": len(mutes_now()) if request.user.is_staff else 0,
    }
    return render(request, "alerts/list.html", context)


def _alert(request: HttpRequest, id: int) -> Alert:
    query = alerts_visible_to(request.user).select_related("rule", "node", "gpu", "acked_by")
    return get_object_or_404(query, pk=id)


@require_safe
@login_required
def alert_detail(request: HttpRequest, id: int) -> HttpResponse:
    return _alert_page(request, _alert(request, id))


def _alert_page(request: HttpRequest, alert: Alert, *, error: str = "") -> HttpResponse:
    [row] = alert_rows([alert], request.user)
    has_figure = alert.metric in METRICS and METRICS[alert.metric].unit
    context = {
        "row": row,
        "alert": alert,
        "rule_text": rule_text(alert.rule) if alert.rule else "",
        "error": error,
        "value_text": figure_text(alert.metric, alert.value) if has_figure and not alert.resolved_at else "",
        "peak_text": figure_text(alert.metric, alert.peak) if has_figure else "",
    }
    return render(request, "alerts/detail.html", context, status=400 if error else 200)


@require_POST
@staff_only
def alert_write(request: HttpRequest, id: int, *, reopens: bool = False) -> HttpResponse:
    """Acknowledge, or take that back."""
    alert = _alert(request, id)
    try:
        if reopens:
            alert_reopen(alert=alert, by=request.user)
        else:
            alert_acknowledge(alert=alert, by=request.user, note=text_clean(request.POST.get("note", "")))
    except AlertRefused as error:
        return _alert_page(request, alert, error=error.message)
    return redirect(_back(request, alert))


def _back(request: HttpRequest, alert: Alert) -> str:
    """The list, if the button was pressed there, with its filters."""
    query = request.POST.get("list", "")
    if query.startswith("?") and query.isprintable():
        return f"/alerts/{query[:500]}"
    return f"/alerts/{alert.pk}/"


# --- mutes ------------------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@staff_only
def mute_list(request: HttpRequest) -> HttpResponse:
    """What is muted, and a form for more. ``rule``, ``node``, ``gpu`` (index on the node) in the address are what it begins with."""
    asked = {
        name: text_clean(request.POST.get(name, request.GET.get(name, "")))[:200] for name in ("rule", "node", "gpu", "hours", "reason")
    }
    error = ""
    if request.method == "POST":
        try:
            mute_create(by=request.user, reason=asked["reason"], until=_until(asked["hours"]), **_named(asked))
        except AlertRefused as refused:
            error = refused.message
        else:
            messages.info(request, _("Muted. Alerts open and resolve as ever, but nobody is told."))
            return redirect("alert-mutes")
    now = timezone.now()
    query = AlertMute.objects.select_related("rule", "node", "gpu__node", "by", "lifted_by")
    page = Paginator(query, MUTES_SHOWN).get_page(request.GET.get("page"))
    rows = [
        {"mute": mute, "text": mute_text(mute), "holds": mute.lifted_at is None and (mute.until is None or mute.until > now)}
        for mute in page
    ]
    context = {
        "rows": rows,
        "page": page,
        "asked": asked,
        "error": error,
        "rules": [(rule.code, rule_title(rule)) for rule in rules_known()],
        "nodes": list(Node.objects.exclude(state=NodeState.RETIRED).order_by("name").values_list("name", flat=True)[:500]),
        "hours": HOURS,
    }
    return render(request, "alerts/mutes.html", context, status=400 if error else 200)


def _until(hours: str) -> datetime | None:
    try:
        chosen = int(hours or 0)
    except ValueError:
        chosen = 0
    return timezone.now() + timedelta(hours=chosen) if chosen in HOURS and chosen else None


def _named(asked: dict[str, str]) -> dict[str, Any]:
    """Raises AlertRefused for a name that nothing has."""
    found: dict[str, Any] = {}
    if asked["rule"]:
        found["rule"] = AlertRule.objects.filter(code=asked["rule"]).first()
    if asked["node"]:
        found["node"] = Node.objects.filter(name=asked["node"]).first()
    if asked["gpu"] and found.get("node") is not None and asked["gpu"].isdigit() and len(asked["gpu"]) < 5:
        cards = Gpu.objects.select_related("node").filter(node=found["node"], index=int(asked["gpu"])).order_by("-pk")
        found["gpu"] = cards.exclude(state="MISSING").first() or cards.first()
    elif asked["gpu"]:
        found["gpu"] = None
    wrong = next((name for name, thing in found.items() if thing is None), None)
    if wrong is not None:
        raise AlertRefused("mute_of_unknown", params={"name": asked[wrong]})
    return found


@require_POST
@staff_only
def mute_end(request: HttpRequest, id: int) -> HttpResponse:
    mute_lift(mute=get_object_or_404(AlertMute, pk=id), by=request.user)
    messages.info(request, _("The mute is lifted: people are told again, also of what is still open."))
    return redirect("alert-mutes")
