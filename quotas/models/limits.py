"""Quota.

INVARIANT (database constraints): a quota belongs to one user or one project; active jobs and held cards never pass their limit.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quotas.caps import caps_sum
from quotas.models.people import Project, User


class Quota(models.Model):
    """The limits of one user or one project and the counters they are held against. ``None`` = no limit.

    ``used_gpu_s`` is whole-card seconds since ``period_start`` (D15: a slice costs its share of the card).
    What an admin granted for a time comes on top: ``extra_…``, the sums of the grants in force, recomputed by
    quotas.grants at ``extras_until`` (None = none runs out). Counters and extras are written only by quotas.services,
    quotas.counters and quotas.grants, by conditional UPDATE.
    """

    user = models.OneToOneField(User, verbose_name=_("user"), null=True, blank=True, on_delete=models.CASCADE, related_name="quota")
    project = models.OneToOneField(
        Project, verbose_name=_("project"), null=True, blank=True, on_delete=models.CASCADE, related_name="quota"
    )
    gpu_hours = models.PositiveIntegerField(_("GPU-hours a month"), null=True, blank=True, default=2000)
    max_active_jobs = models.PositiveIntegerField(_("active jobs at once"), null=True, blank=True)
    max_cards = models.PositiveIntegerField(_("cards held at once"), null=True, blank=True)
    model_caps = models.JSONField(_("cards of a model held at once"), default=dict, blank=True)  # {"a100": 2}; see quotas/caps.py
    max_storage_mib = models.PositiveIntegerField(_("files and output kept, MiB"), null=True, blank=True)
    extra_gpu_hours = models.PositiveIntegerField(_("GPU-hours granted on top"), default=0, editable=False)
    extra_active_jobs = models.PositiveIntegerField(_("active jobs granted on top"), default=0, editable=False)
    extra_cards = models.PositiveIntegerField(_("cards granted on top"), default=0, editable=False)
    extra_model_cards = models.JSONField(_("cards of a model granted on top"), default=dict, blank=True, editable=False)
    extras_until = models.DateTimeField(_("next grant ends"), null=True, blank=True, editable=False, db_index=True)
    told_pct = models.PositiveSmallIntegerField(_("told of, %"), default=0, editable=False)  # 0 | 80 | 100 of this month's hours
    period_start = models.DateField(_("month"), null=True, blank=True, help_text=_("First day of the month that the counter is for."))
    used_gpu_s = models.FloatField(_("GPU-seconds used this month"), default=0.0)
    # What slices that run now come to this month so far; they are charged when they end. Refreshed every 30 s.
    live_gpu_s = models.FloatField(_("GPU-seconds of what runs"), default=0.0, editable=False)
    active_jobs = models.PositiveIntegerField(_("active jobs"), default=0)
    held_cards = models.PositiveIntegerField(_("cards held"), default=0)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    class Meta:
        verbose_name = _("quota")
        verbose_name_plural = _("quotas")
        constraints = (
            models.CheckConstraint(
                condition=Q(user__isnull=False, project__isnull=True) | Q(user__isnull=True, project__isnull=False), name="quota_one_owner"
            ),
            models.CheckConstraint(condition=Q(used_gpu_s__gte=0), name="quota_used_not_negative"),
        )

    def __str__(self) -> str:
        return str(self.user or self.project)

    @property
    def spent_gpu_s(self) -> float:
        """What counts against the month's GPU-hours: charged, and running."""
        return self.used_gpu_s + self.live_gpu_s

    @property
    def gpu_hours_limit(self) -> int | None:
        return None if self.gpu_hours is None else self.gpu_hours + self.extra_gpu_hours

    @property
    def active_jobs_limit(self) -> int | None:
        return None if self.max_active_jobs is None else self.max_active_jobs + self.extra_active_jobs

    @property
    def cards_limit(self) -> int | None:
        return None if self.max_cards is None else self.max_cards + self.extra_cards

    @property
    def model_limits(self) -> dict[str, int]:
        """Card model → cards of it that may be held at once; models without an entry have no limit of their own."""
        return caps_sum(self.model_caps, self.extra_model_cards)
