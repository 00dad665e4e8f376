"""What an agent uploads of a job's $NEBULA_ARTIFACTS."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse

from jobs.agent_api import agent_view, own_rank, refuse
from jobs.artifacts import artifact_path
from jobs.models import Artifact, Job, JobFiles, Rank
from jobs.services.files import MIB, FilesRefused, file_refuse, file_room, file_take
from nodes.models import Node
from quotas.disk import DiskFull, disk_check
from quotas.errors import DomainError
from quotas.human_text import is_seen

ARTIFACT_NAME = re.compile(r"[^\x00-\x1f/\\]{1,255}")
PIECE = 256 * 1024
#: After so many bytes of one file the disk is looked at again.
LOOK_EVERY = 64 * MIB


@agent_view("PUT")
def artifact_put(request: HttpRequest, *, node: Node, rank: str, name: str) -> HttpResponse:
    """Streams one file to disk; a repeat replaces it. What can't be kept is refused before it is read where its length tells.

    ``?size=N`` without a body only asks whether there is room for a file of N bytes.
    """
    if not ARTIFACT_NAME.fullmatch(name) or not is_seen(name) or name in (".", ".."):
        return refuse(400, "invalid", "An artefact's name has 1 to 255 characters, no slash and no control characters.")
    row = own_rank(node, rank)
    if isinstance(row, HttpResponse):
        return row
    job = Job.objects.select_related("owner", "project").only("name", "owner", "project").get(pk=row.attempt.job_id)
    size, is_asked = _declared(request)
    try:
        _room_check(job, row, name, size)
        if is_asked:
            return HttpResponse(status=204)
        path, size, sha256 = _receive(request, artifact_path(rank, name))
        try:
            file_take(rank=row, job=job, name=name, size=size, sha256=sha256)
            path.replace(artifact_path(rank, name))
        finally:
            path.unlink(missing_ok=True)
    except DiskFull as error:
        return refuse(error.http_status, error.code, error.message, **{"Retry-After": "30"})
    except DomainError as error:
        file_refuse(rank=row, job=job, name=name, size=size, refusal=error)
        return refuse(error.http_status, error.code, error.message)
    return JsonResponse({"name": name, "size": size, "sha256": sha256}, status=201)


def _declared(request: HttpRequest) -> tuple[int, bool]:
    """How large the file will be, 0 = not told; and whether that is all that is asked."""
    asked = request.GET.get("size")
    text = request.headers.get("Content-Length", "") if asked is None else asked
    return (int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0), asked is not None


def _room_check(job: Job, rank: Rank, name: str, size: int) -> None:
    """Raises FilesRefused, DiskFull."""
    disk_check((settings.ARTIFACT_DIR,))
    _size_check(size)
    old = Artifact.objects.filter(rank=rank, name=name).values_list("size", flat=True).first()
    refusal = file_room(job=job, kept=JobFiles.objects.filter(job=job).first(), size=size, replaced=old)
    if refusal is not None:
        raise refusal


def _size_check(size: int) -> None:
    if size > settings.ARTIFACT_CAP_MIB * MIB:
        raise FilesRefused("file_large", params={"limit_mib": settings.ARTIFACT_CAP_MIB})


def _receive(request: HttpRequest, path: Path) -> tuple[Path, int, str]:
    """The body in a file aside, its length and digest. Raises FilesRefused, DiskFull; then nothing is left."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, aside = tempfile.mkstemp(dir=path.parent)
    size, looked, digest = 0, 0, hashlib.sha256()
    try:
        with os.fdopen(descriptor, "wb") as file:
            while chunk := request.read(PIECE):
                size += len(chunk)
                _size_check(size)
                if size - looked >= LOOK_EVERY:
                    looked = size
                    disk_check((path.parent,))
                digest.update(chunk)
                file.write(chunk)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return Path(aside), size, digest.hexdigest()
