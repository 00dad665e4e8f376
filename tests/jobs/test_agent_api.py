"""The agents' endpoint over HTTP: who may say what, and what it costs."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agent.protocol import ExitInfo, Observed, SyncRequest
from jobs import logs
from jobs.models import Artifact, Rank
from jobs.services import job_cancel
from jobs.services.schedule import pass_run
from nodes import telemetry
from nodes.models import Node, NodeState
from nodes.services import enrol_token_create
from tests.factories import node_credential, node_make
from tests.jobs.lab import Lab, state

pytestmark = pytest.mark.django_db


class AgentClient:
    """An agent's HTTP side, honest unless told otherwise."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.http = Client(headers={"authorization": f"Node {node.pk}:{node_credential(node.name)}"})
        self.session, self.boot_id, self.seq = node.session, node.boot_id, 0

    def sync(self, *observed: Observed, **more: Any) -> tuple[int, dict[str, Any]]:
        self.seq += 1
        message = SyncRequest(session=self.session, boot_id=self.boot_id, seq=self.seq, observed=observed, **more)
        answer = self.http.post("/api/agent/v1/sync", data=json.dumps(message.to_json()), content_type="application/json")
        return answer.status_code, answer.json()

    def log(self, rank: str, offset: object, data: bytes) -> tuple[int, dict[str, Any]]:
        answer = self.http.put(f"/api/agent/v1/logs/{rank}?offset={offset}", data=data, content_type="application/octet-stream")
        return answer.status_code, answer.json()


def silent(node: Node, *, for_s: float = 60) -> None:
    """Nothing was heard of the node for so long."""
    telemetry.node_forget(node.pk)
    Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now() - timedelta(seconds=for_s))


@pytest.fixture
def agents() -> list[AgentClient]:
    return [AgentClient(node_make(name, cards=1)) for name in ("n1", "n2")]


def test_a_job_over_the_wire(agents: list[AgentClient]) -> None:
    lab = Lab()
    job = lab.submit(argv=("echo", "hi"))
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    status, orders = mine.sync()
    assert status == 200
    (order,) = orders["desired"]
    assert (order["rank"], order["want"], order["spec"]["argv"]) == (f"{job.pk}.1.0", "RUN", ["echo", "hi"])
    assert mine.log(rank.key, 0, "hi ☠\n".encode()) == (200, {"length": 7})
    ended = Observed(rank=rank.key, epoch=1, state="EXITED", exit=ExitInfo(cause="exited", code=0), released=True, final_log_offset=7)
    _, orders = mine.sync(ended)
    assert state(job) == "SUCCEEDED"
    assert [order["want"] for order in orders["desired"]] == ["FORGET"]
    assert mine.sync()[1].get("desired", []) == []
    assert logs.log_read(rank.key, offset=0, limit=99).decode() == "hi ☠\n"
    assert mine.log(rank.key, 7, b"x") == (200, {"length": 7, "capped": True})  # what people have read as whole stays as it is
    assert logs.log_length(rank.key) == 7


def test_a_capped_log_gets_its_end_before_the_job_has_ended(agents: list[AgentClient], settings: Any) -> None:
    settings.LOG_CAP_MIB = 1
    lab = Lab()
    job = lab.submit()
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    _, told = mine.log(rank.key, 0, b"x" * 1024 * 1024 + b"y")
    assert told["capped"] is True
    size = 400 * 1024 * 1024
    mine.sync(Observed(rank=rank.key, epoch=1, state="EXITED", exit=ExitInfo(cause="exited", code=1), released=True, final_log_offset=size))
    assert state(job) != "FAILED"  # it waits for the end, where the traceback is
    status, told = mine.log(rank.key, f"{told['length']}&tail_of={size}&end=1", b"half\nModuleNotFoundError: No module named 'torch'\n")
    assert (status, told["length"]) == (200, logs.log_length(rank.key))
    assert state(job) == "FAILED"
    assert logs.log_read(rank.key, offset=told["length"] - 14, limit=99) == b"named 'torch'\n"
    assert mine.log(rank.key, "0&tail_of=x", b"")[0] == 400


def test_late_output_of_a_lost_rank_is_kept(agents: list[AgentClient]) -> None:
    lab = Lab()
    job = lab.submit()
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    mine.log(rank.key, "0&inserted=0", b"before\n")
    logs.log_close(rank.key, line="killed: node_lost")
    type(rank.attempt).objects.filter(pk=rank.attempt_id).update(ended_at=timezone.now())
    status, told = mine.log(rank.key, "7&inserted=0", b"during\n")
    assert (status, told["code"]) == (409, "offset")
    mine.log(rank.key, f"{told['length']}&inserted={told['inserted']}&end=1", b"during\n")
    assert logs.log_read(rank.key, offset=0, limit=99) == b"before\n\n[nebulagrid] killed: node_lost\nduring\n"
    assert job.pk


def test_the_end_comes_with_the_last_byte_when_the_exit_came_first(agents: list[AgentClient]) -> None:
    lab = Lab()
    job = lab.submit()
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    mine.sync(Observed(rank=rank.key, epoch=1, state="EXITED", exit=ExitInfo(cause="exited", code=0), released=True, final_log_offset=3))
    assert state(job) == "STARTING"
    mine.log(rank.key, 0, b"abc")
    assert state(job) == "SUCCEEDED"


