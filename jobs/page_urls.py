"""The pages below /jobs/. The shell looks for the names job-list, job-new and job-detail, and shows what it finds."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
