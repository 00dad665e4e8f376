"""One's secrets and those of one's projects as a page: set and delete, never show."""

from __future__ import annotations

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST

from quotas.models import Membership, Project, User
from quotas.secrets import SecretRefused, project_for, secret_delete, secret_set, secrets_of


class SecretForm(forms.Form):
    name = forms.CharField(label=gettext_lazy("Name"), max_length=64)
    value = forms.CharField(label=gettext_lazy("Value"), strip=False, widget=forms.Textarea)
    project = forms.CharField(label=gettext_lazy("Project"), required=False)


def projects_led(user: User) -> list[str]:
    """Names of the projects whose secrets this user may change. A personal project's are one's own: it is left out."""
    led = Membership.objects.filter(user=user, role=Membership.Role.LEAD)
    found = Project.objects.filter(is_active=True, personal_of=None, memberships__in=led)
    return list(found.order_by("name").values_list("name", flat=True))


@sensitive_post_parameters("value")
@sensitive_variables("form", "asked")
@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def secret_list(request: HttpRequest) -> HttpResponse:
    form = SecretForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        asked = form.cleaned_data
        try:
            project = project_for(request.user, asked["project"]) if asked["project"] else None
            # A text area makes one line break of every kind.
            secret, is_new = secret_set(by=request.user, name=asked["name"], value=asked["value"].replace("\r\n", "\n"), project=project)
        except SecretRefused as error:
            form.add_error(None, error.message)
        else:
            text = _("The secret %(name)s is set.") if is_new else _("The secret %(name)s has a new value.")
            messages.success(request, text % {"name": secret.name})
            return redirect("secret-list")
    led = projects_led(request.user)
    rows = [{"secret": one, "can_change": one.project is None or one.project.name in led} for one in secrets_of(request.user)]
    # What was typed is not sent back, not even to who typed it.
    typed = {"name": form.data.get("name", ""), "project": form.data.get("project", "")} if form.is_bound else {}
    context = {"rows": rows, "projects": led, "form": form, "typed": typed}
    context["shared_nodes"] = settings.SECRETS_ON_SHARED_NODES
    return render(request, "quotas/secrets.html", context, status=400 if request.method == "POST" else 200)


@require_POST
@login_required
def secret_remove(request: HttpRequest, name: str) -> HttpResponse:
    try:
        text = request.POST.get("project", "").replace("\0", "")
        secret_delete(by=request.user, name=name, project=project_for(request.user, text) if text else None)
    except SecretRefused as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("The secret %(name)s is deleted.") % {"name": name})
    return redirect("secret-list")
