"""What pages, notices and REST say of files that were not taken and of what was removed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils.translation import gettext_noop

from jobs.models import Job, JobFiles
from jobs.refusals import refusal_text
from jobs.services.files import FilesRefused
from quotas.notify import Kind

KINDS = {
    "files_refused": Kind(
        event="quota",
        title=gettext_noop("Not all files of #{job} {job_name} are kept"),
        text=gettext_noop("There was no room for {name}. The job goes on; its page says which files are missing, and why."),
        tone="warn",
        icon="folder",
    ),
}


def refused_said(kept: JobFiles | None) -> list[dict[str, Any]]:
    """The files that were not taken, each with the reason in the reader's language."""
    return [_refused(one) for one in (kept.refused if kept is not None else ())]


def _refused(one: Mapping[str, Any]) -> dict[str, Any]:
    text = refusal_text(FilesRefused(str(one["code"]), params=one.get("params") or {}))
    return {"rank": one["rank"], "name": one["name"], "size": one["size"], "code": one["code"], "text": text}


def kept_until(job: Job, days: int) -> datetime | None:
    """When what an ended job left is removed; None = never."""
    return job.ended_at + timedelta(days=days) if days > 0 and job.ended_at is not None else None


def kept_data(job: Job) -> dict[str, Any]:
    """For the job's page. One query."""
    kept = JobFiles.objects.filter(job=job).first()
    return {
        "kept": kept,
        "refused": refused_said(kept),
        "refused_more": (kept.refused_count - len(kept.refused)) if kept is not None else 0,
        "files_until": kept_until(job, settings.KEEP_ARTIFACTS_DAYS),
        "logs_until": kept_until(job, settings.KEEP_LOGS_DAYS),
    }


def kept_json(job: Job) -> dict[str, Any]:
    """For REST. One query."""
    data = kept_data(job)
    kept: JobFiles | None = data["kept"]
    return {
        "file_bytes": kept.bytes if kept is not None else 0,
        "file_count": kept.count if kept is not None else 0,
        "log_bytes": kept.log_bytes if kept is not None else 0,
        "refused_count": kept.refused_count if kept is not None else 0,
        "refused": data["refused"],
        "files_until": data["files_until"],
        "logs_until": data["logs_until"],
        "files_removed_at": kept.files_removed_at if kept is not None else None,
        "logs_removed_at": kept.logs_removed_at if kept is not None else None,
    }
