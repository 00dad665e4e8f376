"""What jobs left before it was counted, from the rows that say so."""

from django.db import migrations
from django.db.models import Count, Max, Min, Sum

#: Jobs at a time, so that a long history needs no more memory than a short one.
STEP = 5000


def files_fill(apps, schema_editor):
    ends = apps.get_model("jobs", "Job").objects.aggregate(first=Min("pk"), last=Max("pk"))
    if ends["first"] is not None:
        for first in range(ends["first"], ends["last"] + 1, STEP):
            _fill(apps, first, first + STEP)


def _fill(apps, first, end):
    Artifact, Rank, JobFiles = (apps.get_model("jobs", name) for name in ("Artifact", "Rank", "JobFiles"))
    found = {}
    keys = ("rank__attempt__job_id", "rank__attempt__job__owner_id", "rank__attempt__job__project_id")
    artifacts = Artifact.objects.filter(rank__attempt__job__gte=first, rank__attempt__job__lt=end).order_by()
    for job, owner, project, size, count in artifacts.values_list(*keys).annotate(Sum("size"), Count("pk")):
        found[job] = JobFiles(job_id=job, owner_id=owner, project_id=project, bytes=size, count=count)
    keys = ("attempt__job_id", "attempt__job__owner_id", "attempt__job__project_id")
    ranks = Rank.objects.filter(final_log_offset__gt=0, attempt__job__gte=first, attempt__job__lt=end).order_by()
    for job, owner, project, size in ranks.values_list(*keys).annotate(Sum("final_log_offset")):
        found.setdefault(job, JobFiles(job_id=job, owner_id=owner, project_id=project)).log_bytes = size
    JobFiles.objects.bulk_create(found.values(), batch_size=500, ignore_conflicts=True)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0013_files_of_jobs")]
    operations = [migrations.RunPython(files_fill, migrations.RunPython.noop)]
