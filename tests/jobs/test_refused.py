"""Submits that were refused leave a row: who asked for what, and why not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Job, RefusedSubmit
from jobs.requests import JobRequest
from jobs.services.refused import KEPT_DAYS, KEPT_MOST, refusal_note
from quotas.models import Quota
from quotas.services import project_personal
from tests.factories import user_make
from tests.jobs.lab import Lab
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)
TOO_LARGE = {
    "name": "llm",
    "argv": ["train", "--token", "s3cret"],
    "env": {"KEY": "s3cret"},
    "gpu_mem": "80G",
    "constraints": {"model": "4090"},
}


@pytest.fixture
def lab() -> Lab:
    found = Lab()
    found.node("n1", 24_564)
    return found


def test_what_nothing_could_hold_is_kept_without_command_and_variables(lab: Lab) -> None:
    lin = lab.user("lin")
    status, error = Api(lin).post("/jobs/submit", TOO_LARGE)
    assert status == 400
    [row] = Api(lin).get("/jobs/refused")[1]["results"]
    assert (row["user"], row["name"], row["code"], row["times"]) == ("lin@lab.example", "llm", "never_gpu_memory", 1)
    assert row["asked"] == {"gpu_count": 1, "gpu_mem_mib": 81_920, "nodes": 1, "constraints": {"model": "4090"}}
    assert row["text"] == error["message"]
    assert "s3cret" not in str(RefusedSubmit.objects.values())


@pytest.mark.parametrize("way", ["rest", "form", "apply", "instead"])
def test_every_way_of_submitting_leaves_its_row(lab: Lab, client: Client, way: str) -> None:
    lin = lab.user("lin")
    waiting = lab.submit(owner=lin, hold=True)
    Quota.objects.filter(user=lin).update(max_active_jobs=1, active_jobs=1)
    client.force_login(lin)
    form = {"name": "more", "command": "true", "kind": "line", "gpu_count": "1", "gpu_mem": "4", "mem_unit": "G", "nodes": "1"}
    if way == "rest":
        assert Api(lin).post("/jobs/submit", {"name": "more", "argv": ["true"]})[0] == 403
    elif way == "form":
        assert client.post("/jobs/new/", form).status_code == 403
    elif way == "apply":
        assert Api(lin).post("/jobs/apply", {"job": {"name": "more", "argv": ["true"]}})[0] == 403
    else:
        assert client.post("/jobs/new/", form | {"instead": str(waiting.pk), "gpu_mem": "80"}).status_code == 400
        waiting.refresh_from_db()
        assert waiting.state == "WAITING"
    [row] = RefusedSubmit.objects.all()
    assert (row.user, row.name, row.times) == (lin, "more", 1)
    assert Job.objects.count() == 1


def test_what_is_no_request_and_what_is_taken_leave_none(lab: Lab) -> None:
    api = Api(lab.user("lin"))
    assert api.post("/jobs/submit", {"argv": ["true"], "gpu_mem": "huge"})[0] == 400
    assert api.post("/jobs/submit", {"argv": ["true"], "gpu_mem": "4G"})[0] == 201
    assert not RefusedSubmit.objects.exists()


def test_the_same_again_counts_on_its_row(lab: Lab) -> None:
    api = Api(lab.user("lin"))
    for _ in range(3):
        api.post("/jobs/submit", TOO_LARGE)
    api.post("/jobs/submit", TOO_LARGE | {"gpu_mem": "90G"})
    assert [(row["asked"]["gpu_mem_mib"], row["times"]) for row in api.get("/jobs/refused")[1]["results"]] == [(92_160, 1), (81_920, 3)]


def test_no_person_fills_the_table(lab: Lab) -> None:
    lin, mira = lab.user("lin"), lab.user("mira")
    now = timezone.now()

    def note(user: Any, mib: int, **more: Any) -> None:
        request = JobRequest(name="n", argv=("x",), project=project_personal(user), gpu_mem_mib=mib)
        refusal_note(owner=user, request=request, code="never_size", params={"big": "x" * more.pop("size", 1)}, now=more.pop("now", now))

    note(mira, 1, now=now - timedelta(days=KEPT_DAYS, seconds=1))
    note(mira, 2, now=now - timedelta(days=1))
    for mib in range(1, KEPT_MOST + 6):
        note(lin, mib, size=10_000)
    assert RefusedSubmit.objects.filter(user=lin).count() == KEPT_MOST
    assert RefusedSubmit.objects.filter(user=lin).order_by("pk").first().asked["gpu_mem_mib"] == 6  # type: ignore[union-attr]
    assert [row.asked["gpu_mem_mib"] for row in RefusedSubmit.objects.filter(user=mira)] == [2]
    assert all(row.params == {} for row in RefusedSubmit.objects.filter(user=lin))  # 10 kB of numbers are none


def test_one_sees_ones_own_and_staff_all(lab: Lab, client: Client) -> None:
    lin, mira, boss = lab.user("lin"), lab.user("mira"), user_make("boss@lab.example", is_staff=True, is_superuser=True)
    for user in (lin, mira):
        Api(user).post("/jobs/submit", TOO_LARGE)
    assert [row["user"] for row in Api(lin).get("/jobs/refused", owner="all")[1]["results"]] == ["lin@lab.example"]
    assert len(Api(boss).get("/jobs/refused", owner="all")[1]["results"]) == 2
    assert Api(boss).get("/jobs/refused")[1]["results"] == []
    for user, seen in ((lin, {"lin"}), (boss, {"lin", "mira"})):
        client.force_login(user)
        page = client.get("/jobs/refused/").content.decode()
        assert "1 × 80" in page
        assert ("mira@lab.example" in page) is ("mira" in seen)
    assert "No submit was refused." in client.get("/jobs/refused/?mine=1").content.decode()
