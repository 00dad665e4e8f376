"""What is removed after a time: artefacts and output of jobs that ended long ago, in small steps that may be broken off anywhere."""

from __future__ import annotations

import logging
import os
import shutil
import time
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from jobs import logs
from jobs.artifacts import artifacts_folder
from jobs.errors import FilesRemain, InvalidState
from jobs.models import Artifact, Job, JobFiles
from jobs.notify import jobs_changed
from jobs.services.moves import event_add
from quotas.audit import audit
from quotas.models import User

log = logging.getLogger(__name__)

EVERY_S = 600.0
#: One step: whatever is old beyond that is the next one's.
STEP_JOBS = 200
STEP_S = 5.0

_done_at = float("-inf")


def retention_run(*, now: datetime) -> int:
    """Every ten minutes a process, sooner while there is more to do than one step does; how many jobs lost something."""
    global _done_at
    if time.monotonic() - _done_at < EVERY_S:
        return 0
    until = time.monotonic() + STEP_S
    removed = 0
    old = JobFiles.objects.order_by("job_id")
    steps = (
        (settings.KEEP_ARTIFACTS_DAYS, old.filter(count__gt=0), files_remove),
        (settings.KEEP_LOGS_DAYS, old.filter(log_bytes__gt=0), logs_remove),
    )
    for days, rows, remove in steps:
        for kept in _ended_before(rows, days=days, now=now):
            if time.monotonic() > until:
                return removed
            removed += remove(kept=kept, now=now, days=days)
    if removed < STEP_JOBS:
        _done_at = time.monotonic()
    return removed


def _ended_before(rows: QuerySet[JobFiles], *, days: int, now: datetime) -> list[JobFiles]:
    """None where what is kept is kept for ever."""
    return list(rows.filter(job__ended_at__lt=now - timedelta(days=days))[:STEP_JOBS]) if days > 0 else []


def files_remove(*, kept: JobFiles, now: datetime, days: int | None = None, by: User | None = None) -> bool:
    """All files of a job. The bytes first: broken off in between, the rows are still there and it is done once more. False: the disk
    did not let go of them, so they are counted as before."""
    if not _folder_remove(artifacts_folder(kept.pk)):
        return False
    with transaction.atomic():
        Artifact.objects.filter(rank__attempt__job=kept.pk).delete()
        JobFiles.objects.filter(pk=kept.pk).update(bytes=0, count=0, files_removed_at=now)
        event_add(kept.pk, code="files_removed", params={"days": days, "count": kept.count}, by=by.pk if by is not None else None, at=now)
        jobs_changed([kept.pk])
    return True


def job_files_remove(*, job: Job, by: User) -> None:
    """All files of a job that has ended, because somebody wants the room. Idempotent. Raises InvalidState while it may leave more, and
    FilesRemain where the disk did not let go of them."""
    if not job.is_final:
        raise InvalidState(params={"job": job.pk, "state": job.state, "action": "files"})
    kept = JobFiles.objects.filter(pk=job.pk, count__gt=0).first()
    if kept is None:
        return
    if not files_remove(kept=kept, now=timezone.now(), by=by):
        raise FilesRemain(params={"job": job.pk})
    if by.pk != job.owner_id:
        audit(by, "job.files_removed", f"job {job.pk}", {"owner": job.owner.email, "name": job.name, "count": kept.count})


def logs_remove(*, kept: JobFiles, now: datetime, days: int | None = None) -> bool:
    """All output of a job. False: the disk did not let go of it, so it is counted as before."""
    if not _folder_remove(logs.log_folder(kept.pk)):
        return False
    with transaction.atomic():
        JobFiles.objects.filter(pk=kept.pk).update(log_bytes=0, logs_removed_at=now)
        event_add(kept.pk, code="logs_removed", params={"days": days}, at=now)
        jobs_changed([kept.pk])
    return True


def _folder_remove(folder: Path) -> bool:
    """Whether nothing of it is left. As much as can be is removed; why something stays is logged."""
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.lexists(folder):
        return True
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.error("%s can't be removed (%s): it is still counted, and the next step of the upkeep tries again", folder, error)
    return not os.path.lexists(folder)


def retention_forget() -> None:
    """The next call looks again. For tests."""
    global _done_at
    _done_at = float("-inf")
