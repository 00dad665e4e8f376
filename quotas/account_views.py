"""One's own account: name, language, zone, how one signs in, and one's tokens."""

from __future__ import annotations

import re
from typing import Any
from zoneinfo import available_timezones

from allauth.mfa.utils import is_mfa_enabled
from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from quotas import selectors, tokens
from quotas.audit import audit
from quotas.errors import BadValue, DomainError
from quotas.grants import ALL_SCOPES, Scope
from quotas.models import ApiToken, Project, User

DAYS = (7, 30, 90, 365)
TOKENS_SHOWN = 200
SCOPE_WORDS = {
    Scope.READ: gettext_lazy("read: look at jobs, cards and nodes"),
    Scope.SUBMIT: gettext_lazy("submit: submit, cancel, hold and release jobs"),
    Scope.MANAGE: gettext_lazy("manage: all else that you may"),
}


class ProfileForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = User
        fields = ("first_name", "last_name", "language", "zone")

    def clean_language(self) -> str:
        language = str(self.cleaned_data["language"])
        return language if language in dict(settings.LANGUAGES) else ""

    def clean_zone(self) -> str:
        zone = str(self.cleaned_data["zone"]).strip()
        if zone and zone not in available_timezones():
            raise forms.ValidationError(_("%(zone)s is no time zone; write one such as Asia/Shanghai, or leave it empty.") % {"zone": zone})
        return zone


class TokenForm(forms.Form):
    name = forms.CharField(max_length=80)
    scopes = forms.MultipleChoiceField(choices=[(scope, scope) for scope in ALL_SCOPES])
    project = forms.CharField(required=False, max_length=60)
    days = forms.TypedChoiceField(choices=[(day, day) for day in DAYS], coerce=int)


def _user(request: HttpRequest) -> User:
    return User.objects.get(pk=request.user.pk)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    user = _user(request)
    form = ProfileForm(request.POST if request.method == "POST" else None, instance=user)
    if request.method == "POST" and form.is_valid():
        with transaction.atomic():
            form.save()
            audit(user, "user.changed", f"user {user.email}", {"fields": form.changed_data})
        messages.info(request, _("Saved."))
        return redirect("account")
    return _page(request, user, form=form, status=400 if request.method == "POST" else 200)


@login_required
@require_POST
def token_new(request: HttpRequest) -> HttpResponse:
    """The page with the secret on it, once: nothing keeps it, so there is no redirect to lose it in."""
    user, form = _user(request), TokenForm(request.POST)
    if not form.is_valid():
        text = _("A token needs a name, at least one scope and a time to live.")
        return _page(request, user, token_form=form, token_error=text, status=400)
    wanted = form.cleaned_data
    project: Project | None = None
    if wanted["project"]:
        project = selectors.projects_to_submit(user).filter(name=wanted["project"]).first()
    try:
        if wanted["project"] and project is None:
            raise BadValue("token_project", params={"project": wanted["project"]})
        token, secret = tokens.token_create(
            user=user, name=wanted["name"], ttl_s=wanted["days"] * 86_400, scopes=wanted["scopes"], project=project
        )
    except DomainError as error:
        return _page(request, user, token_form=form, token_error=error.message, status=error.http_status)
    return _page(request, user, made=token, secret=secret)


@login_required
@require_POST
def token_end(request: HttpRequest, id: int) -> HttpResponse:
    token = get_object_or_404(tokens.tokens_live(ApiToken.objects.filter(user=_user(request))), pk=id)
    tokens.token_revoke(token=token, by=_user(request))
    messages.info(request, _("The token %(name)s opens nothing any more.") % {"name": token.name})
    return redirect("account")


def _page(
    request: HttpRequest,
    user: User,
    *,
    form: ProfileForm | None = None,
    token_form: TokenForm | None = None,
    token_error: str = "",
    made: ApiToken | None = None,
    secret: str = "",
    status: int = 200,
) -> HttpResponse:
    live = tokens.tokens_live(ApiToken.objects.filter(user=user)).select_related("project").order_by("-pk")
    chosen = token_form["scopes"].value() if token_form is not None else ["read", "submit"]
    context: dict[str, Any] = {
        "form": form or ProfileForm(instance=user),
        "languages": settings.LANGUAGES,
        "zones": sorted(zone for zone in available_timezones() if re.match(r"[A-Z][a-z]+/", zone) and not zone.startswith("Etc/")),
        "own_zone": settings.INSTALLATION_ZONE,
        "has_password": user.has_usable_password(),
        "has_second_factor": is_mfa_enabled(user),
        "tokens": live[:TOKENS_SHOWN],
        "token_form": token_form or TokenForm(),
        "token_error": token_error,
        "scopes": [(scope, SCOPE_WORDS[scope], scope in chosen) for scope in ALL_SCOPES],
        "days": DAYS,
        "days_chosen": int(token_form["days"].value() or 0) if token_form is not None and str(token_form["days"].value()).isdigit() else 90,
        "projects": selectors.projects_to_submit(user).filter(personal_of__isnull=True).order_by("name"),
        "made": made,
        "secret": secret,
    }
    return render(request, "quotas/account.html", context, status=status)
