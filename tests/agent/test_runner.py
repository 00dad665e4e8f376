"""The loop against an honest control plane, with processes that a test plays."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import endings as endings_module
from agent import runner as runner_module
from agent.backends.simulated import SimulatedBackend
from agent.config import Config
from agent.http import HttpClient, authorization, endpoint_parse
from agent.probe import ChildProbe, InlineProbe, Probe
from agent.processes import RankState
from agent.procs import boottime
from agent.protocol import AgentEvent, Desired, ExitInfo, GpuGrant, GpuInfo, GpuStatus
from agent.runner import EXIT_SESSION_REFUSED, Runner
from agent.store import Store
from agent.testing import Failure, FakeControlPlane
from agent.testing_ranks import FakeProcesses
from agent.ws import Listener
from tests.agent.nvml_lab import HEALTHY, Machine
from tests.waiting import PATIENCE_S, wait_until

CARD = {"uuid": "GPU-a", "model": "Simulated RTX 4090", "total_mib": 24564, "metrics": {"util_pct": 0}}
WHOLE = (GpuGrant(uuid="GPU-a", mib=24564, exclusive=True),)


class Node:
    """An agent's loop in a thread, its processes played by the test."""

    def __init__(self, plane: FakeControlPlane, folder: Path, *, give_up_s: float = 60.0, probe: Probe | None = None) -> None:
        self.plane, self.folder, self.give_up_s, self.probe = plane, folder, give_up_s, probe
        self.data = folder / "data"
        self.data.mkdir(exist_ok=True)
        self.scenario = folder / "scenario.json"
        if not self.scenario.exists():
            self.cards(CARD)
        self.ranks = FakeProcesses(folder / "ranks")
        self.code: int | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node")

    def cards(self, *devices: dict[str, Any], **more: Any) -> None:
        new = self.scenario.with_suffix(".new")
        new.write_text(json.dumps({"devices": list(devices), **more}))
        new.replace(self.scenario)

    def _run(self) -> None:
        endpoint = endpoint_parse(self.plane.url)
        auth = authorization(self.plane.node_id, self.plane.credential)
        config = Config(
            path=self.folder / "agent.toml",
            endpoint=endpoint,
            node_id=self.plane.node_id,
            name="node",
            credential_file=self.folder / "c",
            data_dir=self.data,
            agent_id="test",
            backend="simulated",
        )
        store = Store(self.data / "agent.db")
        try:
            self.runner = Runner(
                config=config,
                version="1.2.3",
                boot_id="boot-1",
                store=store,
                processes=self.ranks,
                probe=self.probe or InlineProbe(SimulatedBackend(self.scenario)),
                connect=lambda: HttpClient(endpoint, authorization=auth),
                listener=lambda wake: Listener(endpoint, authorization=auth, wake=wake),
                give_up_s=self.give_up_s,
            )
            self._ready.set()
            self.code = self.runner.run(signals=False)
        finally:
            self._ready.set()
            store.close()

    def start(self) -> Node:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def online(self) -> Node:
        self.start()
        self.plane.wait(lambda: self.plane.syncs and self.plane.listeners, what="the first sync")
        return self

    def stop(self) -> int | None:
        if self._thread.is_alive():
            self.runner.stop()
        return self.ended()

    def ended(self) -> int | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.code

    def started(self, rank: str) -> dict[str, str]:
        """Waits until the rank was started; its environment."""
        env: dict[str, str] = self.plane.wait(lambda: self.ranks.started.get(rank), what=f"the start of {rank}")
        return env


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane(next_in_s=0.05) as found:
        yield found
        found.sync_gate.set()
        found.log_gate.set()
        assert found.problems == []


