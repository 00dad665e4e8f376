from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0008_leases")]
    operations = [
        migrations.AddField(model_name="job", name="end_known", field=models.JSONField(blank=True, editable=False, null=True)),
    ]
