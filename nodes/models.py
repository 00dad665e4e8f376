"""The pool's hardware: Node, EnrolToken, Gpu, GpuLink, HealthEvent, AgentCommand.

INVARIANT (database constraints): Σ live slice MiB on a card ≤ its size, live slices ≤ its cap, an exclusive slice is
alone. The three counters on Gpu carry it; jobs/apply.py and jobs/services write them by conditional UPDATE only.
Latest telemetry is in Redis (nodes/telemetry.py), not here.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from nodes.alert_models import Alert, AlertJob, AlertMute, AlertRule
from nodes.health_models import CardCare, Incident, IncidentEntry, Inspection, XidPolicy
from nodes.isolation import is_ready
from nodes.names import NAME_MOST, node_name_validate
from nodes.sample_models import GpuSample, Level, NodeSample, PoolSample, RankSample

__all__ = [
    "AgentCommand",
    "Alert",
    "AlertJob",
    "AlertMute",
    "AlertRule",
    "CardCare",
    "EnrolToken",
    "Gpu",
    "GpuLink",
    "GpuSample",
    "GpuState",
    "HealthEvent",
    "Incident",
    "IncidentEntry",
    "Inspection",
    "Level",
    "Node",
    "NodeSample",
    "NodeState",
    "PoolSample",
    "RankSample",
    "XidPolicy",
]


class NodeState(models.TextChoices):
    ENROLLING = "ENROLLING", _("enrolling")
    RECOVERING = "RECOVERING", _("recovering")
    READY = "READY", _("ready")
    UNKNOWN = "UNKNOWN", _("unknown")
    DOWN = "DOWN", _("down")
    RETIRED = "RETIRED", _("retired")


class Node(models.Model):
    """A machine with an agent. ``session`` is the agent's current start; superseded ones are refused for ever.
    ``past_sessions`` keeps the last 32. ``last_seen_at`` is flushed in bulk every 5 s; the truth of the second is in Redis."""

    name = models.CharField(_("name"), max_length=NAME_MOST, unique=True, validators=[node_name_validate])
    state = models.CharField(_("state"), max_length=12, choices=NodeState.choices, default=NodeState.ENROLLING)
    state_at = models.DateTimeField(_("state since"), default=timezone.now)
    # NULL, not "", for a node without one: it must be unique among those that have it.
    credential_sha256 = models.CharField(max_length=64, unique=True, null=True, editable=False)  # noqa: DJ001
    # The one that its agent has made and not used yet, and the one of before: whoever shows that one later has stolen it.
    next_credential_sha256 = models.CharField(max_length=64, blank=True, default="", editable=False)
    past_credential_sha256 = models.CharField(max_length=64, blank=True, default="", editable=False)
    credential_at = models.DateTimeField(null=True, editable=False)  # since when the present one is good
    session = models.CharField(_("agent session"), max_length=40, blank=True)
    past_sessions = models.JSONField(default=list, editable=False)
    # SHA-256 of the secret that the agent of this session keeps in its store: its successor knows it (nodes/sessions.py).
    session_proof = models.CharField(max_length=64, blank=True, default="", editable=False)
    # Who else wants to speak for this node and is not believed yet (nodes/claims.py).
    claim = models.JSONField(null=True, blank=True, editable=False)
    last_seq = models.BigIntegerField(default=0, editable=False)
    boot_id = models.CharField(_("boot id"), max_length=40, blank=True)
    # The restore from a backup that this node has not answered yet (jobs.models.Restore): until then it takes no work.
    restore = models.CharField(_("restore to answer"), max_length=36, blank=True, default="", editable=False)
    inventory_sha256 = models.CharField(max_length=64, blank=True, editable=False)
    last_seen_at = models.DateTimeField(_("last seen"), null=True, blank=True)
    last_uptime_s = models.FloatField(null=True, editable=False)  # how long it had been up by then
    hostname = models.CharField(_("host name"), max_length=253, blank=True)
    address = models.CharField(_("address"), max_length=253, blank=True)
    os = models.CharField(_("operating system"), max_length=120, blank=True)
    agent_version = models.CharField(_("agent version"), max_length=40, blank=True)
    driver_version = models.CharField(_("driver"), max_length=40, blank=True)
    cuda_version = models.CharField(_("CUDA"), max_length=20, blank=True)
    cpu_cores = models.PositiveIntegerField(_("CPU cores"), null=True, blank=True)
    memory_mib = models.PositiveIntegerField(_("memory, MiB"), null=True, blank=True)
    has_rdma = models.BooleanField(_("RDMA"), default=False)
    rdma_ports = models.JSONField(_("RDMA ports"), default=list, blank=True)  # [{"name", "state", "rate_gbps", "layer"}]
    numa_nodes = models.PositiveSmallIntegerField(_("NUMA nodes"), null=True, blank=True)
    backends = models.JSONField(_("cards are read with"), default=list, blank=True)  # nvml | level_zero | ascend | amd | simulated
    is_metrics_only = models.BooleanField(_("metrics only"), default=False, help_text=_("Its agent launches nothing: no job comes here."))
    is_simulated = models.BooleanField(_("simulated"), default=False)
    advice = models.JSONField(_("advice"), default=list, blank=True)
    # What the agent told of who jobs run as and what they can reach (nodes/isolation.py); {} = it does not tell, NULL = nothing yet.
    isolation = models.JSONField(_("isolation"), null=True, blank=True)
    labels = models.JSONField(_("labels"), default=dict, blank=True)
    cordoned = models.BooleanField(_("cordoned"), default=False)
    cordon_reason = models.CharField(_("cordon reason"), max_length=200, blank=True)
    cordoned_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("cordoned by"), null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    cordoned_until = models.DateTimeField(_("cordoned until"), null=True, blank=True)
    # In a row, by its own fault (nodes/launches.py).
    spoilt_launches = models.PositiveSmallIntegerField(_("spoilt launches"), default=0, editable=False)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)

    class Meta:
        ordering = ("name",)
        verbose_name = _("node")
        verbose_name_plural = _("nodes")

    def __str__(self) -> str:
        return self.name

    @property
    def takes_work(self) -> bool:
        is_up = self.state == NodeState.READY and not self.cordoned and not self.is_metrics_only
        return is_up and self.isolation is not None and is_ready(self.isolation)


class Installation(models.Model):
    """This control plane: one row. ``code`` is part of what its agents call their cgroups, so that the nodes of two control planes
    on one machine never meet; it stays the same for ever, over a backup, too."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    code = models.CharField(max_length=12)

    class Meta:
        constraints = (models.CheckConstraint(condition=Q(id=1), name="installation_only_one"),)

    def __str__(self) -> str:
        return self.code


