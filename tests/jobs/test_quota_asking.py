"""Asking for more: what the form begins with, what it says beforehand, and what it says of wrong values."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Job
from jobs.quota_missing import missing_of
from quotas import calendar
from quotas.approvals import amount_of, last_day
from quotas.errors import BadValue
from quotas.models import Quota, QuotaRequest
from quotas.requests import WHY_LEAST, request_make, until_default, why_length
from tests.factories import user_make
from tests.jobs.lab import Lab
from tests.rest import Api, no_redis  # noqa: F401

WHY = "Rebuttal experiments, 3 ablations."
HOUR = 3600


def waiting(code: str, **fields: Any) -> Job:
    return Job(**{"gpu_count": 1, "wait_code": code, "wait_params": {}, **fields})


@pytest.mark.parametrize(
    ("today", "day"),
    [
        ("2026-11-03", "2026-11-30"),
        ("2026-11-23", "2026-11-30"),
        ("2026-11-24", "2026-12-31"),  # six days and a half are left: too few to be of use
        ("2026-11-30", "2026-12-31"),  # else it would be "until today"
        ("2026-12-31", "2027-01-31"),
    ],
)
def test_a_request_that_names_no_day_lasts_for_a_week_at_least(settings: Any, today: str, day: str) -> None:
    settings.INSTALLATION_ZONE = "UTC"
    now = datetime.fromisoformat(f"{today}T12:00:00").replace(tzinfo=UTC)
    assert last_day(until_default(now)).isoformat() == day


def test_six_chinese_characters_are_reason_enough() -> None:
    assert why_length("赶论文截稿期") == 12
    assert why_length("  a b ") == 3
    assert why_length("赶论文截稿期") >= WHY_LEAST


@pytest.mark.parametrize("typed", ["-3", "0", "1.5", "³", "many", "99999999999"])
def test_a_wrong_amount_is_quoted_as_it_was_typed(typed: str) -> None:
    with pytest.raises(BadValue) as caught:
        amount_of(typed)
    assert caught.value.message.startswith(f"{typed} is no amount")


def test_no_amount_is_asked_for_and_not_called_wrong() -> None:
    with pytest.raises(BadValue, match="request_amount_empty") as caught:
        amount_of("  ")
    assert caught.value.message.startswith("Say how much more")


@pytest.mark.parametrize(
    ("quota", "jobs", "missing"),
    [
        ({"gpu_hours": 10}, [], {}),
        ({"gpu_hours": 10, "used_gpu_s": 12.2 * HOUR}, [], {"gpu_hours": 3}),  # 2.2 over
        ({"gpu_hours": 10, "used_gpu_s": 10 * HOUR}, [], {"gpu_hours": 1}),  # used up to the last second
        # 2 over, two cards for three hours, and one for as long as is guessed of a job without a limit: 2 + 6 + 24
        (
            {"gpu_hours": 10, "used_gpu_s": 12 * HOUR},
            [waiting("quota_exceeded", gpu_count=2, time_limit_s=3 * HOUR), waiting("quota_exceeded")],
            {"gpu_hours": 32},
        ),
        # What is known of its length counts more than its limit.
        ({"gpu_hours": 1, "used_gpu_s": HOUR}, [waiting("quota_exceeded", predicted_s=2 * HOUR, time_limit_s=90 * HOUR)], {"gpu_hours": 2}),
        ({"max_cards": 4, "held_cards": 3}, [waiting("cards_exceeded", gpu_count=4), waiting("cards_exceeded")], {"cards": 3}),  # 3 + 4 − 4
        ({"max_active_jobs": 5, "active_jobs": 5}, [], {"active_jobs": 1}),
        (
            {"model_caps": {"a100": 2}},
            [waiting("model_cards_exceeded", wait_params={"model": "a100", "needed": 4, "limit": 2})],
            {"model_cards:a100": 2},
        ),
    ],
)
def test_what_is_missing_is_worked_out_from_the_limits_and_the_jobs_that_wait(
    quota: dict[str, Any], jobs: list[Job], missing: dict[str, int]
) -> None:
    unlimited = {"gpu_hours": None, "max_cards": None, "max_active_jobs": None}
    assert missing_of(Quota(**{**unlimited, **quota}), jobs) == missing


def form_of(client: Client, query: str = "") -> dict[str, str]:
    html = client.get(f"/quota/{query}").content.decode()
    fields = {name: re.search(rf'<input[^>]*name="{name}"[^>]*>', html) for name in ("amount", "until")}
    found = {name: (re.search(r' value="([^"]*)"', tag.group()) if tag else None) for name, tag in fields.items()}
    chosen = re.search(r'<option value="([^"]*)"[^>]* selected', html)
    return {name: tag.group(1) if tag else "" for name, tag in found.items()} | {"what": chosen.group(1) if chosen else ""}


@pytest.mark.django_db
def test_the_form_begins_with_what_holds_a_job_back(client: Client) -> None:
    month = calendar.month_of(timezone.now())
    lin = user_make("lin@lab.example", quota={"gpu_hours": 5, "used_gpu_s": 8 * HOUR, "period_start": month, "max_cards": 4})
    client.force_login(lin)
    form = form_of(client)
    assert (form["what"], form["amount"]) == ("gpu_hours", "3")
    assert form["until"] > (timezone.localdate() + timedelta(days=5)).isoformat()
    assert form_of(client, "?what=cards&amount=2") | {"until": ""} == {"what": "cards", "amount": "2", "until": ""}
    assert form_of(client, "?what=cards&amount=-2")["amount"] == ""


@pytest.mark.django_db
def test_a_refused_submit_leads_to_the_form_with_the_amount_that_it_lacks(client: Client) -> None:
    month = calendar.month_of(timezone.now())
    lin = user_make("lin@lab.example", quota={"gpu_hours": 5, "used_gpu_s": 8 * HOUR, "period_start": month})
    Lab().node("n1", 24564, 24564)
    client.force_login(lin)
    posted = {"command": "true", "kind": "line", "gpu_count": "2", "gpu_mem": "24", "mem_unit": "G", "time": "2:00:00", "nodes": "1"}
    answer = client.post("/jobs/new/", posted)
    assert answer.status_code == 403
    assert "?what=gpu_hours&amp;amount=7#ask" in answer.content.decode()  # 3 over, and two cards for two hours


@pytest.mark.django_db
def test_the_least_length_of_the_reason_is_said_beforehand(client: Client) -> None:
    client.force_login(user_make(quota={"gpu_hours": 5}))
    assert f"At least {WHY_LEAST} characters" in client.get("/quota/").content.decode()


@pytest.mark.django_db
def test_a_short_chinese_reason_is_taken_by_page_and_by_rest(client: Client) -> None:
    lin = user_make(quota={"gpu_hours": 5})
    client.force_login(lin)
    assert client.post("/quota/requests/new/", {"what": "gpu_hours", "amount": "3", "why": "赶论文截稿期"}).status_code == 302
    status, _made = Api(lin).post("/quota/requests/", {"what": "gpu_hours", "amount": 3, "why": "赶论文截稿期"})
    assert status == 201
    status, refused = Api(lin).post("/quota/requests/", {"what": "gpu_hours", "amount": 3, "why": "more"})
    assert (status, refused["code"]) == (400, "request_why")


@pytest.mark.django_db
def test_the_page_quotes_a_negative_amount(client: Client) -> None:
    client.force_login(user_make(quota={"gpu_hours": 5}))
    answer = client.post("/quota/requests/new/", {"what": "gpu_hours", "amount": "-3", "why": WHY})
    assert answer.status_code == 400
    assert "-3 is no amount to ask for" in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/quota/approvals/", "/admin/quotas/quotarequest/approvals/"])
@pytest.mark.parametrize("act", ["approve", "decline"])
def test_deciding_without_a_tick_decides_nothing_and_says_so(client: Client, path: str, act: str) -> None:
    boss, lin = user_make(is_superuser=True, is_staff=True), user_make(quota={"gpu_hours": 5})
    made = request_make(by=lin, what="gpu_hours", amount=10, why=WHY, now=timezone.now())
    client.force_login(boss)
    text = client.post(path, {"act": act}, follow=True).content.decode()
    assert "tick at least one request first" in text
    assert QuotaRequest.objects.get(pk=made.pk).is_open
