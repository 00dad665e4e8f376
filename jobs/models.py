"""Job, Attempt, Rank, Slice, JobEvent, IdempotencyKey, Restore: fields, constraints, tiny properties. Writes are in services.

INVARIANT (database): one live attempt a job; a final state never changes and an epoch never falls (triggers on both
databases); a slice holds memory; job events are append-only (trigger).
Reasons are stored as code + params and put into words, in the reader's language, by jobs/wording.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from jobs.kept_models import JobFiles as JobFiles
from jobs.lifecycle import FINAL, JobState, OnNodeLoss, RankState, SliceState, Want

STATE_CHOICES = [(s.value, s.value) for s in JobState]


class Job(models.Model):
    """What a user wants run. ``state`` is written by jobs.services.jobs_move only."""

    class Kind(models.TextChoices):
        BATCH = "batch", _("batch")
        SERVICE = "service", _("service")
        INTERACTIVE = "interactive", _("interactive")

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, verbose_name=_("owner"), on_delete=models.PROTECT, related_name="jobs")
    project = models.ForeignKey("quotas.Project", verbose_name=_("project"), on_delete=models.PROTECT, related_name="jobs")
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=12, choices=Kind.choices, default=Kind.BATCH)
    state = models.CharField(_("state"), max_length=12, choices=STATE_CHOICES, default=JobState.WAITING)
    # what to run
    argv = models.JSONField(_("command"))
    env = models.JSONField(_("environment"), default=dict, blank=True)
    secrets = models.JSONField(_("secrets"), null=True, blank=True)  # ["NAME", "NAME=VARIABLE"]; null = none
    text_bytes = models.PositiveIntegerField(null=True, blank=True, editable=False)  # of all that is to run, as it was submitted
    workdir = models.CharField(_("working folder"), max_length=4096, blank=True)
    checkpoint = models.CharField(_("checkpoint path"), max_length=4096, blank=True)
    # what it needs
    gpu_count = models.PositiveIntegerField(_("GPUs"), default=1)
    gpu_mem_mib = models.PositiveIntegerField(_("memory a GPU, MiB"), null=True, blank=True, help_text=_("Empty: whole cards."))
    nodes = models.PositiveIntegerField(_("nodes"), default=1)
    constraints = models.JSONField(_("constraints"), default=dict, blank=True)  # jobs/requests.py names the keys
    time_limit_s = models.PositiveIntegerField(_("time limit, s"), null=True, blank=True)
    grace_s = models.PositiveIntegerField(_("grace, s"), null=True, blank=True)
    idle_after_s = models.PositiveIntegerField(_("stopped when idle for, s"), null=True, blank=True)  # else the queue's or nobody's rule
    priority = models.IntegerField(_("priority"), default=0)
    queue = models.CharField(_("queue"), max_length=40, blank=True, default="")  # "" = the policy's first
    qos = models.CharField(_("quality of service"), max_length=40, blank=True, default="")  # "" = none
    predicted_s = models.FloatField(_("runtime predicted, s"), null=True, blank=True, editable=False)  # by jobs/history.py
    # how it is treated
    requeue = models.BooleanField(_("requeue"), default=True)
    max_requeues = models.PositiveSmallIntegerField(_("most requeues"), default=3)
    requeues = models.PositiveSmallIntegerField(_("requeues so far"), default=0)
    on_node_loss = models.CharField(
        _("when its node is lost"), max_length=8, choices=[(o.value, o.value) for o in OnNodeLoss], default=OnNodeLoss.HOLD
    )
    array_id = models.BigIntegerField(null=True, blank=True)
    array_index = models.PositiveIntegerField(null=True, blank=True)
    elastic = models.BooleanField(_("elastic"), default=False)
    # flags
    held = models.BooleanField(_("held"), default=False)
    held_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("held by"), null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    held_why = models.CharField(_("held because"), max_length=200, blank=True)
    held_s = models.FloatField(_("on hold so far, s"), default=0.0, editable=False)  # does not count as waiting; without a hold that lasts
    want_cancel = models.BooleanField(_("cancel wanted"), default=False)
    cancel_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("cancelled by"), null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    cancel_at = models.DateTimeField(_("cancel wanted at"), null=True, blank=True)
    # why it waits
    wait_code = models.CharField(_("waits because"), max_length=40, blank=True)
    wait_params = models.JSONField(default=dict, blank=True)
    wait_at = models.DateTimeField(_("reason checked"), null=True, blank=True)
    idle_warned_at = models.DateTimeField(_("told that it is idle"), null=True, blank=True, editable=False)
    # Nobody may be watching it: it is stopped then unless somebody renews it (jobs/services/ownerless.py). None = no end but its own.
    lease_until = models.DateTimeField(_("stopped unless renewed by"), null=True, blank=True, editable=False)
    # Cards that were kept for it, and against whom it keeps its place: {"gpus", "users", "since", "jobs"} of scheduler.Place. Null = none.
    place = models.JSONField(null=True, editable=False)
    # how it went
    epoch = models.PositiveIntegerField(_("epoch"), default=0)
    # After a restore: later attempts begin above every epoch that a node may have seen, and none does before all have spoken.
    epoch_floor = models.PositiveIntegerField(default=0, editable=False)
    is_restored = models.BooleanField(_("from a backup"), default=False, editable=False)
    end_reason = models.CharField(_("end reason"), max_length=24, blank=True)
    end_params = models.JSONField(default=dict, blank=True)
    # What its output died of: {"code", "line"}; {} = nothing that is known; null = not looked yet (jobs/services/known.py writes it).
    end_known = models.JSONField(null=True, blank=True, editable=False)
    exit_code = models.IntegerField(_("exit code"), null=True, blank=True)
    submitted_at = models.DateTimeField(_("submitted"), default=timezone.now)
    queued_at = models.DateTimeField(_("waiting since"), default=timezone.now)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)  # first RUNNING of the current attempt
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        indexes = (
            models.Index(fields=("state", "-priority", "submitted_at", "id"), name="job_queue"),
            models.Index(fields=("owner", "-id"), name="job_owner_recent"),
            models.Index(fields=("owner", "text_bytes"), condition=Q(ended_at__isnull=True), name="job_active_text"),
            models.Index(fields=("ended_at", "id"), condition=Q(ended_at__isnull=False), name="job_ended"),
        )
        constraints = (
            models.CheckConstraint(condition=Q(nodes__gte=1), name="job_nodes_positive"),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in JobState]), name="job_state_known"),
            models.CheckConstraint(condition=~Q(state=JobState.WAITING.value) | ~Q(wait_code=""), name="job_waiting_has_reason"),
        )

    def __str__(self) -> str:
        return f"{self.pk} {self.name}"

    @property
    def is_final(self) -> bool:
        return JobState(self.state) in FINAL


class Attempt(models.Model):
    """One lap of a job, fenced by its epoch. ``ended_at`` null = live."""

    job = models.ForeignKey(Job, verbose_name=_("job"), on_delete=models.PROTECT, related_name="attempts")
    epoch = models.PositiveIntegerField(_("epoch"))
    master_port = models.PositiveIntegerField(_("master port"), null=True, blank=True)
    created_at = models.DateTimeField(_("created"), default=timezone.now)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    stop_reason = models.CharField(_("stopped because"), max_length=24, blank=True)  # an EndReason, once a stop is wanted
    stop_params = models.JSONField(default=dict, blank=True)
    end_reason = models.CharField(_("end reason"), max_length=24, blank=True)
    end_params = models.JSONField(default=dict, blank=True)
    exit_code = models.IntegerField(_("exit code"), null=True, blank=True)
    fence = models.CharField(_("fence"), max_length=24, blank=True)
    fence_params = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("job_id", "epoch")
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        constraints = (
            models.UniqueConstraint(fields=("job", "epoch"), name="attempt_epoch_once"),
            models.UniqueConstraint(fields=("job",), condition=Q(ended_at__isnull=True), name="attempt_one_live"),
        )

    def __str__(self) -> str:
        return f"job {self.job_id} attempt {self.epoch}"


class Rank(models.Model):
    """The part of an attempt on one node. ``key`` is the protocol's RankId. desired: control plane; observed: reports."""

    attempt = models.ForeignKey(Attempt, verbose_name=_("attempt"), on_delete=models.PROTECT, related_name="ranks")
    node = models.ForeignKey("nodes.Node", verbose_name=_("node"), on_delete=models.PROTECT, related_name="ranks")
    index = models.PositiveIntegerField(_("index"))
    key = models.CharField(_("key"), max_length=48, unique=True)
    desired = models.CharField(_("desired"), max_length=8, choices=[(w.value, w.value) for w in Want], default=Want.RUN)
    stop_reason = models.CharField(_("stop reason"), max_length=24, blank=True)
    stop_at = models.DateTimeField(_("stop wanted at"), null=True, blank=True)
    grace_s = models.PositiveIntegerField(_("grace, s"), default=30)
    observed = models.CharField(_("observed"), max_length=16, choices=[(s.value, s.value) for s in RankState], default=RankState.NONE)
    observed_at = models.DateTimeField(_("observed at"), null=True, blank=True)
    is_forgotten = models.BooleanField(_("forgotten"), default=False)  # the agent dropped it: no more orders for it
    spec = models.JSONField(_("spec"), default=dict)
    spec_sha256 = models.CharField(max_length=64, blank=True)
    lease_s = models.PositiveIntegerField(_("lease, s"), null=True, blank=True)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    began_s = models.FloatField(null=True, editable=False)  # its start by its node's uptime
    # How long it is known to have run, up to the last proof of life. None: it runs, and each sync of its node that lists it is one.
    ran_s = models.FloatField(_("ran for, s"), null=True, blank=True, editable=False)
    exited_at = models.DateTimeField(_("exited"), null=True, blank=True)
    exit_cause = models.CharField(_("exit cause"), max_length=24, blank=True)
    exit_code = models.IntegerField(_("exit code"), null=True, blank=True)
    exit_signal = models.IntegerField(_("signal"), null=True, blank=True)
    launch_error = models.CharField(_("launch error"), max_length=16, blank=True)
    detail = models.TextField(_("detail"), blank=True)
    final_log_offset = models.BigIntegerField(_("bytes of output"), null=True, blank=True)
    checkpoint_seen = models.BooleanField(_("checkpoint seen"), default=False)

    class Meta:
        ordering = ("attempt_id", "index")
        verbose_name = _("rank")
        verbose_name_plural = _("ranks")
        constraints = (models.UniqueConstraint(fields=("attempt", "index"), name="rank_once"),)
        indexes = (models.Index(fields=("node",), condition=Q(is_forgotten=False), name="rank_node_live"),)

    def __str__(self) -> str:
        return self.key


