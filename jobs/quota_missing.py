"""How much more of a limit somebody needs: the first value of the form that asks for it. Pure but for the last function."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from jobs.lifecycle import JobState
from jobs.models import Job
from jobs.requests import JobRequest
from quotas.models import Quota, QuotaRequest, User

WHAT = QuotaRequest.What
#: Why a waiting job that a higher limit would let start waits.
HELD_BY_QUOTA = ("quota_exceeded", "cards_exceeded", "model_cards_exceeded")
#: A job of unknown length counts with so many hours, and no job with more than a month.
HOURS_UNKNOWN, HOURS_MOST = 24, 31 * 24
#: Beyond these the sum is large enough to begin a talk with.
JOBS_MOST = 200


def hours_of(job: Job) -> float:
    """GPU-hours that the job comes to at most: its cards for as long as it is expected, or else allowed, to run."""
    return _hours(job.gpu_count, job.predicted_s if job.predicted_s is not None else job.time_limit_s)


def _hours(cards: int, seconds: float | None) -> float:
    return cards * min(HOURS_UNKNOWN if seconds is None else seconds / 3600, HOURS_MOST)


def missing_of(quota: Quota, held_jobs: Iterable[Job]) -> dict[str, int]:
    """``gpu_hours``, ``cards``, ``active_jobs`` or ``model_cards:MODEL`` → how much more lets the held jobs start. Only what is missing."""
    jobs = list(held_jobs)
    found: dict[str, int] = {}
    if quota.gpu_hours_limit is not None:
        over = quota.spent_gpu_s / 3600 - quota.gpu_hours_limit
        waiting = [job for job in jobs if job.wait_code == "quota_exceeded"]
        if over >= 0 or waiting:
            found[WHAT.GPU_HOURS] = math.ceil(max(0.0, over) + sum(map(hours_of, waiting))) or 1
    if quota.cards_limit is not None:
        asked = [job.gpu_count for job in jobs if job.wait_code == "cards_exceeded"]
        if asked:
            found[WHAT.CARDS] = max(1, quota.held_cards + max(asked) - quota.cards_limit)
    if quota.active_jobs_limit is not None and quota.active_jobs >= quota.active_jobs_limit:
        found[WHAT.ACTIVE_JOBS] = quota.active_jobs - quota.active_jobs_limit + 1
    for job in jobs:
        model, needed, limit = (job.wait_params.get(name) for name in ("model", "needed", "limit"))
        if job.wait_code == "model_cards_exceeded" and isinstance(needed, int) and isinstance(limit, int):
            name = f"{WHAT.MODEL_CARDS}:{model}"
            found[name] = max(found.get(name, 1), needed - limit)
    return found


def refused_query(params: Mapping[str, Any], request: JobRequest) -> str:
    """The form's address behind a refused submit: ``what=…&amount=…``, from the params of the QuotaExceeded."""
    what = str(params.get("what", WHAT.GPU_HOURS))
    used, limit = float(params.get("used") or 0), float(params.get("limit") or 0)
    if what == WHAT.GPU_HOURS:
        amount = math.ceil(max(0.0, used - limit) + _hours(request.gpu_count, request.time_limit_s)) or 1
    elif what == WHAT.MODEL_CARDS:
        what, amount = f"{what}:{params.get('model', '')}", int(params.get("needed") or 1) - int(limit)
    else:
        amount = int(used - limit) + 1
    return urlencode({"what": what, "amount": max(1, amount)})


def jobs_held(user: User) -> list[Job]:
    """The user's own jobs that wait for a limit. One query."""
    waiting = Job.objects.filter(owner=user, state=JobState.WAITING, held=False, wait_code__in=HELD_BY_QUOTA)
    return list(waiting.order_by("pk")[:JOBS_MOST])
