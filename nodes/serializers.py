"""Nodes and cards as JSON, built from loaded rows and the latest telemetry: nothing here causes a query."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from nodes.claims import claim_id
from nodes.isolation import Told, isolates_people
from nodes.models import AgentCommand, Gpu, GpuLink, GpuState, Node, NodeState
from nodes.names import NAME_MOST, node_name_validate
from nodes.pool import gpu_use
from nodes.slices import slice_free
from nodes.telemetry import Latest
from nodes.topology import links_json
from nodes.wording import advice_text, cordon_text, node_advice
from quotas.moments import moment_validate


def uuid_short(uuid: str) -> str:
    """``GPU-4f1c2a90-…`` → ``GPU-4f1c2a90`` (D13); what has no such form is cut to 16 characters."""
    head, dash, rest = uuid.partition("-")
    first = rest.partition("-")[0]
    return f"{head}-{first}" if dash and head.isalpha() and len(first) >= 8 else uuid[:16]


def _iso(at: Any) -> str | None:
    return at.isoformat().replace("+00:00", "Z") if at is not None else None


def gpu_json(
    gpu: Gpu,
    status: Mapping[str, Any] | None,
    health: Mapping[str, Any] | None = None,
    *,
    slices: Sequence[Mapping[str, Any]] = (),
    nvlink: bool = False,
) -> dict[str, Any]:
    """``gpu`` with its node loaded. What the hardware does not tell is null, never 0; so is all of a node that is silent.

    ``health``: its slow facts (docs/hardware.md). ``slices``: what jobs hold of it; ``nvlink``: whether another card is joined to it so.
    """
    known = status or {}
    sampled = known.get("sampled_at")
    util = known.get("util_pct")
    found = gpu_use(gpu, status)
    return {
        "uuid": gpu.uuid,
        "short": uuid_short(gpu.uuid),
        "node": gpu.node.name,
        "index": gpu.index,
        "model": gpu.model,
        "vendor": gpu.vendor,
        "state": gpu.state,
        "state_reason": gpu.state_reason,
        "total_mib": gpu.total_mib,
        "nominal_mib": gpu.nominal_mib,
        "held_mib": gpu.held_mib,
        "free_mib": found.free_mib,
        "use": found.use,
        "slices": [*slices, *([slice_free(found.free_mib)] if found.free_mib and found.takes_work else [])],
        "live_slices": gpu.live_slices,
        "nvlink": nvlink,
        "exclusive": gpu.is_exclusive,
        "simulated": gpu.is_simulated,
        "compute_capability": gpu.compute_capability,
        "pci_bus_id": gpu.pci_bus_id,
        "pcie_gen": gpu.pcie_gen,
        "pcie_width": gpu.pcie_width,
        "pcie_hops": gpu.pcie_hops,
        "numa": gpu.numa,
        "parent": gpu.parent or None,
        "profile": gpu.profile or None,
        "used_mib": known.get("used_mib"),
        "util_pct": util,
        "mem_util_pct": known.get("mem_util_pct"),
        "tensor_pct": known.get("tensor_pct"),
        "temp_c": known.get("temp_c"),
        "power_w": known.get("power_w"),
        "foreign_mib": known.get("foreign_mib"),
        "throttle": known.get("throttle"),
        "error": known.get("error"),
        "health": dict(health) if health is not None else None,
        "sampled_at": _iso(datetime.fromtimestamp(sampled, UTC)) if sampled is not None else None,
        "stale": bool(known.get("stale", True)),
        # A card whose use nobody can read is not called idle.
        "is_idle": found.use == "idle" and util is not None and util < 5 and not known.get("stale", True),
    }


def isolation_out(told: Told) -> dict[str, Any] | None:
    """Null: the agent has not told anything, or is of an older version that does not."""
    if not told:
        return None
    names = ("identity", "account", "uid", "sandbox", "open", "limits", "ready", "problem")
    return {**{name: told.get(name) for name in names}, "isolates_people": isolates_people(told)}


def claim_out(claim: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not claim:
        return None
    return {
        "id": claim_id(claim),
        "code": claim["code"],
        "hostname": claim["hostname"],
        "peer": claim["peer"],
        "at": _iso(datetime.fromtimestamp(claim["at"], UTC)),
        "confirmed": claim["is_confirmed"],
    }


def node_json(
    node: Node,
    gpus: Sequence[Gpu],
    latest: Mapping[int, Mapping[str, Any]],
    health: Mapping[int, Mapping[str, Any]] | None = None,
    links: Sequence[GpuLink] = (),
    told: Latest | None = None,
    slices: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
) -> dict[str, Any]:
    """``latest`` and ``health``: card id → status, → slow facts; ``links`` with both cards loaded; ``told``: by its last sync;
    ``slices``: card id → what jobs hold of it.

    load_pct is the mean GPU utilisation of the cards that tell it.
    """
    by_nvlink = {pk for link in links if link.kind == "nvlink" for pk in (link.a_id, link.b_id)}
    loads = [status["util_pct"] for gpu in gpus if (status := latest.get(gpu.pk)) and status.get("util_pct") is not None]
    return {
        "name": node.name,
        "state": node.state,
        "state_at": _iso(node.state_at),
        "cordoned": node.cordoned,
        "cordon_reason": cordon_text(node.cordon_reason),
        "cordoned_until": _iso(node.cordoned_until),
        "simulated": node.is_simulated,
        "hostname": node.hostname,
        "address": node.address,
        "os": node.os,
        "agent_version": node.agent_version,
        "driver_version": node.driver_version,
        "cuda_version": node.cuda_version,
        "cpu_cores": node.cpu_cores,
        "memory_mib": node.memory_mib,
        "numa_nodes": node.numa_nodes,
        "rdma": node.has_rdma,
        "rdma_ports": node.rdma_ports,
        "metrics_only": node.is_metrics_only,
        "isolation": isolation_out(node.isolation),
        "claim": claim_out(node.claim),
        "labels": dict(sorted(node.labels.items())),
        "last_seen_at": _iso(node.last_seen_at),
        "advice": [{"code": code, "text": advice_text(code)} for code in node_advice(node.advice, told)],
        "load_pct": round(sum(loads) / len(loads)) if loads else None,
        "gpus": [
            gpu_json(gpu, latest.get(gpu.pk), (health or {}).get(gpu.pk), slices=(slices or {}).get(gpu.pk, ()), nvlink=gpu.pk in by_nvlink)
            for gpu in gpus
        ],
        "links": links_json(links),
    }


def command_json(command: AgentCommand) -> dict[str, Any]:
    """``command`` with node and created_by loaded."""
    return {
        "id": command.pk,
        "node": command.node.name,
        "verb": command.verb,
        "args": command.args,
        "state": command.state,
        "text": command.text,
        "created_by": command.created_by.email if command.created_by is not None else None,
        "created_at": _iso(command.created_at),
        "expires_at": _iso(command.expires_at),
        "finished_at": _iso(command.finished_at),
    }


# --- in ---------------------------------------------------------------------------------------------------------


class Text(serializers.CharField):
    """A JSON string, never made from a number."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class NodeInput(serializers.Serializer[Any]):
    """Refuses fields that it does not know. A twin of quotas.serializers.InputSerializer: this room does not import that one."""

    def to_internal_value(self, data: Any) -> Any:
        unknown = [key for key in data if key not in self.fields] if isinstance(data, Mapping) else []
        if unknown:
            raise serializers.ValidationError({str(key)[:60]: [self._unknown(str(key))] for key in unknown[:10]}, code="unknown_field")
        return super().to_internal_value(data)

    def _unknown(self, key: str) -> str:
        near = difflib.get_close_matches(key[:60], list(self.fields), n=1, cutoff=0.6)
        if near:
            return _("There is no such field. Did you mean %(near)s?") % {"near": near[0]}
        return _("There is no such field. Known are: %(known)s.") % {"known": ", ".join(self.fields) or _("none")}


