"""How much text the database takes of one user: commands, environments and the like of active jobs, and of a day's submits."""

from __future__ import annotations

import json
import math

from django.conf import settings
from django.db.models import Sum
from django.utils.translation import gettext_noop

from jobs.models import Job
from jobs.requests import JobRequest
from quotas.errors import DomainError
from quotas.models import User
from quotas.throttles import throttle_allow

KIB = 1024
#: A job with so little text adds up to nothing that the limit of active jobs would not hold before: it costs no query.
LITTLE = 2 * KIB


class JobTextExceeded(DomainError):
    """The text of a user's jobs is more than is kept."""

    default_code = "job_text"
    default_status = 413
    sentences = {
        "job_text": gettext_noop(
            "The commands and environments of your active jobs have {used_kib} KiB, and this job adds {needed_kib} KiB; the most is "
            "{limit_kib} KiB. Put long input into a file, or wait until a job ends."
        ),
        "job_text_day": gettext_noop(
            "You have submitted too many KiB of commands and environments today; this job has {needed_kib} KiB. Try again in {seconds} s, "
            "or put long input into a file."
        ),
    }


def text_bytes(request: JobRequest) -> int:
    """About what its row takes of the database."""
    parts = [request.name, list(request.argv), dict(request.env), list(request.secrets), dict(request.constraints)]
    return len(json.dumps([*parts, request.workdir, request.checkpoint], ensure_ascii=False).encode("utf-8", "surrogatepass"))


def text_of_day_check(*, owner: User, size: int) -> None:
    """Counts a submit's text. Raises JobTextExceeded (429). A round trip to Redis."""
    needed = math.ceil(size / KIB)
    allowed, wait = throttle_allow("text", f"user:{owner.pk}", cost=needed)
    if not allowed:
        raise JobTextExceeded("job_text_day", 429, {"needed_kib": needed, "seconds": math.ceil(wait)})


def text_of_active_check(*, owner: User, size: int) -> None:
    """Raises JobTextExceeded (413). One query by an index that has active jobs alone; none for a job with little text. Call while
    holding the owner's quota, so that of two submits at once one sees the other."""
    if size <= LITTLE or not settings.JOB_TEXT_MIB:
        return
    used = Job.objects.filter(owner=owner, ended_at__isnull=True).aggregate(total=Sum("text_bytes"))["total"] or 0
    limit = settings.JOB_TEXT_MIB * KIB * KIB
    if used + size > limit:
        params = {"used_kib": used // KIB, "needed_kib": math.ceil(size / KIB), "limit_kib": limit // KIB}
        raise JobTextExceeded(params=params)
