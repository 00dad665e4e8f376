"""What a person does to a job: cancel, hold, release. Each is idempotent; each leaves an event."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from jobs.errors import InvalidState
from jobs.lifecycle import EndReason, JobState
from jobs.models import Attempt, Job, JobEvent
from jobs.notify import jobs_changed, pass_nudge
from jobs.services.moves import event_add, jobs_move
from jobs.services.stop import attempt_stop
from quotas.audit import audit
from quotas.models import User


def _audit(by: User | None, action: str, job: Job) -> None:
    """What the owner does to a job of his own is in its events; what another does, in the audit log too."""
    if by is not None and by.pk != job.owner_id:
        audit(by, action, f"job {job.pk}", {"owner": job.owner.email, "name": job.name})


def job_cancel(*, job: Job, by: User | None, only_waiting: bool = False) -> Job:
    """WAITING ends at once; a live job is stopped politely and ends CANCELLED, unless it ends by itself before.

    Raises InvalidState when it has already succeeded or failed, and with ``only_waiting`` when it has started.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=job.pk)
        state = JobState(job.state)
        if state is JobState.CANCELLED:
            return job
        if job.is_final or (only_waiting and state is not JobState.WAITING):
            raise InvalidState(params={"job": job.pk, "state": job.state, "action": "replace" if only_waiting else "cancel"})
        if not job.want_cancel:
            Job.objects.filter(pk=job.pk).update(want_cancel=True, cancel_by=by, cancel_at=timezone.now())
            event_add(job.pk, code="cancel_wanted", by=by.pk if by else None, epoch=job.epoch)
            _audit(by, "job.cancelled", job)
        if state is JobState.WAITING:
            jobs_move(
                [job.pk],
                to=JobState.CANCELLED,
                code="cancelled",
                by=by.pk if by else None,
                fields={"end_reason": EndReason.CANCELLED, "wait_code": "", "wait_params": {}},
            )
            pass_nudge()  # whoever stood behind it moves up
        else:
            attempt = Attempt.objects.get(job=job, ended_at__isnull=True)
            attempt_stop(
                attempt=attempt, reason=EndReason.CANCELLED, grace_s=job.grace_s or settings.STOP_GRACE_S, by=by.pk if by else None
            )
    job.refresh_from_db()
    return job


def job_hold(*, job: Job, by: User | None, why: str = "") -> Job:
    """Keeps a waiting job out of the passes until it is released; ``by`` None = the system. Raises InvalidState if it isn't waiting."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=job.pk)
        if job.state != JobState.WAITING:
            raise InvalidState(params={"job": job.pk, "state": job.state, "action": "hold"})
        if job.held:
            return job
        Job.objects.filter(pk=job.pk).update(
            held=True,
            held_by=by,
            held_why=why[:200],
            wait_code="held",
            wait_params={"by": by.email if by else "", "why": why[:200]},
            wait_at=timezone.now(),
        )
        event_add(job.pk, code="held", params={"why": why[:200]}, by=by.pk if by else None, epoch=job.epoch)
        _audit(by, "job.held", job)
        jobs_changed([job.pk])
        pass_nudge()
    job.refresh_from_db()
    return job


def job_release(*, job: Job, by: User) -> Job:
    """Lets a held job take part again. Raises InvalidState when it isn't waiting."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=job.pk)
        if job.state != JobState.WAITING:  # one that was cancelled while it was held is over, too
            raise InvalidState(params={"job": job.pk, "state": job.state, "action": "release"})
        if not job.held:
            return job
        now = timezone.now()
        held_at = JobEvent.objects.filter(job=job, code="held").order_by("-pk").values_list("at", flat=True).first()
        held_s = max((now - (held_at or job.submitted_at)).total_seconds(), 0.0)  # one that was submitted on hold has no such event
        Job.objects.filter(pk=job.pk).update(
            held=False, held_by=None, held_why="", held_s=F("held_s") + held_s, wait_code="submitted", wait_params={}, wait_at=now
        )
        event_add(job.pk, code="released", by=by.pk, epoch=job.epoch)
        _audit(by, "job.released", job)
        jobs_changed([job.pk])
        pass_nudge()
    job.refresh_from_db()
    return job
