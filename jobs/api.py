"""Jobs over REST. One sees one's own and those of one's projects, staff all; for anybody else it does not exist (404, on every route)."""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import Any

from django.db.models import F, Prefetch, Q, QuerySet
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import logs, services, waits, wording
from jobs.efficiency import efficiency_json, efficiency_of
from jobs.kept_words import kept_json
from jobs.lifecycle import LIVE, JobState
from jobs.models import Attempt, Job, JobEvent, Rank, Slice
from jobs.outlooks import told_read
from jobs.parameters import bad_parameter, job_find, whole_parameter
from jobs.schemas import EventSchema, JobRowSchema, JobSchema, UsageSchema, WhySchema
from jobs.selectors import is_by_submit, jobs_changeable_by, jobs_visible_to, queue_position, told_of
from jobs.serializers import ONLY_IN_DETAIL, Empty, HoldRequest, SubmitRequest, event_json, job_json, job_row_json, wait_json
from nodes import telemetry
from nodes.api import pool_overview
from nodes.selectors import pool_notices
from nodes.wording import notice_text
from quotas.api import quota_json
from quotas.models import User
from quotas.throttles import SubmitThrottle

LOG_LIMIT = 262_144
LOG_LIMIT_MAX = 1_048_576
CHUNK = 262_144
#: Positions in lists are told for so many jobs at the head of the queue.
QUEUE_HEAD = 20_000
ORDERINGS = ("id", "name", "state", "priority", "submitted_at", "started_at", "ended_at")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")

# --- reading jobs -------------------------------------------------------------------------------------------------

_RANKS = Rank.objects.select_related("node").prefetch_related(Prefetch("slices", Slice.objects.select_related("gpu"))).order_by("index")

#: For rows of lists: each attempt with the names of its nodes. One query more.
_PLACED = Attempt.objects.prefetch_related(
    Prefetch("ranks", Rank.objects.select_related("node").only("attempt_id", "index", "node__name").order_by("index"))
)


def _with_attempt(jobs: QuerySet[Job], attempts: QuerySet[Attempt]) -> QuerySet[Job]:
    """Each job with ``current``: a list of its running or last attempt, or of none. One query more however many jobs."""
    return jobs.select_related("owner", "project").prefetch_related(
        Prefetch("attempts", attempts.filter(epoch=F("job__epoch")), to_attr="current")
    )


def _current(job: Job) -> Attempt | None:
    found: list[Attempt] = getattr(job, "current", [])
    return found[0] if found else None


def job_detail(user: User, id: int) -> dict[str, Any]:
    """At most 6 queries, one more of a job that has ended. Raises NotFound."""
    job = job_find(user, id, _with_attempt(jobs_visible_to(user), Attempt.objects.prefetch_related(Prefetch("ranks", _RANKS))))
    told = told_of(job)
    found = job_json(job, reader=user, attempt=_current(job), position=queue_position(job, told), told=told, log_length=logs.log_length)
    may_read = user.is_staff or job.owner_id == user.pk
    return found | {"efficiency": efficiency_json(efficiency_of(job)), "kept": kept_json(job) if may_read else None}


def jobs_rows(user: User, page: list[Job]) -> list[dict[str, Any]]:
    """List rows of jobs loaded by ``_with_attempt``. One query if one of them waits that no forecast knows yet."""
    waiting = {job.pk for job in page if job.state == JobState.WAITING and not job.held}
    told = told_read(waiting)
    places: dict[int, int | None] = {pk: one.position for pk, one in told.items()}
    waiting -= places.keys()
    if waiting and is_by_submit():
        queue = Job.objects.filter(state=JobState.WAITING, held=False, want_cancel=False).order_by("-priority", "submitted_at", "id")
        places |= {pk: place for place, pk in enumerate(queue.values_list("pk", flat=True)[:QUEUE_HEAD], start=1) if pk in waiting}
    return [job_row_json(job, reader=user, attempt=_current(job), position=places.get(job.pk), told=told.get(job.pk)) for job in page]


def _jobs_filtered(request: Request) -> QuerySet[Job]:
    query, user = request.query_params, request.user
    jobs = jobs_visible_to(user)
    if text := query.get("state"):
        states = [part.strip().upper() for part in text.split(",") if part.strip()]
        wrong = [part for part in states if part not in JobState.__members__]
        if wrong:
            values = {"wrong": wrong[0][:40], "states": ", ".join(JobState)}
            raise bad_parameter("state", _("%(wrong)s is no state; there are: %(states)s.") % values)
        jobs = jobs.filter(state__in=states)
    owner = query.get("owner", "all")
    if owner == "me":
        jobs = jobs.filter(owner=user)
    elif owner != "all":
        if "@" not in owner:
            raise bad_parameter("owner", _("Must be me, all, or an e-mail address."))
        jobs = jobs.filter(owner__email=owner.lower())
    if project := query.get("project"):
        jobs = jobs.filter(project__name=project)
    if words := query.get("q", "").strip():
        number = words.removeprefix("#")
        match = Q(name__icontains=words[:200])
        jobs = jobs.filter(match | Q(pk=int(number)) if re.fullmatch(r"[0-9]{1,18}", number) else match)
    ordering = query.get("ordering", "-id")
    if ordering.removeprefix("-") not in ORDERINGS:
        raise bad_parameter(
            "ordering", _("Must be one of %(orderings)s, with - in front for the reverse.") % {"orderings": ", ".join(ORDERINGS)}
        )
    return jobs.order_by(ordering, "-id") if ordering.removeprefix("-") != "id" else jobs.order_by(ordering)


