"""Reads that are more than one filter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Q, QuerySet

from jobs.lifecycle import JobState
from jobs.models import Attempt, Job, Rank
from jobs.outlooks import Told, told_read
from jobs.policy import policy_current
from quotas.models import Membership, User
from quotas.selectors import memberships_shared


def jobs_visible_to(user: User) -> QuerySet[Job]:
    """Staff see all jobs, everybody else their own and those of their projects. By a project's token that project's alone."""
    return _jobs_of(user, Q(project__in=memberships_shared(user).values("project")))


def jobs_with_output_for(user: User) -> QuerySet[Job]:
    """Whose output, files and variables one may read: one's own, staff all."""
    return _jobs_of(user, None)


def jobs_changeable_by(user: User) -> QuerySet[Job]:
    """What one may cancel, hold and release: one's own jobs, a lead those of his project, staff all."""
    return _jobs_of(user, Q(project__in=memberships_shared(user).filter(role=Membership.Role.LEAD).values("project")))


def _jobs_of(user: User, others: Q | None) -> QuerySet[Job]:
    jobs = Job.objects.all()
    if user.confined_to is not None:
        jobs = jobs.filter(project_id=user.confined_to)
    elif user.is_staff:
        return jobs
    own = Q(owner=user)
    return jobs.filter(own if others is None else own | others)


def sees_others(user: User) -> bool:
    """Whether lists may have others' jobs in them. One query at most."""
    return user.is_staff or memberships_shared(user).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What one reader may do to jobs that he sees, for many at once: the three selectors above, for rows that are loaded."""

    user: int
    is_staff: bool = False
    sees: frozenset[int] = frozenset()
    leads: frozenset[int] = frozenset()

    def may_see(self, job: Job) -> bool:
        return self.is_staff or job.owner_id == self.user or job.project_id in self.sees

    def may_change(self, job: Job) -> bool:
        return self.is_staff or job.owner_id == self.user or job.project_id in self.leads

    def may_read_output(self, job: Job) -> bool:
        return self.is_staff or job.owner_id == self.user


def reader_of(user: User, jobs: Iterable[Job]) -> Reader:
    """One query where a job of ``jobs`` is another's and the user is no staff, else none."""
    if user.is_staff:
        return Reader(user=user.pk, is_staff=True)
    if all(job.owner_id == user.pk for job in jobs):
        return Reader(user=user.pk)
    places = list(memberships_shared(user).values_list("project_id", "role"))
    leads = frozenset(project for project, role in places if role == Membership.Role.LEAD)
    return Reader(user=user.pk, sees=frozenset(project for project, _role in places), leads=leads)


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
