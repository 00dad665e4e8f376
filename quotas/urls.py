"""REST routes of this room, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from quotas import api, audit_api, notice_api, projects_api, request_api, secrets_api, statement_api

urlpatterns = [
    path("token", api.TokenView.as_view(), name="api-token"),
    path("token/jwt", api.JwtView.as_view(), name="api-token-jwt"),
    path("me", api.MeView.as_view(), name="api-me"),
    path("tokens/", api.TokenListView.as_view(), name="api-tokens"),
    path("tokens/<int:id>", api.TokenDetailView.as_view(), name="api-token-detail"),
    path("projects/", projects_api.ProjectListView.as_view(), name="api-projects"),
    path("projects/<str:name>", projects_api.ProjectDetailView.as_view(), name="api-project-detail"),
    path("projects/<str:name>/members", projects_api.MemberListView.as_view(), name="api-project-members"),
    path("projects/<str:name>/members/<int:user>", projects_api.MemberDetailView.as_view(), name="api-project-member"),
    path("projects/<str:name>/tokens", projects_api.ProjectTokensView.as_view(), name="api-project-tokens"),
    path("projects/<str:name>/tokens/<int:id>", projects_api.ProjectTokenView.as_view(), name="api-project-token"),
    path("secrets/", secrets_api.SecretListView.as_view(), name="api-secrets"),
    path("secrets/<str:name>", secrets_api.SecretDetailView.as_view(), name="api-secret"),
    path("audit/", audit_api.AuditListView.as_view(), name="api-audit"),
    path("audit/export", audit_api.AuditExportView.as_view(), name="api-audit-export"),
    path("quota", request_api.QuotaView.as_view(), name="api-quota"),
    path("quota/requests/", request_api.QuotaRequestListView.as_view(), name="api-quota-requests"),
    path("quota/requests/<int:id>", request_api.QuotaRequestView.as_view(), name="api-quota-request"),
    path("quota/requests/<int:id>/decide", request_api.QuotaRequestDecideView.as_view(), name="api-quota-request-decide"),
    path("quota/requests/<int:id>/withdraw", request_api.QuotaRequestWithdrawView.as_view(), name="api-quota-request-withdraw"),
    path("usage/statement", statement_api.StatementView.as_view(), name="api-statement"),
    path("usage/statement.csv", statement_api.StatementCsvView.as_view(), name="api-statement-csv"),
    path("notices/", notice_api.NoticeListView.as_view(), name="api-notices"),
    path("notices/read", notice_api.NoticeReadView.as_view(), name="api-notices-read"),
    path("notices/channels/", notice_api.ChannelListView.as_view(), name="api-notice-channels"),
    path("notices/channels/email", notice_api.EmailView.as_view(), name="api-notice-email"),
    path("notices/channels/<int:id>", notice_api.ChannelDetailView.as_view(), name="api-notice-channel"),
    path("notices/channels/<int:id>/test", notice_api.ChannelTestView.as_view(), name="api-notice-channel-test"),
]
