"""Triggers on SQLite and PostgreSQL: a final state is for ever, an epoch never falls, events are append-only."""

from django.db import migrations

FINAL = "('SUCCEEDED', 'FAILED', 'CANCELLED')"

SQLITE = {
    "job_final_is_final": f"""
        CREATE TRIGGER job_final_is_final BEFORE UPDATE OF state ON jobs_job
        WHEN OLD.state IN {FINAL} AND NEW.state <> OLD.state
        BEGIN SELECT RAISE(ABORT, 'a final job state never changes'); END""",
    "job_epoch_grows": """
        CREATE TRIGGER job_epoch_grows BEFORE UPDATE OF epoch ON jobs_job
        WHEN NEW.epoch < OLD.epoch
        BEGIN SELECT RAISE(ABORT, 'a job epoch never falls'); END""",
    "attempt_end_is_final": """
        CREATE TRIGGER attempt_end_is_final BEFORE UPDATE OF ended_at ON jobs_attempt
        WHEN OLD.ended_at IS NOT NULL AND (NEW.ended_at IS NULL OR NEW.ended_at <> OLD.ended_at)
        BEGIN SELECT RAISE(ABORT, 'an ended attempt stays ended'); END""",
    "jobevent_no_update": """
        CREATE TRIGGER jobevent_no_update BEFORE UPDATE OF code, from_state, to_state, epoch, job_id, at ON jobs_jobevent
        BEGIN SELECT RAISE(ABORT, 'job events are append-only'); END""",
}

POSTGRES = """
CREATE FUNCTION nebula_job_guard() RETURNS trigger AS $$
BEGIN
    IF OLD.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND NEW.state <> OLD.state THEN
        RAISE EXCEPTION 'a final job state never changes' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'a job epoch never falls' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER job_guard BEFORE UPDATE OF state, epoch ON jobs_job FOR EACH ROW EXECUTE FUNCTION nebula_job_guard();

CREATE FUNCTION nebula_attempt_guard() RETURNS trigger AS $$
BEGIN
    IF OLD.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at THEN
        RAISE EXCEPTION 'an ended attempt stays ended' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER attempt_guard BEFORE UPDATE OF ended_at ON jobs_attempt FOR EACH ROW EXECUTE FUNCTION nebula_attempt_guard();

CREATE FUNCTION nebula_append_only() RETURNS trigger AS $$
BEGIN
    RAISE EXCEPTION 'job events are append-only' USING ERRCODE = 'integrity_constraint_violation';
END $$ LANGUAGE plpgsql;
CREATE TRIGGER jobevent_no_update BEFORE UPDATE OF code, from_state, to_state, epoch, job_id, at ON jobs_jobevent
    FOR EACH ROW EXECUTE FUNCTION nebula_append_only();
"""

POSTGRES_BACK = """
DROP TRIGGER job_guard ON jobs_job; DROP FUNCTION nebula_job_guard();
DROP TRIGGER attempt_guard ON jobs_attempt; DROP FUNCTION nebula_attempt_guard();
DROP TRIGGER jobevent_no_update ON jobs_jobevent; DROP FUNCTION nebula_append_only();
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
        schema_editor.execute(POSTGRES_BACK, params=None)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial")]
    operations = [migrations.RunPython(triggers_create, triggers_drop)]
