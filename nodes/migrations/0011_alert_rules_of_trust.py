"""Alert rules about nodes that say what can't be, and about their clocks. Rows that an admin has made already stay."""

from django.db import migrations

#: code, figure, comparison, warning, critical, for s, back by, back for s, tells the owner
RULES = (
    ("node-doubted", "node_doubted", "ge", 1, 2, 0, 0, 60, False),
    ("clock-skew", "clock_skew_s", "ge", 30, 300, 30, 5, 60, False),
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
    dependencies = [("nodes", "0010_inspections")]

    operations = [migrations.RunPython(rules_ship, migrations.RunPython.noop)]
