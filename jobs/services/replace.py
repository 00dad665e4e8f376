"""Another job in the place of one that waits: both at once, or neither."""

from __future__ import annotations

from django.db import transaction

from jobs.models import Job
from jobs.requests import JobRequest
from jobs.services.control import job_cancel
from jobs.services.refused import refusals_noted
from jobs.services.submit import job_insert
from quotas.models import User


def job_replace(
    *, job: Job, by: User, request: JobRequest, idempotency_key: str | None = None, body_sha256: str | None = None
) -> tuple[Job, bool]:
    """Cancels the waiting job and submits the request, in one transaction: it is never in the queue twice, and nothing is lost where
    the submit is refused. Answers as ``job_submit`` does, and raises what that raises, and

        InvalidState: the job has started or ended meanwhile; nothing is submitted.
    """
    with refusals_noted(by, request):
        return job_exchange(job=job, by=by, request=request, idempotency_key=idempotency_key, body_sha256=body_sha256)


def job_exchange(
    *, job: Job, by: User, request: JobRequest, idempotency_key: str | None = None, body_sha256: str | None = None
) -> tuple[Job, bool]:
    """As ``job_replace``, for use within a transaction: a refusal leaves no row."""
    with transaction.atomic():
        job_cancel(job=job, by=by, only_waiting=True)
        return job_insert(owner=by, request=request, idempotency_key=idempotency_key, body_sha256=body_sha256)
