from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0011_fill_ran_s"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]
    operations = [
        migrations.AddField(model_name="job", name="text_bytes", field=models.PositiveIntegerField(blank=True, editable=False, null=True)),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=("owner", "text_bytes"), condition=models.Q(ended_at__isnull=True), name="job_active_text"),
        ),
    ]
