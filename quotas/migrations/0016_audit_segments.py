"""Parts of the audit log that were removed for their age. The triggers let go what a part covers, and nothing else."""

from django.db import migrations, models

COVERED = {
    "quotas_auditlink": "OLD.seq <= COALESCE((SELECT MAX(last_seq) FROM quotas_auditsegment), 0)",
    "quotas_auditentry": "OLD.id <= COALESCE((SELECT MAX(last_entry_id) FROM quotas_auditsegment), 0)",
}
POSTGRES = """
CREATE FUNCTION {table}_delete() RETURNS trigger AS $$
BEGIN
    IF NOT ({covered}) THEN
        RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END $$ LANGUAGE plpgsql;
DROP TRIGGER {table}_guard ON {table};
CREATE TRIGGER {table}_guard BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION nebula_audit_append_only();
CREATE TRIGGER {table}_guard_delete BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_delete();
"""
POSTGRES_BACK = """
DROP TRIGGER {table}_guard_delete ON {table};
DROP FUNCTION {table}_delete();
DROP TRIGGER {table}_guard ON {table};
CREATE TRIGGER {table}_guard BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION nebula_audit_append_only();
"""
REFUSE = "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"


def triggers_open(apps, schema_editor):
    is_sqlite = schema_editor.connection.vendor == "sqlite"
    for table, covered in COVERED.items():
        if is_sqlite:
            schema_editor.execute(f"DROP TRIGGER {table}_no_delete")
            schema_editor.execute(f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} WHEN NOT ({covered}) {REFUSE}")
        else:
            schema_editor.execute(POSTGRES.format(table=table, covered=covered), params=None)
    if is_sqlite:
        for verb in ("update", "delete"):
            schema_editor.execute(f"CREATE TRIGGER quotas_auditsegment_no_{verb} BEFORE {verb.upper()} ON quotas_auditsegment {REFUSE}")
    else:
        schema_editor.execute(
            "CREATE TRIGGER quotas_auditsegment_guard BEFORE UPDATE OR DELETE ON quotas_auditsegment "
            "FOR EACH ROW EXECUTE FUNCTION nebula_audit_append_only()",
            params=None,
        )


def triggers_close(apps, schema_editor):
    is_sqlite = schema_editor.connection.vendor == "sqlite"
    for table in COVERED:
        if is_sqlite:
            schema_editor.execute(f"DROP TRIGGER {table}_no_delete")
            schema_editor.execute(f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {REFUSE}")
        else:
            schema_editor.execute(POSTGRES_BACK.format(table=table), params=None)
    if is_sqlite:
        for verb in ("update", "delete"):
            schema_editor.execute(f"DROP TRIGGER quotas_auditsegment_no_{verb}")
    else:
        schema_editor.execute("DROP TRIGGER quotas_auditsegment_guard ON quotas_auditsegment", params=None)


class Migration(migrations.Migration):
    dependencies = [("quotas", "0015_fill_storage_limit")]

    operations = [
        migrations.CreateModel(
            name="AuditSegment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("first_seq", models.BigIntegerField(unique=True, verbose_name="first link")),
                ("last_seq", models.BigIntegerField(unique=True, verbose_name="last link")),
                ("last_hash", models.CharField(max_length=64)),
                ("last_entry_id", models.BigIntegerField()),
                ("entries", models.PositiveIntegerField(verbose_name="entries")),
                ("removed_at", models.DateTimeField(verbose_name="removed")),
                ("signature", models.CharField(max_length=64)),
            ],
            options={
                "verbose_name": "removed part of the audit log",
                "verbose_name_plural": "removed parts of the audit log",
                "ordering": ("first_seq",),
            },
        ),
        migrations.RunPython(triggers_open, triggers_close),
    ]
