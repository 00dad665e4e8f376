"""Nodes and cards. Who may look and who may act is in nebulagrid/access.py."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.db.models import Q, QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, status
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from nodes import services, telemetry
from nodes.models import AgentCommand, Gpu, GpuLink, GpuState, Node, NodeState
from nodes.pool import pool_gpus, totals_of
from nodes.serializers import (
    CommandRequest,
    CommandSchema,
    ConfirmRequest,
    DrainRequest,
    EnrollTokenRequest,
    EnrollTokenSchema,
    GpuSchema,
    NodePatch,
    NodeSchema,
    ResumeRequest,
    command_json,
    gpu_json,
    node_json,
)
from nodes.slices import linked_by_nvlink, slices_of


def _gpus_of(nodes: list[Node]) -> list[Gpu]:
    return [gpu for node in nodes for gpu in node.gpus.all() if gpu.state != GpuState.RETIRED]


def nodes_json(nodes: list[Node], user: Any) -> list[dict[str, Any]]:
    """Nodes loaded with ``prefetch_related("gpus")``, as ``user`` may see their slices. Three queries, three round trips to Redis."""
    told = telemetry.nodes_latest(node.pk for node in nodes)
    latest, health = telemetry.gpus_latest(_gpus_of(nodes)), telemetry.gpus_health(_gpus_of(nodes))
    links: dict[int, list[GpuLink]] = defaultdict(list)
    for link in GpuLink.objects.filter(a__node__in=nodes).select_related("a", "b").order_by("a__index", "b__index", "pk"):
        links[link.a.node_id].append(link)
    slices = slices_of(_gpus_of(nodes), user)
    return [node_json(node, _gpus_of([node]), latest, health, links[node.pk], told.get(node.pk), slices) for node in nodes]


def node_find(name: str) -> Node:
    """Two queries. Raises Http404."""
    return get_object_or_404(Node.objects.prefetch_related("gpus"), name=name)


def pool_overview() -> dict[str, Any]:
    """The pool in numbers, without a node's name: ``nodes``, ``gpus`` (idle + busy + maintenance = total), ``vram``.

    Free memory counts on cards that new work may come to. Two queries, one round trip to Redis.
    """
    nodes = list(Node.objects.exclude(state=NodeState.RETIRED).only("pk", "name", "state", "cordoned"))
    cards = pool_gpus()
    found = totals_of(use for _gpu, use in cards)
    states = {"ready": 0, "unknown": 0, "recovering": 0, "enrolling": 0, "down": 0}
    for node in nodes:
        states[node.state.lower()] += 1
    uses = {"idle": found.idle, "busy": found.busy, "maintenance": found.maintenance}
    return {
        "nodes": {"total": len(nodes), **states, "cordoned": sum(node.cordoned for node in nodes)},
        "gpus": {"total": found.cards, **uses, "ghost": found.ghost},
        "vram": {"total_mib": found.total_mib, "free_mib": found.free_mib},
        "simulated": any(gpu.is_simulated for gpu, _use in cards),
    }


class NodeListView(generics.GenericAPIView[Node]):
    def get_queryset(self) -> QuerySet[Node]:
        return Node.objects.exclude(state=NodeState.RETIRED).prefetch_related("gpus").order_by("name")

    @extend_schema(operation_id="node_list", summary="Nodes and their GPUs", responses=NodeSchema(many=True))
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response(nodes_json(list(page or []), request.user))


class NodeDetailView(APIView):
    @extend_schema(operation_id="node_get", summary="One node", responses=NodeSchema)
    def get(self, request: Request, name: str) -> Response:
        return Response(nodes_json([node_find(name)], request.user)[0])

    @extend_schema(
        operation_id="node_patch",
        summary="Label a node",
        description="Of the labels those named change, null takes one away; jobs may ask for them. Staff only.",
        request=NodePatch,
        responses=NodeSchema,
    )
    def patch(self, request: Request, name: str) -> Response:
        node = node_find(name)
        body = NodePatch(data=request.data)
        body.is_valid(raise_exception=True)
        services.node_label(node=node, by=request.user, changes=body.validated_data["labels"])
        return Response(nodes_json([node_find(name)], request.user)[0])


class NodeDrainView(APIView):
    @extend_schema(
        operation_id="node_drain",
        summary="Drain a node",
        description="No new work for it; what runs there goes on. Staff only.",
        request=DrainRequest,
        responses=NodeSchema,
    )
    def post(self, request: Request, name: str) -> Response:
        node = node_find(name)
        body = DrainRequest(data=request.data)
        body.is_valid(raise_exception=True)
        services.node_cordon(node=node, by=request.user, reason=body.validated_data["reason"], until=body.validated_data.get("until"))
        return Response(nodes_json([node_find(name)], request.user)[0])


class NodeResumeView(APIView):
    @extend_schema(
        operation_id="node_resume", summary="End a drain", description="Staff only.", request=ResumeRequest, responses=NodeSchema
    )
    def post(self, request: Request, name: str) -> Response:
        node = node_find(name)
        ResumeRequest(data=request.data).is_valid(raise_exception=True)
        services.node_resume(node=node, by=request.user)
        return Response(nodes_json([node_find(name)], request.user)[0])


class NodeConfirmView(APIView):
    @extend_schema(
        operation_id="node_confirm",
        summary="Confirm a node's new agent, or its new cards",
        description="`agent`: an agent that can't show it is the one of before asks to speak for this node, and jobs may still run under "
        "the old one; confirmed, it takes over, and what ran there counts as gone. `claim` is the `id` of the node's `claim` that you "
        "looked at; if somebody else asks meanwhile, the answer is 409. `inventory`: cards that wait to be confirmed are put to "
        "use (NEBULA_CONFIRM_INVENTORY). Staff only.",
        request=ConfirmRequest,
        responses=NodeSchema,
    )
    def post(self, request: Request, name: str) -> Response:
        node = node_find(name)
        body = ConfirmRequest(data=request.data)
        body.is_valid(raise_exception=True)
        services.node_confirm(node=node, by=request.user, what=body.validated_data["what"], claim=body.validated_data["claim"])
        return Response(nodes_json([node_find(name)], request.user)[0])


class EnrollTokenView(APIView):
    @extend_schema(
        operation_id="node_enroll_token",
        summary="A token for a new node",
        description="Lets one machine join once, within an hour. Staff only.",
        request=EnrollTokenRequest,
        responses={201: EnrollTokenSchema},
    )
    def post(self, request: Request) -> Response:
        body = EnrollTokenRequest(data=request.data)
        body.is_valid(raise_exception=True)
        token, secret = services.enrol_token_create(by=request.user, node_name=body.validated_data["name"])
        answer = {"token": secret, "expires_at": token.expires_at, "name": token.node_name}
        return Response(EnrollTokenSchema(answer).data, status=status.HTTP_201_CREATED)


class CommandListView(APIView):
    @extend_schema(
        operation_id="node_command_create",
        summary="Ask a node's agent for something",
        description="Answers at once; the agent's word comes with its next sync, read it by the command's id. Staff only.",
        request=CommandRequest,
        responses={202: CommandSchema},
    )
    def post(self, request: Request, name: str) -> Response:
        node = get_object_or_404(Node, name=name)
        body = CommandRequest(data=request.data)
        body.is_valid(raise_exception=True)
        command = services.command_create(
            node=node, verb=body.validated_data["verb"], args=body.validated_data.get("args") or {}, by=request.user
        )
        return Response(command_json(command), status=status.HTTP_202_ACCEPTED)


class CommandDetailView(APIView):
    @extend_schema(operation_id="node_command_get", summary="What came of a command", description="Staff only.", responses=CommandSchema)
    def get(self, request: Request, name: str, id: int) -> Response:
        command = AgentCommand.objects.select_related("node", "created_by").filter(pk=id, node__name=name).first()
        if command is None:
            raise NotFound
        return Response(command_json(command))


class GpuListView(generics.GenericAPIView[Gpu]):
    """In a fixed order: by node, then by index."""

    def get_queryset(self) -> QuerySet[Gpu]:
        found = Gpu.objects.exclude(Q(node__state=NodeState.RETIRED) | Q(state=GpuState.RETIRED)).select_related("node")
        found = found.order_by("node__name", "index", "pk")
        node = self.request.query_params.get("node")
        return found.filter(node__name=node) if node else found

    @extend_schema(
        operation_id="gpu_list",
        summary="GPUs",
        parameters=[OpenApiParameter("node", str, description="Only this node's.")],
        responses=GpuSchema(many=True),
    )
    def get(self, request: Request) -> Response:
        page = list(self.paginate_queryset(self.get_queryset()) or [])
        latest, health = telemetry.gpus_latest(page), telemetry.gpus_health(page)
        slices, by_nvlink = slices_of(page, request.user), linked_by_nvlink(page)
        rows = [
            gpu_json(gpu, latest.get(gpu.pk), health.get(gpu.pk), slices=slices.get(gpu.pk, ()), nvlink=gpu.pk in by_nvlink) for gpu in page
        ]
        return self.get_paginated_response(rows)
