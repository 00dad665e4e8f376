"""Prices in the admin: rows are added, with the moment from which they hold; one that holds already is never changed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import ModelAdmin

from quotas.audit import audit
from quotas.models import JobUse, PriceRow, StorageEntry
from quotas.readonly_admin import ReadOnlyAdmin


@admin.register(PriceRow)
class PriceRowAdmin(ModelAdmin):  # type: ignore[misc]
    list_display = ("shown_model", "per_gpu_hour", "per_gb_second", "per_gb_hour", "valid_from")
    search_fields = ("gpu_model",)

    @admin.display(description=PriceRow._meta.get_field("gpu_model").verbose_name)
    def shown_model(self, row: PriceRow) -> str:
        return row.gpu_model or "*"

    def has_change_permission(self, request: HttpRequest, obj: PriceRow | None = None) -> bool:
        return super().has_change_permission(request, obj) and (obj is None or obj.valid_from > timezone.now())

    def has_delete_permission(self, request: HttpRequest, obj: PriceRow | None = None) -> bool:
        return super().has_delete_permission(request, obj) and obj is not None and obj.valid_from > timezone.now()

    def save_model(self, request: HttpRequest, obj: PriceRow, form: ModelForm, change: bool) -> None:  # type: ignore[type-arg]
        super().save_model(request, obj, form, change)
        figures: dict[str, Any] = {name: str(getattr(obj, name)) for name in ("per_gpu_hour", "per_gb_second", "per_gb_hour", "valid_from")}
        audit(request.user, "price.changed", f"price {obj.gpu_model or '*'}", figures)


@admin.register(StorageEntry)
class StorageEntryAdmin(ReadOnlyAdmin):
    list_display = ("day", "user", "project", "gb_hours")
    list_select_related = ("user", "project")
    search_fields = ("user__email", "project__name")
    date_hierarchy = "day"


@admin.register(JobUse)
class JobUseAdmin(ReadOnlyAdmin):
    list_display = ("job_id", "name", "user", "project", "asked_mib", "peak_mib", "util_pct", "idle_share", "ended_at")
    list_select_related = ("user", "project")
    search_fields = ("=job_id", "name", "user__email")
