from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("nodes", "0001_initial")]

    operations = [
        migrations.AddField(
            "node",
            "restore",
            models.CharField(blank=True, default="", editable=False, max_length=36, verbose_name="restore to answer"),
        ),
    ]
