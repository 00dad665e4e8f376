"""A 404 names what there is none of, in the reader's language, and tells nobody whether it exists for others."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.factories import job_make, node_make, user_make
from tests.rest import Api

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nodes/node99", "There is no node node99."),
        ("/nodes/node99/samples", "There is no node node99."),
        ("/nodes/node01/commands/7", "There is no command 7 of this node."),
        ("/gpus/GPU-none/health", "There is no card GPU-none."),
        ("/gpus/GPU-none/samples", "There is no card GPU-none."),
        ("/incidents/77", "There is no incident 77."),
        ("/jobs/4711", "There is no job 4711"),
        ("/jobs/4711/events", "There is no job 4711"),
        ("/nodes/" + "x" * 300, "There is no node " + "x" * 80 + "…."),
        ("/nodes/%1b%5b31m", "There is no node ?[31m."),
    ],
)
def test_the_api_names_what_is_missing(path: str, said: str) -> None:
    node_make("node01")
    status, body = Api(user_make(is_staff=True)).get(path)
    assert (status, body["code"]) == (404, "not_found")
    assert body["message"].startswith(said.rstrip(".")), body["message"]
    assert "Not found" not in body["message"]


def test_anothers_job_and_none_at_all_read_alike() -> None:
    job = job_make()
    stranger = Api(user_make())
    texts = {stranger.get(f"/jobs/{number}")[1]["message"].replace(str(number), "N") for number in (job.pk, 999_999)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("path", "said", "chinese"),
    [
        ("/nodes/node99/", "There is no node node99.", "没有节点 node99"),
        ("/nodes/node01/gpu9/", "There is no card gpu9 on this node.", "没有卡 gpu9"),
        ("/incidents/77/", "There is no incident 77.", "没有事件 77"),
        ("/jobs/4711/", "There is no job 4711 that you may see.", "没有你可查看的任务 4711"),
        ("/nowhere/", "There is nothing at this address.", ""),
    ],
)
def test_pages_name_it_too(client: Client, path: str, said: str, chinese: str) -> None:
    node_make("node01", cards=1)
    user: Any = user_make()
    client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == 404
    assert said in answer.content.decode()
    type(user).objects.filter(pk=user.pk).update(language="zh-hans")
    assert chinese in client.get(path).content.decode()
