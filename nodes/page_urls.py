"""What staff may do below /nodes/. The pages to look at are in jobs/pool_urls.py: they show jobs too."""

from __future__ import annotations

from django.urls import path

from nodes import health_views, views

urlpatterns = [
    path("add/new/", views.node_add, name="node-add"),
    path("<slug:name>/drain/", views.node_drain, name="node-drain"),
    path("<slug:name>/labels/", views.node_labels, name="node-labels"),
    path("<slug:name>/resume/", views.node_resume, name="node-resume"),
    path("<slug:name>/inspect/", views.node_inspect, name="node-inspect"),
    path("<slug:name>/commands/", views.node_commands, name="node-commands"),
    path("<slug:name>/gpu<int:index>/act/<slug:action>/", health_views.card_act, name="card-act"),
]
