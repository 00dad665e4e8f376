"""Migrations: complete, named, and what they promise holds in a database made by them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.migrations.loader import MigrationLoader

from jobs.models import Job, JobEvent
from quotas.services import project_personal
from tests.factories import user_make

OURS = ("quotas", "nodes", "jobs")


@pytest.mark.django_db
def test_no_model_change_is_without_its_migration() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_every_migration_says_what_it_does() -> None:
    for label in OURS:
        folder = Path(apps.get_app_config(label).path) / "migrations"
        for file in folder.glob("[0-9]*.py"):
            assert not re.search(r"_auto_\d|_alter_\w+_and_more|_and_more", file.stem), f"{file.name} has a name that says nothing"


def test_there_is_one_leaf_per_app() -> None:
    loader = MigrationLoader(None)
    assert loader.detect_conflicts() == {}


@pytest.mark.django_db
def test_the_database_keeps_final_states_epochs_and_events_as_they_are() -> None:
    user = user_make("anna@example.org")
    job = Job.objects.create(owner=user, project=project_personal(user), name="x", argv=["true"], state="CANCELLED", epoch=2)
    event = JobEvent.objects.create(job=job, code="submitted", to_state="WAITING")
    for change in (
        lambda: Job.objects.filter(pk=job.pk).update(state="RUNNING"),
        lambda: Job.objects.filter(pk=job.pk).update(epoch=1),
        lambda: JobEvent.objects.filter(pk=event.pk).update(code="other"),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()
    job.refresh_from_db()
    event.refresh_from_db()
    assert (job.state, job.epoch, event.code) == ("CANCELLED", 2, "submitted")


@pytest.mark.django_db
def test_the_triggers_are_there() -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT tbl_name FROM sqlite_master WHERE type = 'trigger'")
        else:
            cursor.execute("SELECT event_object_table FROM information_schema.triggers")
        tables = {row[0] for row in cursor.fetchall()}
    assert {"jobs_job", "jobs_jobevent", "quotas_ledgerentry"} <= tables
