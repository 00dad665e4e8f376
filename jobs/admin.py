"""Jobs in the admin: to look at, and to do what an owner may do. States, epochs, slices and events have one writer, which isn't here."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs import refusals, services, wording
from jobs.errors import InvalidState
from jobs.models import Artifact, Attempt, IdempotencyKey, Job, JobEvent, Rank, Restore, Slice
from quotas.admin import ReadOnlyAdmin


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "name",
        "owner",
        "project",
        "state",
        "held",
        "gpu_count",
        "gpu_mem_mib",
        "nodes",
        "why",
        "submitted_at",
        "ended_at",
    )
    list_display_links = ("id", "name")
    list_select_related = ("owner", "project")
    list_filter = ("state", "held", "kind", "queue", "qos", "end_reason")
    search_fields = ("=id", "name", "owner__email", "project__name")
    # The values of a job's environment are its owner's alone, staff or not.
    exclude = ("env",)
    actions = ("cancel", "hold", "release")

    @admin.display(description=_("why"))
    def why(self, job: Job) -> str:
        return wording.why_text(job)[2]

    def _each(self, request: HttpRequest, jobs: QuerySet[Job], act: Callable[[Job], object]) -> None:
        """What one job refuses does not keep the others from it."""
        done = 0
        for job in jobs.order_by("pk"):
            try:
                act(job)
                done += 1
            except InvalidState as error:
                self.message_user(request, refusals.refusal_text(error), messages.WARNING)
        if done:
            self.message_user(request, ngettext("%(count)d job: done.", "%(count)d jobs: done.", done) % {"count": done}, messages.SUCCESS)

    @admin.action(description=_("Cancel"))
    def cancel(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        self._each(request, queryset, lambda job: services.job_cancel(job=job, by=request.user))

    @admin.action(description=_("Hold: don't start"))
    def hold(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        why = gettext("held in the admin")
        self._each(request, queryset, lambda job: services.job_hold(job=job, by=request.user, why=why))

    @admin.action(description=_("Release"))
    def release(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        self._each(request, queryset, lambda job: services.job_release(job=job, by=request.user))


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = ("job", "epoch", "created_at", "started_at", "ended_at", "stop_reason", "end_reason", "exit_code", "fence")
    list_select_related = ("job",)
    list_filter = ("end_reason", "fence")
    search_fields = ("=job__id", "job__name")


@admin.register(Rank)
class RankAdmin(ReadOnlyAdmin):
    list_display = ("key", "node", "desired", "observed", "observed_at", "exit_cause", "exit_code", "exit_signal", "is_forgotten")
    list_select_related = ("node",)
    list_filter = ("desired", "observed", "exit_cause")
    search_fields = ("key", "node__name")
    exclude = ("spec",)  # has the environment's values


@admin.register(Slice)
class SliceAdmin(ReadOnlyAdmin):
    list_display = ("id", "rank", "gpu", "mib", "is_exclusive", "share", "state", "held_at", "released_at")
    list_select_related = ("rank", "gpu")
    list_filter = ("state", "is_exclusive")
    search_fields = ("rank__key", "gpu__uuid")


@admin.register(JobEvent)
class JobEventAdmin(ReadOnlyAdmin):
    list_display = ("id", "at", "job", "code", "from_state", "to_state", "epoch", "by")
    list_select_related = ("job", "by")
    list_filter = ("code",)
    search_fields = ("=job__id", "code")


@admin.register(Artifact)
class ArtifactAdmin(ReadOnlyAdmin):
    list_display = ("name", "rank", "size", "created_at")
    list_select_related = ("rank",)
    search_fields = ("name", "rank__key")


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(ReadOnlyAdmin):
    list_display = ("id", "user", "key", "job", "created_at")
    list_select_related = ("user", "job")
    search_fields = ("key", "user__email")


@admin.register(Restore)
class RestoreAdmin(ReadOnlyAdmin):
    list_display = ("id", "backup_at", "at", "settled_at", "epoch_floor", "last_job", "next_job")
