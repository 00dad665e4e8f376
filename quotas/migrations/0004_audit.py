"""The audit log and its chain, with triggers on SQLite and PostgreSQL: neither is ever changed or removed."""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

TABLES = ("quotas_auditentry", "quotas_auditlink")
POSTGRES = """
CREATE FUNCTION nebula_audit_append_only() RETURNS trigger AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'integrity_constraint_violation';
END $$ LANGUAGE plpgsql;
"""


def triggers_create(apps, schema_editor):
    is_sqlite = schema_editor.connection.vendor == "sqlite"
    if not is_sqlite:
        schema_editor.execute(POSTGRES, params=None)
    for table in TABLES:
        if is_sqlite:
            for verb in ("update", "delete"):
                schema_editor.execute(
                    f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb.upper()} ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
                )
        else:
            schema_editor.execute(
                f"CREATE TRIGGER {table}_guard BEFORE UPDATE OR DELETE ON {table} "
                "FOR EACH ROW EXECUTE FUNCTION nebula_audit_append_only()",
                params=None,
            )


def triggers_drop(apps, schema_editor):
    for table in TABLES:
        if schema_editor.connection.vendor == "sqlite":
            for verb in ("update", "delete"):
                schema_editor.execute(f"DROP TRIGGER {table}_no_{verb}")
        else:
            schema_editor.execute(f"DROP TRIGGER {table}_guard ON {table}", params=None)
    if schema_editor.connection.vendor != "sqlite":
        schema_editor.execute("DROP FUNCTION nebula_audit_append_only()", params=None)


class Migration(migrations.Migration):
    dependencies = [("quotas", "0003_notices")]

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_index=True, default=django.utils.timezone.now, verbose_name="at")),
                ("actor_id", models.BigIntegerField(blank=True, null=True, verbose_name="actor's number")),
                ("actor", models.CharField(max_length=254, verbose_name="actor")),
                ("via", models.CharField(blank=True, max_length=40, verbose_name="by way of")),
                ("address", models.CharField(blank=True, max_length=45, verbose_name="address")),
                ("action", models.CharField(max_length=40, verbose_name="action")),
                ("target", models.CharField(blank=True, max_length=200, verbose_name="target")),
                ("params", models.JSONField(blank=True, default=dict, verbose_name="parameters")),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit entries",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["action", "-id"], name="audit_action"),
                    models.Index(fields=["actor", "-id"], name="audit_actor"),
                    models.Index(fields=["target", "-id"], name="audit_target"),
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditLink",
            fields=[
                ("seq", models.BigIntegerField(primary_key=True, serialize=False)),
                ("hash", models.CharField(max_length=64)),
                (
                    "entry",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="link", to="quotas.auditentry"
                    ),
                ),
            ],
            options={"verbose_name": "audit link", "verbose_name_plural": "audit links"},
        ),
        migrations.RunPython(triggers_create, triggers_drop),
    ]
