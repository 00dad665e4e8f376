"""What staff may do to a node: add one, drain, resume, label it, ask its agent. Each works as a plain form, without a script."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from nodes import services
from nodes.errors import NodeRefused
from nodes.inspections import inspection_begin
from nodes.labels import labels_parse
from nodes.models import AgentCommand, Node
from quotas.moments import moment_validate

#: Verbs that anybody on the page may send without arguments; the others are the command line's.
VERBS = ("ping", "diagnose")
COMMANDS_SHOWN = 5
View = Callable[..., HttpResponse]


def staff_only(view: View) -> View:
    """Strangers sign in; people who are no staff are told that they may not."""

    @wraps(view)
    @login_required
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_staff:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return checked


class DrainForm(forms.Form):
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=200,
        error_messages={"required": gettext_lazy("Say why: everybody whose job waits for this node reads it.")},
    )
    until = forms.DateTimeField(
        label=gettext_lazy("Until"),
        required=False,
        validators=[moment_validate],
        input_formats=("%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S"),
        error_messages={"invalid": gettext_lazy("Write date and time as 2026-07-14 18:00.")},
    )

    def clean_until(self) -> Any:
        until = self.cleaned_data["until"]
        if until is not None and until <= timezone.now():
            raise forms.ValidationError(_("This time has passed; name a later one, or leave it empty."))
        return until


@require_http_methods(["GET", "HEAD", "POST"])
@staff_only
def node_drain(request: HttpRequest, name: str) -> HttpResponse:
    node = get_object_or_404(Node, name=name)
    form = DrainForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            services.node_cordon(node=node, by=request.user, reason=form.cleaned_data["reason"], until=form.cleaned_data["until"])
        except NodeRefused as error:
            form.add_error(None, error.message or str(error))
        else:
            return redirect("node-detail", name=node.name)
    status = 400 if request.method == "POST" else 200
    return render(request, "nodes/drain.html", {"node": node, "form": form, "zone": timezone.get_current_timezone_name()}, status=status)


class LabelsForm(forms.Form):
    """All labels of a node, one KEY=VALUE a line."""

    labels = forms.CharField(label=gettext_lazy("Labels"), required=False, strip=False, max_length=20_000)

    def clean_labels(self) -> dict[str, str]:
        try:
            return labels_parse(self.cleaned_data["labels"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error


@require_http_methods(["GET", "HEAD", "POST"])
@staff_only
def node_labels(request: HttpRequest, name: str) -> HttpResponse:
    node = get_object_or_404(Node, name=name)
    before = "\n".join(f"{key}={value}" for key, value in sorted(node.labels.items()))
    form = LabelsForm(request.POST if request.method == "POST" else None, initial={"labels": before})
    # An empty field takes all labels away; a form without the field is no wish of anybody's.
    form.fields["labels"].required = request.method == "POST" and "labels" not in request.POST
    if request.method == "POST" and form.is_valid():
        try:
            services.node_label(node=node, by=request.user, changes=form.cleaned_data["labels"], replace=True)
        except NodeRefused as error:
            form.add_error("labels", error.message or str(error))
        else:
            return redirect("node-detail", name=node.name)
    return render(request, "nodes/labels.html", {"node": node, "form": form}, status=400 if request.method == "POST" else 200)


@require_POST
@staff_only
def node_resume(request: HttpRequest, name: str) -> HttpResponse:
    node = get_object_or_404(Node, name=name)
    services.node_resume(node=node, by=request.user)
    return redirect("node-detail", name=node.name)


@require_POST
@staff_only
def node_confirm(request: HttpRequest, name: str) -> HttpResponse:
    """Of what is not there any more, nothing is said: the page that follows shows what is."""
    node = get_object_or_404(Node, name=name)
    what = "agent" if request.POST.get("what") == "agent" else "inventory"
    try:
        services.node_confirm(node=node, by=request.user, what=what, claim=request.POST.get("claim", ""))
    except NodeRefused as error:
        if error.code == "claim_other":
            messages.error(request, error.message or str(error))
    return redirect("node-detail", name=node.name)


@require_http_methods(["GET", "HEAD", "POST"])
@staff_only
def node_commands(request: HttpRequest, name: str) -> HttpResponse:
    """POST asks the agent; GET answers with the list alone, which the page fetches until everything is answered."""
    node = get_object_or_404(Node, name=name)
    if request.method == "POST":
        verb = request.POST.get("verb", "")
        try:
            if verb not in VERBS:
                raise NodeRefused("verb_unknown", params={"verb": verb[:40], "verbs": ", ".join(VERBS)})
            services.command_create(node=node, verb=verb, by=request.user)
        except NodeRefused as error:
            messages.error(request, error.message or str(error))
        if not getattr(request, "htmx", False):
            return redirect(reverse("node-detail", args=(node.name,)) + "#commands")
    commands = list(AgentCommand.objects.filter(node=node).select_related("created_by").order_by("-pk")[:COMMANDS_SHOWN])
    return render(
        request,
        "nodes/_commands.html",
        {"node": node, "commands": commands, "pending": any(command.state == AgentCommand.State.QUEUED for command in commands)},
    )


@require_POST
@staff_only
def node_inspect(request: HttpRequest, name: str) -> HttpResponse:
    """Look at it now, not tomorrow."""
    node = get_object_or_404(Node, name=name)
    try:
        inspection_begin(node=node, by=request.user, now=timezone.now())
    except NodeRefused as error:
        messages.error(request, error.message or str(error))
    return redirect(reverse("node-detail", args=(node.name,)) + "#inspection")


@require_safe
@staff_only
def node_add(request: HttpRequest) -> HttpResponse:
    """How a machine joins."""
    return render(request, "nodes/add.html")
