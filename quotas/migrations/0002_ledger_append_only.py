"""Triggers on SQLite and PostgreSQL: a charge is never changed or removed."""

from django.db import migrations

SQLITE = {
    "ledger_no_update": """
        CREATE TRIGGER ledger_no_update BEFORE UPDATE ON quotas_ledgerentry
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    "ledger_no_delete": """
        CREATE TRIGGER ledger_no_delete BEFORE DELETE ON quotas_ledgerentry
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
}
POSTGRES = """
CREATE FUNCTION nebula_ledger_append_only() RETURNS trigger AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only' USING ERRCODE = 'integrity_constraint_violation';
END $$ LANGUAGE plpgsql;
CREATE TRIGGER ledger_guard BEFORE UPDATE OR DELETE ON quotas_ledgerentry FOR EACH ROW EXECUTE FUNCTION nebula_ledger_append_only();
"""


def triggers_create(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        for sql in SQLITE.values():
            schema_editor.execute(sql)
    else:
        schema_editor.execute(POSTGRES, params=None)


def triggers_drop(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        for name in SQLITE:
            schema_editor.execute(f"DROP TRIGGER {name}")
    else:
        schema_editor.execute("DROP TRIGGER ledger_guard ON quotas_ledgerentry; DROP FUNCTION nebula_ledger_append_only();", params=None)


class Migration(migrations.Migration):
    dependencies = [("quotas", "0001_initial")]
    operations = [migrations.RunPython(triggers_create, triggers_drop)]
