"""Nodes and cards over REST."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework import serializers

from nodes import telemetry
from nodes.models import AgentCommand, EnrolToken, Node
from nodes.serializers import CommandSchema, GpuSchema, NodeSchema, uuid_short
from quotas.models import User
from tests.factories import attempt_make, gpu_make, node_make, user_make
from tests.rest import Api, is_error, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff() -> User:
    return user_make("staff@lab.example", is_staff=True)


@pytest.fixture
def api(staff: User) -> Api:
    return Api(staff)


def told(monkeypatch: pytest.MonkeyPatch, **status: Any) -> None:
    """Every card's latest status, as Redis would have it."""
    full = {
        "used_mib": 900,
        "util_pct": 0,
        "mem_util_pct": 0,
        "temp_c": 40,
        "power_w": 30,
        "foreign_mib": 0,
        "sampled_at": 1_800_000_000.0,
        "stale": False,
    }
    monkeypatch.setattr(telemetry, "gpus_latest", lambda gpus, now=None: {gpu.pk: {**full, **status} for gpu in gpus})


def keys_of(schema: serializers.Serializer[Any], value: dict[str, Any]) -> None:
    assert set(schema.fields) == set(value)


def test_nodes_are_listed_by_name_with_their_cards(api: Api) -> None:
    node_make("node02", cards=1)
    node_make("node01", cards=2, advice=["no_cgroup", "from_the_future"])
    node_make("old", state="RETIRED")
    status, page = api.get("/nodes/")
    assert status == 200
    first, second = page["results"]
    assert (first["name"], second["name"]) == ("node01", "node02")
    assert [gpu["index"] for gpu in first["gpus"]] == [0, 1]
    assert first["load_pct"] is None  # nobody told: not 0
    assert [advice["code"] for advice in first["advice"]] == ["no_cgroup", "from_the_future"]
    assert first["advice"][0]["text"] != "no_cgroup"
    assert api.get("/nodes/node01")[1] == first
    assert api.get("/nodes/old")[1]["state"] == "RETIRED"
    keys_of(NodeSchema(), first)
    keys_of(GpuSchema(), first["gpus"][0])


@pytest.mark.parametrize("path", ["/nodes/", "/gpus/"])
def test_a_list_costs_the_same_for_3_and_for_30(api: Api, path: str) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert api.get(path, page_size=200)[0] == 200
        return len(captured)

    for _ in range(3):
        node_make(cards=2)
    api.get(path)
    few = count()
    for _ in range(30):
        node_make(cards=2)
    assert count() == few <= 6


def test_cards_in_their_fixed_order_and_of_one_node(api: Api) -> None:
    node_make("b", cards=2)
    node_make("a", cards=1)
    assert [(gpu["node"], gpu["index"]) for gpu in api.get("/gpus/")[1]["results"]] == [("a", 0), ("b", 0), ("b", 1)]
    assert [gpu["node"] for gpu in api.get("/gpus/", node="a")[1]["results"]] == ["a"]
    assert api.get("/gpus/", node="none")[1]["results"] == []


def test_what_nobody_told_is_null_and_such_a_card_is_not_called_idle(api: Api) -> None:
    gpu_make()
    (gpu,) = api.get("/gpus/")[1]["results"]
    assert {gpu[name] for name in ("used_mib", "util_pct", "temp_c", "power_w", "foreign_mib", "sampled_at")} == {None}
    assert (gpu["stale"], gpu["is_idle"]) == (True, False)


@pytest.mark.parametrize(
    ("status", "is_idle"),
    [
        ({}, True),
        ({"util_pct": None}, False),
        ({"util_pct": 60}, False),
        ({"foreign_mib": 12_000}, False),
        ({"foreign_mib": 400}, True),
        ({"stale": True}, False),
    ],
)
def test_idle_is_said_only_of_a_card_that_is_known_to_be(
    api: Api, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], is_idle: bool
) -> None:
    told(monkeypatch, **status)
    gpu_make()
    assert api.get("/gpus/")[1]["results"][0]["is_idle"] is is_idle


def test_ghost_use_is_no_free_memory_and_no_idle_card(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, foreign_mib=12_288, used_mib=12_288)
    gpu_make(mib=24_564)
    assert api.get("/gpus/")[1]["results"][0]["free_mib"] == 24_564 - 12_288
    usage = api.get("/resources/usage")[1]
    assert usage["gpus"] == {"total": 1, "idle": 0, "busy": 1, "maintenance": 0, "ghost": 1}
    assert usage["vram"]["free_mib"] == 24_564 - 12_288


