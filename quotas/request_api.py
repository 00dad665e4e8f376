"""Limits and requests for more over REST."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quotas import requests as asking
from quotas.api import quota_json
from quotas.models import Project, Quota, QuotaRequest, User
from quotas.request_words import ask_text, owner_text
from quotas.selectors import quota_view_of
from quotas.serializers import InputSerializer, MeQuota, StrictBoolean, StrictChar, StrictInteger
from quotas.services import quota_roll


class RequestStep(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    code = serializers.CharField(help_text="asked | passed | approved | declined | withdrawn | ended_early")
    by = serializers.CharField(allow_null=True)
    amount = serializers.IntegerField(allow_null=True)
    until = serializers.DateTimeField(allow_null=True)
    note = serializers.CharField()


class RequestSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    text = serializers.CharField(help_text="What is asked for, in words.")
    state = serializers.CharField(help_text="lead | admin | approved | declined | withdrawn | ended")
    owner = serializers.CharField(help_text="Whose limit it is: an e-mail address or a project.")
    by = serializers.CharField()
    project = serializers.CharField(allow_null=True, help_text="Whose lead looks at it first.")
    what = serializers.CharField(help_text="gpu_hours | cards | active_jobs | model_cards")
    model = serializers.CharField()
    amount = serializers.IntegerField()
    until = serializers.DateTimeField()
    why = serializers.CharField()
    granted_amount = serializers.IntegerField(allow_null=True)
    granted_until = serializers.DateTimeField(allow_null=True)
    decided_by = serializers.CharField(allow_null=True)
    decided_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    steps = RequestStep(many=True, required=False, help_text="Of one request: its history.")


class QuotaSchema(serializers.Serializer[Any]):
    mine = MeQuota()
    projects = serializers.DictField(child=MeQuota(), help_text="By name: of the caller's projects that have limits of their own.")
    open_requests = serializers.IntegerField()


class AskRequest(InputSerializer):
    what = serializers.ChoiceField(choices=QuotaRequest.What.values)
    amount = StrictInteger(min_value=1, max_value=asking.AMOUNT_MOST, help_text="How much more, on top of the limit.")
    why = StrictChar(
        max_length=asking.WHY_MOST, help_text=f"At least {asking.WHY_LEAST} characters; a wide one, as in Chinese, counts as two."
    )
    model = StrictChar(
        max_length=60, required=False, default="", allow_blank=True, help_text="With model_cards: the model that is limited."
    )
    until = serializers.DateTimeField(
        required=False, allow_null=True, default=None, help_text="Default: this month's end; in its last week, the next month's."
    )
    project = StrictChar(max_length=60, required=False, default="", allow_blank=True, help_text="Whose lead looks at it first.")
    of_project = StrictBoolean(required=False, default=False, help_text="For the project's own limit; its leads may ask.")


class DecideRequest(InputSerializer):
    decision = serializers.ChoiceField(choices=("approve", "decline"))
    amount = StrictInteger(min_value=1, max_value=asking.AMOUNT_MOST, required=False, allow_null=True, default=None)
    until = serializers.DateTimeField(required=False, allow_null=True, default=None)
    note = StrictChar(max_length=500, required=False, default="", allow_blank=True)


def request_json(row: QuotaRequest, *, with_steps: bool = False) -> dict[str, Any]:
    """``row`` as ``requests_visible_to`` loads it. One query with steps."""
    found: dict[str, Any] = {
        "id": row.pk,
        "text": ask_text(row),
        "state": row.state,
        "owner": owner_text(row.quota),
        "by": row.by.email,
        "project": row.project.name if row.project is not None else None,
        **{name: getattr(row, name) for name in ("what", "model", "amount", "until", "why", "granted_amount", "granted_until")},
        "decided_by": row.decided_by.email if row.decided_by is not None else None,
        "decided_at": row.decided_at,
        "created_at": row.created_at,
    }
    if with_steps:
        found["steps"] = [
            {
                "at": step.at, "code": step.code, "by": step.by.email if step.by else None, "amount": step.amount, "until": step.until,
                "note": step.text if step.code != "asked" else "",
            }
            for step in row.events.select_related("by").order_by("id")
        ]  # fmt: skip
    return found


def request_find(user: User, id: int) -> QuotaRequest:
    """Raises NotFound for what the user may not see, just as for what isn't there."""
    row = asking.requests_visible_to(user).filter(pk=id).first()
    if row is None:
        raise NotFound(_("There is no request %(id)s.") % {"id": id})
    return row


