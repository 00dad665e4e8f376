"""Limits, requests and statements over REST, and the page and file of what was used."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.usage_views import BAR_PX
from quotas.models import LedgerEntry, Membership, PriceRow, Project, Quota, QuotaRequest, StorageEntry, User
from tests.factories import project_make, user_make
from tests.rest import Api, is_error, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
WHY = "Rebuttal experiments, 3 ablations of 40 GPU-hours each."
START = datetime(2026, 3, 10, 8, tzinfo=UTC)
_slice = iter(range(1, 10_000))


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example", quota={"gpu_hours": 5})


def charge(user: User, project: Project, *, start: datetime = START, seconds: float = 1800) -> None:
    LedgerEntry.objects.create(
        slice_id=next(_slice), job_id=7, user=user, project=project, gpu_model="NVIDIA A100-SXM4-80GB", share=1.0, mib=24 * 1024,
        started_at=start, ended_at=start + timedelta(seconds=seconds), seconds=seconds, gpu_seconds=seconds,
    )  # fmt: skip


def golden(user: User, project: Project) -> None:
    charge(user, project)
    StorageEntry.objects.create(day=date(2026, 3, 10), user=user, project=project, gb_hours=Decimal(250))
    figures = {"per_gpu_hour": Decimal("5.40"), "per_gb_second": Decimal("0.00002"), "per_gb_hour": Decimal("0.02")}
    PriceRow.objects.create(valid_from=datetime(2026, 1, 1, tzinfo=UTC), **figures)


def page_of(user: User, path: str, **headers: str) -> Any:
    client = Client(headers=headers)
    client.force_login(user)
    return client.get(path)


# --- requests -----------------------------------------------------------------------------------------------------------


def test_asking_deciding_and_withdrawing_over_rest(lin: User) -> None:
    mine, boss = Api(lin), Api(user_make("boss@lab.example", is_staff=True))
    status, made = mine.post("/quota/requests/", {"what": "gpu_hours", "amount": 10, "why": WHY})
    assert (status, made["state"], made["text"]) == (201, "admin", "+10 GPU-hours a month")
    assert mine.get("/quota")[1]["open_requests"] == 1
    status, error = mine.post(f"/quota/requests/{made['id']}/decide", {"decision": "approve"})
    assert (status, is_error(error)) == (403, True)
    status, done = boss.post(f"/quota/requests/{made['id']}/decide", {"decision": "approve", "amount": 4})
    assert (status, done["state"], done["granted_amount"], done["decided_by"]) == (200, "approved", 4, "boss@lab.example")
    assert [step["code"] for step in done["steps"]] == ["asked", "approved"]
    assert mine.get("/quota")[1]["mine"]["gpu_hours"] == 9  # 5 + 4
    assert boss.post(f"/quota/requests/{made['id']}/decide", {"decision": "decline"})[0] == 409
    other = mine.post("/quota/requests/", {"what": "gpu_hours", "amount": 1, "why": WHY})[1]
    assert mine.post(f"/quota/requests/{other['id']}/withdraw")[1]["state"] == "withdrawn"
    assert mine.get("/quota/requests/")[1]["count"] == 2
    assert Api(user_make()).get("/quota/requests/")[1]["count"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"what": "sunshine"},
        {"amount": 0},
        {"amount": "10"},
        {"why": "please"},
        {"until": "yesterday"},
        {"until": "2020-01-01T00:00:00Z"},
        {"project": "secret"},
        {"what": "model_cards", "model": "a100"},
        {"colour": "red"},
    ],
)
def test_a_wrong_request_is_a_400_with_a_sentence(lin: User, wrong: dict[str, Any]) -> None:
    status, error = Api(lin).post("/quota/requests/", {"what": "gpu_hours", "amount": 10, "why": WHY, **wrong})
    assert (status, is_error(error)) == (400, True), error
    assert not QuotaRequest.objects.exists()


def test_the_limits_say_when_and_where_the_month_ends(lin: User, settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    project = project_make("nlp", members=(lin,))
    Quota.objects.create(project=project, gpu_hours=100, model_caps={"a100": 2})
    found = Api(lin).get("/quota")[1]
    assert (found["mine"]["zone"], found["mine"]["resets_at"][-6:]) == ("Asia/Shanghai", "+08:00")
    assert found["projects"]["nlp"]["model_cards"] == {"a100": 2}


# --- statements ---------------------------------------------------------------------------------------------------------


def test_the_statement_has_the_golden_example_to_the_last_digit(lin: User) -> None:
    project = project_make("nlp")
    golden(lin, project)
    made = Api(lin).get("/usage/statement", month="2026-03")[1]
    assert (made["total"]["cost_total"], made["total"]["gpu_hours"], made["currency"]) == ("8.564", "0.5", "USD")
    assert [line["gpu_model"] for line in made["lines"]] == ["NVIDIA A100-SXM4-80GB", "storage"]
    answer = Api(lin).call("GET", "/usage/statement.csv?month=2026-03")
    rows = list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"))))
    assert sum(Decimal(row["cost_total"]) for row in rows) == Decimal("8.564")
    assert answer["Content-Disposition"] == 'attachment; filename="statement-2026-03.csv"'
    assert Api(user_make()).get("/usage/statement", month="2026-03")[1]["lines"] == []
    status, error = Api(lin).get("/usage/statement", month="March")
    assert (status, is_error(error)) == (400, True)


def test_the_page_shows_the_month_its_sums_and_the_file(lin: User) -> None:
    golden(lin, project_make("nlp"))
    text = page_of(lin, "/usage/?month=2026-03").content.decode()
    assert "March 2026" in text
    assert "8.56\u00a0USD" in text
    assert "statement.csv?month=2026-03" in text
    assert f'style="--h:{BAR_PX // 2}px"' in text  # half an hour: no full bar, though no other month has more
    for by in ("project", "user", "model", "nonsense"):
        assert page_of(lin, f"/usage/?month=2026-03&by={by}").status_code == 200
    assert "2026 年 3 月" in page_of(lin, "/usage/?month=2026-03", **{"Accept-Language": "zh-hans"}).content.decode()
    assert page_of(lin, "/usage/statement.csv?month=2026-03")["Content-Type"].startswith("text/csv")
    assert page_of(lin, "/usage/?month=x&page=y").status_code == 200
    assert "Nothing was charged yet." in page_of(user_make(), "/usage/").content.decode()
    assert Client().get("/usage/").status_code == 302


def test_a_lead_sees_the_project_and_nothing_else(lin: User) -> None:
    lead, mine, other = user_make("lead@lab.example"), project_make("nlp"), project_make("speech")
    Membership.objects.create(project=mine, user=lead, role=Membership.Role.LEAD)
    charge(lin, mine)
    charge(lin, other)
    text = page_of(lead, "/usage/?month=2026-03").content.decode()
    assert "nlp" in text
    assert "speech" not in text
    lines = Api(user_make(is_staff=True)).get("/usage/statement", month="2026-03", user="LIN@lab.example", project="speech")[1]["lines"]
    assert [(line["user"], line["project"]) for line in lines] == [("lin@lab.example", "speech")]


def test_the_page_costs_the_same_for_3_and_for_30_charges(lin: User) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as captured:
            page_of(lin, "/usage/?month=2026-03")
        return len(captured)

    for _ in range(3):
        charge(lin, project_make())
    few = count()
    for _ in range(27):
        charge(lin, project_make())
    assert count() <= few


def test_a_name_that_a_spreadsheet_would_run_is_only_a_name(lin: User) -> None:
    user = user_make("=cmd@lab.example")
    charge(user, project_make("nlp"), start=timezone.now() - timedelta(hours=1))
    text = Api(user).call("GET", "/usage/statement.csv").content.decode()
    assert ",'=cmd@lab.example," in text
