"""Secrets, below /secrets/."""

from __future__ import annotations

from django.urls import path

from quotas import secrets_views

urlpatterns = [
    path("", secrets_views.secret_list, name="secret-list"),
    path("<str:name>/delete/", secrets_views.secret_remove, name="secret-delete"),
]
