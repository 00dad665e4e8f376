"""What jobs wrote: their output by offset, and the files that they left."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, status
from rest_framework.exceptions import APIException, NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import logs, refusals
from jobs.artifacts import artifact_path
from jobs.lifecycle import RANK_FINAL
from jobs.models import Artifact, Job, JobFiles, Rank
from jobs.parameters import bad_parameter, job_find, whole_parameter
from jobs.schemas import ArtifactSchema, LogSchema
from jobs.selectors import attempt_latest, jobs_with_output_for, rank_find
from jobs.serializers import artifact_json
from jobs.services.retention import job_files_remove
from quotas.streams import in_threads

LOG_LIMIT = 262_144
LOG_LIMIT_MAX = 1_048_576
CHUNK = 262_144

# --- logs ---------------------------------------------------------------------------------------------------------


def _rank_asked(request: Request, job: Job) -> Rank | None:
    """The rank that ?attempt= and ?rank= name; None = it has not started yet. Raises NotFound, ValidationError.

    A job may be placed between the two queries, which would be an attempt without the rank. Both are written in one transaction,
    so the rank is looked for once more where there is an attempt.
    """
    epoch = whole_parameter(request, "attempt", None, most=2**31 - 1)
    index = whole_parameter(request, "rank", 0, most=2**31 - 1) or 0
    rank = rank_find(job=job, epoch=epoch, index=index)
    latest = attempt_latest(job) if rank is None else None
    if latest is not None:
        rank = rank_find(job=job, epoch=epoch, index=index)
    if rank is None and not (index < job.nodes and _is_to_come(job, epoch, latest.epoch if latest is not None else 0)):
        raise NotFound(refusals.error_text("log_gone"), code="log_gone")
    return rank


def _is_to_come(job: Job, epoch: int | None, latest: int) -> bool:
    """Whether there is no such attempt yet, but may be one: the first, or the one after the latest."""
    if epoch is None:
        return latest == 0
    return epoch == latest + 1 and not job.is_final


class LogRemoved(APIException):
    """The output of a job that ended long ago."""

    status_code = 410
    default_code = "log_removed"


def _not_removed(job: Job, length: int) -> None:
    """Raises LogRemoved. One query, of an ended job without output alone."""
    if length or not job.is_final:
        return
    removed = JobFiles.objects.filter(job=job, logs_removed_at__isnull=False).values_list("logs_removed_at", flat=True).first()
    if removed is not None:
        text = _("The output of this job was removed on %(day)s; output is kept for %(days)d days after a job's end.")
        raise LogRemoved(text % {"day": f"{removed:%Y-%m-%d}", "days": settings.KEEP_LOGS_DAYS})


def _is_over(rank: Rank, length: int) -> bool:
    """No byte will be added to this log."""
    if rank.attempt.ended_at is not None or logs.log_is_closed(rank.key):
        return True
    return rank.observed in RANK_FINAL and rank.final_log_offset is not None and length >= rank.final_log_offset


def utf8_window(data: bytes, *, is_end: bool, is_tail: bool = False) -> tuple[int, str, int]:
    """Bytes of a log → (bytes skipped, text, bytes left over).

    A character cut at the end is left for the next read, unless this is the end. With ``is_tail`` the read began at a
    byte that nobody chose, so the rest of a cut character (at most 3 bytes) is skipped. What is no UTF-8 becomes U+FFFD.
    """
    skipped = 0
    if is_tail:
        while skipped < min(3, len(data)) and data[skipped] & 0xC0 == 0x80:
            skipped += 1
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data[skipped:], final=is_end)
    return skipped, text, len(decoder.getstate()[0])


_LOG_WHICH = [
    OpenApiParameter("attempt", int, description="Default: the running or last one."),
    OpenApiParameter("rank", int, description="Default: 0."),
]


class JobLogsView(APIView):
    @extend_schema(
        operation_id="job_logs",
        summary="A piece of a job's output",
        description=(
            "Offsets are bytes. Ask for `next_offset` next; a character is never split. `tail=BYTES` reads the end. An offset past the end "
            "answers with the end. `is_complete` = the piece ends where the log does, and nothing will be added."
        ),
        parameters=[
            *_LOG_WHICH,
            OpenApiParameter("offset", int, description="Default: 0."),
            OpenApiParameter("limit", int, description=f"At most so many bytes, 4 to {LOG_LIMIT_MAX}; default {LOG_LIMIT}."),
            OpenApiParameter("tail", int, description="Instead of offset: the last so many bytes."),
            OpenApiParameter(
                "align", str, description="lines = a piece that would begin inside a line begins at the next one, if that is in the piece."
            ),
        ],
        responses=LogSchema,
    )
    def get(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id, jobs_with_output_for(request.user))
        offset = whole_parameter(request, "offset", 0) or 0
        limit = whole_parameter(request, "limit", LOG_LIMIT, least=4, most=LOG_LIMIT_MAX) or LOG_LIMIT
        tail = whole_parameter(request, "tail", None)
        align = request.query_params.get("align", "")
        if align not in ("", "lines"):
            raise bad_parameter("align", _("Must be lines, or left out."))
        rank = _rank_asked(request, job)
        if rank is None:
            index = whole_parameter(request, "rank", 0) or 0
            answer = {"attempt": None, "rank": index, "offset": 0, "next_offset": 0, "length": 0, "is_complete": job.is_final, "text": ""}
            return Response({"job": job.pk, **answer})
        # The length is read before the bytes: what is appended meanwhile is for the next call.
        length = logs.log_length(rank.key)
        _not_removed(job, length)
        is_over = _is_over(rank, length)
        if tail is not None:
            limit = min(tail, LOG_LIMIT_MAX)
            offset = length - min(limit, length)
        offset = min(offset, length)
        data = logs.log_read(rank.key, offset=offset, limit=min(limit, length - offset)) if length > offset else b""
        ends_here = is_over and offset + len(data) >= length
        if align and offset and data and logs.log_read(rank.key, offset=offset - 1, limit=1) != b"\n":
            # At the very end of the piece there would be nothing left to show: then the line stays cut.
            cut = data.find(b"\n") + 1
            if 0 < cut < len(data):
                offset, data = offset + cut, data[cut:]
        skipped, text, left = utf8_window(data, is_end=ends_here, is_tail=tail is not None and offset > 0)
        return Response(
            {
                "job": job.pk,
                "attempt": rank.attempt.epoch,
                "rank": rank.index,
                "offset": offset + skipped,
                "next_offset": offset + len(data) - left,
                "length": length,
                "is_complete": ends_here,
                "text": text,
            }
        )


def _file_chunks(read: Callable[[int, int], bytes], length: int) -> Iterator[bytes]:
    at = 0
    while at < length and (data := read(at, min(CHUNK, length - at))):
        yield data
        at += len(data)


def _download(request: Request, read: Callable[[int, int], bytes], *, length: int, name: str, content_type: str) -> HttpResponseBase:
    chunks = _file_chunks(read, length)
    body: Iterable[bytes] | AsyncIterator[bytes] = in_threads(chunks) if isinstance(request._request, ASGIRequest) else chunks
    answer = StreamingHttpResponse(body, content_type=content_type)
    answer["Content-Length"] = str(length)
    answer["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    return answer


class JobLogDownloadView(APIView):
    @extend_schema(
        operation_id="job_log_download",
        summary="The whole output as a file",
        description="The bytes as the job wrote them, as far as they have arrived.",
        parameters=_LOG_WHICH,
        responses={(200, "text/plain"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, id: int) -> HttpResponseBase:
        job = job_find(request.user, id, jobs_with_output_for(request.user))
        rank = _rank_asked(request, job)
        if rank is None:
            return HttpResponse(
                b"", content_type="text/plain; charset=utf-8", headers={"Content-Disposition": f'attachment; filename="job-{job.pk}.log"'}
            )
        key = rank.key
        _not_removed(job, logs.log_length(key))
        return _download(
            request,
            lambda offset, limit: logs.log_read(key, offset=offset, limit=limit),
            length=logs.log_length(key),
            name=f"job-{key.replace('.', '-')}.log",
            content_type="text/plain; charset=utf-8",
        )


# --- artefacts ----------------------------------------------------------------------------------------------------


def _artifacts(request: Request, job: Job) -> QuerySet[Artifact]:
    """Of ?attempt=; without it of all attempts, the latest first."""
    epoch = whole_parameter(request, "attempt", None, most=2**31 - 1)
    found = Artifact.objects.filter(rank__attempt__job=job).select_related("rank__attempt")
    if epoch is not None:
        found = found.filter(rank__attempt__epoch=epoch)
    return found.order_by("-rank__attempt__epoch", "rank__index", "name")


class JobArtifactsView(generics.GenericAPIView[Artifact]):
    @extend_schema(
        operation_id="job_artifacts",
        summary="Files that a job left",
        description="What the job put into $NEBULA_ARTIFACTS.",
        parameters=[OpenApiParameter("attempt", int, description="Default: all, the latest first.")],
        responses=ArtifactSchema(many=True),
    )
    def get(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id, jobs_with_output_for(request.user))
        page = self.paginate_queryset(_artifacts(request, job))
        return self.get_paginated_response([artifact_json(artifact) for artifact in page or []])

    @extend_schema(
        operation_id="job_artifacts_remove",
        summary="Remove the files of a job",
        description="All files of a job that has ended: there is room for others then. 409 `invalid_state` while it has not; 503 "
        "`files_remain` if the disk does not let go of them.",
        responses={204: None},
    )
    def delete(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id, jobs_with_output_for(request.user))
        job_files_remove(job=job, by=request.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class JobArtifactView(APIView):
    @extend_schema(
        operation_id="job_artifact_download",
        summary="One file that a job left",
        parameters=[OpenApiParameter("attempt", int, description="Default: the latest that has it.")],
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, id: int, rank: int, name: str) -> HttpResponseBase:
        job = job_find(request.user, id, jobs_with_output_for(request.user))
        artifact = _artifacts(request, job).filter(rank__index=rank, name=name).first()
        path = artifact_path(artifact.rank.key, artifact.name) if artifact is not None else None
        if path is None or not path.is_file():
            raise NotFound(_("The job left no file of this name."))
        return _download(request, _reader(path), length=path.stat().st_size, name=name, content_type="application/octet-stream")


def _reader(path: Path) -> Callable[[int, int], bytes]:
    def read(offset: int, limit: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)

    return read
