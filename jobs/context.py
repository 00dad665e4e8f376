"""What the shell of every page shows of jobs."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from jobs.lifecycle import FINAL
from jobs.models import Job
from quotas.notify import unread_count
from quotas.requests import requests_to_decide


def shell(request: HttpRequest) -> dict[str, Any]:
    """``my_live_jobs``: how many jobs of the reader have not ended. One query, and only where a template asks.
    ``unread_notices``: the number at the bell, and ``requests_to_decide``, asked in the same way. ``has_mail``: whether a mail server
    is set up, so that a link by mail may be offered; ``sso_name``: another sign-in, by its name; ``has_signup``: whether people make
    their own accounts."""
    user = getattr(request, "user", None)
    has_mail = bool(settings.EMAIL_HOST)
    ways = {"has_mail": has_mail, "sso_name": settings.OIDC.name if settings.OIDC is not None else "", "has_signup": bool(settings.SIGNUP)}
    if user is None or not user.is_authenticated:
        return {"my_live_jobs": 0, "unread_notices": 0, **ways}
    return {
        **ways,
        "my_live_jobs": SimpleLazyObject(lambda: Job.objects.filter(owner=user).exclude(state__in=FINAL).count()),
        "requests_to_decide": SimpleLazyObject(lambda: requests_to_decide(user).count()),
        "unread_notices": SimpleLazyObject(lambda: unread_count(user)),
    }
