"""Samples over REST: curves of cards, nodes and the pool. Everybody who is signed in may look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from nodes.models import Gpu, GpuSample, Node, NodeSample, PoolSample
from nodes.sample_sql import figures_of
from nodes.series import BadRange, Curve, Span, curves_read, span_parse

PARAMETERS = [
    OpenApiParameter("from", str, description="ISO 8601 (without a zone: UTC) or Unix time; default: an hour before the end."),
    OpenApiParameter("to", str, description="The same; default: now."),
    OpenApiParameter("step", int, description="Seconds between two points, at most 2000 of them. Default: what gives a fair number."),
]


def span_of(request: Request) -> Span:
    """Raises ValidationError in the reader's language, with the numbers and the way out."""
    try:
        return span_parse(request.query_params, now=timezone.now())
    except BadRange as error:
        raise ValidationError({error.field: [_range_text(error)]}) from error


def _range_text(error: BadRange) -> str:
    texts = {
        "time": _("%(value)s is no time; write 2026-07-14T18:00:00Z or seconds since 1970."),
        "order": _("It must be before the end of the range."),
        "long": _("A range has at most %(days)d days; ask for a part of it."),
        "step": _("%(value)s is no step; write a whole number of seconds, 1 to 86400."),
        "many": _("This range has %(points)d points, at most %(limit)d are told at once; ask for a step of %(step)d or more, or for less."),
    }
    return texts[error.code] % error.params


def series_schema(called: str, /, **more: serializers.Field[Any, Any, Any, Any]) -> Any:
    columns = serializers.DictField(
        child=serializers.ListField(child=serializers.IntegerField(allow_null=True)),
        help_text="`at` (Unix time, the begin of each step; a step without a sample is left out) and a list of the same length a figure.",
    )
    times = {"from": serializers.DateTimeField(), "to": serializers.DateTimeField(), "step": serializers.IntegerField()}
    return inline_serializer(called, {**more, **times, "series": columns})


def series_json(span: Span, curve: Curve | None, figures: Sequence[str], **more: Any) -> dict[str, Any]:
    """``from``, ``to`` and ``step`` are those that were answered: a step that is no longer kept is answered with a larger one."""
    columns = (curve or Curve(figures={name: [] for name in figures})).to_json()
    return {**more, "from": _iso(span.since), "to": _iso(span.until), "step": span.step_s, "series": columns}


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _answer(query: QuerySet[Any], request: Request, **more: Any) -> Response:
    span, figures = span_of(request), figures_of(query.model)
    curve = curves_read(query, span=span, figures=figures).get(())
    return Response(series_json(span, curve, figures, **more))


class GpuSamplesView(APIView):
    @extend_schema(
        operation_id="gpu_samples",
        summary="A card over time",
        description="By its UUID, or the short form of it where that is unambiguous.",
        parameters=PARAMETERS,
        responses=series_schema("GpuSamples", uuid=serializers.CharField(), node=serializers.CharField(), index=serializers.IntegerField()),
    )
    def get(self, request: Request, uuid: str) -> Response:
        gpu = gpu_by_uuid(uuid)
        return _answer(GpuSample.objects.filter(gpu=gpu), request, uuid=gpu.uuid, node=gpu.node.name, index=gpu.index)


class NodeSamplesView(APIView):
    @extend_schema(
        operation_id="node_samples",
        summary="A node over time",
        parameters=PARAMETERS,
        responses=series_schema("NodeSamples", name=serializers.CharField()),
    )
    def get(self, request: Request, name: str) -> Response:
        node = get_object_or_404(Node, name=name)
        return _answer(NodeSample.objects.filter(node=node), request, name=node.name)


class PoolSamplesView(APIView):
    @extend_schema(operation_id="pool_samples", summary="The pool over time", parameters=PARAMETERS, responses=series_schema("PoolSamples"))
    def get(self, request: Request) -> Response:
        return _answer(PoolSample.objects.all(), request)


def gpu_by_uuid(uuid: str) -> Gpu:
    """The card of this UUID, or the only one that it is the begin of (D13). Raises Http404."""
    gpus = Gpu.objects.select_related("node")
    found = gpus.filter(uuid=uuid).first()
    if found is None and len(uuid) >= 8:
        several = list(gpus.filter(uuid__startswith=uuid)[:2])
        found = several[0] if len(several) == 1 else None
    if found is None:
        raise Http404
    return found
