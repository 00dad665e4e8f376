"""Labels of nodes: what may be one, who sets them, and that two who do so at once don't undo each other."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from nodes import live
from nodes.errors import NodeRefused
from nodes.labels import LABELS_MAX, is_key, is_value
from nodes.models import Node
from nodes.services import node_label
from tests.factories import node_make, user_make
from tests.rest import Api, is_error, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff() -> Api:
    return Api(user_make(is_staff=True))


@pytest.mark.parametrize("key", ["rack", "net/fabric", "a", "A1.b_c-d", "x" * 63])
def test_a_name_of_a_label(key: str) -> None:
    assert is_key(key)


@pytest.mark.parametrize("key", ["", "-a", "a-", "a b", "a=b", "机架", "a\n", "x" * 64, "/a"])
def test_no_name_of_a_label(key: str) -> None:
    assert not is_key(key)


def test_a_value_is_any_text_that_shows() -> None:
    assert all(is_value(value) for value in ("", "r2", "三楼 东", "a=b,c", "x" * 63))
    assert not any(is_value(value) for value in ("x" * 64, " a", "a ", "a\nb", "\u202ea", "a\0"))


def test_named_labels_change_and_the_others_stay(staff: Api) -> None:
    node_make("node01", labels={"rack": "r1", "old": "x"})
    status, node = staff.patch("/nodes/node01", {"labels": {"rack": "r2", "zone": "", "old": None, "never": None}})
    assert (status, node["labels"]) == (200, {"rack": "r2", "zone": ""})
    assert Node.objects.get().labels == {"rack": "r2", "zone": ""}


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"a b": "x"}, "a b is no name of a label"),
        ({"a": "x" * 64}, "has 64 characters; write at most 63"),
        ({"a": "x\u202e"}, "marks that turn the direction of text"),
        ({f"k{number}": "" for number in range(LABELS_MAX + 1)}, "at most 64 labels; this would make 66"),
        ({"a": 1}, "labels"),
        ({"a": ["x"]}, "labels"),
        (["a"], "labels"),
        ("a=b", "labels"),
        (None, "labels"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_label_is_refused_and_nothing_changes(staff: Api, labels: Any, said: str) -> None:
    node_make("node01", labels={"rack": "r1"})
    status, error = staff.patch("/nodes/node01", {"labels": labels})
    assert status == 400
    assert is_error(error)
    assert said in error["message"]
    assert Node.objects.get().labels == {"rack": "r1"}


def test_an_unknown_field_and_a_retired_node_are_refused(staff: Api) -> None:
    node_make("node01")
    assert staff.patch("/nodes/node01", {"lables": {}})[1]["fields"]
    assert staff.patch("/nodes/nowhere", {"labels": {}})[0] == 404
    node_make("old", state="RETIRED")
    assert staff.patch("/nodes/old", {"labels": {"a": "b"}})[0] == 409


def test_only_a_change_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(live, "publish", lambda topic, payload: told.append(topic))
    node = node_make("node01", labels={"rack": "r1"})
    node_label(node=node, by=None, changes={"rack": "r1"})
    assert told == []
    assert node_label(node=node, by=None, changes={"zone": "a"}).labels == {"rack": "r1", "zone": "a"}
    assert told == ["pool"]


def test_the_writer_reads_the_row_anew() -> None:
    node = node_make("node01")
    stale = Node.objects.get()
    node_label(node=node, by=None, changes={"a": "1"})
    node_label(node=stale, by=None, changes={"b": "2"})
    assert Node.objects.get().labels == {"a": "1", "b": "2"}
    with pytest.raises(NodeRefused):
        node_label(node=stale, by=None, changes={"": "x"}, replace=True)


# --- the page -----------------------------------------------------------------------------------------------------


def test_staff_types_all_labels_and_everybody_reads_them(client: Client) -> None:
    node_make("node01", labels={"rack": "r1", "old": "x"})
    client.force_login(user_make(is_staff=True))
    page = client.get("/nodes/node01/labels/").content.decode()
    assert "old=x\nrack=r1</textarea>" in page
    answer = client.post("/nodes/node01/labels/", {"labels": "rack = r2\r\n\r\nfloor=三楼<b>\r\n"})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/nodes/node01/")
    assert Node.objects.get().labels == {"floor": "三楼<b>", "rack": "r2"}
    client.force_login(user_make())
    page = client.get("/nodes/node01/").content.decode()
    assert "floor=三楼&lt;b&gt;" in page
    assert "rack=r2" in page
    assert "/labels/" not in page


@pytest.mark.parametrize(("text", "said"), [("rack", "Line 1 has no ="), ("a=1\na=2", "a is there twice"), ("a b=1", "a b is no name")])
def test_a_line_that_is_no_label_is_named_and_stays(client: Client, text: str, said: str) -> None:
    node_make("node01", labels={"rack": "r1"})
    client.force_login(user_make(is_staff=True))
    answer = client.post("/nodes/node01/labels/", {"labels": text})
    assert answer.status_code == 400
    assert said in answer.content.decode()
    assert f"{text}</textarea>" in answer.content.decode()
    assert Node.objects.get().labels == {"rack": "r1"}


def test_an_empty_field_takes_all_labels_away_and_no_field_none(client: Client) -> None:
    node_make("node01", labels={"rack": "r1"})
    client.force_login(user_make(is_staff=True))
    assert client.post("/nodes/node01/labels/").status_code == 400
    assert Node.objects.get().labels == {"rack": "r1"}
    assert client.post("/nodes/node01/labels/", {"labels": ""}).status_code == 302
    assert Node.objects.get().labels == {}


def test_nobody_but_staff_labels(client: Client) -> None:
    node_make("node01")
    assert client.post("/nodes/node01/labels/", {"labels": "a=b"}).status_code == 302  # to sign in
    client.force_login(user_make())
    assert client.get("/nodes/node01/labels/").status_code == 403
    assert client.post("/nodes/node01/labels/", {"labels": "a=b"}).status_code == 403
    assert Node.objects.get().labels == {}
