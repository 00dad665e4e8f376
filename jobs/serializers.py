"""A submit's body into a JobRequest, and jobs into JSON.

Output is built by plain functions from rows that the caller has loaded (``JOB_ROWS``, ``JOB_DETAIL`` in jobs/api.py):
nothing here causes a query. jobs/schemas.py describes it for OpenAPI; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext_lazy
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from jobs import needs, parsing, refusals, wording
from jobs.idle import WINDOW_LEAST_S, WINDOW_MOST_S
from jobs.job_secrets import refs_find
from jobs.lifecycle import JobState, OnNodeLoss
from jobs.models import Artifact, Attempt, Job, JobEvent, Rank
from jobs.outlooks import Told, iso, reason_dated
from jobs.policy import policy_current
from jobs.requests import JobRequest
from jobs.shares import share_mib, sizes_for
from nodes.serializers import uuid_short
from quotas.models import User
from quotas.secret_masks import secrets_weigh
from quotas.secrets import SecretRefused
from quotas.selectors import projects_to_submit
from quotas.serializers import InputSerializer, StrictBoolean, StrictChar, StrictInteger
from quotas.services import project_personal

T = TypeVar("T")


# --- in ---------------------------------------------------------------------------------------------------------


def _read(parse: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """A parser's refusal as a field's error, in words."""
    try:
        return parse(*args, **kwargs)
    except parsing.Unreadable as error:
        raise serializers.ValidationError(refusals.error_text(error.code, error.params), code=error.code) from error


def _refuse(field: str, code: str, **params: Any) -> serializers.ValidationError:
    return serializers.ValidationError({field: [refusals.error_text(code, params)]}, code=code)


def _either(data: Mapping[str, Any], one: str, other: str) -> Any:
    """Of a field's two spellings the one that was given; None = neither."""
    return data[one] if data.get(one) is not None else data.get(other)


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "number"}]})
class StringOrNumber(serializers.Field[Any, Any, Any, Any]):
    """``"0.5"`` or 0.5."""

    default_error_messages = {"invalid": gettext_lazy("Must be a string or a number.")}

    def __init__(self, parse: Callable[[str | int | float], int], **kwargs: Any) -> None:
        self.parse = parse
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, str | int | float):
            self.fail("invalid")
        return _read(self.parse, data)

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "integer"}]})
class StringOrInteger(serializers.Field[Any, Any, Any, Any]):
    """``"24G"`` or 24576: what a person writes, or what a program counts."""

    default_error_messages = {"invalid": gettext_lazy("Must be a string or a whole number.")}

    def __init__(self, parse: Callable[[str | int], Any], **kwargs: Any) -> None:
        self.parse = parse
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, bool) or not isinstance(data, str | int):
            self.fail("invalid")
        return _read(self.parse, data)

    def to_representation(self, value: Any) -> Any:
        return value


class Constraints(InputSerializer):
    arch = StrictChar(max_length=40, required=False, help_text="Compute capability: 8.9 or sm_89.")
    model = StrictChar(max_length=400, required=False, help_text="Words of the GPU's name: a100, RTX 4090; or one of several: A100|H100.")
    vendor = StrictChar(max_length=20, required=False, help_text="nvidia, intel, amd, ascend.")
    cuda_min = StrictChar(max_length=40, required=False, help_text="The node's driver must run this CUDA or a newer one: 12.4.")
    driver_min = StrictChar(max_length=40, required=False, help_text="The node must have this driver or a newer one: 550.")
    labels = serializers.DictField(
        child=StrictChar(allow_blank=True), required=False, help_text="Labels that the node must carry, with these values."
    )

    def validate_cuda_min(self, value: str) -> str:
        return _read(needs.version_check, value)

    def validate_driver_min(self, value: str) -> str:
        return _read(needs.version_check, value)

    def validate_labels(self, value: dict[str, str]) -> dict[str, str]:
        return _read(needs.labels_check, value)