# --- jobs ---------------------------------------------------------------------------------------------------------


class JobListView(generics.GenericAPIView[Job]):
    def get_queryset(self) -> QuerySet[Job]:
        return _with_attempt(_jobs_filtered(self.request), _PLACED).defer(*ONLY_IN_DETAIL)

    @extend_schema(
        operation_id="job_list",
        summary="Jobs",
        description="Newest first. Rows have no `argv`, no `env` and no `attempt.ranks`: one job has them.",
        parameters=[
            OpenApiParameter("state", str, description="One or more states, with commas."),
            OpenApiParameter("owner", str, description="me, all, or (staff) an e-mail address. Default: all that you may see."),
            OpenApiParameter("project", str, description="By name."),
            OpenApiParameter("q", str, description="A part of the name, or an id."),
            OpenApiParameter("ordering", str, description="One of " + ", ".join(ORDERINGS) + "; - in front reverses. Default: -id."),
        ],
        responses=JobRowSchema(many=True),
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response(jobs_rows(request.user, list(page or [])))


SUBMIT_EXAMPLES = [
    OpenApiExample(
        "A slice of one GPU",
        value={
            "name": "hello",
            "argv": ["python", "train.py", "--epochs", "3"],
            "gpu_mem": "4G",
            "workdir": "/home/researcher",
            "time": "02:00:00",
        },
        request_only=True,
    ),
    OpenApiExample(
        "Two whole GPUs on each of two nodes",
        value={"name": "ddp", "command": "torchrun train.py", "gpu_count": 4, "nodes": 2, "constraints": {"model": "RTX 4090"}},
        request_only=True,
    ),
    OpenApiExample("CPU only", value={"argv": ["/bin/sh", "-c", "make -j4 data"], "gpu_count": 0}, request_only=True),
]


class JobSubmitView(APIView):
    throttle_classes = (SubmitThrottle,)

    @extend_schema(
        operation_id="job_submit",
        summary="Submit a job",
        description=(
            "201 with the job. With an `Idempotency-Key` a repeat of the same body answers 200 with the same job; another body under "
            "that key is a 409 `idempotency_conflict`. What no GPU of the pool could ever hold is a 400 `never_fits` with the numbers; "
            "a limit that is reached is a 403 `quota_exceeded`; a 429 only ever means too many calls."
        ),
        parameters=[OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER, description="1–200 visible ASCII characters.")],
        request=SubmitRequest,
        responses={201: JobSchema, 200: OpenApiResponse(JobSchema, "A repeat with the same key.")},
        examples=SUBMIT_EXAMPLES,
    )
    def post(self, request: Request) -> Response:
        key = job_key(request)
        body = SubmitRequest(data=request.data)
        body.is_valid(raise_exception=True)
        job, is_new = services.job_submit(
            owner=request.user,
            request=body.job_request(request.user),
            idempotency_key=key,
            body_sha256=submit_fingerprint(request.data) if key else None,
        )
        if not is_new:
            return Response(job_detail(request.user, job.pk))
        # Built from what was just written: the answer costs no query.
        return Response(job_json(job, reader=request.user, attempt=None), status=status.HTTP_201_CREATED)


def job_key(request: Request) -> str | None:
    """The Idempotency-Key of a submit. Raises ValidationError."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _KEY.fullmatch(key):
        raise bad_parameter("Idempotency-Key", _("Must have 1 to 200 visible ASCII characters."))
    return key


def submit_fingerprint(data: Any) -> str:
    """Of the meaning, not of the bytes: a client may order its keys differently the second time."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class JobDetailView(APIView):
    @extend_schema(operation_id="job_get", summary="One job", responses=JobSchema)
    def get(self, request: Request, id: int) -> Response:
        return Response(job_detail(request.user, id))


