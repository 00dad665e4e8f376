"""XID rules as NVIDIA's catalogue has them: 94 restarts the application, 46 and 109 reset the card, 143 is a card that did not start.

https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. A rule that an admin has changed stays as it is.
"""

from django.db import migrations

#: XID, meaning, action before (None = no rule), action now, again_s
RULES = (
    (46, "GPU stopped processing", None, "reset", 86_400),
    (94, "Contained memory error", "note", "restart", 86_400),
    (109, "Context switch time-out", "note", "reset", 86_400),
    (143, "GPU initialization failure", None, "reset", 86_400),
)


def rules_ship(apps, schema_editor):
    policy = apps.get_model("nodes", "XidPolicy")
    for xid, title, before, action, again_s in RULES:
        if before is None:
            policy.objects.get_or_create(xid=xid, defaults={"title": title, "action": action, "again_s": again_s})
        else:
            policy.objects.filter(xid=xid, action=before).update(action=action, again_s=again_s)


class Migration(migrations.Migration):
    dependencies = [("nodes", "0020_alert_rule_of_the_control_planes_disk")]

    operations = [migrations.RunPython(rules_ship, migrations.RunPython.noop)]
