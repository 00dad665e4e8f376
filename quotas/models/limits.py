"""Quota.

INVARIANT (database constraints): a quota belongs to one user or one project; active jobs and held cards never pass their limit.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quotas.models.people import Project, User


class Quota(models.Model):
    """The limits of one user or one project and the counters they are held against. ``None`` = no limit.

    ``used_gpu_s`` is whole-card seconds since ``period_start`` (D15: a slice costs its share of the card).
    Written only by quotas.services, by conditional UPDATE.
    """

    user = models.OneToOneField(User, verbose_name=_("user"), null=True, blank=True, on_delete=models.CASCADE, related_name="quota")
    project = models.OneToOneField(
        Project, verbose_name=_("project"), null=True, blank=True, on_delete=models.CASCADE, related_name="quota"
    )
    gpu_hours = models.PositiveIntegerField(_("GPU-hours a month"), null=True, blank=True, default=2000)
    max_active_jobs = models.PositiveIntegerField(_("active jobs at once"), null=True, blank=True)
    max_cards = models.PositiveIntegerField(_("cards held at once"), null=True, blank=True)
    period_start = models.DateField(_("month"), null=True, blank=True, help_text=_("First day of the month that the counter is for."))
    used_gpu_s = models.FloatField(_("GPU-seconds used this month"), default=0.0)
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
        return f"quota of {self.user or self.project}"
