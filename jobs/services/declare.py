"""Apply: see to it that a job is there, however often it is asked for.

The key is an ``id`` of the caller's own, else the job's name, within owner and project. Asked for again with the same content, nothing
happens. With another content, a waiting job gives way to the new one; one that runs is not touched (409), since nobody said to stop it.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from jobs import snapshot
from jobs.clone import env_is_secret
from jobs.errors import InvalidState, NeverFits
from jobs.lifecycle import FINAL, JobState
from jobs.models import AppliedJob, Job
from jobs.requests import JobRequest
from jobs.services.refused import refusals_noted
from jobs.services.replace import job_exchange
from jobs.services.submit import job_insert, never_fits
from quotas.models import User

HIDDEN = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """``action``: created | unchanged | replaced (``replaces`` waited and gave way) | renewed (the former one had ended).
    ``diff``: (field, before, after) against what was applied last; values of secret variables are not told."""

    action: str
    job: Job | None
    diff: list[tuple[str, Any, Any]]
    replaces: int | None = None


def content_of(request: JobRequest) -> dict[str, Any]:
    """A request as JSON, with the project's name; what two requests of one meaning have in common. What has no value is left out."""
    fields = {name: value for name, value in asdict(request).items() if name not in ("project", "constraints")}
    fields |= {"project": request.project.name, "argv": list(request.argv), "secrets": list(request.secrets), **request.constraints}
    return {name: value for name, value in sorted(fields.items()) if value not in (None, "", {}, [], ())}


def content_diff(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(field, before, after); variables one by one as ``env.NAME``. None = not there."""
    found: list[tuple[str, Any, Any]] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if name != "env":
            found += [(name, old, new)] if old != new else []
            continue
        for variable in sorted({*(old or {}), *(new or {})}):
            one, other = (old or {}).get(variable), (new or {}).get(variable)
            if one != other:
                hide = env_is_secret(variable, f"{one}{other}")
                found.append((f"env.{variable}", *(HIDDEN if hide and value is not None else value for value in (one, other))))
    return found


def job_apply(
    *, owner: User, request: JobRequest, key: str = "", is_dry: bool = False, is_retry: bool = False, now: datetime | None = None
) -> Applied:
    """``key`` empty = the job's name. ``is_dry``: tells what would be done. ``is_retry``: a job that has failed or was cancelled is
    made again though nothing differs.

    Raises what ``job_submit`` raises, and InvalidState (action = apply) if the job runs with another content.
    """
    now = now or timezone.now()
    key = (key or request.name)[:200]
    content = content_of(request)
    with nullcontext() if is_dry else refusals_noted(owner, request):
        try:
            with transaction.atomic():
                return _apply(owner=owner, request=request, key=key, content=content, is_dry=is_dry, is_retry=is_retry, now=now)
        except IntegrityError:
            # The first apply of this key, twice at once: the other one has made it by now.
            with transaction.atomic():
                return _apply(owner=owner, request=request, key=key, content=content, is_dry=is_dry, is_retry=is_retry, now=now)


def _apply(*, owner: User, request: JobRequest, key: str, content: dict[str, Any], is_dry: bool, is_retry: bool, now: datetime) -> Applied:
    # 1. What was applied last under this key. The row is locked: two at once are one after the other.
    rows = AppliedJob.objects.filter(owner=owner, project=request.project, key=key)
    row = rows.first() if is_dry else rows.select_for_update().first()
    job = Job.objects.select_related("owner", "project").filter(pk=row.job_id).first() if row is not None and row.job_id else None
    diff = content_diff(row.content, content) if row is not None else []
    # 2. Nothing to do?
    state = JobState(job.state) if job is not None else None
    is_over = state in FINAL
    if job is not None and not diff and not (is_retry and is_over and state is not JobState.SUCCEEDED):
        return Applied(action="unchanged", job=job, diff=[])
    # 3. What is to be done.
    if job is None:
        action = "created"
    elif is_over:
        action = "renewed"
    elif state is JobState.WAITING:
        action = "replaced"
    else:
        raise InvalidState(
            params={"job": job.pk, "state": job.state, "action": "apply", "fields": ", ".join(name for name, *_ in diff[:10])}
        )
    if is_dry:
        if (reason := never_fits(request, snapshot.policy_current(), owner=owner)) is not None:
            raise NeverFits(code=reason.code, params=dict(reason.params))
        return Applied(action=action, job=job, diff=diff, replaces=job.pk if action == "replaced" and job else None)
    # 4. Do it.
    if row is None:
        row = AppliedJob.objects.create(owner=owner, project=request.project, key=key)
    if action == "replaced" and job is not None:
        made, _ = job_exchange(job=job, by=owner, request=request)
    else:
        made, _ = job_insert(owner=owner, request=request, now=now)
    AppliedJob.objects.filter(pk=row.pk).update(job=made, content=content, updated_at=now)
    return Applied(action=action, job=made, diff=diff, replaces=job.pk if action == "replaced" and job is not None else None)
