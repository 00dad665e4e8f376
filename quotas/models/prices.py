"""What quantities cost, and the storage that was used. A price holds from a moment on; what was charged before is never repriced."""

from __future__ import annotations

from decimal import Decimal

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quotas.models.people import Project, User

_AT_LEAST_0 = [MinValueValidator(Decimal(0))]


class PriceRow(models.Model):
    """Prices of one card model (whole words of its name; "" = every card), from ``valid_from`` until a later row of that model."""

    gpu_model = models.CharField(
        _("card model"), max_length=60, blank=True, help_text=_("Whole words of the card's name, such as A100; empty: every card.")
    )
    per_gpu_hour = models.DecimalField(_("a GPU-hour"), max_digits=16, decimal_places=8, default=Decimal(0), validators=_AT_LEAST_0)
    per_gb_second = models.DecimalField(
        _("a GB-second of memory"), max_digits=18, decimal_places=12, default=Decimal(0), validators=_AT_LEAST_0
    )
    per_gb_hour = models.DecimalField(
        _("a GB-hour of storage"),
        max_digits=18,
        decimal_places=12,
        default=Decimal(0),
        validators=_AT_LEAST_0,
        help_text=_("Of rows for every card only: storage has no card model."),
    )
    valid_from = models.DateTimeField(_("valid from"), default=timezone.now)

    class Meta:
        ordering = ("-valid_from", "gpu_model")
        verbose_name = _("price")
        verbose_name_plural = _("prices")
        constraints = (
            models.UniqueConstraint(fields=("gpu_model", "valid_from"), name="price_once"),
            models.CheckConstraint(condition=Q(per_gpu_hour__gte=0, per_gb_second__gte=0, per_gb_hour__gte=0), name="price_not_negative"),
        )

    def __str__(self) -> str:
        return f"{self.gpu_model or '*'} {self.valid_from:%Y-%m-%d}"


class StorageEntry(models.Model):
    """GB-hours (1 GB = 1024 MiB) that the files of one owner and project took on one local day. Append-only (trigger), once a day."""

    day = models.DateField(_("day"))
    user = models.ForeignKey(User, verbose_name=_("user"), on_delete=models.PROTECT, related_name="storage_charges")
    project = models.ForeignKey(Project, verbose_name=_("project"), on_delete=models.PROTECT, related_name="storage_charges")
    gb_hours = models.DecimalField(_("GB-hours"), max_digits=20, decimal_places=6)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)

    class Meta:
        ordering = ("-day", "user_id")
        verbose_name = _("storage charge")
        verbose_name_plural = _("storage charges")
        constraints = (
            models.UniqueConstraint(fields=("day", "user", "project"), name="storage_once_a_day"),
            models.CheckConstraint(condition=Q(gb_hours__gte=0), name="storage_not_negative"),
        )

    def __str__(self) -> str:
        return f"{self.day} {self.gb_hours}"