class NodePatch(NodeInput):
    labels = serializers.DictField(
        child=Text(allow_null=True, allow_blank=True, trim_whitespace=False), help_text="Those named here change; null takes one away."
    )


class DrainRequest(NodeInput):
    reason = Text(max_length=200, help_text="Shown to everybody whose job waits.")
    until = serializers.DateTimeField(
        required=False, allow_null=True, validators=[moment_validate], help_text="The node resumes by itself then."
    )


class ResumeRequest(NodeInput):
    """A body without fields."""


class ConfirmRequest(NodeInput):
    what = serializers.ChoiceField(choices=("agent", "inventory"))
    claim = Text(
        required=False, allow_blank=True, default="", max_length=64, help_text="With agent: the id of the claim that you looked at."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["what"] == "agent" and not attrs["claim"]:
            raise serializers.ValidationError({"claim": _("Say which agent you looked at: the id in the node's claim.")})
        return attrs


class EnrollTokenRequest(NodeInput):
    name = Text(
        required=False,
        allow_blank=True,
        default="",
        max_length=NAME_MOST,
        validators=[node_name_validate],
        help_text="gpu01 or gpu01.lab.example.org. Empty: the machine's own name.",
    )


class CommandRequest(NodeInput):
    verb = Text(max_length=20, help_text="diagnose, doctor, drill, ping, reset, selftest, tail")
    args = serializers.DictField(required=False)


# --- for OpenAPI --------------------------------------------------------------------------------------------------


class AdviceSchema(serializers.Serializer[Any]):
    code = serializers.CharField()
    text = serializers.CharField()


class RdmaPortSchema(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="mlx5_0:1 = device:port")
    state = serializers.CharField()
    rate_gbps = serializers.IntegerField(allow_null=True)
    layer = serializers.CharField()


class LinkSchema(serializers.Serializer[Any]):
    """How two cards reach each other; a and b are indexes."""

    a = serializers.IntegerField()
    b = serializers.IntegerField()
    kind = serializers.CharField(help_text="From near to far: nvlink, pcie_switch, pcie_host, numa, system.")
    lanes = serializers.IntegerField()
    via = serializers.CharField(allow_null=True, help_text="More exactly: nvswitch, xgmi, pix, pxb.")


class SliceSchema(serializers.Serializer[Any]):
    """job, name and user are null where the caller may not know whose it is, and of what is free."""

    id = serializers.CharField(allow_null=True)
    memory_mib = serializers.IntegerField()
    state = serializers.ChoiceField(choices=("held", "active", "releasing", "quarantined", "free"))
    job = serializers.IntegerField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    user = serializers.CharField(allow_null=True)


class GpuSchema(serializers.Serializer[Any]):
    uuid = serializers.CharField()
    short = serializers.CharField()
    node = serializers.CharField()
    index = serializers.IntegerField()
    model = serializers.CharField()
    vendor = serializers.CharField()
    state = serializers.ChoiceField(choices=GpuState.values)
    state_reason = serializers.CharField()
    total_mib = serializers.IntegerField(allow_null=True)
    nominal_mib = serializers.IntegerField(allow_null=True)
    held_mib = serializers.IntegerField()
    free_mib = serializers.IntegerField(
        allow_null=True, help_text="What slices and ghost use leave; null: the size is not known, or the card is missing."
    )
    use = serializers.ChoiceField(choices=("idle", "busy", "maintenance"), help_text="How the overview counts it.")
    slices = SliceSchema(many=True, help_text="Its parts: what jobs hold, and what is free for new ones.")
    live_slices = serializers.IntegerField()
    nvlink = serializers.BooleanField(help_text="Another card of the node is joined to it by NVLink; how: the node's links.")
    exclusive = serializers.BooleanField()
    simulated = serializers.BooleanField()
    compute_capability = serializers.CharField()
    pci_bus_id = serializers.CharField()
    pcie_gen = serializers.IntegerField(allow_null=True, help_text="The most that card and slot can do; pcie_width likewise.")
    pcie_width = serializers.IntegerField(allow_null=True)
    pcie_hops = serializers.IntegerField(allow_null=True, help_text="PCIe switches between card and processor.")
    numa = serializers.IntegerField(allow_null=True)
    parent = serializers.CharField(allow_null=True, help_text="The card that this is a MIG part of.")
    profile = serializers.CharField(allow_null=True, help_text="Of a MIG part: 1g.10gb.")
    used_mib = serializers.IntegerField(allow_null=True)
    util_pct = serializers.IntegerField(allow_null=True, help_text="Share of time in which a kernel ran.")
    mem_util_pct = serializers.IntegerField(allow_null=True, help_text="Share of time in which memory was read or written.")
    tensor_pct = serializers.IntegerField(allow_null=True, help_text="Share of time in which tensor units worked.")
    temp_c = serializers.IntegerField(allow_null=True)
    power_w = serializers.IntegerField(allow_null=True)
    foreign_mib = serializers.IntegerField(allow_null=True, help_text="Memory of processes that belong to no job.")
    throttle = serializers.ListField(
        child=serializers.CharField(), allow_null=True, help_text="What holds the clocks down now; empty: nothing does."
    )
    error = serializers.CharField(allow_null=True, help_text="Why the card tells no figures: lost, unresponsive, …")
    health = serializers.DictField(
        allow_null=True, help_text="Error counts, link, limits: what changes slowly; fields that are not told are left out."
    )
    sampled_at = serializers.DateTimeField(allow_null=True)
    stale = serializers.BooleanField()
    is_idle = serializers.BooleanField(help_text="False also where the use can't be read.")


class IsolationSchema(serializers.Serializer[Any]):
    identity = serializers.CharField(help_text="same | shared | mapped: who jobs run as.")
    account = serializers.CharField(allow_null=True)
    uid = serializers.IntegerField()
    sandbox = serializers.CharField(help_text="mounts | landlock | none: what closes our folders to jobs.")
    open = serializers.ListField(child=serializers.CharField(), help_text="What a job can still reach.")
    limits = serializers.DictField(child=serializers.BooleanField(), help_text="memory, cpu, pids, devices: enforced or not.")
    ready = serializers.BooleanField(help_text="False: no job can be started here safely.")
    problem = serializers.CharField(allow_null=True)
    isolates_people = serializers.BooleanField(help_text="Whether people's jobs are kept apart here.")


class ClaimSchema(serializers.Serializer[Any]):
    """Another agent that asks to speak for the node."""

    id = serializers.CharField()
    code = serializers.ChoiceField(choices=("session_busy", "session_unconfirmed"))
    hostname = serializers.CharField()
    peer = serializers.CharField()
    at = serializers.DateTimeField()
    confirmed = serializers.BooleanField()


class NodeSchema(serializers.Serializer[Any]):
    name = serializers.CharField()
    state = serializers.ChoiceField(choices=NodeState.values)
    state_at = serializers.DateTimeField(help_text="Since when it is in this state.")
    cordoned = serializers.BooleanField()
    cordon_reason = serializers.CharField()
    cordoned_until = serializers.DateTimeField(allow_null=True)
    simulated = serializers.BooleanField()
    hostname = serializers.CharField()
    address = serializers.CharField()
    os = serializers.CharField()
    agent_version = serializers.CharField()
    driver_version = serializers.CharField()
    cuda_version = serializers.CharField()
    cpu_cores = serializers.IntegerField(allow_null=True)
    memory_mib = serializers.IntegerField(allow_null=True)
    numa_nodes = serializers.IntegerField(allow_null=True)
    rdma = serializers.BooleanField()
    rdma_ports = RdmaPortSchema(many=True)
    isolation = IsolationSchema(allow_null=True, help_text="Null: the agent has not told, or is of an older version.")
    claim = ClaimSchema(allow_null=True, help_text="Null: nobody else asked to speak for this node since its agent began.")
    metrics_only = serializers.BooleanField(help_text="Its agent launches nothing: no job comes to it.")
    labels = serializers.DictField(child=serializers.CharField())
    last_seen_at = serializers.DateTimeField(allow_null=True)
    advice = AdviceSchema(many=True)
    load_pct = serializers.IntegerField(allow_null=True)
    gpus = GpuSchema(many=True)
    links = LinkSchema(many=True)


class EnrollTokenSchema(serializers.Serializer[Any]):
    token = serializers.CharField(help_text="Shown once; good for one machine and one hour.")
    expires_at = serializers.DateTimeField()
    name = serializers.CharField()


class CommandSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    node = serializers.CharField()
    verb = serializers.CharField()
    args = serializers.DictField()
    state = serializers.ChoiceField(choices=AgentCommand.State.values)
    text = serializers.CharField()
    created_by = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