@pytest.fixture
def make(plane: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    monkeypatch.setattr("agent.syncline.RETRY_S", (0.02, 0.1))
    monkeypatch.setattr("agent.syncline.REFUSED_S", (0.05, 0.1))
    # What ends is told with the rest of its log and with its cards, however slow this machine is; where that never comes a test says so.
    monkeypatch.setattr(endings_module, "LOG_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(endings_module, "GATE_WAIT_S", PATIENCE_S)
    monkeypatch.setattr("agent.ws.RETRY_S", (0.1, 0.2))
    nodes: list[Node] = []

    def new(**settings: Any) -> Node:
        nodes.append(Node(plane, tmp_path, **settings))
        return nodes[-1]

    yield new
    plane.sync_gate.set()
    plane.log_gate.set()
    for node in nodes:
        node.stop()


@pytest.fixture
def node(make: Callable[..., Node]) -> Node:
    return make().online()


# --- joining --------------------------------------------------------------------------------------------------


def test_the_first_sync_tells_all_about_the_node(node: Node, plane: FakeControlPlane) -> None:
    first = plane.syncs[0]
    assert (first.seq, first.boot_id, first.observed) == (1, "boot-1", ())
    assert first.inventory is not None
    assert [g.uuid for g in first.inventory.gpus] == ["GPU-a"]
    assert first.inventory.simulated
    assert first.inventory.agent_version == "1.2.3"
    assert first.inventory.cpu_cores
    assert first.inventory.memory_mib
    assert [s.uuid for s in first.gpus] == ["GPU-a"]
    assert first.processes == ()


def test_later_syncs_are_small_and_numbered(node: Node, plane: FakeControlPlane) -> None:
    plane.wait(lambda: len(plane.syncs) >= 4)
    assert [s.seq for s in plane.syncs[:4]] == [1, 2, 3, 4]
    assert len({s.session for s in plane.syncs}) == 1
    assert all(s.inventory is None for s in plane.syncs[1:4])


def test_columns_go_only_to_a_control_plane_that_reads_them(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    node = make()
    node.cards({**CARD, "count": 4})
    node.online()
    plane.wait(lambda: len(plane.syncs) >= 2)
    short = plane.sync_sizes[-1]
    with plane.lock:
        plane.columns = False
    count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) >= count + 3)
    assert [len(sync.gpus) for sync in plane.syncs[-2:]] == [4, 4]
    assert plane.sync_sizes[-1] > short


def test_the_inventory_comes_again_when_asked(node: Node, plane: FakeControlPlane) -> None:
    with plane.lock:
        plane.inventory = None
    plane.wait(lambda: plane.inventory)


def test_a_nudge_brings_a_sync_at_once(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    plane.next_in_s = 600
    node = make().online()
    plane.run("1.1.0", "true")
    assert node.started("1.1.0")


def test_a_burst_of_nudges_is_one_or_few_syncs(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    plane.next_in_s = 600
    node = make().online()
    before = len(plane.syncs)
    began = time.monotonic()
    for _ in range(200):
        plane.nudge()
    plane.run("1.1.0", "true")
    node.started("1.1.0")
    count, took = len(plane.syncs), time.monotonic() - began
    assert count - before <= took / runner_module.COALESCE_S + 8


# --- a rank's life --------------------------------------------------------------------------------------------


def test_a_rank_runs_prints_and_ends_in_one_message(node: Node, plane: FakeControlPlane) -> None:
    plane.forgets = False
    plane.run("1.1.0", "train", gpus=WHOLE)
    node.started("1.1.0")
    plane.wait_state("1.1.0", "PREPARING")
    node.ranks.running("1.1.0", 4242)
    plane.wait_state("1.1.0", "RUNNING")
    node.ranks.prints("1.1.0", b"last words\n")
    node.ranks.exit("1.1.0", 3)
    seen = plane.wait_state("1.1.0", "EXITED")
    assert bytes(plane.logs["1.1.0"]) == b"last words\n"
    assert (seen.exit, seen.final_log_offset, seen.released) == (ExitInfo(cause="exited", code=3), 11, True)
    assert [state for rank, state in plane.history] == ["PREPARING", "RUNNING", "EXITED"]
    # It is kept and told until FORGET.
    count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) > count + 2)
    assert plane.present == {"1.1.0"}
    plane.order(Desired(rank="1.1.0", epoch=1, want="FORGET"))
    plane.wait(lambda: not plane.present and not plane.desired)
    plane.wait(lambda: node.ranks.forgotten == ["1.1.0"])


def test_run_again_and_again_starts_once(node: Node, plane: FakeControlPlane) -> None:
    plane.run("1.1.0", "true")
    node.started("1.1.0")
    count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) > count + 3)
    assert node.ranks.starts == ["1.1.0"]


