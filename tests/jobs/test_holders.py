"""Who uses a card: for whom it is to be seen, and where."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.holders import Holder, holders_short, holders_text
from jobs.lifecycle import JobState
from jobs.models import Job
from nodes.models import GpuLink, Node
from nodes.serializers import GpuSchema
from quotas.models import User
from tests.factories import attempt_make, gpu_make, job_make, node_make, project_make, user_make
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


def holder(name: str, job: int, *, is_known: bool = True) -> Holder:
    known: dict[str, Any] = {"job": job, "name": f"job-{job}", "email": f"{name}@lab.example"} if is_known else {}
    return Holder(id=job, mib=4096, state="ACTIVE", is_mine=False, **known)


@pytest.mark.parametrize(
    ("holders", "short", "text"),
    [
        ([], "", ""),
        ([holder("lin", 1)], "lin", "lin@lab.example: job-1 #1"),
        ([holder("lin", 1), holder("lin", 2)], "lin", "lin@lab.example: job-1 #1, lin@lab.example: job-2 #2"),
        ([holder("lin", 1), holder("mira", 2)], "lin +1", "lin@lab.example: job-1 #1, mira@lab.example: job-2 #2"),
        ([holder("lin", 1, is_known=False), holder("mira", 2)], "mira", "mira@lab.example: job-2 #2"),
        ([holder("lin", 1, is_known=False)], "", ""),
        (
            [holder("lin", n) for n in range(1, 6)],
            "lin",
            "lin@lab.example: job-1 #1, lin@lab.example: job-2 #2, lin@lab.example: job-3 #3 +2",
        ),
    ],
)
def test_users_in_words(holders: list[Holder], short: str, text: str) -> None:
    assert (holders_short(holders), holders_text(holders)) == (short, text)


class World:
    """One card of 24 GiB: lin's job of the project nlp on 8 GiB of it."""

    def __init__(self) -> None:
        self.lin, self.mate, self.stranger = user_make("lin@lab.example"), user_make("mate@lab.example"), user_make("other@lab.example")
        self.staff = user_make("boss@lab.example", is_staff=True, is_superuser=True)
        self.node: Node = node_make("node01")
        self.gpu = gpu_make(self.node)
        project = project_make("nlp", members=(self.lin, self.mate))
        self.job: Job = job_make(self.lin, state=JobState.RUNNING, name="secret-plan", project=project)
        attempt_make(self.job, gpus=(self.gpu,), mib=8192)

    def who(self, name: str) -> User:
        found: User = getattr(self, name)
        return found


@pytest.fixture
def world() -> World:
    return World()


SEES = [("lin", False, True), ("mate", False, True), ("staff", False, True), ("stranger", False, False), ("stranger", True, True)]


@pytest.mark.parametrize(("name", "in_the_lab", "sees"), SEES)
def test_the_api_names_who_holds_a_slice(world: World, settings: Any, name: str, in_the_lab: bool, sees: bool) -> None:
    settings.SHOW_CARD_USERS = in_the_lab
    api = Api(world.who(name))
    gpu = api.get("/gpus/")[1]["results"][0]
    held, free = gpu["slices"]
    known = (world.job.pk, "secret-plan", "lin@lab.example") if sees else (None, None, None)
    assert (held["job"], held["name"], held["user"]) == known
    assert (held["memory_mib"], held["state"]) == (8192, "active")
    assert free == {"id": None, "memory_mib": gpu["free_mib"], "state": "free", "job": None, "name": None, "user": None}
    assert (gpu["use"], gpu["nvlink"]) == ("busy", False)
    assert set(gpu) == set(GpuSchema().fields)
    assert api.get("/nodes/node01")[1]["gpus"][0]["slices"] == gpu["slices"]


@pytest.mark.parametrize(("name", "in_the_lab", "sees"), SEES)
def test_the_pages_name_who_uses_a_card(world: World, settings: Any, client: Client, name: str, in_the_lab: bool, sees: bool) -> None:
    settings.SHOW_CARD_USERS = in_the_lab
    client.force_login(world.who(name))
    overview = client.get("/").content.decode()
    cell = re.search(r'<a class="gpu".*?</a>', overview, re.DOTALL)
    assert cell is not None
    text = f"lin@lab.example: secret-plan #{world.job.pk}"
    assert (f'data-who="{text}"' in cell.group()) is sees
    assert (f", {text}, memory" in cell.group()) is sees  # its label, and so what hovering shows
    assert ('<em class="cell-who cut">lin</em>' in cell.group()) is sees
    table = client.get("/?cards=table").content.decode()
    assert (f"data-users>{text}<" in table) is sees
    assert client.get("/cells/users/").json()["who"] == [["lin", text] if sees else None]
    for path in ("/nodes/node01/", "/nodes/node01/gpu0/"):
        page = client.get(path).content.decode()
        assert ("secret-plan · lin" in page) is sees, path
        assert ("lin@lab.example" in page) is sees, path


def test_a_name_on_a_card_opens_no_strangers_job(world: World, settings: Any, client: Client) -> None:
    settings.SHOW_CARD_USERS = True
    client.force_login(world.stranger)
    page = client.get("/nodes/node01/gpu0/").content.decode()
    assert "secret-plan" in page
    assert f"/jobs/{world.job.pk}/" not in page
    assert client.get(f"/jobs/{world.job.pk}/").status_code == 404


def test_names_are_data(world: World, client: Client) -> None:
    Job.objects.filter(pk=world.job.pk).update(name='"><script>x</script>')
    client.force_login(world.lin)
    for path in ("/", "/?cards=table", "/nodes/node01/"):
        assert "<script>x" not in client.get(path).content.decode(), path


def test_nvlink_is_told_of_both_ends_and_of_no_other(world: World) -> None:
    other, alone = gpu_make(world.node, index=1), gpu_make(world.node, index=2)
    GpuLink.objects.create(a=world.gpu, b=other, kind="nvlink")
    GpuLink.objects.create(a=other, b=alone, kind="pcie_host")
    api = Api(world.lin)
    assert [gpu["nvlink"] for gpu in api.get("/gpus/")[1]["results"]] == [True, True, False]
    assert [gpu["nvlink"] for gpu in api.get("/nodes/node01")[1]["gpus"]] == [True, True, False]


def test_a_list_of_jobs_tells_the_node(world: World) -> None:
    api = Api(world.lin)

    def rows() -> tuple[list[Any], int]:
        with CaptureQueriesContext(connection) as captured:
            found = api.get("/jobs/")[1]["results"]
        return found, len(captured)

    first, few = rows()
    assert first[0]["attempt"]["nodes"] == ["node01"]
    for _ in range(3):
        attempt_make(job_make(world.lin, state=JobState.RUNNING), gpus=(world.gpu,), mib=1024)
    assert rows()[1] <= few
