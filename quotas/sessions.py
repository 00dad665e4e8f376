"""Sessions of browsers that are over: their rows go."""

from __future__ import annotations

from datetime import datetime

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session

ROWS = 500


def sessions_prune(*, now: datetime) -> int:
    """Throw away sessions whose time is over, with what the account's page knows of them, a little at a time; how many. One query
    where there is none."""
    over = list(Session.objects.filter(expire_date__lt=now).order_by("expire_date").values_list("pk", flat=True)[:ROWS])
    if over:
        UserSession.objects.filter(session_key__in=over).delete()
        Session.objects.filter(pk__in=over, expire_date__lt=now).delete()
    return len(over)
