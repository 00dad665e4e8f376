"""Incidents to look at, and what staff do to a card. Each form works without a script."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from nodes import care
from nodes.errors import NodeRefused
from nodes.health_words import cause_text, line_look, line_text, selftest_text
from nodes.incidents import incident_close, incident_note, incident_of
from nodes.models import CardCare, Gpu, GpuState, Incident, IncidentEntry
from nodes.text import text_clean
from nodes.views import staff_only

PAGE = 50
LINES_SHOWN = 200
FILTERS = ("open", "review", "closed", "all")
ACTIONS = {
    "isolate": care.card_isolate,
    "maintain": care.card_maintain,
    "selftest": care.card_test,
    "reset": care.card_reset,
    "return": care.card_return,
}
#: Of an action: what it is called, and what it does.
ACTION_WORDS = {
    "isolate": (
        gettext_lazy("Isolate"),
        gettext_lazy("Its jobs are stopped politely and go back to the queue; nothing new comes to it until it is returned."),
    ),
    "maintain": (gettext_lazy("Maintenance"), gettext_lazy("Nothing new comes to it until it is returned. It must be free of jobs.")),
    "selftest": (gettext_lazy("Self-test"), gettext_lazy("Its memory is written and read back as soon as jobs leave room for that.")),
    "reset": (gettext_lazy("Reset"), gettext_lazy("The idle card is reset, then tested. It must be free of jobs.")),
    "return": (gettext_lazy("Return to service"), gettext_lazy("It comes back when it has passed a self-test.")),
}


def card_actions(gpu: Gpu) -> list[dict[str, Any]]:
    """What staff may do to the card now, with why not."""
    busy = gpu.live_slices > 0
    by_state: dict[str, tuple[str, ...]] = {
        GpuState.HEALTHY: ("selftest", "reset", "maintain", "isolate"),
        GpuState.SUSPECT: ("selftest", "reset", "return", "isolate"),
        GpuState.ISOLATED: ("selftest", "reset", "return"),
        GpuState.MAINTENANCE: ("reset", "return"),
        GpuState.MISSING: (),
        GpuState.RETIRED: (),
    }
    needs_idle = {"reset", "maintain", "return"}
    return [
        {"name": name, "word": ACTION_WORDS[name][0], "is_blocked": busy and name in needs_idle} for name in by_state.get(gpu.state, ())
    ]


def card_health(gpu: Gpu) -> dict[str, Any]:
    """What the card's page says of its health. Two queries."""
    found = CardCare.objects.filter(gpu=gpu).first()
    return {
        "incident": incident_of(gpu.pk),
        "care": found,
        "test": selftest_text(found.test) if found is not None and found.test else "",
        "tested_at": datetime.fromisoformat(found.test["at"]) if found is not None and found.test.get("at") else None,
        "actions": card_actions(gpu),
    }


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=care.REASON_MAX,
        error_messages={"required": gettext_lazy("Say why: it is kept with the card's history.")},
    )
    checked = forms.BooleanField(label=gettext_lazy("I have checked the card: no self-test"), required=False)


def _card(name: str, index: int) -> Gpu:
    """The card at this place; of two that had the index in turn, the one that is there."""
    found = list(Gpu.objects.select_related("node").filter(node__name=name, index=index).order_by("-pk"))
    gpu = next((gpu for gpu in found if gpu.state != GpuState.MISSING), found[0] if found else None)
    if gpu is None:
        raise Http404
    return gpu


