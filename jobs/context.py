"""What the shell of every page shows of jobs."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from jobs.lifecycle import FINAL
from jobs.models import Job


def shell(request: HttpRequest) -> dict[str, Any]:
    """``my_live_jobs``: how many jobs of the reader have not ended. One query, and only where a template asks."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {"my_live_jobs": 0}
    return {"my_live_jobs": SimpleLazyObject(lambda: Job.objects.filter(owner=user).exclude(state__in=FINAL).count())}
