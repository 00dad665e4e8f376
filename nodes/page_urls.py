"""What staff may do below /nodes/. The pages to look at are in jobs/pool_urls.py: they show jobs too."""

from __future__ import annotations

from django.urls import path

from nodes import health_views, names, views  # noqa: F401 - names registers the converter

#: ``<node:name>`` is nodes.names.NodeNameConverter.
urlpatterns = [
    path("add/new/", views.node_add, name="node-add"),
    path("<node:name>/confirm/", views.node_confirm, name="node-confirm"),
    path("<node:name>/drain/", views.node_drain, name="node-drain"),
    path("<node:name>/labels/", views.node_labels, name="node-labels"),
    path("<node:name>/resume/", views.node_resume, name="node-resume"),
    path("<node:name>/inspect/", views.node_inspect, name="node-inspect"),
    path("<node:name>/commands/", views.node_commands, name="node-commands"),
    path("<node:name>/gpu<int:index>/act/<slug:action>/", health_views.card_act, name="card-act"),
]
