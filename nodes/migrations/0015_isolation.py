"""Who jobs run as on a node. Each node is asked for its inventory anew, as an agent that runs already has told it without that."""

from django.db import migrations, models


def ask_again(apps, schema_editor):
    apps.get_model("nodes", "Node").objects.update(inventory_sha256="")


class Migration(migrations.Migration):
    dependencies = [("nodes", "0014_names_with_dots")]

    operations = [
        migrations.AddField("node", "isolation", models.JSONField(blank=True, null=True, verbose_name="isolation")),
        migrations.RunPython(ask_again, migrations.RunPython.noop),
    ]
