"""Those who are here get the limit that a new user has; an administrator may change it for each."""

from django.conf import settings
from django.db import migrations


def limits_fill(apps, schema_editor):
    rows = apps.get_model("quotas", "Quota").objects.filter(user__isnull=False, max_storage_mib__isnull=True)
    rows.update(max_storage_mib=settings.DEFAULT_STORAGE_MIB or None)


class Migration(migrations.Migration):
    dependencies = [("quotas", "0014_storage_limit")]
    operations = [migrations.RunPython(limits_fill, migrations.RunPython.noop)]
