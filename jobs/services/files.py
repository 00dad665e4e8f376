"""What of the bytes that jobs make is kept: limits of a job, of its owner and of its project, and what was not taken.

A file counts with the bytes that were uploaded, so that one without content (``truncate -s 1G``) costs what it takes. Output counts as
it lies on the disk. A refusal leaves the job alone: it goes on, its owner is told once, and its page says which files are missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone
from django.utils.translation import gettext_noop

from jobs import logs
from jobs.models import Artifact, Attempt, Job, JobFiles, Rank
from jobs.notify import jobs_changed
from jobs.services.moves import event_add
from quotas.errors import DomainError
from quotas.models import Project, Quota, User
from quotas.notify import notify
from quotas.services import quota_for

MIB = 1024 * 1024
#: Of the files that were not taken, so many are named.
REFUSED_NAMED = 20
#: So much of each rank's output is taken even of an owner who is over the limit: how a job ended must be readable.
LOG_ALWAYS = MIB
#: For so long an owner who was within the limits is not looked at again before output is taken.
OVER_S = 10.0


class FilesRefused(DomainError):
    """A file is not taken: something is full. params: the numbers of what is."""

    default_code = "files_full"
    default_status = 413
    sentences = {
        "file_large": gettext_noop("The file has more than {limit_mib} MiB, the most that a file may have."),
        "files_job_bytes": gettext_noop("With it the files of the job would have {used_mib} MiB; the most is {limit_mib} MiB."),
        "files_job_count": gettext_noop("The job has {used} files already, the most that a job may leave."),
        "files_owner": gettext_noop(
            "The files and output of {owner} would have {used_mib} MiB; the limit is {limit_mib} MiB. "
            "Remove files of earlier jobs, or ask an administrator for more."
        ),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one owner has, and the limit; None = no limit."""

    file_bytes: int
    log_bytes: int
    count: int
    limit_mib: int | None

    @property
    def bytes(self) -> int:
        return self.file_bytes + self.log_bytes

    @property
    def is_over(self) -> bool:
        return self.limit_mib is not None and self.bytes > self.limit_mib * MIB


def kept_by(owner: User | Project | int, quota: Quota | None) -> Kept:
    """``owner``: a user, or his number; or a project. One query, of an index alone."""
    rows = JobFiles.objects.filter(project=owner) if isinstance(owner, Project) else JobFiles.objects.filter(owner=owner)
    found = rows.aggregate(files=Sum("bytes"), logs=Sum("log_bytes"), count=Sum("count"))
    return Kept(
        file_bytes=found["files"] or 0,
        log_bytes=found["logs"] or 0,
        count=found["count"] or 0,
        limit_mib=quota.max_storage_mib if quota is not None else None,
    )


