"""Words and times that must agree from page to page."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.wording.resets import reset_text, reset_text_of
from nodes import telemetry
from nodes.formats import NBSP, clock_text
from nodes.models import NodeState
from quotas import calendar
from tests.factories import node_make, project_make, user_make
from tests.jobs.lab import Lab

TEN = datetime(2026, 7, 31, 16, tzinfo=UTC)


def test_a_reset_is_told_in_the_zone_that_decides_whoever_reads(settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    for zone in ("UTC", "America/Sao_Paulo"):
        with timezone.override(zone):
            assert reset_text(TEN) == f"1{NBSP}Aug{NBSP}2026, 00:00 Asia/Shanghai"
            assert reset_text_of(TEN.isoformat()) == reset_text(TEN)
    assert reset_text_of("soon") == "soon"
    assert reset_text_of(None) == "never"


def test_a_time_keeps_its_seconds_after_midnight() -> None:
    with timezone.override("UTC"):
        now = TEN + timedelta(hours=9)
        assert clock_text(TEN, now=TEN, is_exact=True) == "16:00:00"
        assert clock_text(TEN, now=now, is_exact=True) == f"31{NBSP}Jul, 16:00:00"


@pytest.mark.django_db
def test_overview_quota_and_refusal_tell_one_reset(client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    monkeypatch.setattr(telemetry, "nodes_statuses", lambda node_ids, *, now=None: {})
    monkeypatch.setattr(telemetry, "nodes_last_seen", dict)
    monkeypatch.setattr(telemetry, "is_away", lambda: False)
    now = timezone.now()
    user = user_make(quota={"gpu_hours": 5, "used_gpu_s": 5 * 3600, "period_start": calendar.month_of(now)})
    node_make("node01", cards=1)
    client.force_login(user)
    text = reset_text(calendar.resets_at(now))
    posted = {"command": "true", "kind": "line", "gpu_count": "1", "gpu_mem": "4", "mem_unit": "G", "nodes": "1"}
    for html in (client.get("/").content, client.get("/quota/").content, client.post("/jobs/new/", posted).content):
        assert text in html.decode()


@pytest.mark.django_db
def test_one_name_is_not_for_two_things(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    node_make("node01", cards=1, state=NodeState.UNKNOWN)
    client.force_login(user_make())
    overview = client.get("/").content.decode()
    assert '<h2 id="notices-h">Needs attention</h2>' in overview
    assert "<h1>Notices</h1>" in client.get("/notices/").content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(("is_staff", "words"), [(True, "Everybody's"), (False, "All that I may see")])
def test_the_list_of_jobs_promises_what_it_shows(client: Client, is_staff: bool, words: str) -> None:
    user = user_make(is_staff=is_staff)
    project_make("nlp", members=(user, user_make()))
    client.force_login(user)
    page = client.get("/jobs/").content.decode()
    assert f"{words}</label>".replace("'", "&#x27;") in page or f"{words}</label>" in page
    assert ("Everybody" in page) is is_staff


@pytest.mark.django_db
def test_a_job_ran_as_long_in_the_list_as_on_its_page(client: Client) -> None:
    """The node says when the program ended; the control plane may hear of it much later."""
    lab = Lab()
    lab.node("n1", 24564)
    job = lab.submit(gpu_mem_mib=4096)
    lab.schedule()
    lab.report(job, "RUNNING")
    lab.later(100)
    lab.exit(job, 0, ran_s=12.0)
    job.refresh_from_db()
    client.force_login(job.owner)
    listed = re.findall(r'<td class="num time ran">([^<]+)</td>', client.get("/jobs/").content.decode())
    facts = re.findall(r"Ran for</dt><dd>([^<]+)<", client.get(f"/jobs/{job.pk}/events/").content.decode())
    assert len(facts) == 1
    assert listed == facts
