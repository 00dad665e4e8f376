"""REST routes of this room, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from jobs import api, clone_api, declare_api, diagnose, estimate_api, output_api, refused_views, samples_api, storage_api

urlpatterns = [
    path("jobs/", api.JobListView.as_view(), name="api-jobs"),
    path("jobs/submit", api.JobSubmitView.as_view(), name="api-job-submit"),
    path("jobs/refused", refused_views.RefusedListView.as_view(), name="api-jobs-refused"),
    path("jobs/apply", declare_api.JobApplyView.as_view(), name="api-job-apply"),
    path("jobs/estimate", estimate_api.JobEstimateView.as_view(), name="api-job-estimate"),
    path("jobs/<int:id>", api.JobDetailView.as_view(), name="api-job-detail"),
    path("jobs/<int:id>/wait", api.JobWaitView.as_view(), name="api-job-wait"),
    path("jobs/<int:id>/cancel", api.JobCancelView.as_view(), name="api-job-cancel"),
    path("jobs/<int:id>/hold", api.JobHoldView.as_view(), name="api-job-hold"),
    path("jobs/<int:id>/release", api.JobReleaseView.as_view(), name="api-job-release"),
    path("jobs/<int:id>/renew", api.JobRenewView.as_view(), name="api-job-renew"),
    path("jobs/<int:id>/why", api.JobWhyView.as_view(), name="api-job-why"),
    path("jobs/<int:id>/alternatives", estimate_api.JobAlternativesView.as_view(), name="api-job-alternatives"),
    path("jobs/<int:id>/clone", clone_api.JobCloneView.as_view(), name="api-job-clone"),
    path("jobs/<int:id>/diagnose", diagnose.JobDiagnoseView.as_view(), name="api-job-diagnose"),
    path("jobs/<int:id>/events", api.JobEventsView.as_view(), name="api-job-events"),
    path("jobs/<int:id>/samples", samples_api.JobSamplesView.as_view(), name="api-job-samples"),
    path("jobs/<int:id>/logs", output_api.JobLogsView.as_view(), name="api-job-logs"),
    path("jobs/<int:id>/logs/download", output_api.JobLogDownloadView.as_view(), name="api-job-log-download"),
    path("jobs/<int:id>/artifacts", output_api.JobArtifactsView.as_view(), name="api-job-artifacts"),
    path("jobs/<int:id>/artifacts/<int:rank>/<path:name>", output_api.JobArtifactView.as_view(), name="api-job-artifact"),
    path("usage/storage", storage_api.StorageView.as_view(), name="api-storage"),
    path("resources/usage", api.UsageView.as_view(), name="api-usage"),
]
