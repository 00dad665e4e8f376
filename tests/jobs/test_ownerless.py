"""Jobs of somebody who left (known failure 70: 119 days of an intern's), and jobs that run for weeks: told, renewed, or stopped."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client
from django.utils import timezone

from jobs.models import Job, JobEvent
from jobs.services import upkeep_run
from jobs.services.ownerless import leases_look
from jobs.services.schedule import schedule_pass
from jobs.wording import event_text
from quotas.models import Membership, Notice, Project, User
from tests.factories import attempt_make, job_make, node_make, project_make, user_make
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def intern() -> User:
    return user_make("intern@lab.example")


@pytest.fixture
def lead() -> User:
    return user_make("lead@lab.example")


@pytest.fixture
def vision(intern: User, lead: User) -> Project:
    project = project_make("vision", members=(intern,))
    Membership.objects.create(project=project, user=lead, role=Membership.Role.LEAD)
    return project


def running(owner: User, project: Project, *, since: datetime = NOW) -> Job:
    job = job_make(owner, project=project, state="RUNNING", epoch=1, started_at=since)
    node = node_make(cards=1)
    attempt_make(job, gpus=(node.gpus.get(),), at=since)
    return job


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def codes(job: Job) -> list[str]:
    return list(JobEvent.objects.filter(job=job).order_by("pk").values_list("code", flat=True))


def switch_off(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def test_the_running_job_of_one_who_was_switched_off_goes_on_until_its_lease_ends(intern: User, lead: User, vision: Project) -> None:
    admin, job = user_make("admin@lab.example", is_staff=True), running(intern, vision)
    leases_look(now=NOW)
    assert fresh(job).lease_until is None
    switch_off(intern)
    leases_look(now=NOW)
    leases_look(now=NOW + timedelta(seconds=30))
    assert fresh(job).lease_until == NOW + timedelta(hours=django_settings.OWNERLESS_HOURS)
    assert not fresh(job).want_cancel
    # Told once, and he who is switched off is not.
    assert set(Notice.objects.filter(kind="job_lease").values_list("user", flat=True)) == {lead.pk, admin.pk}
    assert Notice.objects.filter(kind="job_lease").count() == 2
    leases_look(now=NOW + timedelta(hours=60))
    assert Notice.objects.filter(kind="job_lease").count() == 4  # once more, a day before
    assert not fresh(job).want_cancel
    leases_look(now=NOW + timedelta(hours=72))
    assert fresh(job).want_cancel
    assert codes(job)[-3:] == ["lease_over", "cancel_wanted", "stopping"]
    leases_look(now=NOW + timedelta(hours=73))
    assert codes(job).count("lease_over") == 1


def test_a_lead_renews_it_and_a_mate_does_not(intern: User, lead: User, vision: Project) -> None:
    mate, job = user_make(), running(intern, vision)
    Membership.objects.create(project=vision, user=mate)
    assert Api(lead).post(f"/jobs/{job.pk}/renew")[0] == 409  # there is no lease
    switch_off(intern)
    leases_look(now=NOW)
    assert Api(mate).post(f"/jobs/{job.pk}/renew")[0] == 403
    assert Api(lead).post(f"/jobs/{job.pk}/renew")[0] == 200
    assert fresh(job).lease_until > NOW + timedelta(days=29)
    leases_look(now=NOW + timedelta(days=20))
    assert not fresh(job).want_cancel
    leases_look(now=NOW + timedelta(days=31))
    assert fresh(job).want_cancel
    assert [event_text(event) for event in JobEvent.objects.filter(job=job, code__startswith="lease")][-1] == "Nobody renewed it."


def test_a_lead_renews_it_on_the_page(intern: User, lead: User, vision: Project) -> None:
    job, page = running(intern, vision), Client()
    page.force_login(lead, backend=django_settings.AUTHENTICATION_BACKENDS[0])
    assert f"/jobs/{job.pk}/renew/" not in page.get(f"/jobs/{job.pk}/").content.decode()
    switch_off(intern)
    leases_look(now=timezone.now())
    assert f"/jobs/{job.pk}/renew/" in page.get(f"/jobs/{job.pk}/").content.decode()
    assert page.post(f"/jobs/{job.pk}/renew/").status_code == 302
    assert codes(job)[-1] == "lease_renewed"


def test_what_waits_is_held_and_never_starts(intern: User, vision: Project) -> None:
    node_make(cards=1)
    job = job_make(intern, project=vision)
    switch_off(intern)
    leases_look(now=NOW)
    assert (fresh(job).held, fresh(job).held_by) == (True, None)
    schedule_pass(now=NOW)
    assert fresh(job).state == "WAITING"
    leases_look(now=NOW + timedelta(hours=72))
    assert fresh(job).state == "CANCELLED"


def test_who_is_switched_on_again_in_time_keeps_the_job(intern: User, vision: Project) -> None:
    job = running(intern, vision)
    switch_off(intern)
    leases_look(now=NOW)
    User.objects.filter(pk=intern.pk).update(is_active=True)
    for hours in (60, 73, 100):
        leases_look(now=NOW + timedelta(hours=hours))
    assert (fresh(job).lease_until, fresh(job).want_cancel) == (None, False)


def test_a_job_that_runs_for_weeks_asks_its_owner_too(intern: User, lead: User, vision: Project, settings: Any) -> None:
    job, young = running(intern, vision, since=NOW - timedelta(days=31)), running(intern, vision, since=NOW - timedelta(days=29))
    upkeep_run(now=NOW)
    assert set(Notice.objects.filter(kind="job_lease").values_list("user", flat=True)) == {intern.pk, lead.pk}
    assert Api(intern).post(f"/jobs/{job.pk}/renew")[0] == 200
    assert fresh(young).lease_until is None
    settings.LONG_JOB_DAYS = 0
    leases_look(now=NOW + timedelta(days=200))
    assert fresh(young).lease_until is None


def test_nothing_costs_two_queries(django_assert_num_queries: Any) -> None:
    job_make()
    with django_assert_num_queries(2):
        leases_look(now=NOW)
