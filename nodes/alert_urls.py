"""Alerts, below /alerts/."""

from __future__ import annotations

from django.urls import path

from nodes import alert_views

urlpatterns = [
    path("", alert_views.alert_list, name="alert-list"),
    path("mutes/", alert_views.mute_list, name="alert-mutes"),
    path("mutes/<int:id>/lift/", alert_views.mute_end, name="alert-mute-lift"),
    path("<int:id>/", alert_views.alert_detail, name="alert-detail"),
    path("<int:id>/acknowledge/", alert_views.alert_write, name="alert-acknowledge"),
    path("<int:id>/reopen/", alert_views.alert_write, {"reopens": True}, name="alert-reopen"),
]
