"""Alerts over REST: staff see all and act, others see those of their own jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from nodes.alert_read import FILTERS, BadFilter, alert_json, alert_rows, alerts_filtered, alerts_visible_to
from nodes.alert_words import mute_text, rule_text, rule_title
from nodes.alerts import REASON_MAX, alert_acknowledge, alert_reopen, mute_create, mute_lift
from nodes.models import Alert, AlertMute, AlertRule, Gpu, Node
from nodes.serializers import NodeInput, Text
from quotas.moments import moment_validate


class AlertSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    rule = serializers.CharField(allow_null=True)
    metric = serializers.CharField()
    state = serializers.ChoiceField(choices=Alert.State.values)
    level = serializers.ChoiceField(choices=("warning", "critical"))
    title = serializers.CharField()
    text = serializers.CharField()
    advice = serializers.CharField()
    subject = serializers.CharField(help_text="gpu:12, node:3, job:42, owner:7 or pool")
    node = serializers.CharField(allow_null=True)
    gpu = serializers.IntegerField(allow_null=True)
    jobs = serializers.ListField(child=serializers.IntegerField(), help_text="Those that you may see.")
    value = serializers.FloatField(allow_null=True)
    peak = serializers.FloatField(allow_null=True)
    limit = serializers.FloatField(allow_null=True)
    times = serializers.IntegerField(help_text="How often it came back within half an hour.")
    opened_at = serializers.DateTimeField()
    acked_at = serializers.DateTimeField(allow_null=True)
    acked_by = serializers.CharField(allow_null=True)
    note = serializers.CharField()
    resolved_at = serializers.DateTimeField(allow_null=True)
    resolved_why = serializers.CharField(allow_null=True, help_text="clear, gone, no_data, rule_off")
    muted = serializers.BooleanField(help_text="Nobody is told of it now.")


class AckRequest(NodeInput):
    note = Text(max_length=REASON_MAX, required=False, allow_blank=True, default="")


class RuleSchema(serializers.Serializer[Any]):
    code = serializers.CharField()
    title = serializers.CharField()
    text = serializers.CharField()
    metric = serializers.CharField()
    op = serializers.ChoiceField(choices=AlertRule.Op.values)
    warning = serializers.FloatField(allow_null=True)
    critical = serializers.FloatField(allow_null=True)
    for_s = serializers.IntegerField()
    clear_by = serializers.FloatField()
    clear_s = serializers.IntegerField()
    tells_owner = serializers.BooleanField()
    enabled = serializers.BooleanField()


class MuteSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    text = serializers.CharField()
    rule = serializers.CharField(allow_null=True)
    node = serializers.CharField(allow_null=True)
    gpu = serializers.CharField(allow_null=True, help_text="UUID")
    reason = serializers.CharField()
    until = serializers.DateTimeField(allow_null=True)
    by = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()
    lifted_at = serializers.DateTimeField(allow_null=True)
    active = serializers.BooleanField()


class MuteRequest(NodeInput):
    """At least one of rule, node and gpu; what is named must all match."""

    reason = Text(max_length=REASON_MAX)
    rule = Text(max_length=40, required=False)
    node = Text(max_length=63, required=False)
    gpu = Text(max_length=80, required=False, help_text="UUID of the card.")
    until = serializers.DateTimeField(
        required=False, allow_null=True, validators=[moment_validate], help_text="Left out: until it is lifted."
    )
    for_s = serializers.IntegerField(required=False, min_value=60, max_value=366 * 86_400, help_text="Instead of until.")


def rule_json(rule: AlertRule) -> dict[str, Any]:
    same = ("code", "metric", "op", "warning", "critical", "for_s", "clear_by", "clear_s", "tells_owner")
    return {**{name: getattr(rule, name) for name in same}, "enabled": rule.is_enabled, "title": rule_title(rule), "text": rule_text(rule)}


def mute_json(mute: AlertMute) -> dict[str, Any]:
    """``mute`` with rule, node, gpu (and its node) and by loaded."""
    now = timezone.now()
    return {
        "id": mute.pk,
        "text": mute_text(mute),
        "rule": mute.rule.code if mute.rule is not None else None,
        "node": mute.node.name if mute.node is not None else None,
        "gpu": mute.gpu.uuid if mute.gpu is not None else None,
        "reason": mute.reason,
        "until": mute.until,
        "by": mute.by.email if mute.by is not None else None,
        "created_at": mute.created_at,
        "lifted_at": mute.lifted_at,
        "active": mute.lifted_at is None and (mute.until is None or mute.until > now),
    }


EXAMPLE = OpenApiExample(
    "A known job", value={"gpu": "GPU-1f2e…", "rule": "memory-high", "for_s": 7200, "reason": "a large model"}, request_only=True
)


class AlertListView(generics.GenericAPIView[Alert]):
    def get_queryset(self) -> QuerySet[Alert]:
        try:
            return alerts_filtered(self.request.user, {name: self.request.query_params.get(name, "") for name in FILTERS})
        except BadFilter as error:
            known = ", ".join(error.known)
            raise serializers.ValidationError({error.field: [_("Must be one of: %(known)s.") % {"known": known}]}) from error

    @extend_schema(
        operation_id="alert_list",
        summary="Alerts, open ones first",
        description="Staff see all, others those of their own jobs.",
        parameters=[
            OpenApiParameter("state", str, description="active (the default), open, acknowledged, resolved or all."),
            OpenApiParameter("level", str, description="warning or critical."),
            OpenApiParameter("rule", str, description="Only this rule's."),
            OpenApiParameter("node", str, description="Only this node's."),
        ],
        responses=AlertSchema(many=True),
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response([AlertSchema(alert_json(row)).data for row in alert_rows(page, request.user)])


def _alert(request: Request, id: int) -> Alert:
    query = alerts_visible_to(request.user).select_related("rule", "node", "gpu", "acked_by")
    return get_object_or_404(query, pk=id)


def _alert_answer(request: Request, id: int) -> Response:
    [row] = alert_rows([_alert(request, id)], request.user)
    return Response(AlertSchema(alert_json(row)).data)


class AlertDetailView(APIView):
    @extend_schema(operation_id="alert_get", summary="An alert", responses=AlertSchema)
    def get(self, request: Request, id: int) -> Response:
        return _alert_answer(request, id)


class AlertAckView(APIView):
    @extend_schema(
        operation_id="alert_acknowledge",
        summary="Acknowledge an alert",
        description="Somebody looks after it. Staff only.",
        request=AckRequest,
        responses=AlertSchema,
    )
    def post(self, request: Request, id: int) -> Response:
        alert = _alert(request, id)
        body = AckRequest(data=request.data)
        body.is_valid(raise_exception=True)
        alert_acknowledge(alert=alert, by=request.user, note=body.validated_data["note"])
        return _alert_answer(request, id)


class AlertReopenView(APIView):
    @extend_schema(
        operation_id="alert_reopen", summary="Take an acknowledgement back", description="Staff only.", request=None, responses=AlertSchema
    )
    def post(self, request: Request, id: int) -> Response:
        alert_reopen(alert=_alert(request, id), by=request.user)
        return _alert_answer(request, id)


class RuleListView(generics.GenericAPIView[AlertRule]):
    queryset = AlertRule.objects.order_by("code")

    @extend_schema(
        operation_id="alert_rule_list",
        summary="The rules of alerts",
        description="They are edited in the administration.",
        responses=RuleSchema(many=True),
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response([RuleSchema(rule_json(rule)).data for rule in page])


class MuteListView(generics.GenericAPIView[AlertMute]):
    queryset = AlertMute.objects.select_related("rule", "node", "gpu__node", "by")

    @extend_schema(
        operation_id="alert_mute_list", summary="Mutes, the latest first", description="Staff only.", responses=MuteSchema(many=True)
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response([MuteSchema(mute_json(mute)).data for mute in page])

    @extend_schema(
        operation_id="alert_mute",
        summary="Mute a rule, a node or a card",
        description="Nobody is told until then; alerts open and resolve as ever. Staff only.",
        request=MuteRequest,
        responses={201: MuteSchema},
        examples=[EXAMPLE],
    )
    def post(self, request: Request) -> Response:
        body = MuteRequest(data=request.data)
        body.is_valid(raise_exception=True)
        asked = body.validated_data
        until = asked.get("until")
        if until is None and asked.get("for_s"):
            until = timezone.now() + timedelta(seconds=asked["for_s"])
        mute = mute_create(
            by=request.user,
            reason=asked["reason"],
            rule=get_object_or_404(AlertRule, code=asked["rule"]) if asked.get("rule") else None,
            node=get_object_or_404(Node, name=asked["node"]) if asked.get("node") else None,
            gpu=get_object_or_404(Gpu.objects.select_related("node"), uuid=asked["gpu"]) if asked.get("gpu") else None,
            until=until,
        )
        return Response(MuteSchema(mute_json(mute)).data, status=status.HTTP_201_CREATED)


class MuteLiftView(APIView):
    @extend_schema(operation_id="alert_unmute", summary="Lift a mute", description="Staff only.", request=None, responses=MuteSchema)
    def post(self, request: Request, id: int) -> Response:
        mute = get_object_or_404(AlertMute.objects.select_related("rule", "node", "gpu__node", "by"), pk=id)
        return Response(MuteSchema(mute_json(mute_lift(mute=mute, by=request.user))).data)