class JobWaitView(APIView):
    @extend_schema(
        operation_id="job_wait",
        summary="Wait for a job's end",
        description=(
            "Answers with the job as soon as it has ended, else after `timeout` seconds with the job as it is then: ask again while "
            "`state` is not SUCCEEDED, FAILED or CANCELLED. With `state` it answers as soon as the job is in another state."
        ),
        parameters=[
            OpenApiParameter("timeout", int, description=f"Seconds, at most {waits.MOST_S} and by default so many."),
            OpenApiParameter("state", str, description="The state that the caller knows."),
        ],
        responses=JobSchema,
    )
    def get(self, request: Request, id: int) -> HttpResponseBase:
        job = job_find(request.user, id)
        timeout_s = whole_parameter(request, "timeout", waits.MOST_S, most=waits.MOST_S) or 0
        known = request.query_params.get("state", "").upper()
        if known and known not in JobState.__members__:
            raise bad_parameter(
                "state", _("%(wrong)s is no state; there are: %(states)s.") % {"wrong": known[:40], "states": ", ".join(JobState)}
            )
        until = waits.deadline_of(request._request, timeout_s)
        if until is not None and not job.is_final and known in ("", job.state) and time.monotonic() < until:
            return waits.Deferred(job=job.pk, state=job.state, until=until)
        return Response(job_detail(request.user, id))


class JobCancelView(APIView):
    @extend_schema(
        operation_id="job_cancel",
        summary="Cancel a job",
        description="A waiting job ends at once, a running one is stopped politely. Idempotent; 409 `invalid_state` if it has ended.",
        request=Empty,
        responses=JobSchema,
    )
    def post(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id, jobs_changeable_by(request.user))
        Empty(data=request.data).is_valid(raise_exception=True)
        services.job_cancel(job=job, by=request.user)
        return Response(job_detail(request.user, id))


class JobHoldView(APIView):
    @extend_schema(
        operation_id="job_hold",
        summary="Keep a waiting job from starting",
        request=HoldRequest,
        responses=JobSchema,
        description="Idempotent.",
    )
    def post(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id, jobs_changeable_by(request.user))
        body = HoldRequest(data=request.data)
        body.is_valid(raise_exception=True)
        services.job_hold(job=job, by=request.user, why=body.validated_data["why"])
        return Response(job_detail(request.user, id))


class JobReleaseView(APIView):
    @extend_schema(operation_id="job_release", summary="Release a held job", request=Empty, responses=JobSchema, description="Idempotent.")
    def post(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id, jobs_changeable_by(request.user))
        Empty(data=request.data).is_valid(raise_exception=True)
        services.job_release(job=job, by=request.user)
        return Response(job_detail(request.user, id))


class JobRenewView(APIView):
    @extend_schema(
        operation_id="job_renew",
        summary="Renew the lease of a job that nobody may be watching",
        description="Of one whose owner is switched off, or that has run for weeks. 409 `invalid_state` for one without a lease.",
        request=Empty,
        responses=JobSchema,
    )
    def post(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id, jobs_changeable_by(request.user))
        Empty(data=request.data).is_valid(raise_exception=True)
        services.job_renew(job=job, by=request.user, now=timezone.now())
        return Response(job_detail(request.user, id))


class JobWhyView(APIView):
    @extend_schema(operation_id="job_why", summary="Why it waits, or how it ended", responses=WhySchema)
    def get(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id)
        if job.state != JobState.WAITING:
            code, params, text = wording.why_text(job)
            nothing = dict.fromkeys(("position", "checked_at", "ahead", "estimate"))
            return Response({"state": job.state, "code": code, "params": params, "text": text, **nothing})
        told = told_of(job)
        wait = wait_json(job, position=queue_position(job, told), told=told) or {}
        place = wait["position"]
        return Response({"state": job.state, **wait, "ahead": None if place is None else place - 1})


class JobEventsView(generics.GenericAPIView[JobEvent]):
    """Oldest first."""

    @extend_schema(operation_id="job_events", summary="What happened to a job", responses=EventSchema(many=True))
    def get(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id)
        page = self.paginate_queryset(JobEvent.objects.filter(job=job).select_related("by").order_by("id"))
        return self.get_paginated_response([event_json(event) for event in page or []])


# --- the pool in numbers --------------------------------------------------------------------------------------------


class UsageView(APIView):
    @extend_schema(
        operation_id="resources_usage",
        summary="The pool in numbers",
        description="What there is, what is free, and what of it is mine. Names no node.",
        responses=UsageSchema,
    )
    def get(self, request: Request) -> Response:
        pool = pool_overview()
        is_simulated = pool.pop("simulated")
        notices = [{"code": note["code"], "text": notice_text(note["code"], note["params"])} for note in pool_notices()]
        if telemetry.is_away():
            notices.append({"code": "redis_away", "text": notice_text("redis_away", {})})
        jobs = {
            "waiting": Job.objects.filter(state=JobState.WAITING).count(),
            "running": Job.objects.filter(state__in=LIVE).count(),
        }
        return Response({**pool, "jobs": jobs, "mine": quota_json(request.user), "simulated": is_simulated, "notices": notices})
