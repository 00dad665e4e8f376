"""Triggers on SQLite and PostgreSQL: a storage charge is never changed or removed, as a ledger entry is not."""

from django.db import migrations

SQLITE = {
    "storage_no_update": """
        CREATE TRIGGER storage_no_update BEFORE UPDATE ON quotas_storageentry
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    "storage_no_delete": """
        CREATE TRIGGER storage_no_delete BEFORE DELETE ON quotas_storageentry
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
}
POSTGRES = """
CREATE TRIGGER storage_guard BEFORE UPDATE OR DELETE ON quotas_storageentry
FOR EACH ROW EXECUTE FUNCTION nebula_ledger_append_only();
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
        schema_editor.execute("DROP TRIGGER storage_guard ON quotas_storageentry;", params=None)


class Migration(migrations.Migration):
    dependencies = [("quotas", "0006_prices_storage_and_live_use")]
    operations = [migrations.RunPython(triggers_create, triggers_drop)]
