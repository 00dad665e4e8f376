"""Cards' health, incidents and drills over REST: everybody who is signed in may look, staff may act."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from nodes.event_words import event_kind_text
from nodes.health_views import ACTIONS
from nodes.health_words import cause_text, line_text, reason_text, selftest_text
from nodes.incidents import incident_close, incident_note, incident_of
from nodes.inspection_words import finding_said
from nodes.inspections import LEVELS, inspection_begin
from nodes.models import CardCare, Gpu, HealthEvent, Incident, IncidentEntry, Inspection, Node
from nodes.serializers import CommandSchema, NodeInput, Text, command_json
from nodes.services import command_create

EVENTS, LINES = 50, 500
GONE_S = 30


class ActRequest(NodeInput):
    action = serializers.ChoiceField(choices=list(ACTIONS))
    reason = Text(max_length=200, help_text="Kept with the card's history.")
    checked = serializers.BooleanField(default=False, help_text="With return: a person has checked the card, no self-test.")


class NoteRequest(NodeInput):
    text = Text(max_length=4000)


class InspectRequest(NodeInput):
    """A body without fields."""


class DrillRequest(NodeInput):
    fault = serializers.RegexField(
        r"^(xid[0-9]{1,3}|gone)$",
        help_text="xid79 (any number) or gone",
        error_messages={"invalid": gettext_lazy("Write xid and its number, such as xid79, or gone.")},
    )
    gpu = serializers.IntegerField(default=0, min_value=0, max_value=1023, help_text="Index of the card.")
    test = serializers.ChoiceField(choices=("passed", "failed", "impossible"), required=False, help_text="How its next self-test ends.")


class HealthEventSchema(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    kind = serializers.CharField()
    text = serializers.CharField()
    data = serializers.DictField()


class LineSchema(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    code = serializers.CharField()
    params = serializers.DictField()
    text = serializers.CharField()
    by = serializers.CharField(allow_null=True)


class IncidentSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    node = serializers.CharField()
    gpu = serializers.IntegerField()
    uuid = serializers.CharField()
    kind = serializers.ChoiceField(choices=Incident.Kind.values)
    phase = serializers.ChoiceField(choices=Incident.Phase.values)
    code = serializers.CharField()
    text = serializers.CharField()
    drill = serializers.BooleanField()
    opened_at = serializers.DateTimeField()
    recovered_at = serializers.DateTimeField(allow_null=True)
    recovered_s = serializers.FloatField(allow_null=True, help_text="From detection to recovery.")
    closed_at = serializers.DateTimeField(allow_null=True)
    review = serializers.CharField()
    timeline = LineSchema(many=True, required=False, help_text="With one incident only.")
    evidence = serializers.DictField(
        required=False, help_text="power: [[Unix time, W, °C, MHz]…]; kernel: [lines]. With one incident only."
    )


class CardHealthSchema(serializers.Serializer[Any]):
    uuid = serializers.CharField()
    node = serializers.CharField()
    gpu = serializers.IntegerField()
    state = serializers.CharField()
    state_reason = serializers.CharField()
    state_text = serializers.CharField()
    score = serializers.IntegerField()
    waits_for = serializers.CharField(allow_null=True, help_text="test or reset: as soon as the card allows it.")
    needs_human = serializers.BooleanField()
    test = serializers.CharField(allow_null=True)
    incident = serializers.IntegerField(allow_null=True)
    events = HealthEventSchema(many=True)


def incident_json(incident: Incident) -> dict[str, Any]:
    """``incident`` with node and gpu loaded."""
    ended = incident.recovered_at
    return {
        "id": incident.pk,
        "node": incident.node.name,
        "gpu": incident.gpu.index,
        "uuid": incident.gpu.uuid,
        "kind": incident.kind,
        "phase": incident.phase,
        "code": incident.code,
        "text": cause_text(incident.code, incident.params),
        "drill": incident.is_drill,
        "opened_at": incident.opened_at,
        "recovered_at": ended,
        "recovered_s": None if ended is None else round((ended - incident.opened_at).total_seconds(), 1),
        "closed_at": incident.closed_at,
        "review": incident.review,
    }


def _incident_whole(incident: Incident) -> dict[str, Any]:
    entries = IncidentEntry.objects.filter(incident=incident).select_related("by").order_by("at", "pk")[:LINES]
    lines = [
        {"at": e.at, "code": e.code, "params": e.params, "text": line_text(e.code, e.params), "by": e.by.email if e.by else None}
        for e in entries
    ]
    return IncidentSchema({**incident_json(incident), "timeline": lines, "evidence": incident.evidence}).data


def card_health_json(gpu: Gpu) -> dict[str, Any]:
    """``gpu`` with its node loaded. Three queries."""
    care = CardCare.objects.filter(gpu=gpu).first()
    incident = incident_of(gpu.pk)
    events = HealthEvent.objects.filter(gpu=gpu).order_by("-at", "-pk")[:EVENTS]
    return CardHealthSchema(
        {
            "uuid": gpu.uuid,
            "node": gpu.node.name,
            "gpu": gpu.index,
            "state": gpu.state,
            "state_reason": gpu.state_reason,
            "state_text": reason_text(gpu.state_reason),
            "score": gpu.health_score,
            "waits_for": care.wants or None if care is not None else None,
            "needs_human": care is not None and care.needs_human,
            "test": selftest_text(care.test) if care is not None and care.test else None,
            "incident": incident.pk if incident is not None else None,
            # Whose program it was is for the people who run the pool and for its owner: not told here.
            "events": [
                {
                    "at": event.at,
                    "kind": event.kind,
                    "text": event_kind_text(event.kind, event.data),
                    "data": {k: v for k, v in event.data.items() if k not in ("owner", "job", "rank")},
                }
                for event in events
            ],
        }
    ).data


class CardHealthView(APIView):
    @extend_schema(operation_id="gpu_health", summary="A card's health", responses=CardHealthSchema)
    def get(self, request: Request, uuid: str) -> Response:
        return Response(card_health_json(get_object_or_404(Gpu.objects.select_related("node"), uuid=uuid)))


class CardActView(APIView):
    @extend_schema(
        operation_id="gpu_act",
        summary="Isolate, maintain, test, reset or return a card",
        description="isolate stops its jobs politely and requeues them; maintain, reset and return need a card free of jobs. Staff only.",
        request=ActRequest,
        responses=CardHealthSchema,
    )
    def post(self, request: Request, uuid: str) -> Response:
        gpu = get_object_or_404(Gpu, uuid=uuid)
        body = ActRequest(data=request.data)
        body.is_valid(raise_exception=True)
        asked = body.validated_data
        more = {"is_checked": asked["checked"]} if asked["action"] == "return" else {}
        ACTIONS[asked["action"]](gpu=gpu, by=request.user, reason=asked["reason"], **more)  # type: ignore[operator]
        return Response(card_health_json(get_object_or_404(Gpu.objects.select_related("node"), uuid=uuid)))


class IncidentListView(generics.GenericAPIView[Incident]):
    def get_queryset(self) -> QuerySet[Incident]:
        query = Incident.objects.select_related("node", "gpu")
        phase = self.request.query_params.get("phase", "")
        if phase == "open":
            query = query.exclude(phase=Incident.Phase.CLOSED)
        elif phase:
            known = list(Incident.Phase.values)
            if phase.upper() not in known:
                raise serializers.ValidationError({"phase": [_("Expected open or one of %(known)s.") % {"known": ", ".join(known)}]})
            query = query.filter(phase=phase.upper())
        node = self.request.query_params.get("node")
        return query.filter(node__name=node) if node else query

    @extend_schema(
        operation_id="incident_list",
        summary="Incidents, the latest first",
        parameters=[
            OpenApiParameter("phase", str, description="open, or DETECTED, DIAGNOSING, RECOVERING, REVIEW, CLOSED."),
            OpenApiParameter("node", str, description="Only this node's."),
        ],
        responses=IncidentSchema(many=True),
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response([IncidentSchema(incident_json(incident)).data for incident in page])


def _incident(id: int) -> Incident:
    return get_object_or_404(Incident.objects.select_related("node", "gpu"), pk=id)


class IncidentDetailView(APIView):
    @extend_schema(operation_id="incident_get", summary="An incident with its timeline and evidence", responses=IncidentSchema)
    def get(self, request: Request, id: int) -> Response:
        return Response(_incident_whole(_incident(id)))


class IncidentNoteView(APIView):
    closes = False

    @extend_schema(
        operation_id="incident_note", summary="Add a note", description="Staff only.", request=NoteRequest, responses=IncidentSchema
    )
    def post(self, request: Request, id: int) -> Response:
        return self._write(request, id)

    def _write(self, request: Request, id: int) -> Response:
        incident = _incident(id)
        body = NoteRequest(data=request.data)
        body.is_valid(raise_exception=True)
        write = incident_close if self.closes else incident_note
        write(incident=incident, text=body.validated_data["text"], by=request.user)  # type: ignore[operator]
        return Response(_incident_whole(_incident(id)))


class IncidentCloseView(IncidentNoteView):
    closes = True

    @extend_schema(
        operation_id="incident_close",
        summary="Close an incident with its review",
        description="Its card must be back in service. Staff only.",
        request=NoteRequest,
        responses=IncidentSchema,
    )
    def post(self, request: Request, id: int) -> Response:
        return self._write(request, id)


class FindingSchema(serializers.Serializer[Any]):
    level = serializers.ChoiceField(choices=LEVELS)
    code = serializers.CharField()
    gpu = serializers.IntegerField(allow_null=True)
    text = serializers.CharField()
    advice = serializers.CharField(allow_null=True)
    params = serializers.DictField()


class InspectionSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    told = serializers.BooleanField(help_text="What the agent found on the machine is in it.")
    findings = FindingSchema(many=True)


def inspection_json(inspection: Inspection) -> dict[str, Any]:
    rows = []
    for finding in inspection.findings:
        text, advice = finding_said(finding)
        known = {"level": finding["level"], "code": finding["code"], "gpu": finding.get("gpu"), "params": finding.get("params") or {}}
        rows.append({**known, "text": text, "advice": advice or None})
    return {"id": inspection.pk, "at": inspection.at, "told": inspection.is_told, "findings": rows}


class InspectionListView(generics.GenericAPIView[Inspection]):
    def get_queryset(self) -> QuerySet[Inspection]:
        return Inspection.objects.filter(node=get_object_or_404(Node, name=self.kwargs["name"]))

    @extend_schema(
        operation_id="node_inspections", summary="Inspections of a node, the latest first", responses=InspectionSchema(many=True)
    )
    def get(self, request: Request, name: str) -> Response:
        page = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response([InspectionSchema(inspection_json(found)).data for found in page])

    @extend_schema(
        operation_id="node_inspect",
        summary="Inspect a node now",
        description="What the agent finds is added when it answers. Staff only.",
        request=InspectRequest,
        responses={201: InspectionSchema},
    )
    def post(self, request: Request, name: str) -> Response:
        node = get_object_or_404(Node, name=name)
        InspectRequest(data=request.data).is_valid(raise_exception=True)
        found = inspection_begin(node=node, by=request.user, now=timezone.now())
        return Response(InspectionSchema(inspection_json(found)).data, status=status.HTTP_201_CREATED)


class DrillView(APIView):
    @extend_schema(
        operation_id="node_drill",
        summary="Throw a fault at a simulated card",
        description="The whole chain follows as if a card had failed. Simulated nodes only. Staff only.",
        request=DrillRequest,
        responses={202: CommandSchema},
    )
    def post(self, request: Request, name: str) -> Response:
        node = get_object_or_404(Node, name=name)
        body = DrillRequest(data=request.data)
        body.is_valid(raise_exception=True)
        asked = body.validated_data
        number = asked["fault"].removeprefix("xid")
        args: dict[str, Any] = {"xid": int(number)} if number.isdigit() else {"gone_s": GONE_S}
        args |= {"test": asked["test"]} if asked.get("test") else {}
        gpu = get_object_or_404(Gpu.objects.exclude(state="MISSING"), node=node, index=asked["gpu"])
        command = command_create(node=node, verb="drill", args={**args, "gpu": gpu.uuid}, by=request.user)
        return Response(command_json(command), status=status.HTTP_202_ACCEPTED)
