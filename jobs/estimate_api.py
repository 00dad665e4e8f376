"""When a job would start, and what would start sooner: before it is submitted, and while it waits. Nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import refusals, snapshot, wording
from jobs.bodies import body_of
from jobs.errors import InvalidState
from jobs.forecast import Asked, ask, place_text
from jobs.lifecycle import JobState
from jobs.models import Job
from jobs.outlooks import iso
from jobs.parameters import bad_parameter, job_find
from jobs.scheduler import Estimate
from jobs.schemas import AlternativeSchema, ForecastFullSchema
from jobs.selectors import jobs_visible_to
from jobs.serializers import SubmitRequest
from jobs.shell_line import command_line
from jobs.sooner import Option, body_with, options
from jobs.streams import lines_stream
from jobs.whatif import estimate_of
from quotas.errors import DomainError
from quotas.throttles import EstimateThrottle

STREAM = OpenApiParameter(
    "stream", bool, description="1: JSON lines, each as soon as it is known, with `type` estimate, alternative, error or end."
)
LINES = OpenApiResponse(OpenApiTypes.STR, description="With ?stream=1.")


def is_stream(request: Request) -> bool:
    """Of ?stream=. Raises ValidationError."""
    text = request.query_params.get("stream", "0").lower()
    if text not in ("0", "1", "true", "false"):
        raise bad_parameter("stream", refusals.error_text("not_boolean", {"value": text[:40]}))
    return text in ("1", "true")


def forecast_json(asked: Asked, estimate: Estimate | None, *, now: datetime) -> dict[str, Any]:
    found = asked.forecast
    p50, p90, after = (None, None, None) if estimate is None else (estimate.p50, estimate.p90, estimate.after)
    placement = None if estimate is None else estimate.placement
    return {
        "verdict": found.kind,
        "code": found.code,
        "params": dict(found.params),
        "text": found.text or found.title,
        "position": found.position,
        "p50": iso(p50),
        "p90": iso(p90),
        "later_than": iso(after),
        "start": wording.start_text(p50, p90, after, now=now),
        "place": "" if placement is None or asked.view is None else place_text(asked.view, placement),
        "age_s": round(max(0.0, timezone.now().timestamp() - now.timestamp()), 1),
    }


def alternative_json(option: Option, body: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    return {
        "text": option.title,
        "set": dict(option.changes),
        "p50": iso(option.p50),
        "p90": iso(option.p90),
        "start": wording.start_text(option.p50, option.p90, None, now=now),
        "place": option.place,
        "command": command_line(body_with(body, option.changes)),
    }


def _lines(first: Mapping[str, Any] | None, alternatives: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """The answer as JSON lines. An error after the first of them is a line as well: the status is sent already."""
    if first is not None:
        yield _line({"type": "estimate", **first})
    count = 0
    try:
        for one in alternatives:
            count += 1
            yield _line({"type": "alternative", **one})
    except DomainError as error:
        yield _line({"type": "error", "code": error.code, "message": refusals.refusal_text(error)})
    yield _line({"type": "end", "count": count})


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


class JobEstimateView(APIView):
    throttle_classes = (EstimateThrottle,)

    @extend_schema(
        operation_id="job_estimate",
        summary="When a job would start",
        description=(
            "Takes the body of a submit, and submits nothing. `verdict`: `starts` at once, `waits`, `held`, `refused` (a limit is reached) "
            "or `never` (no GPU of the pool could ever hold it). For what waits, at most five `alternatives` that would start sooner."
        ),
        parameters=[STREAM],
        request=SubmitRequest,
        responses={(200, "application/json"): ForecastFullSchema, (200, "application/x-ndjson"): LINES},
    )
    def post(self, request: Request) -> HttpResponseBase:
        wants_stream = is_stream(request)
        body = SubmitRequest(data=request.data)
        body.is_valid(raise_exception=True)
        now = timezone.now()
        asked = ask(body.job_request(request.user), owner=request.user, now=now)
        first = None
        if asked.view is not None and asked.job is not None and asked.job.hold is None:
            first = estimate_of(asked.view, asked.job.id, asked.policy)
        told = forecast_json(asked, first, now=now)
        found = _alternatives(asked, first, request.data, now=now)
        if wants_stream:
            return lines_stream(request._request, _lines(told, found))
        return Response({**told, "alternatives": list(found)})


def _alternatives(asked: Asked, first: Estimate | None, body: Mapping[str, Any], *, now: datetime) -> Iterator[dict[str, Any]]:
    if asked.forecast.kind != "waits" or asked.view is None or asked.job is None:
        return
    known = first or Estimate(job=asked.job.id, p50=None, p90=None)
    for option in options(asked.view, asked.job, asked.policy, known, name=asked.name):
        yield alternative_json(option, body, now=now)


class JobAlternativesView(APIView):
    throttle_classes = (EstimateThrottle,)

    @extend_schema(
        operation_id="job_alternatives",
        summary="What would start sooner than a waiting job",
        description="At most five, each tried in the job's place as if submitted now: cancel the job when you take one. 409 "
        "`invalid_state` if it does not wait.",
        parameters=[STREAM],
        responses={(200, "application/json"): AlternativeSchema(many=True), (200, "application/x-ndjson"): LINES},
    )
    def get(self, request: Request, id: int) -> HttpResponseBase:
        wants_stream = is_stream(request)
        job = job_find(request.user, id, jobs_visible_to(request.user).select_related("project"))
        now = timezone.now()
        found = (alternative_json(option, body_of(job, reader=request.user), now=now) for option in job_options(job, now=now))
        if wants_stream:
            return lines_stream(request._request, _lines(None, found))
        return Response(list(found))


def job_options(job: Job, *, now: datetime) -> Iterator[Option]:
    """What would start sooner than this waiting job. Reads a snapshot at once, the rest as it is asked for.

    Raises InvalidState unless it waits, and EstimatesBusy.
    """
    view = snapshot.build(now)
    if job.state != JobState.WAITING or all(one.id != job.pk for one in view.jobs):
        raise InvalidState(params={"job": job.pk, "state": job.state, "action": "alternatives"})
    policy = snapshot.policy_current()
    mine = next(one for one in view.jobs if one.id == job.pk)
    if mine.hold not in (None, "cards_exceeded"):
        return iter(())
    return options(view, mine, policy, estimate_of(view, job.pk, policy), name=job.name)