@require_http_methods(["GET", "HEAD", "POST"])
@staff_only
def card_act(request: HttpRequest, name: str, index: int, action: str) -> HttpResponse:
    """GET asks for the reason, POST acts."""
    if action not in ACTIONS:
        raise Http404
    gpu = _card(name, index)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        more = {"is_checked": form.cleaned_data["checked"]} if action == "return" else {}
        try:
            ACTIONS[action](gpu=gpu, by=request.user, reason=form.cleaned_data["reason"], **more)  # type: ignore[operator]
        except NodeRefused as error:
            form.add_error(None, error.message or str(error))
        else:
            if action == "isolate":
                messages.info(request, _("Isolated. Jobs on it are being stopped. To undo it, return the card as checked."))
            return redirect("gpu-detail", name=name, index=index)
    word, what = ACTION_WORDS[action]
    context = {"gpu": gpu, "node": gpu.node, "form": form, "action": action, "word": word, "what": what}
    return render(request, "nodes/card_act.html", context, status=400 if request.method == "POST" else 200)


# --- incidents ------------------------------------------------------------------------------------------------------


def _is_piece(request: HttpRequest) -> bool:
    return request.headers.get("HX-Request") == "true" and request.headers.get("HX-History-Restore-Request") != "true"


def _row(incident: Incident) -> dict[str, Any]:
    until = incident.recovered_at
    return {
        "incident": incident,
        "text": cause_text(incident.code, incident.params),
        "took_s": (until - incident.opened_at).total_seconds() if until is not None else None,
    }


@require_safe
@login_required
def incident_list(request: HttpRequest) -> HttpResponse:
    """The open ones first; ``?state=`` open | review | closed | all."""
    state = request.GET.get("state", "open")
    state = state if state in FILTERS else "open"
    query = Incident.objects.select_related("node", "gpu")
    if state == "open":
        query = query.exclude(phase=Incident.Phase.CLOSED)
    elif state != "all":
        query = query.filter(phase=state.upper())
    page = Paginator(query, PAGE).get_page(request.GET.get("page"))
    context = {"rows": [_row(incident) for incident in page.object_list], "page": page, "state": state, "states": FILTERS}
    return render(request, "nodes/_incidents.html" if _is_piece(request) else "nodes/incidents.html", context)


@require_safe
@login_required
def incident_detail(request: HttpRequest, pk: int) -> HttpResponse:
    incident = get_object_or_404(Incident.objects.select_related("node", "gpu", "closed_by"), pk=pk)
    return _incident_page(request, incident)


def _incident_page(request: HttpRequest, incident: Incident, *, error: str = "", text: str = "") -> HttpResponse:
    entries = IncidentEntry.objects.filter(incident=incident).select_related("by").order_by("-at", "-pk")[:LINES_SHOWN]
    lines = [
        {"entry": entry, "text": line_text(entry.code, entry.params), "look": line_look(entry.code), "job": entry.params.get("job")}
        for entry in reversed(entries)
    ]
    power = [
        {"at": datetime.fromtimestamp(at).astimezone(), "power": watts, "temp": temp, "core": core}
        for at, watts, temp, core in incident.evidence.get("power", [])
    ]
    context = {
        **_row(incident),
        "node": incident.node,
        "gpu": incident.gpu,
        "lines": lines,
        "power": power,
        "kernel": incident.evidence.get("kernel", []),
        "can_close": incident.phase == Incident.Phase.REVIEW,
        "error": error,
        "written": text,
    }
    context["is_piece"] = _is_piece(request) and not error
    template = "nodes/_incident_line.html" if context["is_piece"] else "nodes/incident.html"
    return render(request, template, context, status=400 if error else 200)


@require_POST
@staff_only
def incident_write(request: HttpRequest, pk: int) -> HttpResponse:
    """A note, or with ``close`` the review that closes it."""
    incident = get_object_or_404(Incident.objects.select_related("node", "gpu", "closed_by"), pk=pk)
    text = text_clean(request.POST.get("text", ""))
    write = incident_close if "close" in request.POST else incident_note
    try:
        write(incident=incident, text=text, by=request.user)  # type: ignore[operator]
    except NodeRefused as error:
        return _incident_page(request, incident, error=error.message or str(error), text=text[:4000])
    return redirect("incident-detail", pk=incident.pk)