class Slice(models.Model):
    """A part of a card that a rank holds. Charged from ``active_at`` to ``releasing_at``: its program's start and last proof of life."""

    rank = models.ForeignKey(Rank, verbose_name=_("rank"), on_delete=models.PROTECT, related_name="slices")
    gpu = models.ForeignKey("nodes.Gpu", verbose_name=_("GPU"), on_delete=models.PROTECT, related_name="slices")
    position = models.PositiveIntegerField(_("position"), default=0)  # in placement order
    mib = models.PositiveIntegerField(_("memory, MiB"))
    is_exclusive = models.BooleanField(_("whole card"), default=False)
    share = models.FloatField(_("share of the card"))
    state = models.CharField(_("state"), max_length=12, choices=[(s.value, s.value) for s in SliceState], default=SliceState.HELD)
    held_at = models.DateTimeField(_("held"), default=timezone.now)
    active_at = models.DateTimeField(_("active"), null=True, blank=True)
    releasing_at = models.DateTimeField(_("releasing"), null=True, blank=True)
    released_at = models.DateTimeField(_("released"), null=True, blank=True)

    class Meta:
        verbose_name = _("slice")
        verbose_name_plural = _("slices")
        constraints = (
            models.UniqueConstraint(fields=("rank", "gpu"), name="slice_cards_distinct"),
            models.CheckConstraint(condition=Q(mib__gt=0), name="slice_has_memory"),
            models.CheckConstraint(condition=Q(share__gt=0, share__lte=1), name="slice_share_0_1"),
        )
        indexes = (models.Index(fields=("gpu",), condition=~Q(state="RELEASED"), name="slice_gpu_live"),)

    def __str__(self) -> str:
        return f"{self.mib} MiB of GPU {self.gpu_id}"


