"""The audit log over REST, for staff: a page of it, or all of it as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quotas.audit import audit
from quotas.audit_read import FILTERS, BadFilter, entries_csv, entries_filtered, entries_jsonl, entry_json
from quotas.models import AuditEntry
from quotas.streams import file_answer

FORMATS = {"csv": (entries_csv, "text/csv; charset=utf-8"), "jsonl": (entries_jsonl, "application/x-ndjson")}


class AuditSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    actor = serializers.CharField(help_text="An e-mail address, or the name of a node or a program; system = by itself.")
    actor_id = serializers.IntegerField(allow_null=True)
    via = serializers.CharField(help_text="session, token with its prefix, link (by mail), node; empty = no request.")
    address = serializers.CharField()
    action = serializers.CharField()
    text = serializers.CharField(help_text="The action in words.")
    target = serializers.CharField()
    params = serializers.DictField()
    seq = serializers.IntegerField(allow_null=True, help_text="Place in the chain; null = linked within half a minute.")
    hash = serializers.CharField(allow_null=True)


_FILTERS = [
    OpenApiParameter("actor", str, description="An e-mail address, or system."),
    OpenApiParameter("action", str, description="Such as node.drained, or its first part: node."),
    OpenApiParameter("target", str, description="Such as `node gpu-3`."),
    OpenApiParameter("q", str, description="A part of actor or target, or the begin of an address."),
    OpenApiParameter("since", str, description="A day or a time."),
    OpenApiParameter("until", str, description="A day or a time; not included."),
]
EXAMPLE = OpenApiExample(
    "A drain",
    value={
        "id": 4711, "at": "2026-03-31T08:00:00Z", "actor": "boss@lab.example", "actor_id": 1, "via": "session", "address": "10.0.0.7",
        "action": "node.drained", "text": "node drained", "target": "node gpu-3", "params": {"reason": "new fan", "until": None},
        "seq": 4711, "hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    },
    response_only=True,
)  # fmt: skip


def _entries(request: Request) -> Any:
    try:
        return entries_filtered({name: request.query_params.get(name, "") for name in FILTERS})
    except BadFilter as error:
        raise serializers.ValidationError({error.field: [str(error)]}) from error


def export_answer(request: HttpRequest, entries: QuerySet[AuditEntry], *, kind: str, asked: Mapping[str, str]) -> HttpResponseBase:
    """A file of ``entries``; that it was taken, and by which filters, is an entry itself."""
    write, content_type = FORMATS[kind]
    audit(request.user, "audit.exported", "", {"as": kind, **{name: value for name in FILTERS if (value := asked.get(name))}})
    return file_answer(request, write(entries), name=f"audit-{timezone.now():%Y%m%d-%H%M%S}.{kind}", content_type=content_type)


class AuditListView(generics.GenericAPIView[AuditEntry]):
    @extend_schema(
        operation_id="audit_list",
        summary="What was done by whom",
        description="Newest first. Staff only.",
        parameters=_FILTERS,
        responses=AuditSchema(many=True),
        examples=[EXAMPLE],
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(_entries(request))
        return self.get_paginated_response([entry_json(entry) for entry in page or []])


class AuditExportView(APIView):
    @extend_schema(
        operation_id="audit_export",
        summary="The audit log as a file",
        description="Oldest first, with each entry's link of the chain. Staff only; the export itself is written down.",
        parameters=[OpenApiParameter("as", str, enum=list(FORMATS), description="Default: jsonl."), *_FILTERS],
        responses={(200, "application/x-ndjson"): OpenApiTypes.BINARY, (200, "text/csv"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request) -> HttpResponseBase:
        kind = request.query_params.get("as", "jsonl")
        if kind not in FORMATS:
            raise serializers.ValidationError({"as": [_("Must be one of %(known)s.") % {"known": ", ".join(FORMATS)}]})
        entries = _entries(request)
        return export_answer(request._request, entries, kind=kind, asked=request.query_params)
