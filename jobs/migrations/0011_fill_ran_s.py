"""What ended before this was noted ran for as long as it was charged."""

from datetime import timedelta

from django.db import migrations
from django.db.models import DurationField, ExpressionWrapper, F, Max

FINAL = ("EXITED", "LAUNCH_FAILED", "LOST")


def fill(apps, schema_editor):
    Rank, Slice = apps.get_model("jobs", "Rank"), apps.get_model("jobs", "Slice")
    ended = Rank.objects.filter(observed__in=FINAL, started_at__isnull=False, ran_s__isnull=True)
    charged = Slice.objects.filter(rank__in=ended, active_at__isnull=False, releasing_at__isnull=False).order_by().values("rank_id")
    # From the rank's start, which may be a moment before its slices were in use.
    spans = charged.annotate(span=Max(ExpressionWrapper(F("releasing_at") - F("rank__started_at"), output_field=DurationField())))
    rows = [Rank(pk=row["rank_id"], ran_s=max(row["span"], timedelta()).total_seconds()) for row in spans]
    Rank.objects.bulk_update(rows, ["ran_s"], batch_size=1000)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0010_last_proof_of_life")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
