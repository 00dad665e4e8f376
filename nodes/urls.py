"""REST routes of this room, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from nodes import alert_api, api, health_api, samples_api

urlpatterns = [
    path("nodes/", api.NodeListView.as_view(), name="api-nodes"),
    path("nodes/enroll-token", api.EnrollTokenView.as_view(), name="api-enroll-token"),
    path("nodes/<str:name>", api.NodeDetailView.as_view(), name="api-node-detail"),
    path("nodes/<str:name>/drain", api.NodeDrainView.as_view(), name="api-node-drain"),
    path("nodes/<str:name>/resume", api.NodeResumeView.as_view(), name="api-node-resume"),
    path("nodes/<str:name>/confirm", api.NodeConfirmView.as_view(), name="api-node-confirm"),
    path("nodes/<str:name>/commands", api.CommandListView.as_view(), name="api-node-commands"),
    path("nodes/<str:name>/commands/<int:id>", api.CommandDetailView.as_view(), name="api-node-command-detail"),
    path("nodes/<str:name>/samples", samples_api.NodeSamplesView.as_view(), name="api-node-samples"),
    path("nodes/<str:name>/inspections", health_api.InspectionListView.as_view(), name="api-node-inspections"),
    path("nodes/<str:name>/drill", health_api.DrillView.as_view(), name="api-node-drill"),
    path("gpus/<str:uuid>/health", health_api.CardHealthView.as_view(), name="api-gpu-health"),
    path("gpus/<str:uuid>/act", health_api.CardActView.as_view(), name="api-gpu-act"),
    path("incidents/", health_api.IncidentListView.as_view(), name="api-incidents"),
    path("incidents/<int:id>", health_api.IncidentDetailView.as_view(), name="api-incident-detail"),
    path("incidents/<int:id>/notes", health_api.IncidentNoteView.as_view(), name="api-incident-notes"),
    path("incidents/<int:id>/close", health_api.IncidentCloseView.as_view(), name="api-incident-close"),
    path("gpus/<str:uuid>/samples", samples_api.GpuSamplesView.as_view(), name="api-gpu-samples"),
    path("pool/samples", samples_api.PoolSamplesView.as_view(), name="api-pool-samples"),
    path("gpus/", api.GpuListView.as_view(), name="api-gpus"),
    path("alerts/", alert_api.AlertListView.as_view(), name="api-alerts"),
    path("alerts/rules", alert_api.RuleListView.as_view(), name="api-alert-rules"),
    path("alerts/mutes/", alert_api.MuteListView.as_view(), name="api-alert-mutes"),
    path("alerts/mutes/<int:id>/lift", alert_api.MuteLiftView.as_view(), name="api-alert-mute-lift"),
    path("alerts/<int:id>", alert_api.AlertDetailView.as_view(), name="api-alert-detail"),
    path("alerts/<int:id>/acknowledge", alert_api.AlertAckView.as_view(), name="api-alert-acknowledge"),
    path("alerts/<int:id>/reopen", alert_api.AlertReopenView.as_view(), name="api-alert-reopen"),
]
