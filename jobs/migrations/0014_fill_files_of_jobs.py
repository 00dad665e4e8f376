"""What jobs left before it was counted, from the rows that say so."""

from django.db import migrations
from django.db.models import Count, Sum


def files_fill(apps, schema_editor):
    Artifact, Rank, JobFiles = (apps.get_model("jobs", name) for name in ("Artifact", "Rank", "JobFiles"))
    found = {}
    keys = ("rank__attempt__job_id", "rank__attempt__job__owner_id", "rank__attempt__job__project_id")
    for job, owner, project, size, count in Artifact.objects.order_by().values_list(*keys).annotate(Sum("size"), Count("pk")):
        found[job] = JobFiles(job_id=job, owner_id=owner, project_id=project, bytes=size, count=count)
    keys = ("attempt__job_id", "attempt__job__owner_id", "attempt__job__project_id")
    ranks = Rank.objects.filter(final_log_offset__gt=0).order_by()
    for job, owner, project, size in ranks.values_list(*keys).annotate(Sum("final_log_offset")):
        found.setdefault(job, JobFiles(job_id=job, owner_id=owner, project_id=project)).log_bytes = size
    JobFiles.objects.bulk_create(found.values(), batch_size=500, ignore_conflicts=True)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0013_files_of_jobs")]
    operations = [migrations.RunPython(files_fill, migrations.RunPython.noop)]
