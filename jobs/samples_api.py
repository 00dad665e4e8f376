"""A job's samples over REST: owners see their own, staff all."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.parameters import job_find
from jobs.samples import job_curves
from nodes.samples_api import PARAMETERS, series_json, series_schema, span_of

FIGURES = ("util_pct", "util_least_pct", "util_most_pct", "used_mib", "temp_most_c", "power_w", "own_mib", "own_util_pct")


class JobSamplesView(APIView):
    @extend_schema(
        operation_id="job_samples",
        summary="A job over time",
        description="Of its cards while it held them; `own_mib` and `own_util_pct` are memory and use of its own processes, null where "
        "the driver does not tell.",
        parameters=PARAMETERS,
        responses=series_schema(
            "JobSamples",
            id=serializers.IntegerField(),
            cards=serializers.IntegerField(),
            shared=serializers.BooleanField(help_text="Parts of cards were held: figures of whole cards may be others' too."),
        ),
    )
    def get(self, request: Request, id: int) -> Response:
        job = job_find(request.user, id)
        span = span_of(request)
        ran = job_curves(job, span=span, now=int(timezone.now().timestamp()))
        if ran is None:
            return Response(series_json(span, None, FIGURES, id=job.pk, cards=0, shared=False))
        return Response(series_json(ran.span, ran.curve, FIGURES, id=job.pk, cards=ran.cards, shared=ran.is_shared))
