"""POST /api/v1/jobs/apply: a job that is declared, not commanded."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api import job_detail
from jobs.schemas import JobSchema
from jobs.serializers import SubmitRequest
from jobs.services.declare import job_apply
from quotas.serializers import InputSerializer, StrictBoolean
from quotas.throttles import SubmitThrottle


class ApplyRequest(InputSerializer):
    job = serializers.DictField(help_text="The fields of a submit, and `id`.")
    dry_run = StrictBoolean(required=False, default=False, help_text="Only say what would be done.")
    retry = StrictBoolean(required=False, default=False, help_text="Make a job that failed or was cancelled again, though nothing differs.")


class DiffSchema(serializers.Serializer[Any]):
    field = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class AppliedSchema(serializers.Serializer[Any]):
    action = serializers.ChoiceField(choices=["created", "unchanged", "replaced", "renewed"])
    dry_run = serializers.BooleanField()
    replaces = serializers.IntegerField(allow_null=True, help_text="The waiting job that gave way.")
    diff = DiffSchema(many=True)
    job = JobSchema(allow_null=True, help_text="With dry_run the one that is there now; null = none.")


class JobApplyView(APIView):
    throttle_classes = (SubmitThrottle,)

    @extend_schema(
        operation_id="job_apply",
        summary="See to it that a job is there",
        description=(
            "The same once more changes nothing (`unchanged`). With other content a waiting job gives way to the new one "
            "(`replaced`), one that has ended is followed by a new one (`renewed`), one that runs is left alone: 409 "
            "`invalid_state`. 201 where a job was made."
        ),
        request=ApplyRequest,
        responses={201: AppliedSchema, 200: OpenApiResponse(AppliedSchema, "Nothing was made.")},
        examples=[
            OpenApiExample(
                "A nightly evaluation",
                value={"job": {"id": "nightly", "name": "eval", "argv": ["python", "eval.py"], "gpu_mem": "8G"}, "dry_run": False},
                request_only=True,
            )
        ],
    )
    def post(self, request: Request) -> Response:
        body = ApplyRequest(data=request.data)
        body.is_valid(raise_exception=True)
        asked = body.validated_data
        wanted = dict(asked["job"])
        key = wanted.pop("id", "")
        if not isinstance(key, str) or len(key) > 200 or (key and not key.isprintable()):
            raise serializers.ValidationError({"id": [_("Must be a text of at most 200 visible characters.")]})
        job = SubmitRequest(data=wanted)
        job.is_valid(raise_exception=True)
        done = job_apply(
            owner=request.user, request=job.job_request(request.user), key=key, is_dry=asked["dry_run"], is_retry=asked["retry"]
        )
        is_new = done.action != "unchanged" and not asked["dry_run"]
        answer = {
            "action": done.action,
            "dry_run": asked["dry_run"],
            "replaces": done.replaces,
            "diff": [{"field": field, "before": before, "after": after} for field, before, after in done.diff],
            "job": job_detail(request.user, done.job.pk) if done.job is not None else None,
        }
        return Response(answer, status=status.HTTP_201_CREATED if is_new else status.HTTP_200_OK)