class EnrolToken(models.Model):
    """Lets one machine join once, for at most an hour."""

    token_sha256 = models.CharField(max_length=64, unique=True, editable=False)
    node_name = models.CharField(
        _("node name"), max_length=NAME_MOST, blank=True, validators=[node_name_validate], help_text=_("Empty: the machine's own name.")
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("created by"), null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    expires_at = models.DateTimeField(_("expires"))
    used_at = models.DateTimeField(_("used"), null=True, blank=True, editable=False)
    node = models.ForeignKey(
        Node, verbose_name=_("node"), null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        verbose_name = _("enrolment token")
        verbose_name_plural = _("enrolment tokens")

    def __str__(self) -> str:
        return f"token for {self.node_name or 'any machine'}"


class GpuState(models.TextChoices):
    HEALTHY = "HEALTHY", _("healthy")
    SUSPECT = "SUSPECT", _("suspect")
    ISOLATED = "ISOLATED", _("isolated")
    MAINTENANCE = "MAINTENANCE", _("maintenance")
    MISSING = "MISSING", _("missing")
    RETIRED = "RETIRED", _("retired")  # another card is in its slot: kept for the history of jobs, in no list


class Gpu(models.Model):
    """A card of any vendor, known by its UUID for ever. ``total_mib`` None = unknown: shown, never scheduled.

    ``held_mib``, ``live_slices`` and ``is_exclusive`` count the live slices (HELD, ACTIVE, RELEASING, QUARANTINED).
    """

    node = models.ForeignKey(Node, verbose_name=_("node"), on_delete=models.CASCADE, related_name="gpus")
    uuid = models.CharField(_("UUID"), max_length=80, unique=True)
    index = models.PositiveIntegerField(_("index"))
    model = models.CharField(_("model"), max_length=120)
    vendor = models.CharField(_("vendor"), max_length=20)
    total_mib = models.PositiveIntegerField(_("memory, MiB"), null=True, blank=True)
    nominal_mib = models.PositiveIntegerField(_("nominal memory, MiB"), null=True, blank=True)
    compute_capability = models.CharField(_("compute capability"), max_length=12, blank=True)
    pci_bus_id = models.CharField(_("PCI bus id"), max_length=32, blank=True)
    pcie_gen = models.PositiveSmallIntegerField(_("PCIe generation"), null=True, blank=True)
    pcie_width = models.PositiveSmallIntegerField(_("PCIe lanes"), null=True, blank=True)
    pcie_hops = models.PositiveSmallIntegerField(_("PCIe switches on the way"), null=True, blank=True)
    numa = models.IntegerField(_("NUMA node"), null=True, blank=True)
    parent = models.CharField(_("MIG part of"), max_length=80, blank=True)  # the UUID of a card of the same node
    profile = models.CharField(_("MIG profile"), max_length=32, blank=True)
    is_unified = models.BooleanField(_("unified memory"), default=False)
    is_simulated = models.BooleanField(_("simulated"), default=False)
    state = models.CharField(_("state"), max_length=12, choices=GpuState.choices, default=GpuState.HEALTHY)
    state_reason = models.CharField(_("state reason"), max_length=200, blank=True)
    state_at = models.DateTimeField(_("state since"), default=timezone.now)
    health_score = models.PositiveSmallIntegerField(_("health score"), default=100)
    max_slices = models.PositiveSmallIntegerField(_("most slices"), default=4)
    held_mib = models.PositiveIntegerField(_("memory held, MiB"), default=0)
    live_slices = models.PositiveSmallIntegerField(_("live slices"), default=0)
    is_exclusive = models.BooleanField(_("held whole"), default=False)

    class Meta:
        ordering = ("node__name", "index")
        verbose_name = _("GPU")
        verbose_name_plural = _("GPUs")
        constraints = (
            models.CheckConstraint(condition=Q(held_mib=0) | Q(held_mib__lte=F("total_mib")), name="gpu_memory_not_oversold"),
            models.CheckConstraint(condition=Q(live_slices__lte=F("max_slices")), name="gpu_slices_within_cap"),
            models.CheckConstraint(condition=Q(is_exclusive=False) | Q(live_slices=1), name="gpu_exclusive_is_alone"),
            models.CheckConstraint(condition=Q(live_slices__gt=0) | Q(held_mib=0, is_exclusive=False), name="gpu_empty_is_empty"),
        )

    def __str__(self) -> str:
        return f"{self.node_id}:{self.index} {self.model}"


class GpuLink(models.Model):
    """How near two cards of a node are; ``a`` has the smaller id."""

    a = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="+")
    b = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(_("kind"), max_length=12)  # nvlink | pcie_switch | pcie_host | numa | system
    count = models.PositiveSmallIntegerField(_("lanes"), default=1)
    via = models.CharField(_("exactly"), max_length=12, blank=True)  # nvswitch | xgmi | pix | pxb

    class Meta:
        verbose_name = _("GPU link")
        verbose_name_plural = _("GPU links")
        constraints = (
            models.UniqueConstraint(fields=("a", "b"), name="gpulink_once"),
            models.CheckConstraint(condition=Q(a__lt=F("b")), name="gpulink_ordered"),
        )

    def __str__(self) -> str:
        return f"{self.a_id}–{self.b_id} {self.kind}"


class HealthEvent(models.Model):
    """What an agent reported once. (node, session, eid) is unique: repeats are dropped by the database."""

    node = models.ForeignKey(Node, verbose_name=_("node"), on_delete=models.CASCADE, related_name="health_events")
    gpu = models.ForeignKey(Gpu, verbose_name=_("GPU"), null=True, blank=True, on_delete=models.SET_NULL, related_name="health_events")
    session = models.CharField(max_length=40)
    eid = models.BigIntegerField()
    kind = models.CharField(_("kind"), max_length=40)
    data = models.JSONField(_("data"), default=dict, blank=True)
    at = models.DateTimeField(_("at"), default=timezone.now, db_index=True)
    # The job whose program caused it and that has to fail for it; NULL again once that was ordered (jobs/services/faults.py).
    fails_job = models.BigIntegerField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("health event")
        verbose_name_plural = _("health events")
        constraints = (models.UniqueConstraint(fields=("node", "session", "eid"), name="healthevent_once"),)
        indexes = (
            models.Index(fields=("fails_job",), condition=Q(fails_job__isnull=False), name="healthevent_fails_job"),
            models.Index(fields=("gpu", "at"), name="healthevent_gpu_at"),
        )

    def __str__(self) -> str:
        return f"{self.kind} on {self.node_id}"


class AgentCommand(models.Model):
    """A request to a node's agent. QUEUED → DONE | FAILED | EXPIRED; given out with each sync until it is answered."""

    class State(models.TextChoices):
        QUEUED = "QUEUED", _("queued")
        DONE = "DONE", _("done")
        FAILED = "FAILED", _("failed")
        EXPIRED = "EXPIRED", _("expired")

    node = models.ForeignKey(Node, verbose_name=_("node"), on_delete=models.CASCADE, related_name="commands")
    verb = models.CharField(_("verb"), max_length=20)
    args = models.JSONField(_("arguments"), default=dict, blank=True)
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.QUEUED)
    text = models.TextField(_("result"), blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("created by"), null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    expires_at = models.DateTimeField(_("expires"))
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("agent command")
        verbose_name_plural = _("agent commands")
        indexes = (models.Index(fields=("node", "state"), name="agentcommand_node_state"),)

    def __str__(self) -> str:
        return f"{self.verb} on {self.node_id}"


#: As REST tells them (the name of this set in the OpenAPI document: settings.py).
COMMAND_STATES = AgentCommand.State.values
