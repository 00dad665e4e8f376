"""What the driver says of a job's cards: for its owner and staff, of its cards alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Job
from nodes.models import AgentCommand, Node
from tests.factories import attempt_make, job_make, node_make, user_make
from tests.rest import Api

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    node = node_make("n1", cards=3)
    found: Job = attempt_make(gpus=(node.gpus.get(index=0), node.gpus.get(index=2))).job
    return found


def asked() -> list[tuple[str, Any]]:
    return [(command.node.name, command.args["gpus"]) for command in AgentCommand.objects.filter(verb="diagnose").order_by("pk")]


def test_the_owner_asks_of_the_jobs_own_cards_and_reads_the_answer(job: Job) -> None:
    api = Api(job.owner)
    status, (made,) = api.post(f"/jobs/{job.pk}/diagnose", {})
    assert (status, made["state"], made["node"]) == (202, "QUEUED", "n1")
    assert asked() == [("n1", ["GPU-n1-0", "GPU-n1-2"])]
    assert api.post(f"/jobs/{job.pk}/diagnose", {})[1] == [made]  # not again while the answer is to come
    AgentCommand.objects.update(state="DONE", text="FB Memory Usage", finished_at=timezone.now())
    assert [row["text"] for row in api.get(f"/jobs/{job.pk}/diagnose")[1]] == ["FB Memory Usage"]
    assert api.post(f"/jobs/{job.pk}/diagnose", {})[0] == 202
    assert len(asked()) == 2


def test_others_may_not_and_staff_may(job: Job) -> None:
    for method in ("get", "post"):
        assert getattr(Api(user_make()), method)(f"/jobs/{job.pk}/diagnose", **({"body": {}} if method == "post" else {}))[0] == 404
    assert asked() == []
    assert Api(user_make(is_staff=True)).post(f"/jobs/{job.pk}/diagnose", {})[0] == 202


def test_a_job_that_holds_no_card_of_a_node_that_answers_is_refused_with_the_reason(job: Job) -> None:
    waiting = job_make(job.owner)
    status, body = Api(job.owner).post(f"/jobs/{waiting.pk}/diagnose", {})
    assert (status, body["code"]) == (409, "nothing_to_diagnose")
    assert str(waiting.pk) in body["message"]
    Node.objects.update(state="UNKNOWN")
    assert Api(job.owner).post(f"/jobs/{job.pk}/diagnose", {})[0] == 409


def test_the_page_asks_with_and_without_a_script_and_waits_for_the_answer(client: Client, job: Job) -> None:
    client.force_login(job.owner)
    path = f"/jobs/{job.pk}/diagnose/"
    assert f'action="{path}"' in client.get(f"/jobs/{job.pk}/").content.decode()
    assert client.post(path).headers["Location"] == f"/jobs/{job.pk}/"
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert 'hx-trigger="every 2s"' in page
    AgentCommand.objects.update(state="DONE", text="<b>FB</b>")
    piece = client.get(path, headers={"HX-Request": "true"}).content.decode()
    assert "&lt;b&gt;FB&lt;/b&gt;" in piece
    assert "every 2s" not in piece
    Node.objects.update(state="UNKNOWN")
    assert "holds no card of a node that answers" in client.post(path, headers={"HX-Request": "true"}).content.decode()
    client.force_login(user_make())
    assert client.post(path).status_code == 404


def test_an_answer_that_never_came_is_asked_for_anew(job: Job) -> None:
    Api(job.owner).post(f"/jobs/{job.pk}/diagnose", {})
    AgentCommand.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    Api(job.owner).post(f"/jobs/{job.pk}/diagnose", {})
    assert len(asked()) == 2