class SubmitRequest(InputSerializer):
    name = StrictChar(required=False, max_length=200, help_text="Default: the program's name. Stored as it is.")
    argv = serializers.ListField(
        child=StrictChar(allow_blank=True), required=False, allow_empty=True, help_text="The program and its arguments; no shell reads it."
    )
    command = StrictChar(
        required=False, allow_blank=True, help_text="Instead of argv: split into words as a shell would, never run by one."
    )
    gpu_count = StrictInteger(required=False, default=1, min_value=0, max_value=100_000, help_text="For the whole job; 0 = CPU only.")
    gpu_mem = StringOrInteger(
        parsing.size_or_share,
        required=False,
        allow_null=True,
        help_text='On each GPU: 24G, 512M, MiB, or a share of it such as "0.5". Without: whole GPUs.',
    )
    gpu_mem_mib = StrictInteger(required=False, allow_null=True, min_value=1, max_value=parsing.MAX_INT)
    exclusive = StrictBoolean(required=False, default=False, help_text="Whole GPUs, however little memory is asked for.")
    nodes = StrictInteger(required=False, default=1, min_value=1, max_value=100_000)
    cpus = StringOrNumber(needs.cores_milli, required=False, allow_null=True, help_text="CPU cores on each node: 8, or 0.5.")
    cpu_milli = StrictInteger(
        required=False, allow_null=True, min_value=1, max_value=parsing.MAX_INT, help_text="Instead of cpus: thousandths of a core."
    )
    host_mem = StringOrInteger(needs.host_mem_mib, required=False, allow_null=True, help_text="Host memory on each node: 64G, or MiB.")
    host_mem_mib = StrictInteger(required=False, allow_null=True, min_value=1, max_value=parsing.MAX_INT)
    workdir = StrictChar(required=False, allow_blank=True, default="", max_length=4096, help_text="Absolute path on the node.")
    env = serializers.DictField(child=StrictChar(allow_blank=True), required=False, help_text="Added to the job's environment.")
    secrets = serializers.ListField(
        child=StrictChar(),
        required=False,
        help_text="NAME is given as the file $NEBULA_SECRETS/NAME, NAME=VARIABLE as a variable; project/NAME is the project's alone.",
    )
    time = StringOrInteger(parsing.time_s, required=False, allow_null=True, help_text="h:mm:ss, d-hh:mm:ss, 90m, 2h, or seconds.")
    time_limit_s = StrictInteger(required=False, allow_null=True, min_value=1, max_value=parsing.MAX_INT)
    project = StrictChar(required=False, allow_null=True, max_length=60, help_text="By name; default: your own.")
    checkpoint = StrictChar(required=False, allow_blank=True, default="", max_length=4096)
    requeue = StrictBoolean(required=False, default=True, help_text="Back into the queue when the infrastructure failed.")
    on_node_loss = serializers.ChoiceField(choices=[o.value for o in OnNodeLoss], required=False, default=OnNodeLoss.HOLD.value)
    grace_s = StrictInteger(required=False, allow_null=True, min_value=1, max_value=parsing.MAX_INT)
    idle_after_s = StrictInteger(
        required=False,
        allow_null=True,
        min_value=WINDOW_LEAST_S,
        max_value=WINDOW_MOST_S,
        help_text="Stopped when its cards do nothing for so long; the queue or the installation may ask for less.",
    )
    priority = StrictInteger(required=False, default=0, min_value=-1000, max_value=1000, help_text="Above 0: staff only.")
    queue = StrictChar(required=False, allow_blank=True, default="", max_length=40, help_text="By name; default: the policy's first.")
    qos = StrictChar(
        required=False,
        allow_blank=True,
        default="",
        max_length=40,
        help_text="Quality of service, by name; one that raises the priority: staff only.",
    )
    hold = StrictBoolean(required=False, default=False)
    constraints = Constraints(required=False)

    def validate_name(self, value: str) -> str:
        return _read(parsing.name_check, value)

    def validate_argv(self, value: list[str]) -> list[str]:
        _read(parsing.argv_check, value)
        return value

    def validate_command(self, value: str) -> list[str]:
        return _read(parsing.command_split, value)

    def validate_env(self, value: dict[str, str]) -> dict[str, str]:
        _read(parsing.env_check, value)
        return value

    def validate_workdir(self, value: str) -> str:
        return _read(parsing.path_check, value, absolute=True)

    def validate_checkpoint(self, value: str) -> str:
        return _read(parsing.path_check, value, absolute=False)

    def validate_grace_s(self, value: int | None) -> int | None:
        if value is not None and value > settings.MAX_GRACE_S:
            raise serializers.ValidationError(refusals.error_text("grace_range", {"value": value, "limit": settings.MAX_GRACE_S}))
        return value

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "argv" in attrs and "command" in attrs:
            raise _refuse("command", "command_both")
        if "argv" not in attrs and "command" not in attrs:
            raise _refuse("argv", "command_missing")
        if attrs.get("gpu_mem") is not None and attrs.get("gpu_mem_mib") is not None:
            raise _refuse("gpu_mem", "size_twice")
        if attrs.get("time") is not None and attrs.get("time_limit_s") is not None:
            raise _refuse("time", "time_twice")
        for one, other in (("cpus", "cpu_milli"), ("host_mem", "host_mem_mib")):
            if attrs.get(one) is not None and attrs.get(other) is not None:
                raise _refuse(one, "given_twice", one=one, other=other)
        if attrs.get("secrets"):
            try:
                attrs["secrets"] = parsing.secrets_check(attrs["secrets"], attrs.get("env") or {})
            except parsing.Unreadable as error:
                raise _refuse("secrets", error.code, **error.params) from error
        if attrs["gpu_count"] == 0 and _either(attrs, "gpu_mem", "gpu_mem_mib") is not None:
            raise _refuse("gpu_mem", "cpu_memory")
        if attrs["gpu_count"] == 0 and attrs["exclusive"]:
            raise _refuse("exclusive", "cpu_exclusive")
        for field in ("model", "arch", "vendor"):
            if attrs["gpu_count"] == 0 and (attrs.get("constraints") or {}).get(field):
                text = refusals.error_text("cpu_kind", {"field": field})
                raise serializers.ValidationError({"constraints": {field: [text]}}, code="cpu_kind")
        return attrs

    def job_request(self, user: User) -> JobRequest:
        """Call after ``is_valid``. A query for the project, two for secrets. Raises ValidationError (project, priority, queue, qos)."""
        data: dict[str, Any] = self.validated_data
        if data["priority"] > 0 and not user.acts_as_staff:
            raise _refuse("priority", "priority_staff")
        policy = policy_current()
        for field, check in (("queue", needs.queue_check), ("qos", partial(needs.qos_check, is_staff=user.acts_as_staff))):
            try:
                check(data[field], policy)
            except parsing.Unreadable as error:
                raise _refuse(field, error.code, **error.params) from error
        host = {"cpu_milli": _either(data, "cpus", "cpu_milli"), "host_mem_mib": _either(data, "host_mem", "host_mem_mib")}
        argv = data["argv"] if "argv" in data else data["command"]
        if data.get("project") or user.confined_to is not None:
            projects = projects_to_submit(user)
            project = (projects.filter(name=data["project"]) if data.get("project") else projects).first()
            if project is None:
                raise _refuse("project", "project_not_found", project=parsing.shorten(data.get("project") or ""))
        else:
            project = project_personal(user)
        secrets = list(data.get("secrets") or ())
        if secrets:
            if user.confined_to is not None:  # a project's token gets at nobody's own
                secrets = [text if text.startswith("project/") else f"project/{text}" for text in secrets]
            refs = refs_find(secrets, owner=user.pk, project=project.pk)
            missing = [ref.name for ref in refs if not ref.id]
            if missing:
                raise _refuse("secrets", "secret_missing", name=missing[0], project=project.name)
            try:
                secrets_weigh({ref.id for ref in refs})
            except SecretRefused as error:
                raise serializers.ValidationError({"secrets": [error.message]}, code=error.code) from error
        found = JobRequest(
            name=data.get("name") or parsing.name_from_argv(argv),
            argv=tuple(argv),
            project=project,
            workdir=data["workdir"],
            env=data.get("env") or {},
            secrets=tuple(secrets),
            gpu_count=data["gpu_count"],
            gpu_mem_mib=None if isinstance(data.get("gpu_mem"), Fraction) else _either(data, "gpu_mem", "gpu_mem_mib"),
            nodes=data["nodes"],
            time_limit_s=_either(data, "time", "time_limit_s"),
            checkpoint=data["checkpoint"],
            requeue=data["requeue"],
            on_node_loss=data["on_node_loss"],
            grace_s=data.get("grace_s"),
            idle_after_s=data.get("idle_after_s"),
            priority=data["priority"],
            hold=data["hold"],
            queue=data["queue"],
            qos=data["qos"],
            constraints=needs.constraints_of({**(data.get("constraints") or {}), **host, "exclusive": data["exclusive"]}),
        )
        if not isinstance(data.get("gpu_mem"), Fraction):
            return found
        try:
            return replace(found, gpu_mem_mib=share_mib(data["gpu_mem"], sizes_for(found)))
        except parsing.Unreadable as error:
            raise _refuse("gpu_mem", error.code, **error.params) from error


