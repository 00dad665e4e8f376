"""The door that the authorisation table (nebulagrid/access.py) is held at: nothing gets past it without a row.

Pages and agents' routes are judged by the middleware, before their view; REST by the permission class, after REST framework has
looked at the credential. What belongs to whom, the rooms know (jobs/selectors.py, quotas/selectors.py).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from rest_framework import exceptions
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from jobs.selectors import jobs_changeable_by, jobs_visible_to, jobs_with_output_for
from nebulagrid.access import CATCH_ALL, METHODS, Rule, Thing, Tokens, Who, rule_for, rules_of, sockets
from nebulagrid.writes import write_wait
from nodes.alert_read import alerts_visible_to
from quotas.grants import Grant
from quotas.models import User
from quotas.requests import may_decide, requests_visible_to
from quotas.selectors import projects_led_by, projects_visible_to

log = logging.getLogger(__name__)

API_PREFIX = "api/"
JOBS = {Thing.JOB_SEE: jobs_visible_to, Thing.JOB_OUTPUT: jobs_with_output_for, Thing.JOB_CHANGE: jobs_changeable_by}


def thing_check(rule: Rule, user: Any, kwargs: dict[str, Any]) -> None:
    """Whether what the address names is the caller's to see or to change. One query, two for what may be seen but not changed.

    Raises Http404 for what the caller may not see, PermissionDenied for what he may see but not change.
    """
    if rule.thing in JOBS:
        if JOBS[rule.thing](user).filter(pk=kwargs["id"]).exists():
            return
        if rule.thing == Thing.JOB_CHANGE and jobs_visible_to(user).filter(pk=kwargs["id"]).exists():
            raise PermissionDenied(_("This job is another's: its owner, a lead of its project and staff may change it."))
        raise Http404
    if rule.thing == Thing.QUOTA_DECIDE:
        found = requests_visible_to(user).filter(pk=kwargs["id"]).first()
        if found is None:
            raise Http404
        if found.is_open and not may_decide(found, user):
            raise PermissionDenied(_("This request is not yours to decide at this step."))
    if rule.thing == Thing.QUOTA_SEE and not requests_visible_to(user).filter(pk=kwargs["id"]).exists():
        raise Http404
    if rule.thing == Thing.ALERT_SEE and not alerts_visible_to(user).filter(pk=kwargs["id"]).exists():
        raise Http404
    if rule.thing in (Thing.PROJECT_SEE, Thing.PROJECT_LEAD):
        if not projects_visible_to(user).filter(name=kwargs["name"]).exists():
            raise Http404
        if rule.thing == Thing.PROJECT_LEAD and not projects_led_by(user).filter(name=kwargs["name"]).exists():
            raise PermissionDenied(_("Leads of the project and staff may do this."))


def _is_api(view: Any) -> bool:
    """Whether REST framework answers. (Its views can't be imported here: they import this module for its permission class.)"""
    return hasattr(getattr(view, "cls", None), "permission_classes")


class Gate:
    """Middleware, after those that know the session's user."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: dict[str, Any]) -> HttpResponseBase | None:
        match = request.resolver_match
        route = match.route if match is not None else ""
        if route == CATCH_ALL:
            return None
        found = rules_of(route)
        if not found:
            log.error("%s has no row in the authorisation table (nebulagrid/access.py): refused", route)
            return self._refused(request, route)
        if _is_api(view):
            return None  # TableAllows decides: who calls is not known yet
        rule = rule_for(route, request.method or "")
        if rule is None:
            if route.startswith(API_PREFIX):
                return None  # the agents' views say it in their own words
            return HttpResponseNotAllowed(list(found))
        if rule.who == Who.NOBODY:
            raise Http404
        if rule.who == Who.NODE:
            return None if getattr(view, "opens_to_nodes_only", False) else self._refused(request, route)
        if rule.who == Who.ANYONE:
            return None
        user = request.user
        if not (user.is_authenticated and user.is_active):
            return redirect_to_login(request.get_full_path(), reverse("account_login"))
        if rule.who == Who.STAFF and not user.is_staff:
            raise PermissionDenied
        thing_check(rule, user, kwargs)
        if (wait := write_wait(user, route, request.method or "")) > 0:
            seconds = max(1, math.ceil(wait))
            answer = render(request, "errors/429.html", {"seconds": seconds}, status=429)
            answer["Retry-After"] = str(seconds)
            return answer
        return None

    @staticmethod
    def _refused(request: HttpRequest, route: str) -> HttpResponse:
        if route.startswith(API_PREFIX):
            body = {"code": "permission_denied", "message": _("Nobody may do this: there is no rule for it."), "fields": {}}
            return JsonResponse(body, status=HTTPStatus.FORBIDDEN)
        raise PermissionDenied


class TableAllows(BasePermission):
    """The one permission class of the REST API: the row of the route and method, with the token's scopes."""

    def has_permission(self, request: Request, view: Any) -> bool:
        match = request.resolver_match
        route, method = match.route if match is not None else "", request.method or ""
        rule = rule_for(route, method)
        user = request.user
        if rule is None:
            # A method that the view does not have is a 405, for whoever may come in at all. One that it has needs a row.
            is_known = method in METHODS and hasattr(view, method.lower())
            is_open = any(other.who == Who.ANYONE for other in rules_of(route).values())
            return not is_known and (is_open or bool(user and user.is_authenticated))
        if rule.who == Who.ANYONE:
            return True
        if rule.who not in (Who.USER, Who.STAFF) or not (user and user.is_authenticated and user.is_active):
            return False
        grant_check(rule, request.auth)
        if rule.who == Who.STAFF and not user.is_staff:
            return False
        try:
            thing_check(rule, user, view.kwargs)
        except Http404 as error:
            raise exceptions.NotFound from error
        return True


def grant_check(rule: Rule, grant: Any) -> None:
    """Whether the credential is good for this. Raises PermissionDenied (scope_missing | password_needed | project_token)."""
    if not isinstance(grant, Grant):
        return  # a session
    if rule.token == Tokens.NO:
        raise exceptions.PermissionDenied(_("No token opens this; sign in."), code="password_needed")
    if grant.project is not None and rule.token == Tokens.OWN:
        raise exceptions.PermissionDenied(_("A project's token does not open this; use a personal one."), code="project_token")
    if rule.scope not in grant.scopes:
        values = {"scope": rule.scope, "has": ", ".join(sorted(grant.scopes)) or "–"}
        text = _("This needs a token with the scope %(scope)s; this one has: %(has)s.") % values
        raise exceptions.PermissionDenied(text, code="scope_missing")


def may_watch(user: User, topic: str) -> bool:
    """Whether a person's socket may join the group. Causes SQL queries. A topic without a row is refused."""
    kind, _dot, number = topic.partition(".")
    rule = sockets().get(kind)
    if rule is None or rule.who not in (Who.USER, Who.STAFF) or not user.is_active:
        return False
    if rule.who == Who.STAFF and not (user.is_staff and user.confined_to is None):
        return False
    if rule.thing == Thing.OWN:
        return user.confined_to is None and number == str(user.pk)
    if rule.thing in JOBS:
        return JOBS[rule.thing](user).filter(pk=int(number)).exists()
    return rule.thing == Thing.NONE
