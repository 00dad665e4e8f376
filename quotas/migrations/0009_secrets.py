"""Secrets of users and projects, sealed."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0008_token_scopes'),
    ]

    operations = [
        migrations.CreateModel(
            name='Secret',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=64, verbose_name='name')),
                ('sealed', models.TextField(editable=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False, verbose_name='set')),
                ('replaced_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='replaced')),
                ('used_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='last used')),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='set by')),
                ('project', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to='quotas.project', verbose_name='project')),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to=settings.AUTH_USER_MODEL, verbose_name='user')),
            ],
            options={
                'verbose_name': 'secret',
                'verbose_name_plural': 'secrets',
                'ordering': ('name', 'id'),
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('project__isnull', True), ('user__isnull', False)), models.Q(('project__isnull', False), ('user__isnull', True)), _connector='OR'), name='secret_one_owner'), models.UniqueConstraint(condition=models.Q(('replaced_at__isnull', True)), fields=('user', 'name'), name='secret_user_name'), models.UniqueConstraint(condition=models.Q(('replaced_at__isnull', True)), fields=('project', 'name'), name='secret_project_name')],
            },
        ),
    ]
