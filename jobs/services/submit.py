"""A submit: validate against what the pool could ever hold, admit by quota, insert WAITING and its event, nudge."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from jobs import snapshot
from jobs.errors import IdempotencyConflict, NeverFits
from jobs.history import runtime_predict
from jobs.lifecycle import JobState
from jobs.model_caps import ModelRoom, narrow
from jobs.models import IdempotencyKey, Job
from jobs.notify import jobs_changed, pass_nudge
from jobs.requests import JobRequest
from jobs.scheduler import Policy, Reason, Request, never_reason
from jobs.services.moves import event_add
from jobs.services.refused import refusals_noted
from jobs.services.text import text_bytes, text_of_active_check, text_of_day_check
from quotas.disk import disk_check
from quotas.errors import DomainError, QuotaExceeded
from quotas.models import Quota, User
from quotas.services import owner_of, quota_job_admit
from quotas.sql import rows_insert


def job_submit(
    *,
    owner: User,
    request: JobRequest,
    idempotency_key: str | None = None,
    body_sha256: str | None = None,
    now: datetime | None = None,
) -> tuple[Job, bool]:
    """As ``job_insert``; a refusal leaves a row (jobs.services.refused). Not for use within a transaction, which would lose it."""
    with refusals_noted(owner, request):
        return job_insert(owner=owner, request=request, idempotency_key=idempotency_key, body_sha256=body_sha256, now=now)


def job_insert(
    *,
    owner: User,
    request: JobRequest,
    idempotency_key: str | None = None,
    body_sha256: str | None = None,
    now: datetime | None = None,
) -> tuple[Job, bool]:
    """Returns the job and whether this call made it (False = a repeat with the same Idempotency-Key). ``now``: None = the clock.

    Raises
        DiskFull: the control plane has no room left.
        JobTextExceeded: the text of the owner's active jobs, or of his submits of this day, is more than is kept.
        NeverFits: no card or node that the pool knows could ever hold it; params carry the numbers.
        QuotaExceeded: the owner's or the project's limit is reached.
        IdempotencyConflict: the key was used for another body.
    """
    now = now or timezone.now()
    policy = snapshot.policy_current()
    size = text_bytes(request)
    try:
        disk_check((settings.DATA_DIR,))
        text_of_day_check(owner=owner, size=size)
        if (reason := never_fits(request, policy, owner=owner)) is not None:
            raise NeverFits(code=reason.code, params=dict(reason.params))
        predicted_s = runtime_predict(request, owner=owner.pk, now=now, half_life_s=policy.half_life_s)
        with transaction.atomic():
            job = _insert(owner=owner, request=request, size=size, predicted_s=predicted_s, now=now)
            if idempotency_key:
                key = {"user_id": owner.pk, "key": idempotency_key, "body_sha256": body_sha256 or "", "job_id": job.pk}
                rows_insert(IdempotencyKey, [key])
    except (IntegrityError, DomainError):
        # A repeat, or the later of two submits with one key at once: its job was rolled back, it answers with the first one's,
        # even where the pool or the quota would refuse a new one by now. Most submits are no repeats and pay nothing for it.
        repeat = _repeat(owner=owner, key=idempotency_key, body_sha256=body_sha256 or "") if idempotency_key else None
        if repeat is None:
            raise
        return repeat, False
    return job, True


#: For so long a request that fitted is not judged again: a pool seldom shrinks, and what nothing can hold any more waits with that reason.
FITS_S = 5.0
FITS_MOST = 1000


class _Fits:
    """What was found to fit the pool under this policy, and when."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy
        self.at: dict[tuple[Request, int, bool], float] = {}  # request, owner, whether it gets secrets


_fits = _Fits()


def fits_forget() -> None:
    """The next submit is judged by the nodes as they are. For tests, whose pools come and go."""
    global _fits
    _fits = _Fits()


def never_fits(request: JobRequest, policy: Policy, *, owner: User) -> Reason | None:
    """Why no card or node that the pool knows could ever hold it, or may for this owner; None = one could. A refusal is always of the
    nodes as they are now."""
    global _fits
    wanted, now = snapshot.request_of(request), time.monotonic()
    if _fits.policy != policy or len(_fits.at) >= FITS_MOST:
        _fits = _Fits(policy)
    fits = _fits
    key = (wanted, owner.pk, bool(request.secrets))
    if now - fits.at.get(key, float("-inf")) < FITS_S:
        return None
    nodes = snapshot.nodes_all()
    wanted = replace(wanted, lacks=snapshot.lacks_of(owner.pk, has_secrets=bool(request.secrets), parts=request.nodes, nodes=nodes))
    reason = never_reason(wanted, nodes, policy)
    if reason is None:
        fits.at[key] = now
    return reason


def models_exceeded(request: JobRequest, quota: Quota) -> QuotaExceeded | None:
    """Why this quota's limits by card model never let the job start, even with nothing held; None = they do. No query where there
    are none."""
    if not quota.model_caps:
        return None
    owner = {quota.user_id or quota.project_id or 0: quota.model_limits}
    room = ModelRoom(owner, {}) if quota.user_id is not None else ModelRoom({}, owner)
    wanted = snapshot.request_of(request)
    _narrowed, reason = narrow(
        wanted,
        user=quota.user_id or 0,
        project=quota.project_id or 0,
        room=room,
        nodes=snapshot.nodes_all(),
        policy=snapshot.policy_current(),
        as_if_empty=True,
    )
    if reason is None:
        return None
    params = {name: reason.params[name] for name in ("model", "needed", "limit")}
    return QuotaExceeded(params={"what": "model_cards", "used": 0, "resets_at": None, "owner": owner_of(quota), **params})


def _repeat(*, owner: User, key: str, body_sha256: str) -> Job | None:
    known = IdempotencyKey.objects.filter(user=owner, key=key).select_related("job__owner", "job__project").first()
    if known is None:
        return None
    if known.body_sha256 != body_sha256:
        raise IdempotencyConflict(params={"job": known.job_id})
    return known.job


def _insert(*, owner: User, request: JobRequest, size: int, predicted_s: float, now: datetime) -> Job:
    quota_job_admit(user=owner.pk, project=request.project.pk, now=now, judge=lambda quota: models_exceeded(request, quota))
    text_of_active_check(owner=owner, size=size)
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
            "idle_after_s",
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
        secrets=list(request.secrets) or None,
        constraints=dict(request.constraints),
        text_bytes=size,
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
    event_add(job.pk, code="submitted", by=owner.pk, to=JobState.WAITING, at=now)
    jobs_changed([job.pk])
    pass_nudge()
    return job
