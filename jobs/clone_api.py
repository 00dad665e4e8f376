"""A new job like an earlier one over REST, with what earlier runs say of its size."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import services
from jobs.api import job_key, submit_fingerprint
from jobs.clone import initial_from
from jobs.efficiency import RightSize, advice_of, advice_text
from jobs.forms import body_of
from jobs.models import Job
from jobs.parameters import job_find
from jobs.schemas import JobSchema
from jobs.selectors import jobs_visible_to
from jobs.serializers import SubmitRequest, job_json
from quotas.models import User
from quotas.throttles import SubmitThrottle

#: Of these one stands for the other: a change of one replaces both.
PAIRS = (
    ("argv", "command"),
    ("gpu_mem", "gpu_mem_mib"),
    ("time", "time_limit_s"),
    ("cpus", "cpu_milli"),
    ("host_mem", "host_mem_mib"),
)


class RightSizeSchema(serializers.Serializer[Any]):
    """What the last runs of this name say: null where there are fewer than three, or little to save."""

    runs = serializers.IntegerField()
    peak_mib = serializers.IntegerField(help_text="Memory on one card at most.")
    asked_mib = serializers.IntegerField()
    suggested_mib = serializers.IntegerField()
    text = serializers.CharField()


class CloneSchema(serializers.Serializer[Any]):
    body = serializers.DictField(help_text="For POST /jobs/submit. Values that may be secrets, and another's, are not in it.")
    left_out = serializers.ListField(child=serializers.CharField(), help_text="Variables whose values are not copied.")
    advice = RightSizeSchema(allow_null=True)


class CloneRequest(serializers.Serializer[Any]):
    """Fields of POST /jobs/submit that shall be other than they were, and ``right_size``: take the suggested memory."""

    right_size = serializers.BooleanField(required=False)


def _advice_json(advice: RightSize | None) -> dict[str, Any] | None:
    return None if advice is None else {**advice.to_json(), "text": advice_text(advice)}


def clone_body(job: Job, *, reader: User) -> tuple[dict[str, Any], list[str]]:
    """The body that would submit such a job, without values that are not copied, and whose they are."""
    initial, left_out = initial_from(job, reader=reader)
    body = body_of({**initial, "kind": "words", "command": ""}, user=reader)
    body["argv"] = list(job.argv)  # as it was: the form's one line or one word a line can't say all
    if job.idle_after_s is not None:
        body["idle_after_s"] = job.idle_after_s
    for name in left_out:
        body.get("env", {}).pop(name, None)
    return body, left_out


def _merged(body: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for pair in PAIRS:
        if any(name in changes for name in pair):
            for name in pair:
                body.pop(name, None)
    env = {**body.get("env", {}), **changes["env"]} if isinstance(changes.get("env"), dict) else None
    return {**body, **changes, **({"env": env} if env is not None else {})}


class JobCloneView(APIView):
    def get_throttles(self) -> list[Any]:
        return [SubmitThrottle()] if self.request.method == "POST" else super().get_throttles()

    @extend_schema(
        operation_id="job_clone_body",
        summary="An earlier job as the body of a new one",
        description="With `advice` where the last runs of this name used much less memory than is asked for.",
        responses=CloneSchema,
    )
    def get(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id, jobs_visible_to(request.user).select_related("project", "owner"))
        body, left_out = clone_body(job, reader=request.user)
        advice = advice_of(job, gpu_mem_mib=job.gpu_mem_mib) if job.owner_id == request.user.pk else None
        return Response({"body": body, "left_out": left_out, "advice": _advice_json(advice)})

    @extend_schema(
        operation_id="job_clone",
        summary="Submit a job like an earlier one",
        description=(
            "The body has fields of `POST /jobs/submit` that shall be other; variables in `env` are added to the earlier ones. The values "
            "of your own job are copied, secrets too; of another's none are, and 400 `invalid` names those to give. With "
            "`right_size` the suggested memory is asked for, if there is a suggestion."
        ),
        parameters=[OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER, description="As with POST /jobs/submit.")],
        request=CloneRequest,
        responses={201: JobSchema, 200: OpenApiResponse(JobSchema, "A repeat with the same key.")},
        examples=[
            OpenApiExample("As it was", value={}, request_only=True),
            OpenApiExample("With less memory", value={"right_size": True, "time": "2:00:00"}, request_only=True),
        ],
    )
    def post(self, request: Request, id: int) -> Response:
        user: User = request.user
        job = job_find(user, id, jobs_visible_to(user).select_related("project", "owner"))
        changes = request.data
        if not isinstance(changes, dict):
            raise serializers.ValidationError({"non_field_errors": [_("The body must be an object of fields to change.")]})
        changes = dict(changes)
        wants_right_size = changes.pop("right_size", False)
        if not isinstance(wants_right_size, bool):
            raise serializers.ValidationError({"right_size": [_("Must be true or false.")]})
        body, left_out = clone_body(job, reader=user)
        is_mine = job.owner_id == user.pk
        if is_mine:
            body["env"] = dict(job.env)
        given = changes.get("env") if isinstance(changes.get("env"), dict) else {}
        missing = [] if is_mine else sorted(set(left_out) - set(given))
        if missing:
            text = _("The values of %(names)s are another's and not copied; give them in env.") % {"names": ", ".join(missing)[:500]}
            raise serializers.ValidationError({"env": [text]})
        body = _merged(body, changes)
        advice = None
        if wants_right_size and is_mine and not {"gpu_mem", "gpu_mem_mib"} & set(changes):
            advice = advice_of(job, gpu_mem_mib=job.gpu_mem_mib)
        if advice is not None:
            body = _merged(body, {"gpu_mem_mib": advice.suggested_mib})
        made = SubmitRequest(data=body)
        made.is_valid(raise_exception=True)
        key = job_key(request)
        new, is_new = services.job_submit(
            owner=user,
            request=made.job_request(user),
            idempotency_key=key,
            body_sha256=submit_fingerprint({"clone": id, "right_size": wants_right_size, **changes}) if key else None,
        )
        answer = job_json(new, reader=user, attempt=None)
        return Response(answer, status=status.HTTP_201_CREATED if is_new else status.HTTP_200_OK)