def test_slices_and_whole_cards_take_memory(api: Api) -> None:
    node = node_make(cards=2)
    half, whole = node.gpus.all()
    attempt_make(gpus=(half,), mib=12_288)
    attempt_make(gpus=(whole,), exclusive=True)
    first, second = api.get("/gpus/")[1]["results"]
    assert (first["free_mib"], first["held_mib"], first["exclusive"]) == (12_276, 12_288, False)
    assert (second["free_mib"], second["exclusive"]) == (0, True)


def test_a_card_of_unknown_size_breaks_nothing(api: Api) -> None:
    gpu_make(mib=None)
    (gpu,) = api.get("/gpus/")[1]["results"]
    assert (gpu["total_mib"], gpu["free_mib"]) == (None, None)
    assert api.get("/resources/usage")[1]["vram"] == {"total_mib": 0, "free_mib": 0}


def test_short_uuids() -> None:
    assert uuid_short("GPU-4f1c2a90-1111-2222-3333-444455556666") == "GPU-4f1c2a90"
    assert uuid_short("ascend-0") == "ascend-0"
    assert uuid_short("x" * 40) == "x" * 16


# --- staff ------------------------------------------------------------------------------------------------------------


def test_drain_and_resume(api: Api, staff: User) -> None:
    node_make("node01")
    status, node = api.post("/nodes/node01/drain", {"reason": "new fan", "until": "2099-01-01T00:00:00Z"})
    assert (status, node["cordoned"], node["cordon_reason"], node["cordoned_until"]) == (200, True, "new fan", "2099-01-01T00:00:00Z")
    assert Node.objects.get().cordoned_by == staff
    status, node = api.post("/nodes/node01/resume")
    assert (status, node["cordoned"], node["cordon_reason"]) == (200, False, "")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"reason": ""},
        {"reason": " "},
        {"reason": 5},
        {"reason": "x" * 201},
        {"reason": "a\0"},
        {"reason": "x", "until": "soon"},
        {"reason": "x", "until": "2001-01-01T00:00:00Z"},
        {"reason": "x", "until": 10**20},
        {"reason": "x", "til": "2099-01-01T00:00:00Z"},
    ],
)
def test_a_bad_drain_is_a_400_and_drains_nothing(api: Api, body: dict[str, Any]) -> None:
    node_make("node01")
    status, error = api.post("/nodes/node01/drain", body)
    assert (status, is_error(error)) == (400, True), error
    assert not Node.objects.get().cordoned


def test_an_enrolment_token_is_made_once_and_kept_hashed(api: Api, staff: User) -> None:
    status, answer = api.post("/nodes/enroll-token", {"name": "node07"})
    assert (status, answer["name"], set(answer)) == (201, "node07", {"token", "expires_at", "name"})
    row = EnrolToken.objects.get()
    assert (row.created_by, row.node_name) == (staff, "node07")
    assert answer["token"] not in str(EnrolToken.objects.values())
    for bad in ({"name": "node 7"}, {"name": "../x"}, {"name": "x" * 64}, {"name": 7.5}, {"nam": "x"}):
        assert api.post("/nodes/enroll-token", bad)[0] == 400


def test_a_command_is_taken_now_and_answered_later(api: Api) -> None:
    node = node_make("node01")
    status, command = api.post("/nodes/node01/commands", {"verb": "diagnose", "args": {"deep": True}})
    assert (status, command["state"], command["created_by"]) == (202, "QUEUED", "staff@lab.example")
    AgentCommand.objects.filter(node=node).update(state="DONE", text="all well")
    status, found = api.get(f"/nodes/node01/commands/{command['id']}")
    assert (status, found["state"], found["text"], found["args"]) == (200, "DONE", "all well", {"deep": True})
    keys_of(CommandSchema(), found)
    node_make("node02")
    assert api.get(f"/nodes/node02/commands/{command['id']}")[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"verb": "rm -rf /"},
        {"verb": 5},
        {"verb": "ping", "args": [1]},
        {"verb": "ping", "args": {"x": "y" * 20_000}},
        {"verb": "ping", "to": "x"},
    ],
)
def test_a_bad_command_is_a_400(api: Api, body: dict[str, Any]) -> None:
    node_make("node01")
    status, error = api.post("/nodes/node01/commands", body)
    assert (status, is_error(error)) == (400, True), error
    assert not AgentCommand.objects.exists()


def test_a_retired_node_takes_no_command(api: Api) -> None:
    node_make("node01", state="RETIRED")
    status, error = api.post("/nodes/node01/commands", {"verb": "ping"})
    assert (status, error["code"], "node01" in error["message"]) == (409, "node_retired", True)
