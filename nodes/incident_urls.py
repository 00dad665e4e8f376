"""Incidents, below /incidents/."""

from __future__ import annotations

from django.urls import path

from nodes import health_views

urlpatterns = [
    path("", health_views.incident_list, name="incident-list"),
    path("<int:pk>/", health_views.incident_detail, name="incident-detail"),
    path("<int:pk>/write/", health_views.incident_write, name="incident-write"),
]
