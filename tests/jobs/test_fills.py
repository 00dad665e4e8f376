"""Migrations that fill a new column or table from what is there: whatever ranges they go by, nothing is left out."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps

from jobs.models import Artifact, JobFiles, Rank
from tests.jobs.lab import Lab

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> Lab:
    """Five jobs that ran for 1 to 5 s each, and left a file and output of as many bytes."""
    lab = Lab()
    lab.node("n1", *[24564] * 5)
    for number in range(1, 6):
        job = lab.submit(now=lab.now)
        lab.schedule(lab.now)
        lab.report(job, "RUNNING")
        lab.later(number)
        lab.exit(job)
        Artifact.objects.create(rank=Rank.objects.latest("pk"), name="a.bin", size=number, sha256="0" * 64)
    return lab


@pytest.mark.parametrize("step", [1, 2, 5000])
def test_each_rank_that_ended_gets_its_run_time(lab: Lab, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("jobs.migrations.0011_fill_ran_s")
    monkeypatch.setattr(module, "STEP", step)
    Rank.objects.update(ran_s=None)
    module.fill(apps, None)
    assert list(Rank.objects.order_by("pk").values_list("ran_s", flat=True)) == pytest.approx([1, 2, 3, 4, 5])


@pytest.mark.parametrize("step", [1, 2, 5000])
def test_what_each_job_left_is_counted(lab: Lab, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("jobs.migrations.0014_fill_files_of_jobs")
    monkeypatch.setattr(module, "STEP", step)
    JobFiles.objects.all().delete()
    for number, rank in enumerate(Rank.objects.order_by("pk"), start=1):
        Rank.objects.filter(pk=rank.pk).update(final_log_offset=10 * number)
    module.files_fill(apps, None)
    found = JobFiles.objects.order_by("pk").values_list("count", "bytes", "log_bytes")
    assert list(found) == [(1, number, 10 * number) for number in range(1, 6)]


@pytest.mark.parametrize(("name", "fill"), [("0011_fill_ran_s", "fill"), ("0014_fill_files_of_jobs", "files_fill")])
def test_an_empty_installation_has_nothing_to_fill(name: str, fill: str) -> None:
    getattr(import_module(f"jobs.migrations.{name}"), fill)(apps, None)
    assert not JobFiles.objects.exists()
