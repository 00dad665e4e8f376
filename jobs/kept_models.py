"""JobFiles: what the control plane keeps of the bytes that a job made."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


class JobFiles(models.Model):
    """Artefacts and output of one job, in bytes. There is no row before the first of them has arrived.

    ``bytes`` and ``count`` are written by jobs.services.files, in the transaction that takes a file; ``log_bytes`` by its
    ``log_bytes_measure``, every 30 s; what was removed by jobs.services.retention. The owner is here as well, so that what a person has
    is summed from an index alone.
    """

    job = models.OneToOneField("jobs.Job", verbose_name=_("job"), primary_key=True, on_delete=models.PROTECT, related_name="kept")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.ForeignKey("quotas.Project", on_delete=models.PROTECT, related_name="+", db_index=False)
    bytes = models.BigIntegerField(_("bytes of files"), default=0)
    count = models.PositiveIntegerField(_("files"), default=0)
    log_bytes = models.BigIntegerField(_("bytes of output"), default=0)
    # Files that were not taken, the first few of them: [{"rank", "name", "size", "code"}].
    refused = models.JSONField(default=list, blank=True)
    refused_count = models.PositiveIntegerField(_("files not taken"), default=0)
    files_removed_at = models.DateTimeField(_("files removed"), null=True, blank=True)
    logs_removed_at = models.DateTimeField(_("output removed"), null=True, blank=True)

    class Meta:
        verbose_name = _("files of a job")
        verbose_name_plural = _("files of jobs")
        indexes = (
            models.Index(fields=("owner", "bytes", "log_bytes", "count"), name="jobfiles_owner"),
            models.Index(fields=("project", "bytes", "log_bytes", "count"), name="jobfiles_project"),
        )

    def __str__(self) -> str:
        return f"files of job {self.job_id}"
