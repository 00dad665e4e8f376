"""What ended before this was noted ran for as long as it was charged."""

from datetime import timedelta

from django.db import migrations
from django.db.models import DurationField, ExpressionWrapper, F, Max, Min

#: Ranks at a time, so that a long history needs no more memory than a short one.
STEP = 5000
FINAL = ("EXITED", "LAUNCH_FAILED", "LOST")


def fill(apps, schema_editor):
    Rank, Slice = apps.get_model("jobs", "Rank"), apps.get_model("jobs", "Slice")
    ended = Rank.objects.filter(observed__in=FINAL, started_at__isnull=False, ran_s__isnull=True)
    ends = ended.aggregate(first=Min("pk"), last=Max("pk"))
    if ends["first"] is None:
        return
    # From the rank's start, which may be a moment before its slices were in use.
    span = Max(ExpressionWrapper(F("releasing_at") - F("rank__started_at"), output_field=DurationField()))
    for first in range(ends["first"], ends["last"] + 1, STEP):
        part = ended.filter(pk__gte=first, pk__lt=first + STEP)
        charged = Slice.objects.filter(rank__in=part, active_at__isnull=False, releasing_at__isnull=False).order_by().values("rank_id")
        rows = [Rank(pk=row["rank_id"], ran_s=max(row["span"], timedelta()).total_seconds()) for row in charged.annotate(span=span)]
        Rank.objects.bulk_update(rows, ["ran_s"], batch_size=1000)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0010_last_proof_of_life")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