class HoldRequest(InputSerializer):
    why = StrictChar(required=False, allow_blank=True, default="", max_length=200)


class Empty(InputSerializer):
    """A body without fields."""


# --- out --------------------------------------------------------------------------------------------------------


def _iso(at: Any) -> str | None:
    return at.isoformat().replace("+00:00", "Z") if at is not None else None


def wait_json(job: Job, *, position: int | None, told: Told | None = None) -> dict[str, Any] | None:
    if job.state != JobState.WAITING:
        return None
    now = timezone.now()
    params = reason_dated(job.wait_code, job.wait_params, told, now=now)
    return {
        "code": job.wait_code,
        "params": params,
        "text": wording.reason_text(job.wait_code, params),
        "position": position,
        "checked_at": _iso(job.wait_at),
        "estimate": None if told is None or job.held else estimate_json(told, now=now),
    }


def estimate_json(told: Told, *, now: datetime) -> dict[str, Any]:
    """When it will probably start, as it was told at ``told.at``."""
    return {
        "p50": iso(told.p50),
        "p90": iso(told.p90),
        "later_than": iso(told.after),
        "text": wording.start_text(told.p50, told.p90, told.after, now=now),
        "place": told.place,
        "made_at": iso(told.at),
        "age_s": round(told.age_s(now), 1),
        "is_stale": told.is_stale(now),
    }


