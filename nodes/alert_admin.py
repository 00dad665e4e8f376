"""Rules of alerts in the admin: data that holds from the next look on. Alerts and mutes are there to look at; pages write them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminSelectWidget

from nodes.alert_metrics import METRICS
from nodes.alert_words import metric_title, rule_text
from nodes.models import Alert, AlertMute, AlertRule


class AlertRuleForm(forms.ModelForm):  # type: ignore[type-arg]
    metric = forms.ChoiceField(label=capfirst(_("figure")), widget=UnfoldAdminSelectWidget)

    class Meta:
        model = AlertRule
        fields = ("code", "title", "metric", "op", "warning", "critical", "for_s", "clear_by", "clear_s", "tells_owner", "is_enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        units = {name: f" ({metric.unit})" if metric.unit else "" for name, metric in METRICS.items()}
        self.fields["metric"].choices = [(name, f"{metric_title(name)}{units[name]}") for name in METRICS]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or {}
        warning, critical = found.get("warning"), found.get("critical")
        if warning is None and critical is None:
            self.add_error("warning", _("Give at least one of warning and critical."))
        elif warning is not None and critical is not None:
            is_high_bad = found.get("op") in ("gt", "ge")
            if (critical < warning) if is_high_bad else (critical > warning):
                self.add_error("critical", _("Critical has to be further off than warning, or it would come first."))
        return found


class StaffAdmin(ModelAdmin):  # type: ignore[misc]
    """Staff are enough; there are no finer permissions."""

    list_per_page = 50
    show_full_result_count = False
    writes = False

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.writes and self.has_module_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.writes and self.has_module_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.writes and self.has_module_permission(request)


@admin.register(AlertRule)
class AlertRuleAdmin(StaffAdmin):
    writes = True
    form = AlertRuleForm
    list_display = ("code", "name", "watches", "tells_owner", "is_enabled")
    list_filter = ("is_enabled", "metric")
    search_fields = ("code", "title")

    @admin.display(description=_("title"))
    def name(self, rule: AlertRule) -> str:
        return rule.title or metric_title(rule.metric)

    @admin.display(description=_("opens when"))
    def watches(self, rule: AlertRule) -> str:
        return rule_text(rule)


@admin.register(Alert)
class AlertAdmin(StaffAdmin):
    list_display = ("id", "metric", "subject", "level", "state", "value", "times", "opened_at", "resolved_at")
    list_filter = ("state", "level", "metric")
    search_fields = ("subject", "node__name")


@admin.register(AlertMute)
class AlertMuteAdmin(StaffAdmin):
    list_display = ("id", "rule", "node", "gpu", "reason", "until", "by", "created_at", "lifted_at")
    list_select_related = ("rule", "node", "gpu", "by")
