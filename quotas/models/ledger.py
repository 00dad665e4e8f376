"""LedgerEntry. INVARIANT (database constraints): a slice is charged at most once."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quotas.models.people import Project, User


class LedgerEntry(models.Model):
    """One charge for one slice, written once when it leaves ACTIVE. Append-only (trigger).

    ``share`` = card share in 0–1 (1 = whole card), ``seconds`` = time ACTIVE, gpu_seconds = share × seconds.
    ``slice_id`` is a number, not a foreign key: this room does not know jobs.
    """

    slice_id = models.BigIntegerField(_("slice"), unique=True)
    job_id = models.BigIntegerField(_("job"), db_index=True)
    user = models.ForeignKey(User, verbose_name=_("user"), on_delete=models.PROTECT, related_name="charges")
    project = models.ForeignKey(Project, verbose_name=_("project"), on_delete=models.PROTECT, related_name="charges")
    gpu_model = models.CharField(_("card model"), max_length=120)
    share = models.FloatField(_("share of the card"))
    mib = models.PositiveIntegerField(_("memory, MiB"))
    started_at = models.DateTimeField(_("from"))
    ended_at = models.DateTimeField(_("to"))
    seconds = models.FloatField(_("seconds"))
    gpu_seconds = models.FloatField(_("GPU-seconds"))
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("ledger entry")
        verbose_name_plural = _("ledger entries")
        indexes = (
            models.Index(fields=("user", "ended_at"), name="ledger_user_ended"),
            models.Index(fields=("ended_at",), name="ledger_ended"),
        )
        constraints = (
            models.CheckConstraint(condition=Q(share__gte=0, share__lte=1), name="ledger_share_0_1"),
            models.CheckConstraint(condition=Q(seconds__gte=0), name="ledger_seconds_not_negative"),
        )

    def __str__(self) -> str:
        return f"slice {self.slice_id}: {self.gpu_seconds:.1f} GPU-s"
