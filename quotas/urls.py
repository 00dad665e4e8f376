"""REST routes of this room, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from quotas import api, audit_api

urlpatterns = [
    path("token", api.TokenView.as_view(), name="api-token"),
    path("token/jwt", api.JwtView.as_view(), name="api-token-jwt"),
    path("me", api.MeView.as_view(), name="api-me"),
    path("tokens/", api.TokenListView.as_view(), name="api-tokens"),
    path("tokens/<int:id>", api.TokenDetailView.as_view(), name="api-token-detail"),
    path("audit/", audit_api.AuditListView.as_view(), name="api-audit"),
    path("audit/export", audit_api.AuditExportView.as_view(), name="api-audit-export"),
]
