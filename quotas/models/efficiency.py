"""How well a job used what it held: one row a job, written once after its end from the samples of its cards.

A figure that nobody told is NULL, never 0. ``job_id`` is a number, not a foreign key: this room does not know jobs.
"""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quotas.models.people import Project, User


class JobUse(models.Model):
    job_id = models.BigIntegerField(_("job"), unique=True)
    user = models.ForeignKey(User, verbose_name=_("user"), on_delete=models.CASCADE, related_name="+")
    project = models.ForeignKey(Project, verbose_name=_("project"), on_delete=models.CASCADE, related_name="+")
    name = models.CharField(_("name"), max_length=200)
    is_success = models.BooleanField(_("succeeded"))
    cards = models.PositiveIntegerField(_("cards"))
    asked_mib = models.PositiveIntegerField(_("memory held on a card, MiB"))
    peak_mib = models.PositiveIntegerField(_("memory used on a card at most, MiB"), null=True)
    is_shared = models.BooleanField(_("cards shared"))  # then util_pct is of the card, and others' too
    util_pct = models.PositiveSmallIntegerField(_("use, %"), null=True)
    idle_share = models.FloatField(_("share of the time without use"), null=True)  # in 0–1
    samples = models.PositiveIntegerField(_("samples"), default=0)
    gpu_s = models.FloatField(_("GPU-seconds"))
    idle_gpu_s = models.FloatField(_("GPU-seconds without use"), null=True)
    ended_at = models.DateTimeField(_("ended"))
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)

    class Meta:
        ordering = ("-job_id",)
        verbose_name = _("use of a job")
        verbose_name_plural = _("use of jobs")
        indexes = (
            models.Index(fields=("user", "name", "-job_id"), name="jobuse_like"),
            models.Index(fields=("ended_at",), name="jobuse_ended"),
        )

    def __str__(self) -> str:
        return f"job {self.job_id}"

    @property
    def gpu_hours(self) -> float:
        return self.gpu_s / 3600

    @property
    def idle_gpu_hours(self) -> float | None:
        return None if self.idle_gpu_s is None else self.idle_gpu_s / 3600
