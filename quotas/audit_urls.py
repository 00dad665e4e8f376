"""The audit log to look at, below /audit/."""

from __future__ import annotations

from django.urls import path

from quotas import audit_views

urlpatterns = [path("", audit_views.audit_list, name="audit-list")]
