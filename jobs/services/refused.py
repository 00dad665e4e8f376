"""Submits that were refused: who asked for what, and why not. So that staff see what people need and don't get, and nobody has to
remember a message that is gone.

Bounded: a person's last ``KEPT_MOST`` of the last ``KEPT_DAYS`` days; the same refusal again counts on the row that is there. What is no
request at all (a misspelt field, an unreadable size) and calls that came too fast leave no row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from jobs.errors import NeverFits, QuotaExceeded
from jobs.models import RefusedSubmit
from jobs.requests import JobRequest
from nodes.text import json_clean, text_clean
from quotas.models import User

KEPT_MOST = 100
KEPT_DAYS = 30
PARAMS_MOST = 4096  # characters of JSON


@contextmanager
def refusals_noted(owner: User, request: JobRequest) -> Iterator[None]:
    """Call outside of the submit's transaction: that one is rolled back."""
    try:
        yield
    except (NeverFits, QuotaExceeded) as error:
        refusal_note(owner=owner, request=request, code=error.code, params=error.params)
        raise


def asked_of(request: JobRequest) -> dict[str, Any]:
    """What it needed; neither its command nor its variables."""
    asked = {name: getattr(request, name) for name in ("gpu_count", "gpu_mem_mib", "nodes", "time_limit_s", "queue", "qos")}
    return {name: value for name, value in asked.items() if value not in (None, "")} | {"constraints": dict(request.constraints)}


def refusal_note(*, owner: User, request: JobRequest, code: str, params: dict[str, Any], now: datetime | None = None) -> None:
    """Four statements; two for the same refusal again."""
    now = now or timezone.now()
    asked, numbers = json_clean(asked_of(request)), json_clean(params)
    if len(json.dumps(numbers, default=str)) > PARAMS_MOST:
        numbers = {}
    name = text_clean(request.name)[:120]
    with transaction.atomic():
        last = RefusedSubmit.objects.filter(user=owner).order_by("-pk").first()
        if last is not None and (last.code, last.name, last.project_id, last.asked) == (code, name, request.project.pk, asked):
            RefusedSubmit.objects.filter(pk=last.pk).update(times=F("times") + 1, at=now, params=numbers)
            return
        RefusedSubmit.objects.create(user=owner, project=request.project, name=name, asked=asked, code=code, params=numbers, at=now)
        kept = list(RefusedSubmit.objects.filter(user=owner).order_by("-pk").values_list("pk", flat=True)[: KEPT_MOST + 1])
        if len(kept) > KEPT_MOST:
            RefusedSubmit.objects.filter(user=owner, pk__lte=kept[-1]).delete()
        RefusedSubmit.objects.filter(at__lt=now - timedelta(days=KEPT_DAYS)).delete()