def test_an_agent_speaks_for_its_own_ranks_only(agents: list[AgentClient]) -> None:
    lab = Lab()
    job = lab.submit()
    pass_run()
    rank = Rank.objects.get()
    other = next(agent for agent in agents if agent.node.pk != rank.node_id)
    for status, body in (
        other.sync(Observed(rank=rank.key, epoch=1, state="EXITED", exit=ExitInfo(cause="exited", code=0), released=True)),
        other.log(rank.key, 0, b"forged"),
    ):
        assert (status, body["code"]) == (403, "not_yours")
    answer = other.http.put(f"/api/agent/v1/artifacts/{rank.key}/a.txt", data=b"x", content_type="application/octet-stream")
    assert answer.status_code == 403
    assert logs.log_length(rank.key) == 0
    assert Artifact.objects.count() == 0
    assert state(job) == "STARTING"


@pytest.mark.parametrize("credential", ["", "Node", "Node 1:wrong", "Node x:y", "Bearer ngt_x", "Node 99999:" + "c" * 64])
def test_without_its_credential_a_node_is_nobody(agents: list[AgentClient], credential: str) -> None:
    http = Client(headers={"authorization": credential} if credential else {})
    for method, path in (("post", "sync"), ("put", "logs/1.1.0?offset=0"), ("put", "artifacts/1.1.0/a")):
        answer = getattr(http, method)(f"/api/agent/v1/{path}", data=b"{}", content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"session": 1}', b'{"session": "s", "boot_id": "b", "seq": "1"}', b"[" * 5000],
)
def test_a_sync_that_is_none_is_a_400(agents: list[AgentClient], body: bytes) -> None:
    answer = agents[0].http.post("/api/agent/v1/sync", data=body, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


def test_a_body_over_its_limit_is_told_the_limit(agents: list[AgentClient]) -> None:
    large = b" " * (4 * 1024 * 1024 + 1)
    answer = agents[0].http.post("/api/agent/v1/sync", data=large, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert agents[0].log("1.1.0", 0, large)[0] == 413
    assert agents[0].log("1.1.0", 0, large[:-1])[0] == 404


def _with(**fields: Any) -> dict[str, Any]:
    return {"observed": [{"rank": "1.1.0", "epoch": 1, "state": "EXITED", **fields}]}


@pytest.mark.parametrize(
    "more",
    [
        *({"observed": [{"rank": key, "epoch": 1, "state": "RUNNING"}]} for key in ("1.1", "../x.1.0", "-1.1.0", "\u0663.1.0", "")),
        {"gpus": [{"uuid": "GPU-1", "util_pct": 10**400}]},
        {"gpus": [{"uuid": "GPU-1", "used_mib": -(2**63)}]},
        _with(started_at=10**400),
        _with(final_log_offset=2**63),
    ],
)
def test_a_sync_with_what_is_no_rank_and_no_number_is_a_400(agents: list[AgentClient], more: dict[str, Any]) -> None:
    mine = agents[0]
    body = {"session": mine.session, "boot_id": mine.boot_id, "seq": 1, **more}
    answer = mine.http.post("/api/agent/v1/sync", data=json.dumps(body), content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


@pytest.mark.parametrize(
    "bad", ['{"eid": 1, "kind": "xid", "at": 1e400}', '{"eid": 1, "kind": "x", "data": {"a": DEEP}}', '{"eid": 1, "at": LONG}']
)
def test_an_event_that_can_not_be_read_keeps_no_node_out(agents: list[AgentClient], bad: str) -> None:
    mine = agents[0]
    bad = bad.replace("DEEP", "[" * 500 + "]" * 500).replace("LONG", "1" + "0" * 5000)
    body = f'{{"session": "{mine.session}", "boot_id": "{mine.boot_id}", "seq": 1, "events": [{bad}, {{"eid": 2, "kind": "lost"}}]}}'
    answer = mine.http.post("/api/agent/v1/sync", data=body, content_type="application/json")
    assert (answer.status_code, answer.json()["ack_eids"]) == (200, [1, 2])


def test_what_ran_is_never_called_a_failed_start(agents: list[AgentClient]) -> None:
    lab = Lab()
    job = lab.submit()
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    mine.sync(Observed(rank=rank.key, epoch=1, state="RUNNING"))
    mine.sync(Observed(rank=rank.key, epoch=1, state="LAUNCH_FAILED", launch_error="internal", released=True))
    job.refresh_from_db()
    assert (job.state, job.end_reason, job.requeues) == ("FAILED", "exit_unknown", 0)


@pytest.mark.parametrize(
    ("said", "reason", "code"),
    [
        ({"exit": {"cause": "exited", "code": 2**40}}, "nonzero_exit", None),
        ({"exit": {"cause": "exited", "code": 1, "signal": -(2**40), "detail": "half \ud800 and \u0000"}}, "nonzero_exit", 1),
        ({"exit": {"cause": "exited", "code": 0}, "started_at": 1e308}, "completed", 0),
        ({"exit": {"cause": "exited", "code": 0}, "final_log_offset": -5}, "completed", 0),
    ],
)
def test_an_odd_end_is_an_end(agents: list[AgentClient], said: dict[str, Any], reason: str, code: int | None) -> None:
    lab = Lab()
    job = lab.submit()
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    body = {"session": mine.session, "boot_id": mine.boot_id, "seq": 1}
    body["observed"] = [{"rank": rank.key, "epoch": 1, "state": "EXITED", "released": True, **said}]
    answer = mine.http.post("/api/agent/v1/sync", data=json.dumps(body), content_type="application/json")
    assert answer.status_code == 200
    job.refresh_from_db()
    assert (job.end_reason, job.exit_code) == (reason, code)


def test_wrong_methods_and_bad_names_are_refused(agents: list[AgentClient]) -> None:
    http = agents[0].http
    assert http.get("/api/agent/v1/sync").status_code == 405
    assert http.get("/api/agent/v1/enroll").status_code == 405
    assert http.post("/api/agent/v1/logs/1.1.0").status_code == 405
    assert agents[0].log("1.1", 0, b"x")[0] == 400
    assert agents[0].log("1.1.0", 0, b"x")[0] == 404
    for offset in ("", "-1", "x", "1.5", "9" * 40):
        assert agents[0].log("1.1.0", offset, b"x")[0] == 400


def test_an_unchanged_sync_costs_few_queries_and_no_write(agents: list[AgentClient], django_assert_max_num_queries: Any) -> None:
    lab = Lab()
    lab.submit()
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    running = Observed(rank=rank.key, epoch=1, state="RUNNING")
    mine.sync(running)
    with django_assert_max_num_queries(3) as seen:
        assert mine.sync(running)[0] == 200
    assert not [query for query in seen.captured_queries if not query["sql"].startswith("SELECT")]


def test_an_older_agent_start_is_refused(agents: list[AgentClient]) -> None:
    old, new = agents[0], AgentClient(agents[0].node)
    new.session = "another-start"
    assert new.sync()[0] == 200
    status, body = old.sync()
    assert (status, body["code"]) == (409, "superseded_session")


def test_a_reboot_is_seen_with_the_new_boot_id(agents: list[AgentClient]) -> None:
    lab = Lab()
    job = lab.submit()
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    mine.sync(Observed(rank=rank.key, epoch=1, state="RUNNING"))
    assert state(job) == "RUNNING"
    mine.session, mine.boot_id = "after-boot", "boot-2"
    status, refused = mine.sync()
    assert (status, refused["code"]) == (409, "session_busy")  # of a moment ago: it may as well be another machine
    silent(mine.node)
    mine.sync()
    assert state(job) == "WAITING"
    assert job.wait_params["reason"] == "node_rebooted"
    node = Node.objects.get(pk=mine.node.pk)
    assert node.state == NodeState.READY


def test_a_stop_travels_until_the_agent_confirms(agents: list[AgentClient]) -> None:
    lab = Lab()
    job = lab.submit()
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    running = Observed(rank=rank.key, epoch=1, state="RUNNING")
    mine.sync(running)
    job_cancel(job=job, by=job.owner)
    for _ in range(2):
        (order,) = mine.sync(running)[1]["desired"]
        assert (order["want"], order["stop_reason"], order["grace_s"]) == ("STOP", "cancelled", 30)


def test_artefacts_keep_any_name_inside_their_folder(agents: list[AgentClient], settings: Any) -> None:
    lab = Lab()
    lab.submit()
    pass_run()
    rank = Rank.objects.get()
    mine = next(agent for agent in agents if agent.node.pk == rank.node_id)
    base = f"/api/agent/v1/artifacts/{rank.key}"
    for name in ("model.pt", "权重 v2.bin", "a;b`c$(d)"):
        answer = mine.http.put(f"{base}/{name}", data=b"data", content_type="application/octet-stream")
        assert answer.status_code == 201, answer.content
    assert mine.http.put(f"{base}/%2E%2E", data=b"x", content_type="application/octet-stream").status_code in (400, 404)
    assert sorted(Artifact.objects.values_list("name", flat=True)) == sorted(["model.pt", "权重 v2.bin", "a;b`c$(d)"])
    settings.ARTIFACT_CAP_MIB = 0
    assert mine.http.put(f"{base}/big", data=b"x", content_type="application/octet-stream").status_code == 413
    assert {path.read_bytes() for path in settings.ARTIFACT_DIR.rglob("*") if path.is_file()} == {b"data"}


def test_a_token_enrols_one_machine_once() -> None:
    _, secret = enrol_token_create(by=None, node_name="gpu-7")
    body = json.dumps({"token": secret, "hostname": "gpu-7.lab.example"})
    first = Client().post("/api/agent/v1/enroll", data=body, content_type="application/json")
    assert (first.status_code, first.json()["name"]) == (201, "gpu-7")
    again = Client().post("/api/agent/v1/enroll", data=body, content_type="application/json")
    assert again.status_code in (401, 403)
    assert secret not in again.content.decode()
