"""A job against its node's identity, and a node against the pool: what each could do once, over the wire as an attacker has it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agent.protocol import AgentEvent, ExitInfo, Observed, SyncRequest
from jobs import logs
from jobs.models import Job, Rank
from jobs.services.schedule import pass_run
from nodes.models import Gpu, HealthEvent, Node
from nodes.sessions import proof_sha256
from quotas.secrets import secret_set
from quotas.services import project_personal
from tests.factories import gpu_info, inventory, node_make, user_make, xid_rules_ship
from tests.jobs.lab import Lab, state
from tests.jobs.test_agent_api import AgentClient, silent

pytestmark = pytest.mark.django_db
SECRET = "of the agent's store"


class Thief(AgentClient):
    """Whoever read a node's configuration and credential: it speaks as the node, under a session and perhaps a boot of its own."""

    def __init__(self, node: Node, *, boot_id: str | None = None) -> None:
        super().__init__(node)
        self.session = "thief"
        self.boot_id = boot_id or self.boot_id


@pytest.fixture
def agent() -> AgentClient:
    node = node_make("n1", cards=1, session_proof=proof_sha256(SECRET))
    found = AgentClient(node)
    assert found.sync(inventory=inventory(node.gpus.get().uuid))[0] == 200
    return found


def run_on(agent: AgentClient, **request: Any) -> Job:
    lin = request.pop("owner", None) or user_make("lin@lab.example")
    job = Lab().submit(owner=lin, project=project_personal(lin), **request)
    pass_run()
    status, orders = agent.sync()
    assert status == 200
    assert [order["want"] for order in orders["desired"]] == ["RUN"]
    agent.sync(Observed(rank=f"{job.pk}.1.0", epoch=1, state="RUNNING"))
    return job


# --- a job against its node -------------------------------------------------------------------------------------------


def test_with_a_stolen_credential_a_job_is_handed_nobodys_secrets(agent: AgentClient) -> None:
    """It read agent.toml and the credential, knows the boot id, and syncs under a session of its own to be given what comes."""
    lin = user_make("lin@lab.example")
    secret_set(by=lin, name="TOKEN", value="hunter2 and more")
    Lab().submit(owner=lin, secrets=("TOKEN",))
    pass_run()
    status, answer = Thief(agent.node).sync()
    assert (status, answer["code"]) == (409, "session_busy")
    assert "hunter2" not in json.dumps(answer)
    _, orders = agent.sync()
    assert "hunter2" in json.dumps(orders)  # the node's own agent is given them
    assert set(HealthEvent.objects.values_list("kind", flat=True)) == {"second_session"}


def test_a_credential_that_was_stolen_outlives_its_job_and_still_opens_nothing(agent: AgentClient) -> None:
    job = run_on(agent)
    thief = Thief(agent.node)
    ended = Observed(
        rank=f"{job.pk}.1.0", epoch=1, state="EXITED", exit=ExitInfo(cause="exited", code=0), released=True, final_log_offset=0
    )
    agent.sync(ended)
    agent.sync()
    assert state(job) == "SUCCEEDED"
    for _ in range(3):
        assert thief.sync()[1]["code"] == "session_busy"
        assert agent.sync()[0] == 200


# --- a node against the pool --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boot_id", [None, "boot-of-another-machine"], ids=["the same boot", "another boot"])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a silence"])
def test_a_copied_agent_never_makes_a_second_attempt_nor_ends_the_first(agent: AgentClient, boot_id: str | None, waits: bool) -> None:
    job = run_on(agent)
    if waits:
        silent(agent.node)
    status, answer = Thief(agent.node, boot_id=boot_id).sync()
    assert (status, answer["code"]) == (409, "session_unconfirmed" if waits else "session_busy")
    pass_run()
    assert (state(job), Rank.objects.count()) == ("RUNNING", 1)
    # The true agent goes on as if nothing had been, is told to forget nothing, and staff hear of it.
    status, orders = agent.sync(Observed(rank=f"{job.pk}.1.0", epoch=1, state="RUNNING"))
    assert status == 200
    assert [order["want"] for order in orders["desired"]] == ["RUN"]
    assert "second_session" in set(HealthEvent.objects.values_list("kind", flat=True))


