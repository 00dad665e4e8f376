"""Nodes and cards in the admin: to look at, to drain and to resume. Everything else is written by agents and services."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from nodes import (
    alert_admin,  # noqa: F401 - registers what it has
    services,
)
from nodes.models import AgentCommand, CardCare, EnrolToken, Gpu, GpuLink, HealthEvent, Incident, IncidentEntry, Inspection, Node, XidPolicy
from quotas.readonly_admin import ReadOnlyAdmin


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = (
        "name",
        "state",
        "cordoned",
        "cordon_reason",
        "is_simulated",
        "hostname",
        "agent_version",
        "driver_version",
        "last_seen_at",
    )
    list_filter = ("state", "cordoned", "is_simulated")
    search_fields = ("name", "hostname", "address")
    actions = ("cordon", "resume")

    @admin.action(description=_("Drain: no new work"))
    def cordon(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        reason = gettext("drained in the admin")
        for node in queryset:
            services.node_cordon(node=node, by=request.user, reason=reason)
        self.message_user(request, gettext("No new work goes to the chosen nodes; what runs there goes on."), messages.SUCCESS)

    @admin.action(description=_("Resume: take work again"))
    def resume(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        for node in queryset:
            services.node_resume(node=node, by=request.user)
        self.message_user(request, gettext("The chosen nodes take work again."), messages.SUCCESS)


@admin.register(Gpu)
class GpuAdmin(ReadOnlyAdmin):
    list_display = ("uuid", "node", "index", "model", "state", "total_mib", "held_mib", "live_slices", "is_exclusive", "is_simulated")
    list_select_related = ("node",)
    list_filter = ("state", "vendor", "is_simulated")
    search_fields = ("uuid", "model", "node__name")


@admin.register(GpuLink)
class GpuLinkAdmin(ReadOnlyAdmin):
    list_display = ("id", "a", "b", "kind", "count")
    list_select_related = ("a", "b")
    list_filter = ("kind",)


@admin.register(EnrolToken)
class EnrolTokenAdmin(ReadOnlyAdmin):
    list_display = ("id", "node_name", "created_by", "created_at", "expires_at", "used_at", "node")
    list_select_related = ("created_by", "node")
    exclude = ("token_sha256",)


@admin.register(HealthEvent)
class HealthEventAdmin(ReadOnlyAdmin):
    list_display = ("at", "node", "gpu", "kind", "data")
    list_select_related = ("node", "gpu")
    list_filter = ("kind",)
    search_fields = ("node__name", "gpu__uuid", "kind")


@admin.register(AgentCommand)
class AgentCommandAdmin(ReadOnlyAdmin):
    list_display = ("id", "node", "verb", "state", "created_by", "created_at", "expires_at", "finished_at")
    list_select_related = ("node", "created_by")
    list_filter = ("state", "verb")
    search_fields = ("node__name", "verb")


@admin.register(XidPolicy)
class XidPolicyAdmin(ReadOnlyAdmin):
    """The rules of nodes/health.py: they hold from the next XID on."""

    list_display = ("xid", "title", "action", "is_users", "again_s")
    list_filter = ("action", "is_users")
    search_fields = ("xid", "title")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_view_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_view_permission(request)


@admin.register(Incident)
class IncidentAdmin(ReadOnlyAdmin):
    list_display = ("id", "node", "gpu", "kind", "code", "phase", "is_drill", "opened_at", "recovered_at", "closed_at")
    list_select_related = ("node", "gpu")
    list_filter = ("phase", "kind", "is_drill")
    search_fields = ("node__name", "gpu__uuid")


@admin.register(CardCare)
class CardCareAdmin(ReadOnlyAdmin):
    list_display = ("gpu", "wants", "needs_human", "tries", "tested_at", "reset_at")
    list_select_related = ("gpu",)
    list_filter = ("wants", "needs_human")


@admin.register(IncidentEntry)
class IncidentEntryAdmin(ReadOnlyAdmin):
    list_display = ("at", "incident", "code", "params", "by")
    list_select_related = ("incident", "by")
    list_filter = ("code",)


@admin.register(Inspection)
class InspectionAdmin(ReadOnlyAdmin):
    list_display = ("at", "node", "is_told")
    list_select_related = ("node",)
    list_filter = ("is_told",)
    search_fields = ("node__name",)
