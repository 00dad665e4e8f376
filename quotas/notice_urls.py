"""One's own notices, below /notices/."""

from __future__ import annotations

from django.urls import path

from quotas import notice_views as views

urlpatterns = [
    path("", views.notice_list, name="notice-list"),
    path("bell/", views.notice_bell, name="notice-bell"),
    path("read/", views.notices_mark, name="notices-read"),
    path("<int:id>/", views.notice_open, name="notice-open"),
    path("channels/", views.channel_list, name="notice-channels"),
    path("channels/new/", views.channel_edit, name="notice-channel-new"),
    path("channels/email/test/", views.channel_try, name="notice-email-test"),
    path("channels/<int:id>/", views.channel_edit, name="notice-channel"),
    path("channels/<int:id>/delete/", views.channel_remove, name="notice-channel-delete"),
    path("channels/<int:id>/test/", views.channel_try, name="notice-channel-test"),
]
