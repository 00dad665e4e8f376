"""Unix accounts that were ever made up: what people have now, and what the audit log says that they had."""

from django.db import migrations, models


def fill(apps, schema_editor):
    User, AuditEntry, IssuedAccount = (apps.get_model("quotas", name) for name in ("User", "AuditEntry", "IssuedAccount"))
    made = AuditEntry.objects.filter(action="user.unix_name", params__how="range").order_by().values_list("params", flat=True)
    found = {params["uid"]: params["unix_name"] for params in made.iterator(chunk_size=1000)}
    found |= dict(User.objects.filter(unix_uid__isnull=False).values_list("unix_uid", "unix_name"))
    IssuedAccount.objects.bulk_create((IssuedAccount(uid=uid, name=name) for uid, name in found.items()), batch_size=500)


class Migration(migrations.Migration):
    dependencies = [("quotas", "0016_audit_segments")]

    operations = [
        migrations.CreateModel(
            name="IssuedAccount",
            fields=[
                ("uid", models.PositiveIntegerField(primary_key=True, serialize=False)),
                ("name", models.CharField(db_index=True, max_length=32)),
            ],
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