class JobEvent(models.Model):
    """What happened to a job, in order. A move has from_state and to_state; replaying them gives the state."""

    job = models.ForeignKey(Job, verbose_name=_("job"), on_delete=models.PROTECT, related_name="events")
    at = models.DateTimeField(_("at"), default=timezone.now)
    code = models.CharField(_("code"), max_length=40)
    params = models.JSONField(_("parameters"), default=dict, blank=True)
    from_state = models.CharField(_("from"), max_length=12, blank=True)
    to_state = models.CharField(_("to"), max_length=12, blank=True)
    epoch = models.PositiveIntegerField(_("epoch"), default=0)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("by"), null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ("job_id", "id")
        verbose_name = _("job event")
        verbose_name_plural = _("job events")
        indexes = (models.Index(fields=("job", "id"), name="jobevent_job_id"),)

    def __str__(self) -> str:
        return f"job {self.job_id} {self.code}"


class Artifact(models.Model):
    """A file that a job left in $NEBULA_ARTIFACTS; the bytes are in the data folder."""

    rank = models.ForeignKey(Rank, verbose_name=_("rank"), on_delete=models.PROTECT, related_name="artifacts")
    name = models.CharField(_("name"), max_length=255)
    size = models.BigIntegerField(_("bytes"))
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(_("created"), default=timezone.now)

    class Meta:
        ordering = ("rank_id", "name")
        verbose_name = _("artefact")
        verbose_name_plural = _("artefacts")
        constraints = (models.UniqueConstraint(fields=("rank", "name"), name="artifact_once"),)

    def __str__(self) -> str:
        return self.name


