"""The pages below /quota/."""

from __future__ import annotations

from django.urls import path

from jobs import quota_views

urlpatterns = [
    path("", quota_views.quota_page, name="quota"),
    path("requests/new/", quota_views.quota_ask, name="quota-ask"),
    path("requests/<int:id>/", quota_views.quota_request, name="quota-request"),
    path("approvals/", quota_views.quota_approvals, name="quota-approvals"),
    path("decide/<str:token>/", quota_views.quota_decide, name="quota-decide"),
]
