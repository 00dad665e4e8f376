from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quotas", "0013_unix_accounts")]
    operations = [
        migrations.AddField(
            model_name="quota",
            name="max_storage_mib",
            field=models.PositiveIntegerField(blank=True, null=True, verbose_name="files and output kept, MiB"),
        ),
    ]
