"""A submit: validate against what the pool could ever hold, admit by quota, insert WAITING and its event, nudge."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from jobs import snapshot
from jobs.errors import IdempotencyConflict, NeverFits
from jobs.history import runtime_predict
from jobs.lifecycle import JobState
from jobs.models import IdempotencyKey, Job, JobEvent
from jobs.notify import jobs_changed, pass_nudge
from jobs.requests import JobRequest
from jobs.scheduler import never_reason
from quotas.models import User
from quotas.services import quota_job_admit


def job_submit(
    *,
    owner: User,
    request: JobRequest,
    idempotency_key: str | None = None,
    body_sha256: str | None = None,
    now: datetime | None = None,
) -> tuple[Job, bool]:
    """Returns the job and whether this call made it (False = a repeat with the same Idempotency-Key). ``now``: None = the clock.

    Raises
        NeverFits: no card or node that the pool knows could ever hold it; params carry the numbers.
        QuotaExceeded: the owner's or the project's limit is reached.
        IdempotencyConflict: the key was used for another body.
    """
    if idempotency_key:
        repeat = _repeat(owner=owner, key=idempotency_key, body_sha256=body_sha256 or "")
        if repeat is not None:
            return repeat, False
    now = now or timezone.now()
    policy = snapshot.policy_current()
    reason = never_reason(snapshot.request_of(request), snapshot.nodes_all(), policy)
    if reason is not None:
        raise NeverFits(code=reason.code, params=dict(reason.params))
    predicted_s = runtime_predict(request, owner=owner.pk, now=now, half_life_s=policy.half_life_s)
    try:
        with transaction.atomic():
            job = _insert(owner=owner, request=request, predicted_s=predicted_s, now=now)
            if idempotency_key:
                IdempotencyKey.objects.create(user=owner, key=idempotency_key, body_sha256=body_sha256 or "", job=job)
    except IntegrityError:
        # Two submits with one key at once: the loser's job was rolled back, it answers with the winner's.
        repeat = _repeat(owner=owner, key=idempotency_key, body_sha256=body_sha256 or "") if idempotency_key else None
        if repeat is None:
            raise
        return repeat, False
    return job, True


def _repeat(*, owner: User, key: str, body_sha256: str) -> Job | None:
    known = IdempotencyKey.objects.filter(user=owner, key=key).select_related("job__owner", "job__project").first()
    if known is None:
        return None
    if known.body_sha256 != body_sha256:
        raise IdempotencyConflict(params={"job": known.job_id})
    return known.job


def _insert(*, owner: User, request: JobRequest, predicted_s: float, now: datetime) -> Job:
    quota_job_admit(user=owner, project=request.project)
    fields: dict[str, Any] = {
        name: getattr(request, name)
        for name in (
            "name",
            "workdir",
            "checkpoint",
            "gpu_count",
            "gpu_mem_mib",
            "nodes",
            "time_limit_s",
            "grace_s",
            "priority",
            "queue",
            "qos",
            "requeue",
            "on_node_loss",
        )
    }
    job = Job.objects.create(
        owner=owner,
        project=request.project,
        argv=list(request.argv),
        env=dict(request.env),
        constraints=dict(request.constraints),
        held=request.hold,
        held_by=owner if request.hold else None,
        wait_code="held" if request.hold else "submitted",
        wait_params={"by": owner.email, "why": ""} if request.hold else {},
        wait_at=now,
        submitted_at=now,
        queued_at=now,
        predicted_s=predicted_s,
        **fields,
    )
    JobEvent.objects.create(job=job, at=now, code="submitted", to_state=JobState.WAITING, by=owner)
    jobs_changed([job.pk])
    pass_nudge()
    return job
