"""What a pass leaves to the next one of a job that cards are kept for."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0015_refused_submits'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='place',
            field=models.JSONField(editable=False, null=True),
        ),
    ]
