"""The XID rules that ship: NVIDIA's meanings with the actions of D5–D7. Rows that an admin has made already stay."""

from django.db import migrations

#: XID, meaning, action, whether a program can cause it, again_s
RULES = (
    (13, "Graphics engine exception", "test", True, 3600),
    (31, "GPU memory page fault", "fail_job", True, 3600),
    (43, "GPU stopped processing", "reset", True, 86_400),
    (45, "Preemptive cleanup after an earlier error", "note", True, 3600),
    (48, "Double-bit ECC error", "suspect", False, 86_400),
    (62, "Internal micro-controller halt", "suspect", False, 86_400),
    (63, "A memory row or page is to be taken out of use", "note", False, 86_400),
    (64, "A memory row or page could not be taken out of use", "isolate", False, 86_400),
    (68, "Video processor exception", "note", True, 3600),
    (74, "NVLink error", "suspect", False, 3600),
    (79, "GPU has fallen off the bus", "suspect", False, 600),
    (94, "Contained memory error", "note", False, 86_400),
    (95, "Uncontained memory error", "isolate", False, 86_400),
    (109, "Context switch time-out", "note", False, 3600),
    (119, "GSP firmware does not answer", "suspect", False, 3600),
    (120, "GSP firmware error", "suspect", False, 3600),
    (140, "Unrecovered ECC error", "isolate", False, 86_400),
)


def rules_ship(apps, schema_editor):
    policy = apps.get_model("nodes", "XidPolicy")
    rows = [policy(xid=x, title=t, action=a, is_users=u, again_s=s) for x, t, a, u, s in RULES]
    policy.objects.bulk_create(rows, ignore_conflicts=True)


class Migration(migrations.Migration):
    dependencies = [("nodes", "0004_health")]

    operations = [migrations.RunPython(rules_ship, migrations.RunPython.noop)]
