"""Projects to look at, and to change for leads and staff (nebulagrid/access.py says who). Each works as a plain form."""

from __future__ import annotations

import re

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from quotas import projects
from quotas.errors import DomainError
from quotas.models import ApiToken, Membership, User
from quotas.projects_api import members_of, project_find, projects_with_role, roles_of
from quotas.selectors import projects_led_by
from quotas.tokens import token_revoke, tokens_live

PAGE = 50
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")


def _user(request: HttpRequest) -> User:
    return User.objects.get(pk=request.user.pk)


@login_required
@require_safe
def project_list(request: HttpRequest) -> HttpResponse:
    return _list(request)


def _list(request: HttpRequest, *, error: str = "", form: dict[str, str] | None = None, status: int = 200) -> HttpResponse:
    user = _user(request)
    page = Paginator(projects_with_role(user).order_by("personal_of", "name"), PAGE).get_page(request.GET.get("page"))
    roles = roles_of(user, list(page))
    words = dict(Membership.Role.choices)
    rows = [{"project": project, "role": words.get(roles.get(project.pk, ""), "")} for project in page]
    return render(request, "quotas/projects.html", {"rows": rows, "page": page, "error": error, "form": form or {}}, status=status)


@login_required
@require_POST
def project_new(request: HttpRequest) -> HttpResponse:
    user = _user(request)
    form = {name: request.POST.get(name, "").replace("\0", "").strip() for name in ("name", "title", "lead")}
    if not NAME.fullmatch(form["name"]):
        text = _("A project's name has 1 to 60 lower-case letters, digits, - and _, such as vision-group.")
        return _list(request, error=text, form=form, status=400)
    try:
        lead = projects.user_by_email(form["lead"]) if form["lead"] else user
        project = projects.project_create(name=form["name"], title=form["title"], lead=lead, by=user)
    except DomainError as error:
        return _list(request, error=error.message, form=form, status=error.http_status)
    return redirect("project-detail", name=project.name)


@login_required
@require_safe
def project_detail(request: HttpRequest, name: str) -> HttpResponse:
    user = _user(request)
    project = project_find(user, name)
    leads = projects_led_by(user).filter(pk=project.pk).exists()
    members = members_of(project)
    context = {
        "project": project,
        "members": members,
        "may_change": leads and project.personal_of_id is None,
        "roles": Membership.Role.choices,
        "mine": next((member.get_role_display() for member in members if member.user_id == user.pk), ""),
        "tokens": tokens_live(ApiToken.objects.filter(project=project)).select_related("user").order_by("-pk")[:200] if leads else [],
    }
    return render(request, "quotas/project.html", context)


@login_required
@require_POST
def project_act(request: HttpRequest, name: str) -> HttpResponse:
    """``act``: title, open, close; add (email, role); role (user, role), remove (user); revoke (token)."""
    user = _user(request)
    project = project_find(user, name)
    post = {key: str(value).replace("\0", "") for key, value in request.POST.items()}
    act = post.get("act", "")
    number = int(post["id"]) if post.get("id", "").isascii() and post.get("id", "").isdigit() and len(post["id"]) < 19 else 0
    role = post.get("role", "")
    try:
        if act == "title":
            projects.project_change(project=project, by=user, title=post.get("title", "").strip())
        elif act in ("open", "close"):
            projects.project_change(project=project, by=user, is_active=act == "open")
        elif act == "add" and role in Membership.Role.values:
            member = projects.member_add(project=project, user=projects.user_by_email(post.get("email", "")), role=role, by=user)
            messages.info(request, _("%(member)s is a member now.") % {"member": member.user.email})
        elif act in ("role", "remove"):
            found = get_object_or_404(Membership.objects.select_related("project", "user"), project=project, user_id=number)
            if act == "remove":
                projects.member_remove(member=found, by=user)
                messages.info(request, _("%(member)s is no member any more.") % {"member": found.user.email})
            elif role in Membership.Role.values:
                projects.member_change(member=found, role=role, by=user)
        elif act == "revoke":
            live = tokens_live(ApiToken.objects.filter(project=project)).select_related("user")
            token_revoke(token=get_object_or_404(live, pk=number), by=user)
        else:
            messages.error(request, _("Nothing was changed: the form is not understood."))
    except DomainError as error:
        messages.error(request, error.message)
    return redirect("project-detail", name=project.name)
