"""Nodes and cards to look at, below /nodes/. They come before nodes/page_urls.py (what staff may do), which takes any word as an action."""

from __future__ import annotations

from django.urls import path

from jobs import curves, pool_pages

urlpatterns = [
    path("", pool_pages.node_list, name="node-list"),
    path("<slug:name>/", pool_pages.node_detail, name="node-detail"),
    path("<slug:name>/curves/", curves.node_curves, name="node-curves"),
    path("<slug:name>/gpu<int:index>/", pool_pages.gpu_detail, name="gpu-detail"),
    path("<slug:name>/gpu<int:index>/curves/", curves.gpu_curves, name="gpu-curves"),
]
