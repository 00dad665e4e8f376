"""Notices, their ways and deliveries in the admin, to look at. Addresses and secrets are sealed and not shown."""

from __future__ import annotations

from django.contrib import admin

from quotas.models import Notice, NoticeChannel, NoticeDelivery
from quotas.readonly_admin import ReadOnlyAdmin


@admin.register(Notice)
class NoticeAdmin(ReadOnlyAdmin):
    list_display = ("at", "user", "kind", "key", "read_at")
    list_select_related = ("user",)
    list_filter = ("kind",)
    search_fields = ("user__email", "key")
    exclude = ("path",)  # it may be a link that decides in this person's name


@admin.register(NoticeChannel)
class NoticeChannelAdmin(ReadOnlyAdmin):
    list_display = ("id", "user", "kind", "format", "name", "host", "is_active", "sent_at", "failures", "last_error")
    list_select_related = ("user",)
    list_filter = ("kind", "format", "is_active")
    search_fields = ("user__email", "host", "name")
    exclude = ("url_sealed", "secret_sealed")


@admin.register(NoticeDelivery)
class NoticeDeliveryAdmin(ReadOnlyAdmin):
    list_display = ("created_at", "notice", "channel", "state", "tries", "status", "error", "next_at", "done_at")
    list_select_related = ("notice", "channel")
    list_filter = ("state",)
