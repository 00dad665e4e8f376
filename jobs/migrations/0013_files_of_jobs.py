import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0012_text_of_jobs'),
        ('quotas', '0015_fill_storage_limit'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='JobFiles',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='kept', serialize=False, to='jobs.job', verbose_name='job')),
                ('bytes', models.BigIntegerField(default=0, verbose_name='bytes of files')),
                ('count', models.PositiveIntegerField(default=0, verbose_name='files')),
                ('log_bytes', models.BigIntegerField(default=0, verbose_name='bytes of output')),
                ('refused', models.JSONField(blank=True, default=list)),
                ('refused_count', models.PositiveIntegerField(default=0, verbose_name='files not taken')),
                ('files_removed_at', models.DateTimeField(blank=True, null=True, verbose_name='files removed')),
                ('logs_removed_at', models.DateTimeField(blank=True, null=True, verbose_name='output removed')),
                ('owner', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='quotas.project')),
            ],
            options={
                'verbose_name': 'files of a job',
                'verbose_name_plural': 'files of jobs',
                'indexes': [models.Index(fields=['owner', 'bytes', 'log_bytes', 'count'], name='jobfiles_owner'), models.Index(fields=['project', 'bytes', 'log_bytes', 'count'], name='jobfiles_project')],
            },
        ),
    ]
