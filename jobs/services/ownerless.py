"""Jobs that nobody may be watching any more: of somebody who was switched off, or running for weeks. Each gets a lease.

It is told to the leads of its project and to staff, and to the owner where there is one; any of them renews it, and what nobody renews
is stopped at the lease's end, politely. Waiting jobs of somebody who was switched off don't start meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.errors import InvalidState
from jobs.lifecycle import FINAL, LIVE, JobState
from jobs.models import Job
from jobs.notify import jobs_changed
from jobs.services.control import job_cancel, job_hold
from jobs.services.moves import event_add
from jobs.wording.numbers import moment
from quotas.audit import audit
from quotas.models import Membership, User
from quotas.notify import Kind, notify, staff

#: Told once more before the end, so long before.
TELL_AGAIN: Final = timedelta(hours=24)
AT_ONCE: Final = 500
RENEW_LEAST_DAYS: Final = 7


def _title(p: Mapping[str, Any]) -> str:
    text = _("Job #%(job)s %(name)s: its owner is switched off") if p["why"] == "owner" else _("Job #%(job)s %(name)s has run for weeks")
    return text % p


def _text(p: Mapping[str, Any]) -> str:
    values = {"owner": p["owner"], "project": p["project"], "until": moment(p["until"])}
    return _("Of %(owner)s, project %(project)s. It is stopped at %(until)s unless it is renewed on its page.") % values


KINDS: Final = {"job_lease": Kind(event="fail", title=_title, text=_text, tone="warn", icon="hourglass")}
HELD_WHY: Final = gettext_lazy("its owner is switched off")


def _is_long(now: datetime) -> Q:
    days: int = settings.LONG_JOB_DAYS
    return Q(state__in=LIVE, started_at__lt=now - timedelta(days=days)) if days else Q(pk__in=[])


def leases_look(*, now: datetime) -> None:
    """One look: new leases, those not needed any more, those about to end and those that ended. Two queries where there is none."""
    live = Job.objects.exclude(state__in=FINAL).select_related("owner", "project").order_by("pk")
    for job in live.filter(Q(owner__is_active=False) | _is_long(now), lease_until__isnull=True)[:AT_ONCE]:
        _open(job, now=now)
    for job in live.filter(lease_until__isnull=False, lease_until__lt=now + TELL_AGAIN, want_cancel=False)[:AT_ONCE]:
        if job.owner.is_active and not Job.objects.filter(_is_long(now), pk=job.pk).exists():
            Job.objects.filter(pk=job.pk).update(lease_until=None)  # switched on again
        elif job.lease_until is not None and job.lease_until <= now:
            _end(job)
        else:
            _tell(job, now=now)


def _open(job: Job, *, now: datetime) -> None:
    until = now + timedelta(hours=settings.OWNERLESS_HOURS)
    with transaction.atomic():
        if not Job.objects.filter(pk=job.pk, lease_until__isnull=True).update(lease_until=until):
            return
        job.lease_until = until
        event_add(job.pk, code="lease_opened", params={"why": _why(job), "until": until.isoformat()}, epoch=job.epoch)
        _tell(job, now=now)
        jobs_changed([job.pk])
    if job.state == JobState.WAITING and not job.owner.is_active:
        try:
            job_hold(job=job, by=None, why=str(HELD_WHY))
        except InvalidState:
            return  # it has just started; the lease ends that too


def _end(job: Job) -> None:
    try:
        with transaction.atomic():
            event_add(job.pk, code="lease_over", params={"why": _why(job)}, epoch=job.epoch)
            job_cancel(job=job, by=None)
            audit(None, "job.cancelled", f"job {job.pk}", {"owner": job.owner.email, "name": job.name, "lease": _why(job)})
    except InvalidState:
        return  # it ended by itself


def _why(job: Job) -> str:
    return "long" if job.owner.is_active else "owner"


def _tell(job: Job, *, now: datetime) -> None:
    """Once for each end of a lease, and once more near to it."""
    until = job.lease_until
    if until is None:
        return
    lead = Membership.Role.LEAD
    leads = User.objects.filter(memberships__project=job.project_id, memberships__role=lead, is_active=True).values_list("pk", flat=True)
    params = {"job": job.pk, "name": job.name, "why": _why(job), "owner": job.owner.email, "project": job.project.name}
    near = "near" if until - now < TELL_AGAIN else "far"
    people = {*leads, *staff(), *([job.owner_id] if job.owner.is_active else [])}
    key = f"job_lease:{job.pk}:{until:%Y%m%d%H%M}:{near}"
    notify("job_lease", people, params | {"until": until.isoformat()}, key=key, path=f"/jobs/{job.pk}/", at=now)


def job_renew(*, job: Job, by: User, now: datetime) -> Job:
    """Who may change the job answers for it for as long again as a job may run unasked (NEBULA_LONG_JOB_DAYS, at least a week).

    Raises InvalidState for one that has no lease, or has ended.
    """
    until = now + timedelta(days=max(settings.LONG_JOB_DAYS, RENEW_LEAST_DAYS))
    with transaction.atomic():
        changed = Job.objects.filter(pk=job.pk, lease_until__isnull=False, want_cancel=False).exclude(state__in=FINAL)
        if not changed.update(lease_until=until):
            raise InvalidState(params={"job": job.pk, "state": job.state, "action": "renew"})
        event_add(job.pk, code="lease_renewed", params={"until": until.isoformat()}, by=by.pk, epoch=job.epoch)
        if by.pk != job.owner_id:
            audit(by, "job.renewed", f"job {job.pk}", {"owner": job.owner.email, "name": job.name, "until": until})
        jobs_changed([job.pk])
    job.refresh_from_db()
    return job
