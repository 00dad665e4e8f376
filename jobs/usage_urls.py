"""The pages below /usage/."""

from __future__ import annotations

from django.urls import path

from jobs import usage_views

urlpatterns = [
    path("", usage_views.usage_page, name="usage"),
    path("statement.csv", usage_views.usage_csv, name="usage-csv"),
]
