"""Pages of nodes and cards: who sees what, what staff may do, and that bad input is told."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.lifecycle import JobState
from nodes import telemetry
from nodes.claims import claim_id
from nodes.models import AgentCommand, GpuLink, HealthEvent, Node
from nodes.pool import pool_gpus
from tests.factories import attempt_make, gpu_make, job_make, node_make, user_make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "nodes_statuses", lambda node_ids, *, now=None: {})
    monkeypatch.setattr(telemetry, "nodes_last_seen", dict)
    monkeypatch.setattr(telemetry, "client", lambda: None)


def page(client: Client, user: Any, path: str, *, status: int = 200, **extra: Any) -> str:
    client.force_login(user)
    answer = client.get(path, **extra)
    assert answer.status_code == status
    return str(answer.content.decode())


READ = ("/nodes/", "/nodes/node01/", "/nodes/node01/gpu0/")
WRITE = ("/nodes/node01/drain/", "/nodes/node01/resume/", "/nodes/node01/commands/")


@pytest.mark.parametrize("path", [*READ, *WRITE, "/nodes/add/new/"])
def test_a_stranger_is_sent_to_sign_in(client: Client, path: str) -> None:
    node_make("node01", cards=1)
    answer = client.post(path) if path in WRITE else client.get(path)
    assert answer.status_code == 302
    assert "/accounts/login/" in answer.headers["Location"]


@pytest.mark.parametrize("path", [*WRITE, "/nodes/add/new/"])
def test_only_staff_may_act(client: Client, path: str) -> None:
    node = node_make("node01", cards=1)
    client.force_login(user_make())
    answer = client.post(path, {"reason": "x", "verb": "ping"}) if path in WRITE else client.get(path)
    assert answer.status_code == 403
    node.refresh_from_db()
    assert not node.cordoned
    assert not AgentCommand.objects.exists()


@pytest.mark.parametrize(
    "path", ["/nodes/none/", "/nodes/none/gpu0/", "/nodes/node01/gpu9/", "/nodes/none/drain/", "/nodes/%3Cb%3E/", "/nodes/node01/gpux/"]
)
def test_what_is_not_there_is_a_404_in_style(client: Client, path: str) -> None:
    node_make("node01", cards=1)
    assert "Nothing here" in page(client, user_make(is_staff=True), path, status=404)


@pytest.mark.parametrize("path", READ)
def test_pages_to_look_at_refuse_a_post(client: Client, path: str) -> None:
    node_make("node01", cards=1)
    client.force_login(user_make())
    assert client.post(path).status_code == 405


def test_the_list_finds_by_name_and_model(client: Client) -> None:
    node_make("node01", cards=2)
    gpu_make(node_make("node02"), model="NVIDIA A100 80GB PCIe", mib=81_920)
    user = user_make()
    html = page(client, user, "/nodes/")
    assert "RTX 4090 ×2" in html
    assert "80\xa0GiB free of 80\xa0GiB" in html
    html = page(client, user, "/nodes/?q=a100")
    assert "node02" in html
    assert "node01" not in html
    assert "No node matches “&lt;x”." in page(client, user, "/nodes/?q=%3Cx")


def test_the_list_is_paginated(client: Client) -> None:
    for number in range(51):
        node_make(f"n{number:02}")
    user = user_make()
    html = page(client, user, "/nodes/")
    assert "Page 1 of 2" in html
    assert "n50" not in html
    assert "n50" in page(client, user, "/nodes/?page=2")
    assert "n50" in page(client, user, "/nodes/?page=99")


def test_an_empty_pool_says_what_to_do(client: Client) -> None:
    assert "A lab admin adds them." in page(client, user_make(), "/nodes/")
    assert 'href="/nodes/add/new/"' in page(client, user_make(is_staff=True), "/nodes/")
    assert "nebula-ctl node add" in page(client, user_make(is_staff=True), "/nodes/add/new/")


def test_a_node_shows_who_is_on_its_cards(client: Client) -> None:
    me = user_make()
    node = node_make("node01", cards=2, driver_version="580.65", advice=["running_as_root", "from_the_future"])
    first, second = node.gpus.order_by("index")
    attempt_make(job_make(me, name="my-run", state=JobState.RUNNING), gpus=(first,), mib=8192)
    attempt_make(job_make(name="their-run", state=JobState.RUNNING), gpus=(second,), exclusive=True)
    html = page(client, me, "/nodes/node01/")
    assert f'data-k="mine" style="--w:33.35%" title="my-run, {me.email}, 8\xa0GiB"' in html  # 8192 / 24564 = 33.35 %
    assert "their-run" not in html
    assert "whole card" in html
    assert "2 busy, 0 idle" in html
    assert "driver 580.65" in html
    assert "identity=mapped" in html
    assert "from_the_future" in html
    assert "Drain…" not in html
    staff = page(client, user_make(is_staff=True), "/nodes/node01/")
    assert "their-run" in staff
    assert "Drain…" in staff


def test_htmx_gets_the_live_part_alone(client: Client) -> None:
    node_make("node01", cards=1)
    for path, mark in zip(READ, ('id="nodes"', 'id="node-live"', 'id="gpu-live"'), strict=True):
        html = page(client, user_make(), path, headers={"HX-Request": "true"})
        assert mark in html
        assert "<html" not in html
        assert f'hx-get="{path}"' in html


def test_a_card_shows_its_jobs_links_and_events(client: Client) -> None:
    me = user_make()
    node = node_make("node01", cards=2)
    first, second = node.gpus.order_by("index")
    GpuLink.objects.create(a=first, b=second, kind="pcie_switch")
    HealthEvent.objects.create(node=node, gpu=first, session="s", eid=1, kind="xid", data={"xid": 79})
    attempt_make(job_make(me, name="my-run", state=JobState.RUNNING), gpus=(first,), mib=8192)
    attempt_make(job_make(name="their-run", state=JobState.RUNNING), gpus=(first,), mib=8192)
    html = page(client, me, "/nodes/node01/gpu0/")
    assert "my-run" in html
    assert "their-run" not in html
    assert "The driver reported XID 79." in html
    assert "one PCIe switch" in html
    assert "gpu1" in html
    assert "The driver reported XID 79." in page(client, me, "/nodes/node01/")
    assert "The driver reported XID 79." not in page(client, me, "/nodes/node01/gpu1/")


def test_of_two_cards_with_one_index_the_one_that_is_there_counts(client: Client) -> None:
    node = node_make("node01")
    gpu_make(node, index=0, uuid="GPU-new", model="NVIDIA H100")
    gpu_make(node, index=0, uuid="GPU-old", state="MISSING")
    assert "H100" in page(client, user_make(), "/nodes/node01/gpu0/")


def test_a_drain_needs_a_reason_and_a_future(client: Client) -> None:
    node = node_make("node01")
    staff = user_make(is_staff=True)
    client.force_login(staff)
    for body, said in (
        ({"reason": "  "}, "Say why"),
        ({"reason": "x" * 201}, "200"),
        ({"reason": "upgrade", "until": "2020-01-01T00:00"}, "This time has passed"),
        ({"reason": "upgrade", "until": "soon"}, "Write date and time as"),
    ):
        answer = client.post("/nodes/node01/drain/", body)
        assert answer.status_code == 400
        assert said in answer.content.decode()
        node.refresh_from_db()
        assert not node.cordoned


def test_drain_and_resume(client: Client) -> None:
    node = node_make("node01", cards=1)
    staff = user_make("root@lab.example", is_staff=True, zone="Asia/Shanghai")
    client.force_login(staff)
    until = (timezone.now() + timedelta(days=1)).replace(second=0, microsecond=0)
    typed = (until + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M")  # as the reader's clock shows it
    answer = client.post("/nodes/node01/drain/", {"reason": "driver <b>upgrade</b>", "until": typed})
    assert answer.status_code == 302
    node.refresh_from_db()
    assert (node.cordoned, node.cordon_reason, node.cordoned_by, node.cordoned_until) == (True, "driver <b>upgrade</b>", staff, until)
    html = page(client, user_make(), "/nodes/node01/")
    assert "No new work comes to this node; what runs here goes on." in html
    assert "driver &lt;b&gt;upgrade" in html
    assert "Cordoned" in html
    client.force_login(staff)
    assert client.get("/nodes/node01/resume/").status_code == 405
    assert client.post("/nodes/node01/resume/").status_code == 302
    node.refresh_from_db()
    assert not node.cordoned


def test_a_command_waits_for_its_answer_and_then_no_more(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    node_make("node01")
    staff = user_make(is_staff=True)
    client.force_login(staff)
    assert client.post("/nodes/node01/commands/", {"verb": "ping"}).headers["Location"] == "/nodes/node01/#commands"
    command = AgentCommand.objects.get()
    assert (command.verb, command.created_by) == ("ping", staff)
    assert 'hx-trigger="every 2s"' in page(client, staff, "/nodes/node01/commands/")
    AgentCommand.objects.update(state="DONE", text="pong <i>")
    html = page(client, staff, "/nodes/node01/commands/")
    assert "every 2s" not in html
    assert "pong &lt;i&gt;" in html


def test_a_verb_that_has_no_button_is_refused(client: Client) -> None:
    node_make("node01")
    client.force_login(user_make(is_staff=True))
    answer = client.post("/nodes/node01/commands/", {"verb": "reset"}, follow=True)
    assert "reset is not a command of an agent; there are: ping, diagnose." in answer.content.decode()
    assert not AgentCommand.objects.exists()


def test_a_silent_node_says_so(client: Client) -> None:
    node_make("node01", state="UNKNOWN", cards=1, last_seen_at=timezone.now() - timedelta(seconds=42))
    html = page(client, user_make(), "/nodes/node01/")
    assert re.search(r"No report for 4\d\xa0s\.", html)
    assert 'class="stale"' in html


@pytest.mark.parametrize("path", READ)
def test_each_page_speaks_chinese(client: Client, path: str) -> None:
    node_make("node01", cards=1)
    html = page(client, user_make(language="zh-hans"), path)
    assert "节点" in html
    assert "Nodes" not in html


def test_the_number_of_queries_does_not_grow(client: Client, django_assert_max_num_queries: Any) -> None:
    user = user_make(is_staff=True)
    client.force_login(user)
    node = node_make("node01", cards=2)

    def queries(path: str) -> int:
        with django_assert_max_num_queries(40) as counted:
            assert client.get(path).status_code == 200
        return len(counted)

    few = {path: queries(path) for path in READ}
    for number in range(4):
        node_make(f"more{number}", cards=2)
        gpu = gpu_make(node)
        for card in (gpu, node.gpus.first()):
            attempt_make(job_make(state=JobState.RUNNING), gpus=(card,), mib=4096)
            HealthEvent.objects.create(node=node, gpu=card, session="s", eid=card.pk * 10 + number, kind="xid", data={"xid": 13})
    assert Node.objects.count() == 5
    for path in READ:
        assert queries(path) == few[path], path


def test_a_node_that_only_reports_says_so_and_none_of_its_cards_counts_as_free(client: Client) -> None:
    node_make("node01", cards=1, is_metrics_only=True)
    body = page(client, user_make(), "/nodes/node01/")
    assert "metrics only" in body
    assert "This node only reports." in body
    ((_gpu, use),) = pool_gpus()
    assert (use.use, use.takes_work) == ("maintenance", False)


def test_one_lost_card_of_four_leaves_the_pages_whole(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_make("node01", cards=4)
    unsaid = {**dict.fromkeys(telemetry._STATUS_FIELDS), "foreign_mib": 0, "throttle": [], "stale": False, "sampled_at": 1.0}
    told = {gpu.uuid: {**unsaid, "temp_c": 41, "util_pct": 7, "used_mib": 100} for gpu in node.gpus.all()}
    lost = node.gpus.get(index=1)
    told[lost.uuid] = {**unsaid, "error": "lost"}
    monkeypatch.setattr(telemetry, "nodes_statuses", lambda node_ids, *, now=None: {node.pk: told})
    user = user_make()
    body = page(client, user, "/nodes/node01/")
    assert body.count("41&nbsp;°C") == 3
    assert body.count('<tr data-i="') == 4
    assert 'data-fig="t">n/a<' in body
    for path in ("/", "/nodes/", "/nodes/node01/gpu1/", "/nodes/node01/gpu0/"):
        page(client, user, path)


def test_a_nodes_page_says_what_a_job_can_reach_and_lets_staff_confirm(client: Client) -> None:
    lin, staff = user_make(), user_make(is_staff=True)
    told = {"identity": "same", "account": "ann", "uid": 1000, "sandbox": "none", "open": ["processes", "agent_files"]}
    claim = {"session": "x", "boot_id": "b", "code": "session_unconfirmed", "hostname": "copied", "peer": "10.0.0.9"}
    node = node_make(
        "n1",
        isolation={**told, "limits": {"memory": True, "pids": False}, "ready": True, "problem": None},
        claim={**claim, "at": timezone.now().timestamp(), "is_alarmed": False, "is_confirmed": False},
    )
    gpu_make(node, state="MAINTENANCE", state_reason="unconfirmed")
    text = page(client, lin, "/nodes/n1/")
    assert "the memory and environment of other processes" in text
    assert "Confirm the new agent" not in text
    assert "jobs not kept apart" in page(client, lin, "/nodes/")
    text = page(client, staff, "/nodes/n1/")
    assert "copied 10.0.0.9" in text
    assert "1 card waits to be confirmed" in text
    client.force_login(lin)
    assert client.post("/nodes/n1/confirm/", {"what": "agent"}).status_code == 403
    client.force_login(staff)
    assert f'name="claim" value="{claim_id(claim)}"' in text
    answer = client.post("/nodes/n1/confirm/", {"what": "agent", "claim": "of-another"}, follow=True)
    assert "Not the agent that you looked at, but copied (10.0.0.9) asks to speak for n1 now." in answer.content.decode()
    node.refresh_from_db()
    assert not node.claim["is_confirmed"]
    for what in ("agent", "inventory", "inventory"):
        assert client.post("/nodes/n1/confirm/", {"what": what, "claim": claim_id(claim)}).status_code == 302
    node.refresh_from_db()
    assert node.claim["is_confirmed"]
    assert node.gpus.get().state == "HEALTHY"
