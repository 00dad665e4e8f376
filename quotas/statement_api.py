"""Statements over REST: figures, and a file of exact ones."""

from __future__ import annotations

import csv
import io
from datetime import date
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.http import HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quotas import calendar
from quotas.statements import CSV_COLUMNS, Line, Statement, csv_rows, month_parse, plain, statement, visible_to

PARAMETERS = [
    OpenApiParameter("month", str, description="Such as 2026-07; default: this month. A month of the installation's zone."),
    OpenApiParameter("user", str, description="An e-mail address: charges of this person alone, of those that you may see."),
    OpenApiParameter("project", str, description="By name: charges of this project alone, of those that you may see."),
]


class StatementLine(serializers.Serializer[Any]):
    """Quantities and money are texts with exact decimals."""

    user = serializers.CharField()
    project = serializers.CharField()
    gpu_model = serializers.CharField(help_text="`storage` for files.")
    jobs = serializers.IntegerField()
    gpu_seconds = serializers.CharField()
    gpu_hours = serializers.CharField()
    memory_gb_seconds = serializers.CharField()
    storage_gb_hours = serializers.CharField()
    cost_gpu = serializers.CharField()
    cost_memory = serializers.CharField()
    cost_storage = serializers.CharField()
    cost_total = serializers.CharField()


class StatementSchema(serializers.Serializer[Any]):
    month = serializers.CharField()
    begin = serializers.DateTimeField()
    end = serializers.DateTimeField()
    zone = serializers.CharField()
    currency = serializers.CharField()
    has_prices = serializers.BooleanField(help_text="False: nobody set a price, all costs are 0.")
    total = StatementLine(help_text="All lines together.")
    lines = StatementLine(many=True)


def where_of(request: Any, query: Any) -> Q:
    """What the caller may see, narrowed by ``user`` and ``project`` of the query."""
    where = visible_to(request.user)
    if email := query.get("user", ""):
        where &= Q(user__email=email.lower())
    if project := query.get("project", ""):
        where &= Q(project__name=project)
    return where


def month_of(query: Any) -> date:
    """Raises ValidationError."""
    text = query.get("month", "")
    month = month_parse(text) if text else calendar.month_of(timezone.now())
    if month is None:
        raise serializers.ValidationError({"month": [_("Must be a month such as 2026-07.")]})
    return month


def line_json(line: Line) -> dict[str, Any]:
    used, cost = line.used, line.cost
    return {
        "user": line.key.user,
        "project": line.key.project,
        "gpu_model": line.key.gpu_model or "storage",
        "jobs": line.jobs,
        "gpu_seconds": plain(used.gpu_s),
        "gpu_hours": plain(used.gpu_hours),
        "memory_gb_seconds": plain(used.gb_s),
        "storage_gb_hours": plain(used.gb_h),
        "cost_gpu": plain(cost.gpu),
        "cost_memory": plain(cost.memory),
        "cost_storage": plain(cost.storage),
        "cost_total": plain(cost.total),
    }


def statement_json(made: Statement) -> dict[str, Any]:
    total = made.grouped()
    nothing = dict.fromkeys(("user", "project", "gpu_model"), "")
    return {
        "month": f"{made.month:%Y-%m}",
        "begin": made.begin,
        "end": made.end,
        "zone": calendar.zone().key,
        "currency": made.currency,
        "has_prices": made.has_prices,
        "total": {**(line_json(total[0]) if total else line_json(Line.empty())), **nothing},
        "lines": [line_json(line) for line in made.lines],
    }


class StatementView(APIView):
    @extend_schema(
        operation_id="statement_get",
        summary="What was used in a month",
        description="By user, project and card model: one's own, of projects that one leads, and for staff all. A charge over the "
        "month's end counts in each month with its part.",
        parameters=PARAMETERS,
        responses=StatementSchema,
    )
    def get(self, request: Request) -> Response:
        made = statement(month_of(request.query_params), where=where_of(request, request.query_params), currency=settings.CURRENCY)
        return Response(statement_json(made))


class StatementCsvView(APIView):
    @extend_schema(
        operation_id="statement_csv",
        summary="The statement as a file",
        parameters=PARAMETERS,
        responses={(200, "text/csv"): OpenApiResponse(OpenApiTypes.STR, "CSV in UTF-8, with a line of column names.")},
    )
    def get(self, request: Request) -> HttpResponse:
        made = statement(month_of(request.query_params), where=where_of(request, request.query_params), currency=settings.CURRENCY)
        return csv_answer(made)


def csv_answer(made: Statement) -> HttpResponse:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    writer.writerows([_cell(value) for value in row] for row in csv_rows(made))
    # A mark at its begin: without it a spreadsheet takes Chinese for Latin.
    answer = HttpResponse("\ufeff" + text.getvalue(), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="statement-{made.month:%Y-%m}.csv"'
    return answer


def _cell(value: Any) -> Any:
    """A spreadsheet runs what begins with these as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