def test_memory_on_the_card_follows_the_rank(node: Node, plane: FakeControlPlane) -> None:
    plane.run("1.1.0", "train", gpus=WHOLE)
    node.started("1.1.0")
    node.ranks.running("1.1.0", 4242)
    plane.wait_state("1.1.0", "RUNNING")
    node.runner._hardware.sample_before(0)
    plane.wait(lambda: plane.syncs[-1].gpus[0].used_mib == 24564)
    assert plane.syncs[-1].gpus[0].foreign_mib == 0
    plane.wait(lambda: any(p.rank == "1.1.0" and p.pid == 4242 for s in plane.syncs for p in s.processes or ()))


def test_the_environment_of_d12_comes_after_the_users(node: Node, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEBULA_AGENT_SECRET", "agents-own")
    plane.run("1.1.0", "train", gpus=WHOLE, env={"CUDA_VISIBLE_DEVICES": "7", "PATH": "/mine", "X": "1"})
    plane.run("2.1.0", "train", env={"CUDA_VISIBLE_DEVICES": "7"})
    env = node.started("1.1.0")
    assert (env["NEBULA_GPU_LIST"], env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-a", "0", "PCI_BUS_ID")
    assert (env["PATH"], env["X"], env["NEBULA_RANK"]) == ("/mine", "1", "1.1.0")
    assert env["NEBULA_ARTIFACTS"].endswith("1.1.0/artifacts")
    assert "NEBULA_AGENT_SECRET" not in env
    assert node.started("2.1.0")["CUDA_VISIBLE_DEVICES"] == ""


def test_a_card_that_is_not_there_fails_the_launch_and_nothing_else(node: Node, plane: FakeControlPlane) -> None:
    plane.run("1.1.0", "train", gpus=(GpuGrant(uuid="GPU-gone", mib=1),))
    seen = plane.wait_state("1.1.0", "LAUNCH_FAILED")
    assert (seen.launch_error, seen.released, seen.final_log_offset) == ("gpu", True, 0)
    assert node.ranks.starts == []


def test_another_user_is_refused_where_jobs_run_as_the_agent(node: Node, plane: FakeControlPlane) -> None:
    plane.run("1.1.0", "train", unix_user="root")
    assert plane.wait_state("1.1.0", "LAUNCH_FAILED").launch_error == "user"
    assert node.ranks.starts == []


def test_a_failed_launch_is_told(node: Node, plane: FakeControlPlane) -> None:
    plane.run("1.1.0", "train")
    node.started("1.1.0")
    node.ranks.fail("1.1.0", "no such program")
    seen = plane.wait_state("1.1.0", "LAUNCH_FAILED")
    assert (seen.launch_error, seen.launch_detail, seen.released) == ("exec", "no such program", True)


def test_stop_is_polite_once_and_sharper_on_request(node: Node, plane: FakeControlPlane) -> None:
    plane.run("1.1.0", "train")
    node.started("1.1.0")
    node.ranks.running("1.1.0", 4242)
    plane.halt("1.1.0", grace_s=30, reason="preempted")
    plane.wait(lambda: node.ranks.stops)
    count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) > count + 2)
    plane.halt("1.1.0", grace_s=1, reason="cancelled")
    plane.wait(lambda: len(node.ranks.stops) == 2)
    assert node.ranks.stops == [("1.1.0", 30, "stopped", "preempted"), ("1.1.0", 1, "stopped", "cancelled")]
    node.ranks.exit("1.1.0", cause="stopped")
    assert plane.wait_state("1.1.0", "EXITED").exit == ExitInfo(cause="stopped", code=0)


def test_stop_of_what_never_came_is_answered_and_fences(node: Node, plane: FakeControlPlane) -> None:
    plane.forgets = False
    plane.halt("9.2.0")
    seen = plane.wait_state("9.2.0", "EXITED")
    assert seen.exit is not None
    assert (seen.exit.cause, seen.released) == ("never_started", True)
    plane.order(Desired(rank="9.2.0", epoch=2, want="FORGET"))
    plane.wait(lambda: not plane.present and not plane.desired)
    plane.run("9.1.0", "late")
    refused = plane.wait_state("9.1.0", "EXITED")
    assert refused.exit is not None
    assert refused.exit.cause == "never_started"
    plane.run("9.3.0", "next")
    node.started("9.3.0")
    assert node.ranks.starts == ["9.3.0"]


