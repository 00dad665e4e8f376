"""Requests for more than a limit allows, and what became of them. Written by quotas/requests.py only.

A request that was approved is the grant itself: it is in force until ``granted_until``, and its amount is in the quota's ``extra_…``.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class QuotaRequest(models.Model):
    class What(models.TextChoices):
        GPU_HOURS = "gpu_hours", _("GPU-hours a month")
        CARDS = "cards", _("cards at once")
        ACTIVE_JOBS = "active_jobs", _("active jobs at once")
        MODEL_CARDS = "model_cards", _("cards of a model at once")

    class State(models.TextChoices):
        LEAD = "lead", _("waits for a project lead")
        ADMIN = "admin", _("waits for an admin")
        APPROVED = "approved", _("approved")
        DECLINED = "declined", _("declined")
        WITHDRAWN = "withdrawn", _("withdrawn")
        ENDED = "ended", _("has ended")

    OPEN = (State.LEAD, State.ADMIN)

    quota = models.ForeignKey("quotas.Quota", verbose_name=_("quota"), on_delete=models.CASCADE, related_name="requests")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, verbose_name=_("asked by"), on_delete=models.PROTECT, related_name="quota_requests")
    # Whose lead looks at it first; None = nobody before an admin.
    project = models.ForeignKey(
        "quotas.Project", verbose_name=_("project"), null=True, blank=True, on_delete=models.SET_NULL, related_name="quota_requests"
    )
    what = models.CharField(_("what"), max_length=12, choices=What.choices)
    model = models.CharField(_("card model"), max_length=60, blank=True)
    amount = models.PositiveIntegerField(_("how much more"))
    until = models.DateTimeField(_("until"))
    why = models.TextField(_("why"))
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.ADMIN)
    # A link by mail carries it; each step has a new one, so that a link decides once.
    nonce = models.CharField(max_length=32, editable=False)
    granted_amount = models.PositiveIntegerField(_("granted"), null=True, blank=True)
    granted_until = models.DateTimeField(_("granted until"), null=True, blank=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("decided by"), null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    decided_at = models.DateTimeField(_("decided"), null=True, blank=True)
    created_at = models.DateTimeField(_("asked"), default=timezone.now, editable=False)

    class Meta:
        ordering = ("-id",)
        verbose_name = _("quota request")
        verbose_name_plural = _("quota requests")
        indexes = (models.Index(fields=("state", "id"), name="quotarequest_state"),)
        constraints = (
            models.CheckConstraint(condition=Q(amount__gte=1), name="quotarequest_asks_for_something"),
            models.CheckConstraint(
                condition=~Q(state="approved") | Q(granted_amount__gte=1, granted_until__isnull=False), name="quotarequest_grant_is_whole"
            ),
            models.CheckConstraint(condition=Q(what="model_cards") | Q(model=""), name="quotarequest_model_where_needed"),
        )

    def __str__(self) -> str:
        return f"#{self.pk}"

    @property
    def is_open(self) -> bool:
        return self.state in self.OPEN


class QuotaRequestEvent(models.Model):
    """What happened to a request, in order. ``code``: asked | passed | approved | declined | withdrawn | ended_early."""

    request = models.ForeignKey(QuotaRequest, verbose_name=_("request"), on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(_("at"), default=timezone.now)
    code = models.CharField(_("code"), max_length=16)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, verbose_name=_("by"), null=True, on_delete=models.PROTECT, related_name="+")
    amount = models.PositiveIntegerField(_("amount"), null=True, blank=True)
    until = models.DateTimeField(_("until"), null=True, blank=True)
    text = models.TextField(_("note"), blank=True)

    class Meta:
        ordering = ("request_id", "id")
        verbose_name = _("step of a request")
        verbose_name_plural = _("steps of requests")

    def __str__(self) -> str:
        return f"{self.code} of #{self.request_id}"