def end_json(job: Job) -> dict[str, Any] | None:
    if not job.end_reason or not job.is_final:
        return None
    return {"reason": job.end_reason, "params": job.end_params, "text": wording.end_text(job), "exit_code": job.exit_code}


def rank_json(rank: Rank, *, log_bytes: int) -> dict[str, Any]:
    """``rank`` with node and slices (in placement order, each with its card) loaded."""
    return {
        "index": rank.index,
        "node": rank.node.name,
        "desired": rank.desired,
        "observed": rank.observed,
        "exit_code": rank.exit_code,
        "exit_signal": rank.exit_signal,
        "log_bytes": log_bytes,
        "gpus": [
            {
                "uuid": part.gpu.uuid,
                "short": uuid_short(part.gpu.uuid),
                "index": part.gpu.index,
                "model": part.gpu.model,
                "mib": part.mib,
                "exclusive": part.is_exclusive,
                "simulated": part.gpu.is_simulated,
            }
            for part in sorted(rank.slices.all(), key=lambda part: (part.position, part.pk))
        ],
    }


def attempt_json(attempt: Attempt, *, log_length: Callable[[str], int] | None) -> dict[str, Any]:
    """``attempt`` with its ranks and their nodes loaded. ``log_length`` None = without ranks, as list rows have it."""
    answer: dict[str, Any] = {"epoch": attempt.epoch, "started_at": _iso(attempt.started_at), "ended_at": _iso(attempt.ended_at)}
    answer["nodes"] = [rank.node.name for rank in attempt.ranks.all()]
    if log_length is not None:
        answer["ranks"] = [rank_json(rank, log_bytes=log_length(rank.key)) for rank in attempt.ranks.all()]
    return answer


