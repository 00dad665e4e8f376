"""What a return from a backup leaves behind. SQLite makes a table with a new column anew, without its triggers: they
are put back."""

import importlib

import django.utils.timezone
from django.db import migrations, models

GUARDS = importlib.import_module("jobs.migrations.0002_guard_final_states").SQLITE


def triggers_again(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        for name, sql in GUARDS.items():
            schema_editor.execute(f"DROP TRIGGER IF EXISTS {name}")
            schema_editor.execute(sql)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_guard_final_states")]

    operations = [
        migrations.CreateModel(
            name="Restore",
            fields=[
                ("id", models.CharField(max_length=36, primary_key=True, serialize=False)),
                ("backup_at", models.DateTimeField(verbose_name="backup made")),
                ("at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="restored")),
                ("epoch_floor", models.PositiveIntegerField(verbose_name="epoch floor")),
                ("last_job", models.BigIntegerField(verbose_name="last job of the backup")),
                ("next_job", models.BigIntegerField(verbose_name="first job number after it")),
                ("ran", models.JSONField(default=dict)),
                ("settled_at", models.DateTimeField(blank=True, null=True, verbose_name="settled")),
            ],
            options={"verbose_name": "restore", "verbose_name_plural": "restores", "ordering": ("-at",)},
        ),
        migrations.AddField("job", "epoch_floor", models.PositiveIntegerField(default=0, editable=False)),
        migrations.AddField("job", "is_restored", models.BooleanField(default=False, editable=False, verbose_name="from a backup")),
        migrations.RunPython(triggers_again, triggers_again),
    ]
