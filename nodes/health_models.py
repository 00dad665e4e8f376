"""What is kept of a card's health: the policy, what a card waits for, and incidents with their timelines."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class XidPolicy(models.Model):
    """What an XID brings about (D5–D7); nodes/health.py reads it. An XID without a row is only noted."""

    class Action(models.TextChoices):
        NOTE = "note", _("only note it")
        FAIL_JOB = "fail_job", _("the job fails, the card stays")
        RESTART_JOB = "restart", _("the job goes back to the queue; one reset when idle")
        TEST = "test", _("self-test when idle")
        RESET = "reset", _("one reset when idle")
        SUSPECT = "suspect", _("no new work, self-test; isolate when it comes again")
        ISOLATE = "isolate", _("isolate at once")

    xid = models.PositiveIntegerField(_("XID"), unique=True)
    title = models.CharField(_("meaning"), max_length=120)
    action = models.CharField(_("action"), max_length=10, choices=Action.choices, default=Action.NOTE)
    is_users = models.BooleanField(
        _("a program can cause it"),
        default=False,
        help_text=_("Never takes the card from others, unless programs of three people meet it within an hour."),
    )
    again_s = models.PositiveIntegerField(
        _("again within, s"),
        default=600,
        help_text=_("In this time a suspect card is isolated when it comes again, and reset once only."),
    )

    class Meta:
        ordering = ("xid",)
        verbose_name = _("XID rule")
        verbose_name_plural = _("XID rules")

    def __str__(self) -> str:
        return f"XID {self.xid}: {self.title}"


class CardCare(models.Model):
    """What is to be done to a card and what came of it. Only cards that something happened to have a row.

    ``wants`` test | reset | "": carried out by nodes/care.py as soon as the card allows it; ``command`` is the one that is out.
    """

    gpu = models.OneToOneField("nodes.Gpu", primary_key=True, on_delete=models.CASCADE, related_name="care")
    wants = models.CharField(_("waits for"), max_length=8, blank=True)
    is_users = models.BooleanField(_("a program's doing"), default=False)
    command = models.ForeignKey("nodes.AgentCommand", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    tries = models.PositiveSmallIntegerField(default=0)
    needs_human = models.BooleanField(_("needs a person"), default=False)
    tested_at = models.DateTimeField(_("self-test passed"), null=True, blank=True)
    test = models.JSONField(_("last self-test"), default=dict, blank=True)
    reset_at = models.DateTimeField(_("reset"), null=True, blank=True)

    class Meta:
        verbose_name = _("care of a card")
        verbose_name_plural = _("care of cards")

    def __str__(self) -> str:
        return f"care of card {self.gpu_id}"


class Inspection(models.Model):
    """A look at a node (nodes/inspections.py). ``findings``: [{"level": fail | warn | pass, "code", "gpu": index or null, "params"}],
    the gravest first; ``is_told``: what the agent found on the machine is among them."""

    node = models.ForeignKey("nodes.Node", verbose_name=_("node"), on_delete=models.CASCADE, related_name="inspections")
    at = models.DateTimeField(_("at"), default=timezone.now)
    command = models.ForeignKey("nodes.AgentCommand", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    is_told = models.BooleanField(_("the agent's report is in"), default=False)
    findings = models.JSONField(_("findings"), default=list, blank=True)

    class Meta:
        ordering = ("-at", "-pk")
        verbose_name = _("inspection")
        verbose_name_plural = _("inspections")
        indexes = (models.Index(fields=("node", "at"), name="inspection_node_at"),)

    def __str__(self) -> str:
        return f"inspection {self.pk} of node {self.node_id}"


class Incident(models.Model):
    """A card's fault from its detection to its review. A card has at most one that is not closed; new evidence goes there.

    ``evidence``: {"power": [[Unix time, W, °C, MHz]…] around the detection, "kernel": [lines of the kernel's log]}.
    """

    class Kind(models.TextChoices):
        XID = "xid", _("XID")
        ECC = "ecc", _("memory errors")
        HEAT = "heat", _("overheating")
        LOSS = "loss", _("card loss")
        NVLINK = "nvlink", _("NVLink")
        OTHER = "other", _("other")

    class Phase(models.TextChoices):
        DETECTED = "DETECTED", _("detected")
        DIAGNOSING = "DIAGNOSING", _("being diagnosed")
        RECOVERING = "RECOVERING", _("being recovered")
        REVIEW = "REVIEW", _("to be reviewed")
        CLOSED = "CLOSED", _("closed")

    node = models.ForeignKey("nodes.Node", verbose_name=_("node"), on_delete=models.CASCADE, related_name="incidents")
    gpu = models.ForeignKey("nodes.Gpu", verbose_name=_("GPU"), on_delete=models.CASCADE, related_name="incidents")
    kind = models.CharField(_("kind"), max_length=8, choices=Kind.choices, default=Kind.OTHER)
    code = models.CharField(_("cause"), max_length=24)
    params = models.JSONField(default=dict, blank=True)
    phase = models.CharField(_("phase"), max_length=10, choices=Phase.choices, default=Phase.DETECTED)
    evidence = models.JSONField(_("evidence"), default=dict, blank=True)
    is_drill = models.BooleanField(_("drill"), default=False)
    opened_at = models.DateTimeField(_("detected"), default=timezone.now)
    recovered_at = models.DateTimeField(_("recovered"), null=True, blank=True)
    closed_at = models.DateTimeField(_("closed"), null=True, blank=True)
    closed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("closed by"), null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    review = models.TextField(_("review"), blank=True)

    class Meta:
        ordering = ("-opened_at", "-pk")
        verbose_name = _("incident")
        verbose_name_plural = _("incidents")
        constraints = (
            models.UniqueConstraint(fields=("gpu",), condition=~Q(phase="CLOSED"), name="incident_one_open"),
            models.CheckConstraint(
                condition=~Q(phase="CLOSED") | (~Q(review="") & Q(closed_at__isnull=False)), name="incident_closed_with_note"
            ),
        )

    def __str__(self) -> str:
        return f"incident {self.pk} on card {self.gpu_id}"


class IncidentEntry(models.Model):
    """A line of an incident's timeline: a code and its numbers, put into words at the edge."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="entries")
    at = models.DateTimeField(_("at"), default=timezone.now)
    code = models.CharField(_("code"), max_length=24)
    params = models.JSONField(default=dict, blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ("at", "pk")
        verbose_name = _("line of an incident")
        verbose_name_plural = _("lines of incidents")

    def __str__(self) -> str:
        return f"{self.code} of incident {self.incident_id}"