def test_a_restart_of_the_true_agent_is_taken_at_once_and_keeps_its_job(agent: AgentClient) -> None:
    job = run_on(agent)
    agent.session = "after a restart".replace(" ", "-")
    status, orders = agent.sync(Observed(rank=f"{job.pk}.1.0", epoch=1, state="RUNNING"), proofs=(SECRET,))
    assert status == 200
    assert [order["want"] for order in orders["desired"]] == ["RUN"]
    assert state(job) == "RUNNING"


def test_a_node_claims_no_memory_and_no_cards_that_can_not_be(agent: AgentClient) -> None:
    wild = inventory()
    cards = tuple(gpu_info(f"G{n}", n, mib=10**9) for n in range(3000))
    status, _ = agent.sync(inventory=SyncRequest.from_json(_sync(wild, cards)).inventory)
    assert status == 200
    assert Gpu.objects.filter(node=agent.node, total_mib__gt=2**20).count() == 0
    assert Gpu.objects.filter(node=agent.node).count() <= 257
    assert set(HealthEvent.objects.values_list("kind", flat=True)) == {"implausible"}


def _sync(wild: Any, cards: tuple[Any, ...]) -> dict[str, Any]:
    body = wild.to_json() | {"gpus": [card.to_json() for card in cards]}
    return {"session": "s", "boot_id": "b", "seq": 1, "inventory": body}


def test_a_node_adds_nothing_to_a_job_that_is_over(agent: AgentClient) -> None:
    job = run_on(agent)
    rank = Rank.objects.get()
    agent.log(rank.key, 0, b"the end\n")
    exit_info = ExitInfo(cause="exited", code=0)
    agent.sync(Observed(rank=rank.key, epoch=1, state="EXITED", exit=exit_info, released=True, final_log_offset=8))
    assert state(job) == "SUCCEEDED"
    agent.log(rank.key, 8, b"forged\n")
    assert logs.log_read(rank.key, offset=0, limit=99) == b"the end\n"


@pytest.mark.parametrize("event", ['"at": 1e400', '"at": NaN', '"data": {"xid": NaN}', '"data": {"a": DEEP}'])
def test_no_event_keeps_a_node_or_its_card_out(agent: AgentClient, event: str) -> None:
    xid_rules_ship()
    gpu = agent.node.gpus.get()
    attack = event.replace("DEEP", "[" * 500 + "]" * 500)
    body = (
        f'{{"session": "{agent.session}", "boot_id": "{agent.boot_id}", "seq": 7, '
        f'"events": [{{"eid": 1, "kind": "xid", "gpu": "{gpu.uuid}", {attack}}}]}}'
    )
    answer = agent.http.post("/api/agent/v1/sync", data=body, content_type="application/json")
    assert (answer.status_code, answer.json()["ack_eids"]) == (200, [1])
    agent.seq = 7
    status, _ = agent.sync(events=(AgentEvent(eid=2, kind="xid", gpu=gpu.uuid, data={"xid": 79}),), sent_at=timezone.now().timestamp())
    assert status == 200
    gpu.refresh_from_db()
    assert gpu.state == "SUSPECT"  # later faults of the card are judged as ever


def test_one_nodes_credential_speaks_for_no_other_and_is_told_of(agent: AgentClient) -> None:
    job = run_on(agent)
    other = AgentClient(node_make("n2", cards=1))
    forged = Observed(rank=f"{job.pk}.1.0", epoch=1, state="EXITED", exit=ExitInfo(cause="exited", code=0), released=True)
    assert other.sync(forged)[0] == 403
    assert other.log(f"{job.pk}.1.0", 0, b"x")[0] == 403
    assert state(job) == "RUNNING"
    assert set(HealthEvent.objects.filter(node=other.node).values_list("kind", flat=True)) == {"foreign_rank"}


def test_nobody_without_a_credential_finds_out_which_nodes_there_are(agent: AgentClient) -> None:
    answers = set()
    for header in (f"Node {agent.node.pk}:{'c' * 64}", f"Node {agent.node.pk + 999}:{'c' * 64}"):
        answer = Client(headers={"authorization": header}).post("/api/agent/v1/sync", data="{}", content_type="application/json")
        answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