def test_observed_and_not_desired_keeps_running(node: Node, plane: FakeControlPlane) -> None:
    plane.run("1.1.0", "train")
    node.started("1.1.0")
    node.ranks.running("1.1.0", 4242)
    plane.wait_state("1.1.0", "RUNNING")
    with plane.lock:
        plane.desired.clear()
        count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) > count + 3)
    assert plane.present == {"1.1.0"}
    assert node.ranks.stops == []
    assert node.ranks.killed == []


# --- the end of a rank ----------------------------------------------------------------------------------------


def test_what_runs_is_told_with_its_begin_on_the_clock_of_the_sync(node: Node, plane: FakeControlPlane) -> None:
    before = boottime()
    running(node, plane)
    began_s = plane.observed["1.1.0"].began_s
    assert began_s is not None
    assert plane.syncs[-1].uptime_s is not None
    assert before <= began_s <= plane.syncs[-1].uptime_s + 0.001  # told in milliseconds


def test_a_program_that_is_over_is_told_as_such_while_its_report_waits_for_its_last_output(node: Node, plane: FakeControlPlane) -> None:
    running(node, plane)
    plane.log_gate.clear()
    node.ranks.prints("1.1.0", b"last words")
    node.ranks.exit("1.1.0", 3)
    plane.wait(lambda: plane.observed["1.1.0"].exit is not None, what="word of the end")
    assert plane.observed["1.1.0"].state == "RUNNING"
    assert plane.observed["1.1.0"].exit == ExitInfo(cause="exited", code=3)
    plane.log_gate.set()
    assert plane.wait_state("1.1.0", "EXITED").exit == ExitInfo(cause="exited", code=3)


def running(node: Node, plane: FakeControlPlane, rank: str = "1.1.0", **spec: Any) -> None:
    plane.run(rank, "train", **spec)
    node.started(rank)
    node.ranks.running(rank, 4242)
    plane.wait_state(rank, "RUNNING")


def test_a_tree_that_lives_on_is_killed_and_holds_the_card(node: Node, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings_module, "GATE_WAIT_S", 0.1)
    running(node, plane, gpus=WHOLE)
    node.ranks.exit("1.1.0", left=[4243])
    seen = plane.wait_state("1.1.0", "EXITED")
    assert seen.released is None
    assert "1.1.0" in node.ranks.killed
    node.ranks.tree["1.1.0"] = set()
    plane.wait(lambda: plane.observed["1.1.0"].released is True)


def test_memory_that_does_not_come_back_holds_the_card(node: Node, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings_module, "GATE_WAIT_S", 0.1)
    running(node, plane, gpus=WHOLE)
    node.cards(CARD, faults=[{"kind": "leak", "mib": 3000}])
    node.ranks.exit("1.1.0")
    assert plane.wait_state("1.1.0", "EXITED").released is None
    node.cards(CARD)
    plane.wait(lambda: plane.observed["1.1.0"].released is True)


def test_without_proof_in_time_it_is_not_released(
    make: Callable[..., Node], plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings_module, "GATE_WAIT_S", 0.1)
    node = make(give_up_s=0.7).online()
    running(node, plane, gpus=WHOLE)
    node.cards(CARD, faults=[{"kind": "lost"}])
    node.ranks.exit("1.1.0")
    plane.wait_state("1.1.0", "EXITED")
    plane.wait(lambda: plane.observed["1.1.0"].released is False)


