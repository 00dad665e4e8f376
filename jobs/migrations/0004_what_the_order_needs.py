"""What the order of the queue needs of a job: its queue, its quality of service, how long jobs like it ran, and
how long it was on hold. SQLite makes a table with a new column anew, without its triggers: they are put back."""

import importlib

from django.db import migrations, models

triggers_again = importlib.import_module("jobs.migrations.0003_restore").triggers_again


class Migration(migrations.Migration):
    dependencies = [("jobs", "0003_restore")]

    operations = [
        migrations.AddField("job", "queue", models.CharField(blank=True, default="", max_length=40, verbose_name="queue")),
        migrations.AddField("job", "qos", models.CharField(blank=True, default="", max_length=40, verbose_name="quality of service")),
        migrations.AddField(
            "job", "predicted_s", models.FloatField(blank=True, editable=False, null=True, verbose_name="runtime predicted, s")
        ),
        migrations.AddField("job", "held_s", models.FloatField(default=0.0, editable=False, verbose_name="on hold so far, s")),
        migrations.AddIndex(
            "job", models.Index(condition=models.Q(("ended_at__isnull", False)), fields=["ended_at", "id"], name="job_ended")
        ),
        migrations.RunPython(triggers_again, triggers_again),
    ]
