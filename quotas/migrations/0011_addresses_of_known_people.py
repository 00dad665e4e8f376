"""Accounts that are there were made by an admin: their addresses need no confirmation when that becomes a rule."""

from django.conf import settings
from django.db import migrations


def confirm(apps, schema_editor):
    user_model, address = apps.get_model("quotas", "User"), apps.get_model("account", "EmailAddress")
    known = set(address.objects.values_list("user_id", flat=True))
    address.objects.bulk_create(
        [address(user_id=pk, email=email, verified=True, primary=True) for pk, email in user_model.objects.values_list("pk", "email") if pk not in known]
    )


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0010_use_of_jobs"),
        ("account", "0009_emailaddress_unique_primary_email"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [migrations.RunPython(confirm, migrations.RunPython.noop)]
