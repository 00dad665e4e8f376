"""Nodes and cards to look at, below /nodes/. They come before nodes/page_urls.py (what staff may do), which takes any word as an action."""

from __future__ import annotations

from django.urls import path

from jobs import curves, pool_pages
from nodes import names  # noqa: F401 - registers the converter

#: ``<node:name>`` is nodes.names.NodeNameConverter.
urlpatterns = [
    path("", pool_pages.node_list, name="node-list"),
    path("<node:name>/", pool_pages.node_detail, name="node-detail"),
    path("<node:name>/curves/", curves.node_curves, name="node-curves"),
    path("<node:name>/gpu<int:index>/", pool_pages.gpu_detail, name="gpu-detail"),
    path("<node:name>/gpu<int:index>/curves/", curves.gpu_curves, name="gpu-curves"),
]
