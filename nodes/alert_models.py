"""When staff and owners are warned: AlertRule (data, edited in the admin), Alert (one row an episode), AlertMute.

INVARIANT (unique constraint): a rule has at most one alert that is not resolved for each subject. nodes/alerts.py writes these.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class AlertRule(models.Model):
    """``metric`` is one of nodes.alert_metrics.METRICS; thresholds are in its unit. It opens when the figure was past ``warning``
    (or ``critical``) for ``for_s``, and resolves when it was back by ``clear_by`` for ``clear_s``."""

    class Op(models.TextChoices):
        ABOVE = "gt", _("more than")
        AT_LEAST = "ge", _("at least")
        BELOW = "lt", _("less than")
        AT_MOST = "le", _("at most")

    code = models.SlugField(_("code"), max_length=40, unique=True)
    title = models.CharField(_("title"), max_length=120, blank=True, help_text=_("Empty: the name of its figure."))
    metric = models.CharField(_("figure"), max_length=40)
    op = models.CharField(_("comparison"), max_length=2, choices=Op.choices, default=Op.ABOVE)
    warning = models.FloatField(_("warning"), null=True, blank=True)
    critical = models.FloatField(_("critical"), null=True, blank=True)
    for_s = models.PositiveIntegerField(_("for, s"), default=300, help_text=_("It has to be so for this long without a break."))
    clear_by = models.FloatField(_("back by"), default=0.0, help_text=_("How far past the threshold the figure has to come back."))
    clear_s = models.PositiveIntegerField(_("back for, s"), default=60)
    tells_owner = models.BooleanField(_("tells the owner of the job"), default=False)
    is_enabled = models.BooleanField(_("in use"), default=True)

    class Meta:
        ordering = ("code",)
        verbose_name = _("alert rule")
        verbose_name_plural = _("alert rules")
        constraints = (
            models.CheckConstraint(condition=Q(warning__isnull=False) | Q(critical__isnull=False), name="alertrule_has_threshold"),
            models.CheckConstraint(condition=Q(clear_by__gte=0), name="alertrule_clear_by_not_negative"),
        )

    def __str__(self) -> str:
        return self.code


class Alert(models.Model):
    """An episode. ``subject`` is ``gpu:12``, ``node:3``, ``job:42``, ``owner:7`` or ``pool``; ``level`` 1 = warning, 2 = critical, the
    highest that it reached. ``value`` is the figure now, ``peak`` the worst. ``times``: how often it came back within half an hour.
    ``told_level``: up to where people were told. Figures and names for the sentence are in ``params``."""

    class State(models.TextChoices):
        OPEN = "OPEN", _("open")
        ACKNOWLEDGED = "ACKNOWLEDGED", _("acknowledged")
        RESOLVED = "RESOLVED", _("resolved")

    class Level(models.IntegerChoices):
        WARNING = 1, _("warning")
        CRITICAL = 2, _("critical")

    rule = models.ForeignKey(AlertRule, verbose_name=_("rule"), null=True, on_delete=models.SET_NULL, related_name="alerts")
    metric = models.CharField(_("figure"), max_length=40)
    subject = models.CharField(_("subject"), max_length=40)
    node = models.ForeignKey("nodes.Node", verbose_name=_("node"), null=True, blank=True, on_delete=models.CASCADE, related_name="alerts")
    gpu = models.ForeignKey("nodes.Gpu", verbose_name=_("GPU"), null=True, blank=True, on_delete=models.CASCADE, related_name="alerts")
    state = models.CharField(_("state"), max_length=12, choices=State.choices, default=State.OPEN)
    level = models.PositiveSmallIntegerField(_("level"), choices=Level.choices, default=Level.WARNING)
    told_level = models.PositiveSmallIntegerField(default=0, editable=False)
    value = models.FloatField(_("figure now"), null=True, blank=True)
    peak = models.FloatField(_("worst"), null=True, blank=True)
    times = models.PositiveIntegerField(_("times"), default=1)
    params = models.JSONField(default=dict, blank=True)
    opened_at = models.DateTimeField(_("opened"), default=timezone.now)
    seen_at = models.DateTimeField(_("last seen"), default=timezone.now)
    acked_at = models.DateTimeField(_("acknowledged at"), null=True, blank=True)
    acked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("acknowledged by"), null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    note = models.CharField(_("note"), max_length=200, blank=True)
    resolved_at = models.DateTimeField(_("resolved at"), null=True, blank=True)
    resolved_why = models.CharField(_("resolved because"), max_length=12, blank=True)  # clear | gone | no_data | rule_off
    people: models.ManyToManyField[models.Model, AlertJob] = models.ManyToManyField(
        settings.AUTH_USER_MODEL, through="nodes.AlertJob", related_name="+"
    )

    class Meta:
        ordering = ("-pk",)
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        constraints = (
            models.UniqueConstraint(fields=("rule", "subject"), condition=~Q(state="RESOLVED"), name="alert_one_open"),
            models.CheckConstraint(
                condition=Q(state="RESOLVED", resolved_at__isnull=False) | (~Q(state="RESOLVED") & Q(resolved_at__isnull=True)),
                name="alert_resolved_has_time",
            ),
        )
        indexes = (
            models.Index(fields=("state", "-id"), name="alert_state_recent"),
            models.Index(fields=("rule", "subject", "-id"), name="alert_rule_subject"),
        )

    def __str__(self) -> str:
        return f"alert {self.pk}: {self.metric} of {self.subject}"

    @property
    def level_name(self) -> str:
        """As the API and filters call it."""
        return "critical" if self.level == Alert.Level.CRITICAL else "warning"


class AlertJob(models.Model):
    """Whose job an alert is about: that person may see it. ``job`` is a number, not a foreign key: this room does not know jobs; NULL
    where it is about a person's jobs as a whole."""

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="jobs")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    job = models.BigIntegerField(null=True)

    class Meta:
        verbose_name = _("job of an alert")
        verbose_name_plural = _("jobs of alerts")
        constraints = (models.UniqueConstraint(fields=("alert", "user", "job"), name="alertjob_once"),)

    def __str__(self) -> str:
        return f"job {self.job} of alert {self.alert_id}"


class AlertMute(models.Model):
    """Nobody is told of what it matches until ``until`` (NULL = until it is lifted): of a rule, a node, a card, or what has several of
    them. Alerts open and resolve as ever."""

    rule = models.ForeignKey(AlertRule, verbose_name=_("rule"), null=True, blank=True, on_delete=models.CASCADE, related_name="mutes")
    node = models.ForeignKey("nodes.Node", verbose_name=_("node"), null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    gpu = models.ForeignKey("nodes.Gpu", verbose_name=_("GPU"), null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    reason = models.CharField(_("reason"), max_length=200)
    until = models.DateTimeField(_("until"), null=True, blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, verbose_name=_("by"), null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    lifted_at = models.DateTimeField(_("lifted"), null=True, blank=True)
    lifted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("lifted by"), null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ("-pk",)
        verbose_name = _("mute of alerts")
        verbose_name_plural = _("mutes of alerts")
        constraints = (
            models.CheckConstraint(
                condition=Q(rule__isnull=False) | Q(node__isnull=False) | Q(gpu__isnull=False), name="alertmute_names_something"
            ),
        )

    def __str__(self) -> str:
        return f"mute {self.pk}"