class QuotaView(APIView):
    @extend_schema(
        operation_id="quota_get",
        summary="My limits",
        description="What is used of each limit, when the month starts anew, and limits of my projects.",
        responses=QuotaSchema,
    )
    def get(self, request: Request) -> Response:
        user, now = request.user, timezone.now()
        quota_roll(Quota.objects.filter(project__memberships__user=user), now=now)
        rows = Quota.objects.filter(project__memberships__user=user, project__is_active=True).select_related("project")
        return Response(
            {
                "mine": quota_json(user),
                "projects": {
                    row.project.name: MeQuota(quota_view_of(row, now=now)).data
                    for row in rows.order_by("project__name")
                    if row.project is not None
                },
                "open_requests": QuotaRequest.objects.filter(by=user, state__in=QuotaRequest.OPEN).count(),
            }
        )


class QuotaRequestListView(generics.GenericAPIView[QuotaRequest]):
    """Mine, those of projects that I lead, and for staff all; the newest first."""

    @extend_schema(operation_id="quota_request_list", summary="Requests for more", responses=RequestSchema(many=True))
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(asking.requests_visible_to(request.user))
        return self.get_paginated_response([request_json(row) for row in page or []])

    @extend_schema(
        operation_id="quota_request_create",
        summary="Ask for more",
        description="Goes to a lead of `project`, where there is another one than the caller, then to the admins.",
        request=AskRequest,
        responses={201: RequestSchema},
        examples=[
            OpenApiExample(
                "200 GPU-hours more until the month's end",
                value={"what": "gpu_hours", "amount": 200, "why": "Rebuttal: 3 ablations × 4 seeds, about 15 GPU-hours each."},
                request_only=True,
            )
        ],
    )
    def post(self, request: Request) -> Response:
        body = AskRequest(data=request.data)
        body.is_valid(raise_exception=True)
        wanted = dict(body.validated_data)
        name, project = wanted.pop("project"), None
        if name:
            project = Project.objects.filter(name=name, memberships__user=request.user, is_active=True).first()
            if project is None:
                raise serializers.ValidationError({"project": [_("You are no member of a project {value}.").format(value=name)]})
        made = asking.request_make(by=request.user, project=project, now=timezone.now(), **wanted)
        return Response(request_json(request_find(request.user, made.pk), with_steps=True), status=status.HTTP_201_CREATED)


class QuotaRequestView(APIView):
    @extend_schema(operation_id="quota_request_get", summary="One request and its history", responses=RequestSchema)
    def get(self, request: Request, id: int) -> Response:
        return Response(request_json(request_find(request.user, id), with_steps=True))


class QuotaRequestDecideView(APIView):
    @extend_schema(
        operation_id="quota_request_decide",
        summary="Approve or decline a request",
        description=(
            "A lead's approval passes it on to the admins; an admin's grants it, with `amount` and `until` or as asked. "
            "409 `request_not_open` when somebody was before."
        ),
        request=DecideRequest,
        responses=RequestSchema,
        examples=[OpenApiExample("Half of it", value={"decision": "approve", "amount": 100}, request_only=True)],
    )
    def post(self, request: Request, id: int) -> Response:
        row = request_find(request.user, id)
        body = DecideRequest(data=request.data)
        body.is_valid(raise_exception=True)
        wanted, now = body.validated_data, timezone.now()
        if wanted["decision"] == "approve":
            amount, until, note = wanted["amount"], wanted["until"], wanted["note"]
            asking.request_approve(request=row, by=request.user, now=now, amount=amount, until=until, note=note)
        else:
            asking.request_decline(request=row, by=request.user, now=now, note=wanted["note"])
        return Response(request_json(row, with_steps=True))


class QuotaRequestWithdrawView(APIView):
    @extend_schema(operation_id="quota_request_withdraw", summary="Take my request back", request=None, responses=RequestSchema)
    def post(self, request: Request, id: int) -> Response:
        row = request_find(request.user, id)
        if row.by_id != request.user.pk:
            raise NotFound(_("There is no request %(id)s.") % {"id": id})
        asking.request_withdraw(request=row, by=request.user, now=timezone.now())
        return Response(request_json(row, with_steps=True))
