"""What the driver says of a job's cards, asked for by whoever may read its output: nvidia-smi's memory, use, temperature and power of
these cards and no others, on the page and over REST."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext_noop
from django.views.decorators.http import require_http_methods
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.lifecycle import SLICE_LIVE, JobState
from jobs.models import Job, Slice
from jobs.parameters import job_find
from jobs.selectors import jobs_with_output_for
from nodes.models import AgentCommand, Node, NodeState
from nodes.serializers import NodeInput
from nodes.services import command_create
from quotas.errors import DomainError
from quotas.models import User

NODES_MOST = 8
SHOWN = NODES_MOST
TTL_S = 60


class DiagnoseRefused(DomainError):
    """Nothing of the job can be asked about now."""

    default_code = "nothing_to_diagnose"
    default_status = 409
    sentences = {
        "nothing_to_diagnose": gettext_noop(
            "Job {job} holds no card of a node that answers; only the cards of a job that runs can be asked."
        ),
    }


def diagnose_begin(*, job: Job, by: User, now: datetime) -> list[AgentCommand]:
    """Ask the agents of its nodes; while one of the last answers is still to come, that one stands. Raises DiagnoseRefused."""
    waiting = [command for command in diagnoses(job) if command.state == AgentCommand.State.QUEUED and command.expires_at > now]
    if waiting:
        return waiting
    cards: dict[int, list[str]] = defaultdict(list)
    if job.state in (JobState.RUNNING, JobState.STOPPING):
        parts = Slice.objects.filter(rank__attempt__job=job, state__in=SLICE_LIVE).order_by("pk")
        for node_id, uuid in parts.values_list("rank__node_id", "gpu__uuid"):
            cards[node_id].append(uuid)
    nodes = Node.objects.filter(pk__in=cards, state__in=(NodeState.READY, NodeState.RECOVERING)).order_by("name")[:NODES_MOST]
    asked = [
        command_create(
            node=node, verb="diagnose", args={"gpus": list(dict.fromkeys(cards[node.pk])), "job": job.pk}, by=by, ttl_s=TTL_S, now=now
        )
        for node in nodes
    ]
    if not asked:
        raise DiagnoseRefused(params={"job": job.pk})
    return asked


def diagnoses(job: Job) -> list[AgentCommand]:
    """The last ones of this job, the latest first. One query."""
    found = AgentCommand.objects.filter(verb="diagnose", args__job=job.pk).select_related("node", "created_by")
    return list(found.order_by("-pk")[:SHOWN])


# --- page -----------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def job_diagnose(request: HttpRequest, id: int) -> HttpResponse:
    """POST asks; GET answers with the list alone, which the page fetches until everything is answered."""
    user: Any = request.user
    job = job_find(user, id, jobs_with_output_for(user))
    error = ""
    if request.method == "POST":
        try:
            diagnose_begin(job=job, by=user, now=timezone.now())
        except DiagnoseRefused as refused:
            error = refused.message or str(refused)
        if not getattr(request, "htmx", False) and not error:
            return redirect("job-detail", id=job.pk)
    return render(request, "jobs/_diagnose.html", {"job": job, "error": error, **diagnose_context(job)})


def diagnose_context(job: Job) -> dict[str, Any]:
    """One query."""
    found = diagnoses(job)
    return {"diagnoses": found, "diagnose_pending": any(command.state == AgentCommand.State.QUEUED for command in found)}


# --- REST -----------------------------------------------------------------------------------------------------------


class DiagnoseRequest(NodeInput):
    """A body without fields."""


class DiagnosisSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    node = serializers.CharField()
    gpus = serializers.ListField(child=serializers.CharField())
    state = serializers.ChoiceField(choices=AgentCommand.State.values)
    text = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


def _json(command: AgentCommand) -> dict[str, Any]:
    row = {
        "id": command.pk,
        "node": command.node.name,
        "gpus": command.args.get("gpus", []),
        "state": command.state,
        "text": command.text,
        "created_at": command.created_at,
        "finished_at": command.finished_at,
    }
    return dict(DiagnosisSchema(row).data)


class JobDiagnoseView(APIView):
    def _job(self, request: Request, id: int) -> Job:
        user: Any = request.user
        return job_find(user, id, jobs_with_output_for(user))

    @extend_schema(operation_id="job_diagnoses", summary="What the driver said of its cards", responses=DiagnosisSchema(many=True))
    def get(self, request: Request, id: int) -> Response:
        return Response([_json(command) for command in diagnoses(self._job(request, id))])

    @extend_schema(
        operation_id="job_diagnose",
        summary="Ask the driver about its cards",
        description="Answers at once; what the agents say comes with their next sync. While an answer is to come, it is not asked again.",
        request=DiagnoseRequest,
        responses={202: DiagnosisSchema(many=True)},
    )
    def post(self, request: Request, id: int) -> Response:
        user: Any = request.user
        job = self._job(request, id)
        DiagnoseRequest(data=request.data).is_valid(raise_exception=True)
        found = diagnose_begin(job=job, by=user, now=timezone.now())
        return Response([_json(command) for command in found], status=status.HTTP_202_ACCEPTED)
