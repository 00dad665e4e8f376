"""How long a node had been up at its last sync: with a rank's start on the same clock it says how long that ran at least."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("nodes", "0012_installation")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="last_uptime_s",
            field=models.FloatField(editable=False, null=True),
        ),
    ]