def test_memory_that_was_there_before_does_not_hold_the_card(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    node = make()
    node.cards({**CARD, "metrics": {"used_mib": 5000}})
    node.online()
    assert plane.syncs[0].gpus[0].foreign_mib == 5000  # no process explains it
    running(node, plane, gpus=(GpuGrant(uuid="GPU-a", mib=8192, exclusive=True),))
    node.ranks.exit("1.1.0")
    assert plane.wait_state("1.1.0", "EXITED").released is True


def test_a_control_plane_that_takes_no_logs_gets_the_end_all_the_same(
    node: Node, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings_module, "LOG_WAIT_S", 0.2)
    plane.forgets = False
    running(node, plane)
    plane.log_gate.clear()
    node.ranks.prints("1.1.0", b"last words\n")
    node.ranks.exit("1.1.0")
    seen = plane.wait_state("1.1.0", "EXITED")
    assert (seen.final_log_offset, seen.released) == (11, True)
    assert plane.logs.get("1.1.0", b"") == b""
    plane.log_gate.set()
    plane.wait(lambda: bytes(plane.logs.get("1.1.0", b"")) == b"last words\n")


@pytest.mark.parametrize("restarts", [False, True], ids=["same-agent", "next-agent"])
def test_output_of_a_rank_that_was_given_up_arrives_before_it_is_removed(
    restarts: bool, make: Callable[..., Node], plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off for longer than its lease the rank is lost to the control plane, which then only wants it to be gone."""
    monkeypatch.setattr(endings_module, "LOG_WAIT_S", 0.1)
    plane.forgets = False
    node = make().online()
    running(node, plane)
    plane.log_gate.clear()
    node.ranks.prints("1.1.0", b"written while nobody heard\n")
    node.ranks.exit("1.1.0", cause="lease_expired")
    plane.wait_state("1.1.0", "EXITED")
    with plane.lock:
        plane.desired["1.1.0"] = Desired(rank="1.1.0", epoch=1, want="FORGET")
    plane.wait(lambda: "1.1.0" not in plane.present, what="a forgotten rank")
    assert node.ranks.forgotten == []
    if restarts:
        plane.log_gate.set()
        with plane.lock:
            plane.failures.append(Failure("/api/agent/v1/logs/", 503, 1_000_000))
        node.stop()
        with plane.lock:
            plane.failures.clear()
        node = make().online()
    plane.log_gate.set()
    plane.wait(lambda: bytes(plane.logs.get("1.1.0", b"")) == b"written while nobody heard\n", what="its output")
    wait_until(lambda: node.ranks.forgotten == ["1.1.0"], "its removal")


def test_artefacts_follow_the_end_and_outlast_forget(node: Node, plane: FakeControlPlane) -> None:
    running(node, plane)
    folder = node.ranks.artifacts_dir("1.1.0")
    (folder / "model 中文.bin").write_bytes(b"x" * 700_000)
    (folder / ".hidden").write_bytes(b"no")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "sub").mkdir()
    plane.failures.append(Failure("/api/agent/v1/artifacts/", 503, 1, retry_after="0"))
    node.ranks.exit("1.1.0")
    plane.wait_state("1.1.0", "EXITED")
    plane.wait(lambda: plane.artifacts)
    plane.wait(lambda: node.ranks.forgotten == ["1.1.0"])
    assert plane.artifacts == {("1.1.0", "model 中文.bin"): b"x" * 700_000}
    plane.wait(lambda: not plane.desired)


# --- trouble --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 500, 503, 429, 401, 403, 400, 404])
def test_it_comes_back_after_trouble(node: Node, plane: FakeControlPlane, status: int) -> None:
    running(node, plane)
    with plane.lock:
        plane.failures.append(Failure("/api/agent/v1/sync", status, 3, retry_after="0.05" if status == 429 else None))
        count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) > count + 1)
    assert plane.failures[0].times == 0
    assert plane.present == {"1.1.0"}


def test_retry_after_is_honoured(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    node = make().online()
    with plane.lock:
        plane.failures.append(Failure("/api/agent/v1/sync", 503, 1, retry_after="0.7"))
        count, began = len(plane.syncs), time.monotonic()
    node.ranks.running("1.1.0")  # a change must not get past it
    plane.nudge()
    plane.wait(lambda: len(plane.syncs) > count and plane.failures[0].times == 0)
    assert plane.sync_times[count] - began >= 0.65


def test_an_older_session_is_refused_and_ends(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    node = make().online()
    with plane.lock:
        plane.sessions.append("a newer one")
    assert node.ended() == EXIT_SESSION_REFUSED


def test_a_control_plane_that_is_away_changes_nothing_for_a_rank(node: Node, plane: FakeControlPlane) -> None:
    running(node, plane)
    port = plane.port
    plane.stop()
    node.ranks.prints("1.1.0", b"while it was away\n")
    node.ranks.exit("1.1.0")
    plane.start(port)
    assert plane.wait_state("1.1.0", "EXITED").exit == ExitInfo(cause="exited", code=0)
    assert bytes(plane.logs["1.1.0"]) == b"while it was away\n"
    assert node.ranks.stops == []


def test_a_lease_that_runs_out_stops_the_rank_by_itself(node: Node, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.run("1.1.0", "train", lease_s=3600)
    plane.run("2.1.0", "train")
    for rank in ("1.1.0", "2.1.0"):
        node.started(rank)
        node.ranks.running(rank, 4242)
        plane.wait_state(rank, "RUNNING")
    assert node.ranks.leases == {"1.1.0": 3600, "2.1.0": None}
    assert node.ranks.renewed  # the shim counts from the same answer
    assert node.ranks.stops == []
    plane.stop()
    monkeypatch.setattr("agent.desk.boottime", lambda: boottime() + 3601)
    wait_until(lambda: node.ranks.stops, "the stop")
    assert [(rank, cause) for rank, _, cause, _ in node.ranks.stops] == [("1.1.0", "lease_expired")]


# --- over restarts --------------------------------------------------------------------------------------------


def test_a_new_agent_adopts_what_runs_and_tells_what_ended(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    first = make().online()
    for rank in ("1.1.0", "2.1.0"):
        running(first, plane, rank)
    first.ranks.prints("2.1.0", b"half")
    plane.wait(lambda: bytes(plane.logs.get("2.1.0", b"")) == b"half")
    first.stop()
    second = make()
    second.ranks.prints("2.1.0", b" and whole\n")
    second.ranks.recover_as = {
        "1.1.0": RankState(rank="1.1.0", state="RUNNING"),
        "2.1.0": RankState(rank="2.1.0", state="EXITED", exit=ExitInfo(cause="exited", code=5)),
    }
    second.online()
    seen = plane.wait_state("2.1.0", "EXITED")
    assert seen.exit == ExitInfo(cause="exited", code=5)
    assert bytes(plane.logs["2.1.0"]) == b"half and whole\n"
    assert second.ranks.starts == []
    assert {r.rank: r.boot_id for r in second.ranks.recovered} == {"1.1.0": "boot-1", "2.1.0": "boot-1"}
    assert len(plane.sessions) == 2
    second.ranks.exit("1.1.0", 0)
    plane.wait_state("1.1.0", "EXITED")
    plane.wait(lambda: not plane.desired)


def test_stopping_the_agent_leaves_ranks_alone(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    node = make().online()
    running(node, plane)
    assert node.stop() == 0
    assert node.ranks.stops == []
    assert node.ranks.killed == []
    assert plane.observed["1.1.0"].state == "RUNNING"


def test_a_rank_that_the_store_lost_is_taken_in(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    node = make()
    spec = {"job": 5, "index": 0, "argv": ["train"], "name": "lost"}
    folder = node.ranks.rank_dir("5.2.0")
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"spec": spec, "boot_id": "boot-1", "lease_s": None}))
    node.ranks.unknown = ["5.2.0"]
    node.ranks.recover_as = {"5.2.0": RankState(rank="5.2.0", state="RUNNING")}
    node.online()
    assert plane.wait_state("5.2.0", "RUNNING")
    plane.run("5.1.0", "old lap")
    refused = plane.wait_state("5.1.0", "EXITED")
    assert refused.exit is not None
    assert node.ranks.starts == []


# --- commands, events, cards ----------------------------------------------------------------------------------


def test_commands_are_done_once_and_their_results_come_back(node: Node, plane: FakeControlPlane) -> None:
    running(node, plane)
    node.ranks.prints("1.1.0", b"one\ntwo\nthree\n")
    plane.command(1, "ping")
    plane.command(2, "tail", rank="1.1.0", lines=2)
    plane.command(3, "diagnose")
    plane.command(4, "selftest")
    plane.command(5, "sing")
    plane.command(6, "tail", rank="../../etc/passwd")
    plane.command(7, "tail", rank="9.9.9")
    plane.wait(lambda: len(plane.results) == 7)
    found = {cid: (r.ok, r.text) for cid, r in plane.results.items()}
    assert found[1] == (True, "pong")
    assert found[2] == (True, "two\nthree")
    assert found[3][0]
    assert "GPU-a" in found[3][1]
    assert [found[cid][0] for cid in (4, 5, 6, 7)] == [False] * 4
    assert "needs a card's UUID" in found[4][1]
    count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) > count + 2)
    assert plane.result_count == 7  # acknowledged, so not sent again


def test_an_xid_is_told_at_once_and_once(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    node = make().online()
    node.cards(CARD, faults=[{"kind": "xid", "gpu": 0, "xid": 79}])
    node.runner._hardware.sample_before(0)
    event: AgentEvent = plane.wait(lambda: next(iter(plane.events.values()), None))
    assert (event.kind, event.gpu, event.data) == ("xid", "GPU-a", {"xid": 79})
    count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) > count + 2)
    assert plane.syncs[-1].events == ()


def test_a_card_that_vanishes_is_told_and_the_others_stay(make: Callable[..., Node], plane: FakeControlPlane) -> None:
    node = make()
    two = [{**CARD, "uuid": "GPU-a"}, {**CARD, "uuid": "GPU-b"}]
    node.cards(*two)
    node.online()
    node.cards(*two, faults=[{"kind": "vanish", "gpu": "GPU-a"}])
    node.runner._hardware.sample_before(0)
    plane.wait(lambda: [g.uuid for g in plane.inventory.gpus] == ["GPU-b"] if plane.inventory else False)
    assert [(e.kind, e.gpu) for e in plane.events.values()] == [("missing", "GPU-a")]
    node.cards(*two)
    node.runner._hardware.sample_before(0)
    plane.wait(lambda: len(plane.inventory.gpus) == 2 if plane.inventory else False)
    assert [(e.kind, e.gpu) for e in plane.events.values()] == [("missing", "GPU-a"), ("appeared", "GPU-a")]


def test_cards_that_hang_leave_every_sync_on_time(
    make: Callable[..., Node], plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.probe.DEADLINE_S", 0.2)
    monkeypatch.setattr(InlineProbe.__init__, "__kwdefaults__", {**InlineProbe.__init__.__kwdefaults__, "deadline_s": 0.2})
    node = make().online()
    node.cards(CARD, faults=[{"kind": "hang", "for_s": 600}])
    node.runner._hardware.sample_before(0)
    plane.wait(lambda: plane.syncs[-1].gpus == (GpuStatus(uuid="GPU-a", error="unresponsive"),))
    count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) >= count + 5)
    assert [e.kind for e in plane.events.values()] == ["unresponsive"]
    plane.run("1.1.0", "cpu job")
    node.started("1.1.0")
    node.cards(CARD)
    plane.wait(lambda: plane.syncs[-1].gpus[0].error is None)
    assert [e.kind for e in plane.events.values()] == ["unresponsive", "responsive"]


def test_a_driver_stuck_for_ten_minutes_in_one_call_leaves_every_heartbeat_on_time(
    make: Callable[..., Node], plane: FakeControlPlane, nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "nvml")
    uuids = [machine.card(**HEALTHY) for _ in range(8)]
    monkeypatch.setenv("NEBULA_NVML_STATE", str(machine.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    make(probe=ChildProbe("nvml", deadline_s=1.0)).online()
    plane.wait(lambda: [s.used_mib for s in plane.syncs[-1].gpus] == [700] * 8)
    assert {h.uuid for sync in plane.syncs for h in sync.health} == set(uuids)
    machine.say("hang nvmlDeviceGetFanSpeed 600000")
    plane.wait(lambda: [s.error for s in plane.syncs[-1].gpus] == ["unresponsive"] * 8)
    took = []
    for _ in range(20):
        count, began = len(plane.syncs), time.monotonic()
        plane.wait(lambda count=count: len(plane.syncs) > count)
        took.append(time.monotonic() - began)
    # They come every 0.05 s. None waits for the driver's call, which lasts longer than we have patience, nor each for the probe's second.
    assert min(took) < 1.0
    assert [g.uuid for g in plane.inventory.gpus] == uuids if plane.inventory else False  # not taken for gone


def test_cuda_counts_in_the_order_of_the_bus() -> None:
    from agent.jobenv import cuda_indexes

    small = GpuInfo(uuid="GPU-4060", index=1, model="RTX 4060", vendor="nvidia", pci_bus_id="00000000:01:00.0")
    large = GpuInfo(uuid="GPU-4090", index=0, model="RTX 4090", vendor="nvidia", pci_bus_id="00000000:41:00.0")
    assert cuda_indexes([large, small]) == {"GPU-4060": 0, "GPU-4090": 1}
    assert cuda_indexes([large, GpuInfo(uuid="x", index=2, model="?", vendor="nvidia")]) is None
