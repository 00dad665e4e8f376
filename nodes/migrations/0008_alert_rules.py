"""The alert rules that ship. Rows that an admin has made already stay."""

from django.db import migrations

#: code, figure, comparison, warning, critical, for s, back by, back for s, tells the owner
RULES = (
    ("memory-high", "memory_pct", "gt", 90, None, 300, 2, 60, True),
    ("held-idle", "idle_held_pct", "lt", 20, None, 600, 5, 120, True),
    ("tensor-idle", "full_idle_tensor_pct", "lt", 10, None, 600, 2, 120, True),
    ("hot", "temp_c", "ge", 85, 92, 120, 5, 120, False),
    ("getting-hot", "temp_soon_c", "ge", 95, None, 120, 5, 120, False),
    ("power-limit", "power_pct", "ge", 98, None, 600, 5, 120, False),
    ("card-untold", "card_untold", "ge", 1, None, 60, 0, 60, False),
    ("disk-low", "disk_free_pct", "lt", 10, 5, 60, 2, 60, False),
    ("node-silent", "node_silent", "ge", 1, 2, 30, 0, 60, True),
    ("nodes-silent", "silent_nodes_pct", "gt", None, 50, 0, 0, 60, False),
    ("long-wait", "wait_s", "gt", 3600, None, 0, 0, 60, True),
    ("over-request", "over_request_pct", "gt", 100, 110, 60, 2, 60, True),
    ("launches-fail", "launch_failed_pct", "ge", 20, 50, 60, 5, 120, False),
    ("nothing-scheduled", "pass_late_s", "gt", 60, 300, 30, 0, 30, False),
)


def rules_ship(apps, schema_editor):
    rule = apps.get_model("nodes", "AlertRule")
    rows = [
        rule(
            code=code, metric=metric, op=op, warning=warning, critical=critical, for_s=for_s, clear_by=back, clear_s=clear, tells_owner=owner
        )
        for code, metric, op, warning, critical, for_s, back, clear, owner in RULES
    ]
    rule.objects.bulk_create(rows, ignore_conflicts=True)


class Migration(migrations.Migration):
    dependencies = [("nodes", "0007_alerts")]

    operations = [migrations.RunPython(rules_ship, migrations.RunPython.noop)]
