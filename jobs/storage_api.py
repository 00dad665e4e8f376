"""What the files and output of jobs take on the control plane, against the limits: over REST, and as bars for the usage page."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import Sum
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.models import Job
from jobs.services.files import MIB, Kept, kept_by
from nodes import formats
from quotas.disk import disks
from quotas.models import Project, Quota, User
from quotas.selectors import projects_led_by
from quotas.services import quota_for

#: Projects of one's own that are summed; a person is in a handful.
PROJECTS_MOST = 50


class UseSchema(serializers.Serializer[Any]):
    """Bytes that are kept, and the limit."""

    file_bytes = serializers.IntegerField(help_text="What jobs left in $NEBULA_ARTIFACTS.")
    file_count = serializers.IntegerField()
    log_bytes = serializers.IntegerField(help_text="Output, as of half a minute ago.")
    limit_bytes = serializers.IntegerField(allow_null=True, help_text="Of files and output together; null = no limit.")


class TextSchema(serializers.Serializer[Any]):
    bytes = serializers.IntegerField()
    limit_bytes = serializers.IntegerField(allow_null=True)


class DiskSchema(serializers.Serializer[Any]):
    folder = serializers.CharField()
    free_mib = serializers.IntegerField()
    total_mib = serializers.IntegerField()
    floor_mib = serializers.IntegerField(help_text="Below it submits, output and files are refused.")


class StorageSchema(serializers.Serializer[Any]):
    mine = UseSchema()
    job_text = TextSchema(help_text="Commands and environments of my active jobs.")
    projects = serializers.DictField(child=UseSchema(), help_text="By name: those that I lead.")
    job_limits = serializers.DictField(child=serializers.IntegerField(), help_text="Of one job: file_bytes, files; 0 = no limit.")
    kept_days = serializers.DictField(child=serializers.IntegerField(), help_text="After a job's end: files, output; 0 = for ever.")
    disks = DiskSchema(many=True, help_text="Of the control plane; staff alone see them.")


def _led(user: User) -> list[tuple[Project, Quota | None]]:
    """The projects of several people that a user leads. Two queries."""
    led = Project.objects.filter(pk__in=projects_led_by(user), personal_of__isnull=True, is_active=True)
    if user.is_staff:
        led = led.filter(memberships__user=user)
    projects = list(led.order_by("name").distinct()[:PROJECTS_MOST])
    quotas = {quota.project_id: quota for quota in Quota.objects.filter(project__in=projects)}
    return [(project, quotas.get(project.pk)) for project in projects]


def text_used(user: User) -> int:
    """Bytes of commands and environments of a user's active jobs. One query."""
    return Job.objects.filter(owner=user, ended_at__isnull=True).aggregate(total=Sum("text_bytes"))["total"] or 0


def use_json(kept: Kept) -> dict[str, Any]:
    limit = None if kept.limit_mib is None else kept.limit_mib * MIB
    return {"file_bytes": kept.file_bytes, "file_count": kept.count, "log_bytes": kept.log_bytes, "limit_bytes": limit}


def storage_json(user: User) -> dict[str, Any]:
    return {
        "mine": use_json(kept_by(user, quota_for(user))),
        "job_text": {"bytes": text_used(user), "limit_bytes": settings.JOB_TEXT_MIB * MIB or None},
        "projects": {project.name: use_json(kept_by(project, quota)) for project, quota in _led(user)},
        "job_limits": {"file_bytes": settings.ARTIFACTS_JOB_MIB * MIB, "files": settings.ARTIFACTS_JOB_FILES},
        "kept_days": {"files": settings.KEEP_ARTIFACTS_DAYS, "output": settings.KEEP_LOGS_DAYS},
        "disks": [
            {"folder": disk.folder, "free_mib": disk.free_mib, "total_mib": disk.total_mib, "floor_mib": settings.DISK_FLOOR_MIB}
            for disk in (disks() if user.is_staff else ())
        ],
    }


class StorageView(APIView):
    @extend_schema(
        operation_id="storage_get",
        summary="What files and output of jobs take, against the limits",
        description="One's own, and of projects that one leads; for staff the control plane's disks, too.",
        responses=StorageSchema,
    )
    def get(self, request: Request) -> Response:
        return Response(storage_json(request.user))


def storage_bars(user: User) -> list[dict[str, Any]]:
    """For templates/quota/_bars.html. Four queries, one more a project."""
    mine = kept_by(user, quota_for(user))
    rows = [(_("Files and output kept"), mine.bytes, None if mine.limit_mib is None else mine.limit_mib * MIB)]
    rows.append((_("Commands and environments of active jobs"), text_used(user), settings.JOB_TEXT_MIB * MIB or None))
    for project, quota in _led(user):
        kept = kept_by(project, quota)
        name = _("Files and output of %(project)s") % {"project": project.name}
        rows.append((name, kept.bytes, None if kept.limit_mib is None else kept.limit_mib * MIB))
    return [_bar(*row) for row in rows]


def _bar(name: str, used: int, limit: int | None) -> dict[str, Any]:
    pct = 0.0 if limit is None else round(min(100.0, 100 * used / limit), 1)
    shown = formats.size(used)
    if limit is None:
        text = _("%(used)s, no limit") % {"used": shown}
    else:
        text = _("%(used)s of %(limit)s") % {"used": shown, "limit": formats.size(limit)}
    return {"name": name, "text": text, "pct": pct, "limit": limit, "tone": "bad" if pct >= 100 else "warn" if pct >= 80 else "me"}
