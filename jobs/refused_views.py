"""Submits that were refused, as page and over REST: one's own, for staff all."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs import refusals
from jobs.models import RefusedSubmit
from jobs.views import reader
from nodes import formats
from quotas.models import User

PAGE = 50


def refused_visible_to(user: User, *, of_all: bool) -> QuerySet[RefusedSubmit]:
    """One's own, the latest first; staff see all where ``of_all``. By a project's token those of that project."""
    found = RefusedSubmit.objects.select_related("user", "project").order_by("-at", "-pk")
    if user.confined_to is not None:
        return found.filter(user=user, project_id=user.confined_to)
    return found if of_all and user.is_staff else found.filter(user=user)


def asked_text(asked: dict[str, Any]) -> str:
    """``2 × 24 GiB, model a100``."""
    count, mib = asked.get("gpu_count", 0), asked.get("gpu_mem_mib")
    parts = [f"{count} × {formats.gib(mib)}" if mib else f"{count} GPU" if count else "CPU"]
    kinds = asked.get("constraints") or {}
    parts += [f"{name} {kinds[name]}" for name in ("model", "vendor", "arch", "cuda_min", "driver_min") if kinds.get(name)]
    if asked.get("nodes", 1) > 1:
        parts.append(f"{asked['nodes']} nodes" if not formats.is_chinese() else f"{asked['nodes']} 个节点")
    return ", ".join(parts)


@require_safe
@login_required
def jobs_refused(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    of_all = user.is_staff and request.GET.get("mine") != "1"
    page = Paginator(refused_visible_to(user, of_all=of_all), PAGE).get_page(request.GET.get("page"))
    rows = [{"row": row, "asked": asked_text(row.asked), "why": refusals.error_text(row.code, row.params)} for row in page]
    return render(request, "jobs/refused.html", {"page": page, "rows": rows, "of_all": of_all})


class RefusedSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    at = serializers.DateTimeField(help_text="The last time.")
    times = serializers.IntegerField(help_text="How often in a row the very same was refused.")
    user = serializers.CharField()
    project = serializers.CharField(allow_null=True)
    name = serializers.CharField()
    asked = serializers.DictField(help_text="gpu_count, gpu_mem_mib, nodes, time_limit_s, constraints, …; neither command nor variables.")
    code = serializers.CharField(help_text="never_… or quota_exceeded.")
    params = serializers.DictField()
    text = serializers.CharField()


def refused_json(row: RefusedSubmit) -> dict[str, Any]:
    """``row`` with user and project loaded."""
    return {
        "id": row.pk,
        "at": row.at,
        "times": row.times,
        "user": row.user.email,
        "project": row.project.name if row.project is not None else None,
        "name": row.name,
        "asked": row.asked,
        "code": row.code,
        "params": row.params,
        "text": refusals.error_text(row.code, row.params),
    }


class RefusedListView(generics.GenericAPIView[RefusedSubmit]):
    def get_queryset(self) -> QuerySet[RefusedSubmit]:
        return refused_visible_to(self.request.user, of_all=self.request.query_params.get("owner") == "all")  # type: ignore[arg-type]

    @extend_schema(
        operation_id="jobs_refused",
        summary="Submits that were refused",
        description="Your own, the latest first; `?owner=all` for staff: all. The last 100 of a person, for 30 days.",
        parameters=[OpenApiParameter("owner", str, description="all: everybody's (staff).")],
        responses=RefusedSchema(many=True),
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response([refused_json(row) for row in page or []])
