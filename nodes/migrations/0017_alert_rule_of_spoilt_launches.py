"""The alert rule about nodes that were taken out of service by themselves. A row that an admin has made already stays."""

from django.db import migrations


def rules_ship(apps, schema_editor):
    rule = apps.get_model("nodes", "AlertRule")
    row = rule(
        code="node-spoils", metric="node_spoils", op="ge", warning=1, critical=None, for_s=0, clear_by=0, clear_s=60, tells_owner=False
    )
    rule.objects.bulk_create([row], ignore_conflicts=True)


class Migration(migrations.Migration):
    dependencies = [("nodes", "0016_spoilt_launches")]

    operations = [migrations.RunPython(rules_ship, migrations.RunPython.noop)]
