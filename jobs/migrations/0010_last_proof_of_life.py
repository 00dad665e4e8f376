"""Since when a rank runs by its node's uptime, and how long it is known to have run."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0009_what_its_output_died_of")]

    operations = [
        migrations.AddField(
            model_name="rank",
            name="began_s",
            field=models.FloatField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="rank",
            name="ran_s",
            field=models.FloatField(blank=True, editable=False, null=True, verbose_name="ran for, s"),
        ),
    ]