class IdempotencyKey(models.Model):
    """Makes a repeated submit answer with the job that the first one made. Kept for a day."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    body_sha256 = models.CharField(max_length=64)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        constraints = (models.UniqueConstraint(fields=("user", "key"), name="idempotency_once"),)

    def __str__(self) -> str:
        return self.key


class RefusedSubmit(models.Model):
    """A submit that was refused, as jobs.services.refused keeps it: what was asked for, without command and variables, and why not."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, verbose_name=_("user"), on_delete=models.CASCADE, related_name="+")
    project = models.ForeignKey(
        "quotas.Project", verbose_name=_("project"), on_delete=models.SET_NULL, null=True, related_name="+", db_index=False
    )
    name = models.CharField(_("name"), max_length=120)
    asked = models.JSONField(_("asked for"), default=dict)
    code = models.CharField(_("reason"), max_length=40)
    params = models.JSONField(_("numbers"), default=dict)
    times = models.PositiveIntegerField(_("times"), default=1)
    at = models.DateTimeField(_("last time"), default=timezone.now, db_index=True)

    class Meta:
        verbose_name = _("refused submit")
        verbose_name_plural = _("refused submits")

    def __str__(self) -> str:
        return f"{self.user_id}: {self.name}, {self.code}"


class Restore(models.Model):
    """One return from a backup. Open until every node has said what it ran since (``Node.restore`` names those that haven't)."""

    id = models.CharField(primary_key=True, max_length=36)
    backup_at = models.DateTimeField(_("backup made"))
    at = models.DateTimeField(_("restored"), default=timezone.now)
    epoch_floor = models.PositiveIntegerField(_("epoch floor"))
    last_job = models.BigIntegerField(_("last job of the backup"))
    next_job = models.BigIntegerField(_("first job number after it"))
    ran = models.JSONField(default=dict)  # job → [highest epoch that a node started, that node's name]
    settled_at = models.DateTimeField(_("settled"), null=True, blank=True)

    class Meta:
        ordering = ("-at",)
        verbose_name = _("restore")
        verbose_name_plural = _("restores")

    def __str__(self) -> str:
        return f"restore of {self.at:%Y-%m-%d %H:%M}"


class AppliedJob(models.Model):
    """What ``apply`` made under a name: so that the same once more changes nothing. One row an owner, project and key."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, verbose_name=_("owner"), on_delete=models.CASCADE, related_name="+")
    project = models.ForeignKey("quotas.Project", verbose_name=_("project"), on_delete=models.CASCADE, related_name="+")
    key = models.CharField(_("key"), max_length=200)
    job = models.ForeignKey(Job, verbose_name=_("job"), null=True, on_delete=models.SET_NULL, related_name="+")
    content = models.JSONField(_("content"), default=dict)  # of the last apply, as jobs/services/declare.py has it
    updated_at = models.DateTimeField(_("updated"), default=timezone.now)

    class Meta:
        verbose_name = _("applied job")
        verbose_name_plural = _("applied jobs")
        constraints = (models.UniqueConstraint(fields=("owner", "project", "key"), name="applied_once"),)

    def __str__(self) -> str:
        return self.key
