from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("nodes", "0015_isolation")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="spoilt_launches",
            field=models.PositiveSmallIntegerField(default=0, editable=False, verbose_name="spoilt launches"),
        ),
    ]
