"""The pages below /jobs/. The shell looks for the names job-list, job-new and job-detail, and shows what it finds."""

from __future__ import annotations

from django.urls import path

from jobs import curves, diagnose, refused_views, sooner_views, submit_views, views

urlpatterns = [
    path("", views.job_list, name="job-list"),
    path("newer/", views.job_newer, name="job-newer"),
    path("starts/", views.job_starts, name="job-starts"),
    path("rows/", views.job_rows, name="job-rows"),
    path("refused/", refused_views.jobs_refused, name="jobs-refused"),
    path("cancel/", views.jobs_cancel, name="jobs-cancel"),
    path("new/", submit_views.job_new, name="job-new"),
    path("new/sooner/", sooner_views.new_sooner, name="job-new-sooner"),
    path("new/check/", submit_views.job_check, name="job-check"),
    path("<int:id>/", views.job_detail, name="job-detail"),
    path("<int:id>/log/", views.job_detail, {"tab": "log"}, name="job-log"),
    path("<int:id>/events/", views.job_detail, {"tab": "events"}, name="job-events"),
    path("<int:id>/curves/", views.job_detail, {"tab": "curves"}, name="job-curves"),
    path("<int:id>/curves/data/", curves.job_curves_data, name="job-curves-data"),
    path("<int:id>/files/", views.job_detail, {"tab": "files"}, name="job-files"),
    path("<int:id>/files/remove/", views.job_files_remove, name="job-files-remove"),
    path("<int:id>/request/", views.job_detail, {"tab": "request"}, name="job-request"),
    path("<int:id>/row/", views.job_row, name="job-row"),
    path("<int:id>/start/", views.job_start, name="job-start"),
    path("<int:id>/sooner/", sooner_views.job_sooner, name="job-sooner"),
    path("<int:id>/live/", views.job_live, name="job-live"),
    path("<int:id>/diagnose/", diagnose.job_diagnose, name="job-diagnose"),
    path("<int:id>/cards/", views.job_cards, name="job-cards"),
    path("<int:id>/cancel/", views.job_cancel, name="job-cancel"),
    path("<int:id>/hold/", views.job_hold, name="job-hold"),
    path("<int:id>/release/", views.job_release, name="job-release"),
    path("<int:id>/renew/", views.job_renew, name="job-renew"),
]
