"""The alert rule about the control plane's own disk. A row that an admin has made already stays."""

from django.db import migrations


def rules_ship(apps, schema_editor):
    rule = apps.get_model("nodes", "AlertRule")
    row = rule(
        code="control-disk", metric="control_disk", op="ge", warning=1, critical=2, for_s=0, clear_by=0, clear_s=60, tells_owner=False
    )
    rule.objects.bulk_create([row], ignore_conflicts=True)


class Migration(migrations.Migration):
    dependencies = [("nodes", "0019_credentials")]

    operations = [migrations.RunPython(rules_ship, migrations.RunPython.noop)]
