"""The table of faults with real processes on simulated nodes: who fails, who is spared, what heals, what leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.live.grid import PATIENCE_S, Grid, wait_for
from client.sdk import NebulaClient
from tests.e2e.helpers import log_of, running

#: Counts on from its checkpoint; saves when it is asked to stop, as a training would.
COUNTER = """
state="$1"
i=$(cat "$state" 2>/dev/null || echo 0)
echo "from $i on $NEBULA_GPU_LIST"
trap 'echo "$i" > "$state"; echo "saved $i"; exit 0' USR1
while :; do i=$((i + 1)); sleep 0.1; done
"""


@pytest.fixture
def pinned(client: NebulaClient) -> Iterator[str]:
    """The first node, with a label to ask for."""
    name = min(node["name"] for node in client.node_list())
    client.node_label(name, {"drill": "here"})
    yield name
    client.node_label(name, {"drill": None})


def card(client: NebulaClient, uuid: str) -> Any:
    return next(gpu for gpu in client.gpu_list() if gpu["uuid"] == uuid)


def throw(client: NebulaClient, node: str, uuid: str, **fault: Any) -> None:
    command = client.node_command(node, verb="drill", args={"gpu": uuid, **fault})
    wait_for(lambda: client.node_command_get(node, command["id"])["state"] == "DONE", what="the fault was thrown")


def became(client: NebulaClient, uuid: str, *states: str, deadline_s: float = PATIENCE_S) -> Any:
    def found() -> Any:
        gpu = card(client, uuid)
        return gpu if gpu["state"] in states else None

    return wait_for(found, what=f"the card is {' or '.join(states)}", deadline_s=deadline_s)


def place_of(job: Any) -> tuple[str, str]:
    (rank,) = job["attempt"]["ranks"]
    return rank["node"], rank["gpus"][0]["uuid"]


def test_what_a_program_causes_fails_that_job_at_most_and_never_its_neighbour(
    grid: Grid, client: NebulaClient, finished: Callable[..., Any], pinned: str
) -> None:
    on = {"labels": {"drill": "here"}, "model": "RTX 4080"}
    culprit, neighbour = (client.job_submit(argv=["sleep", "600"], gpu_mem="4G", constraints=on)["id"] for _ in range(2))
    node, uuid = place_of(running(client, culprit))
    assert place_of(running(client, neighbour)) == (node, uuid)
    rank = f"{culprit}.1.0"
    for xid in (13, 43, 45, 68):
        throw(client, node, uuid, xid=xid, rank=rank)
    assert card(client, uuid)["state"] == "HEALTHY"
    assert [client.job_get(job)["state"] for job in (culprit, neighbour)] == ["RUNNING", "RUNNING"]
    throw(client, node, uuid, xid=31, rank=rank)
    ended = finished(culprit)
    assert (ended["state"], ended["end"]["reason"]) == ("FAILED", "gpu_fault")
    assert "XID 31" in ended["end"]["text"]
    assert card(client, uuid)["state"] == "HEALTHY"
    assert client.job_get(neighbour)["state"] == "RUNNING"
    client.job_cancel(neighbour)
    finished(neighbour)
    # Idle now: the 43 gets its one reset and the 13 its self-test, and the card is back by itself.
    wait_for(lambda: card(client, uuid)["state"] == "HEALTHY" and asked(grid, uuid) == [("reset", "DONE"), ("selftest", "DONE")],
             what="one reset and one self-test")  # fmt: skip


def asked(grid: Grid, uuid: str) -> list[tuple[str, str]]:
    """The resets and self-tests of a card so far, oldest first."""
    code = (
        "from nodes.models import AgentCommand\n"
        f"for c in AgentCommand.objects.filter(verb__in=('reset', 'selftest'), args__gpu='{uuid}').order_by('pk'): print(c.verb, c.state)"
    )
    return [
        (verb, state) for verb, state in (line.split() for line in grid.manage("shell", "--no-imports", "-c", code).splitlines() if line)
    ]


def test_79_once_heals_and_twice_isolates_and_the_job_resumes_elsewhere_from_its_checkpoint(
    grid: Grid, client: NebulaClient, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoint"
    job_id = client.job_submit(argv=["/bin/sh", "-c", COUNTER, "counter", str(file)], gpu_mem="8G", checkpoint=str(file))["id"]
    node, uuid = place_of(running(client, job_id))
    wait_for(lambda: "from 0" in log_of(client, job_id), what="the program counts")

    done = grid.ctl("drill", "xid79", node, "--gpu", str(card(client, uuid)["index"]), "--json", "--timeout", "240", timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [step["step"] for step in found["steps"]] == [
        "the fault was noticed",
        "the card is HEALTHY",
        "waited: a second fault so soon would count as the first",
        "the fault came again: the card is isolated",
        f"jobs that left the card: #{job_id}",
        "the card passed its self-test and is back in service",
    ]
    assert sum(step["took_s"] for step in found["steps"]) == pytest.approx(found["took_s"])
    incident = client.incident_get(found["incident"])
    shown = grid.ctl("incidents", "show", str(found["incident"])).stdout
    assert "nothing is broken" in shown  # several lines of the kernel's log, and whose drill it was
    assert shown.count("NVRM") >= 3
    assert (incident["phase"], incident["drill"], incident["review"]) == ("CLOSED", True, "drill")
    codes = [line["code"] for line in incident["timeline"]]
    assert codes[:5] == ["xid", "suspect", "test_asked", "test_passed", "healthy"]
    assert {"xid_again", "isolated", "job_stopped"} <= set(codes)

    second = running(client, job_id)
    assert second["attempt"]["epoch"] == 2
    assert place_of(second)[1] != uuid
    saved = int(file.read_text())
    assert saved > 0
    wait_for(lambda: f"from {saved} on {place_of(second)[1]}" in log_of(client, job_id), what="it went on where it was")


def test_ten_thousand_xids_are_one_event_that_the_page_shows_at_once(grid: Grid, client: NebulaClient) -> None:
    node = client.node_list()[0]
    uuid = node["gpus"][-1]["uuid"]
    throw(client, node["name"], uuid, xid=62, count=10_000, test="impossible")
    became(client, uuid, "SUSPECT")
    wait_for(lambda: client.gpu_health(uuid)["needs_human"], what="a person has to look")
    (event,) = [event for event in client.gpu_health(uuid)["events"] if event["data"].get("xid") == 62]
    assert event["data"]["count"] == 1  # what came within the second goes with the next one
    client.gpu_act(uuid, action="return", reason="looked at it", checked=True)
    assert card(client, uuid)["state"] == "HEALTHY"
