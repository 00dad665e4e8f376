"""Pages of people: /account/ and /projects/."""

from __future__ import annotations

from django.urls import path

from quotas import account_views, project_views

urlpatterns = [
    path("account/", account_views.account, name="account"),
    path("account/tokens/new/", account_views.token_new, name="account-token-new"),
    path("account/tokens/<int:id>/revoke/", account_views.token_end, name="account-token-end"),
    path("projects/", project_views.project_list, name="project-list"),
    path("projects/new/", project_views.project_new, name="project-new"),
    path("projects/<slug:name>/", project_views.project_detail, name="project-detail"),
    path("projects/<slug:name>/act/", project_views.project_act, name="project-act"),
]