#: What rows of lists don't have: a user's own text, up to hundreds of kilobytes of it a job.
ONLY_IN_DETAIL = ("argv", "env")


def job_row_json(job: Job, **more: Any) -> dict[str, Any]:
    """A row of a list: ``job_json`` without what makes a list long. Reads neither of those columns, so that they may be deferred."""
    return job_json(job, is_row=True, **more)


def job_json(
    job: Job,
    *,
    reader: User,
    attempt: Attempt | None,
    position: int | None = None,
    told: Told | None = None,
    log_length: Callable[[str], int] | None = None,
    is_row: bool = False,
) -> dict[str, Any]:
    """``job`` with owner and project loaded. The values of its environment are its owner's alone: others see names."""
    text = {} if is_row else {"argv": job.argv, "env": job.env if job.owner_id == reader.pk else dict.fromkeys(job.env)}
    return {
        "id": job.pk,
        "name": job.name,
        "state": job.state,
        "owner": job.owner.email,
        "project": job.project.name,
        "workdir": job.workdir,
        "secrets": job.secrets or [],
        "gpu_count": job.gpu_count,
        "gpu_mem_mib": job.gpu_mem_mib,
        "nodes": job.nodes,
        "constraints": {key: job.constraints[key] for key in needs.KIND if key in job.constraints},
        "cpu_milli": job.constraints.get("cpu_milli"),
        "host_mem_mib": job.constraints.get("host_mem_mib"),
        "exclusive": bool(job.constraints.get("exclusive")),
        "time_limit_s": job.time_limit_s,
        "grace_s": job.grace_s,
        "idle_after_s": job.idle_after_s,
        "priority": job.priority,
        "queue": job.queue,
        "qos": job.qos,
        "requeue": job.requeue,
        "requeues": job.requeues,
        "on_node_loss": job.on_node_loss,
        "checkpoint": job.checkpoint,
        "held": job.held,
        "held_why": job.held_why,
        "efficiency": None,  # of one job that has ended: jobs/api.py
        "want_cancel": job.want_cancel,
        "kind": job.kind,
        "wait": wait_json(job, position=position, told=told),
        "end": end_json(job),
        "attempt": attempt_json(attempt, log_length=log_length) if attempt is not None else None,
        "submitted_at": _iso(job.submitted_at),
        "queued_at": _iso(job.queued_at),
        "started_at": _iso(job.started_at),
        "ended_at": _iso(job.ended_at),
        **text,
    }


def event_json(event: JobEvent) -> dict[str, Any]:
    return {
        "id": event.pk,
        "at": _iso(event.at),
        "code": event.code,
        "params": event.params,
        "text": wording.event_text(event),
        "from_state": event.from_state,
        "to_state": event.to_state,
        "epoch": event.epoch,
        "by": event.by.email if event.by is not None else None,
    }


def artifact_json(artifact: Artifact) -> dict[str, Any]:
    return {
        "attempt": artifact.rank.attempt.epoch,
        "rank": artifact.rank.index,
        "name": artifact.name,
        "size": artifact.size,
        "sha256": artifact.sha256,
        "created_at": _iso(artifact.created_at),
    }
