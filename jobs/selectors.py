"""Reads that are more than one filter."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from jobs.lifecycle import JobState
from jobs.models import Attempt, Job, Rank
from jobs.outlooks import Told, told_read
from jobs.policy import policy_current
from quotas.models import User


def jobs_visible_to(user: User) -> QuerySet[Job]:
    """Staff see all jobs, everybody else their own."""
    jobs = Job.objects.all()
    return jobs if user.is_staff else jobs.filter(owner=user)


def job_is_visible(*, user: User, job_id: int) -> bool:
    return jobs_visible_to(user).filter(pk=job_id).exists()


def wait_ahead(job: Job) -> int:
    """How many waiting jobs that aren't held are before this one in the queue. One query."""
    before = (
        Q(priority__gt=job.priority)
        | Q(priority=job.priority, submitted_at__lt=job.submitted_at)
        | Q(priority=job.priority, submitted_at=job.submitted_at, pk__lt=job.pk)
    )
    return Job.objects.filter(before, state=JobState.WAITING, held=False, want_cancel=False).count()


def told_of(job: Job) -> Told | None:
    """What the latest forecast says of a job that waits and is not held. One round trip to Redis."""
    return told_read([job.pk]).get(job.pk) if job.state == JobState.WAITING and not job.held else None


def queue_position(job: Job, told: Told | None) -> int | None:
    """Place in the queue, 1 = head, by the latest forecast; None for a job that does not take part.

    Before there is a forecast: by priority and time of submit where the policy's order is that (one query), else not known.
    """
    if job.state != JobState.WAITING or job.held:
        return None
    if told is not None:
        return told.position
    return wait_ahead(job) + 1 if is_by_submit() else None


def is_by_submit() -> bool:
    """Whether the rows alone tell whose turn it is."""
    return policy_current().order == "fifo"


def attempt_latest(job: Job) -> Attempt | None:
    """The attempt that is running, or ran last."""
    return Attempt.objects.filter(job=job).order_by("-epoch").first()


def rank_find(*, job: Job, epoch: int | None = None, index: int = 0) -> Rank | None:
    """A rank of the job; ``epoch`` None = the latest attempt."""
    ranks = Rank.objects.filter(attempt__job=job, index=index).select_related("attempt")
    if epoch is not None:
        ranks = ranks.filter(attempt__epoch=epoch)
    return ranks.order_by("-attempt__epoch").first()
