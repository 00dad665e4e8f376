"""What apply made, by name."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0006_stopped_when_idle'),
        ('quotas', '0009_secrets'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='AppliedJob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=200, verbose_name='key')),
                ('content', models.JSONField(default=dict, verbose_name='content')),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, verbose_name='updated')),
                ('job', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='jobs.job', verbose_name='job')),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='owner')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='quotas.project', verbose_name='project')),
            ],
            options={
                'verbose_name': 'applied job',
                'verbose_name_plural': 'applied jobs',
                'constraints': [models.UniqueConstraint(fields=('owner', 'project', 'key'), name='applied_once')],
            },
        ),
    ]