def _up_mib(size: int) -> int:
    return -(-size // MIB)


def _quotas_of(job: Job) -> list[tuple[User | Project, Quota | None]]:
    """The owner's and the project's row. Two queries."""
    return [(job.owner, quota_for(job.owner_id)), (job.project, Quota.objects.filter(project_id=job.project_id).first())]


def file_room(*, job: Job, kept: JobFiles | None, size: int, replaced: int | None = None) -> FilesRefused | None:
    """Why a file of ``size`` bytes is not taken; None = it is. ``replaced``: the bytes of the file that it takes the place of."""
    used, count = (kept.bytes, kept.count) if kept is not None else (0, 0)
    more = size - (replaced or 0)
    if (limit := settings.ARTIFACTS_JOB_MIB) and used + more > limit * MIB:
        return FilesRefused("files_job_bytes", params={"used_mib": _up_mib(used + more), "limit_mib": limit})
    if replaced is None and settings.ARTIFACTS_JOB_FILES and count >= settings.ARTIFACTS_JOB_FILES:
        return FilesRefused("files_job_count", params={"used": count})
    for owner, quota in _quotas_of(job):
        if quota is None or quota.max_storage_mib is None:
            continue
        total = kept_by(owner, quota).bytes + more
        if total > quota.max_storage_mib * MIB:
            params = {"owner": str(owner), "used_mib": _up_mib(total), "limit_mib": quota.max_storage_mib}
            return FilesRefused("files_owner", params=params)
    return None


def _kept_row(job: Job) -> JobFiles:
    row, _is_new = JobFiles.objects.get_or_create(job_id=job.pk, defaults={"owner_id": job.owner_id, "project_id": job.project_id})
    return row


def file_take(*, rank: Rank, job: Job, name: str, size: int, sha256: str, now: datetime | None = None) -> None:
    """Writes down a file that has arrived. Raises FilesRefused: then it is to be thrown away."""
    with transaction.atomic():
        # Locked: of two files that arrive at once for the last room one is taken.
        list(Quota.objects.select_for_update().filter(Q(user=job.owner_id) | Q(project=job.project_id)).order_by("pk").values_list("pk"))
        kept = JobFiles.objects.select_for_update().get(pk=_kept_row(job).pk)
        old = Artifact.objects.filter(rank=rank, name=name).values_list("size", flat=True).first()
        if (refusal := file_room(job=job, kept=kept, size=size, replaced=old)) is not None:
            raise refusal
        at = now or timezone.now()
        Artifact.objects.update_or_create(rank=rank, name=name, defaults={"size": size, "sha256": sha256, "created_at": at})
        kept.bytes += size - (old or 0)
        kept.count += old is None
        # It was refused a moment ago, and has come again now that there is room.
        still = [one for one in kept.refused if (one["rank"], one["name"]) != (rank.index, name)]
        kept.refused_count -= len(kept.refused) - len(still)
        kept.refused, kept.files_removed_at = still, None
        kept.save(update_fields=("bytes", "count", "refused", "refused_count", "files_removed_at"))
        jobs_changed([job.pk])


def file_refuse(*, rank: Rank, job: Job, name: str, size: int, refusal: DomainError) -> None:
    """Writes down that a file was not taken; the first time its owner is told."""
    with transaction.atomic():
        kept = JobFiles.objects.select_for_update().get(pk=_kept_row(job).pk)
        if any((one["rank"], one["name"]) == (rank.index, name) for one in kept.refused):
            return
        is_first, kept.refused_count = not kept.refused_count, kept.refused_count + 1
        if len(kept.refused) < REFUSED_NAMED:
            kept.refused = [*kept.refused, {"rank": rank.index, "name": name, "size": size, "code": refusal.code, "params": refusal.params}]
        kept.save(update_fields=("refused", "refused_count"))
        if is_first:
            params: dict[str, Any] = {"name": name, "size": size}
            event_add(job.pk, code="files_refused", params=params, epoch=rank.attempt.epoch)
            told = {"job": job.pk, "job_name": job.name, **params}
            notify("files_refused", [job.owner], told, key=f"files_refused:{job.pk}", path=f"/jobs/{job.pk}/files/")
        jobs_changed([job.pk])


# --- output ---------------------------------------------------------------------------------------------------------

_over: dict[int, tuple[float, str]] = {}


def log_cut(*, job: int) -> str:
    """Why no more of a job's output is taken than LOG_ALWAYS of each rank; "" = all is. Five queries in ten seconds a job and process."""
    until, line = _over.get(job, (0.0, ""))
    if time.monotonic() < until:
        return line
    row = Job.objects.filter(pk=job).select_related("owner", "project").only("owner", "project").first()
    line = "" if row is None else _over_line(row)
    if len(_over) > 10_000:
        _over.clear()
    _over[job] = (time.monotonic() + OVER_S, line)
    return line


def _over_line(job: Job) -> str:
    for owner, quota in _quotas_of(job):
        if quota is not None and quota.max_storage_mib is not None and kept_by(owner, quota).is_over:
            return f"the files and output of {owner} have passed their limit of {quota.max_storage_mib} MiB"
    return ""


def over_forget() -> None:
    """For tests, whose owners come and go."""
    _over.clear()


#: Attempts that ended a moment ago still get their last output.
LATELY = timedelta(minutes=10)


def log_bytes_measure(*, now: datetime) -> int:
    """What the output of jobs that run, or ended a moment ago, takes of the disk; how many rows changed. A folder is read for each."""
    live = Attempt.objects.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=now - LATELY)).order_by("job_id")
    owners = {job: (owner, project) for job, owner, project in live.values_list("job_id", "job__owner_id", "job__project_id")}
    return log_bytes_write({job: (*whose, _folder_bytes(job)) for job, whose in owners.items()})


def _folder_bytes(job: int) -> int:
    try:
        with os.scandir(logs.log_folder(job)) as found:
            return sum(entry.stat().st_size for entry in found if entry.name.endswith(".log"))
    except OSError:
        return 0


def log_bytes_write(found: dict[int, tuple[int, int, int]]) -> int:
    """``found``: job → owner, project, bytes of output."""
    changed = 0
    jobs = list(found)
    for begin in range(0, len(jobs), 500):
        part = jobs[begin : begin + 500]
        with transaction.atomic():
            known = {row.pk: row for row in JobFiles.objects.filter(pk__in=part)}
            new = [
                JobFiles(job_id=job, owner_id=owner, project_id=project, log_bytes=size)
                for job, (owner, project, size) in ((job, found[job]) for job in part)
                if size and job not in known
            ]
            other = [row for row in known.values() if row.log_bytes != found[row.pk][2] and row.logs_removed_at is None]
            for row in other:
                row.log_bytes = found[row.pk][2]
            JobFiles.objects.bulk_create(new, ignore_conflicts=True)
            JobFiles.objects.bulk_update(other, ("log_bytes",))
            changed += len(new) + len(other)
    return changed


def kept_of(jobs: Iterable[int]) -> dict[int, JobFiles]:
    return {row.pk: row for row in JobFiles.objects.filter(pk__in=list(jobs))}
