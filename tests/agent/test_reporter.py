"""A node that only reports: what it tells, what it never does, and that nothing of it needs more than Windows has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import probe as probe_module
from agent.backends.simulated import SimulatedBackend
from agent.config import Config
from agent.http import HttpClient, authorization, endpoint_parse
from agent.main import main
from agent.probe import InlineProbe
from agent.probe_thread import ThreadProbe
from agent.protocol import Command, Desired
from agent.reporter import EXIT_SESSION_REFUSED, Reporter
from agent.store import Store
from agent.testing import FakeControlPlane
from agent.ws import Listener
from tests.agent.nvml_lab import HEALTHY, Machine
from tests.agent.rank_lab import ROOT
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane(next_in_s=0.1) as found:
        yield found
        found.sync_gate.set()
        assert found.problems == []


class Node:
    """A reporter in a thread, on two simulated cards."""

    def __init__(self, plane: FakeControlPlane, folder: Path) -> None:
        self.folder = folder
        self.endpoint = endpoint_parse(plane.url)
        self.auth = authorization(plane.node_id, plane.credential)
        self.code: int | None = None
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, name="reporter")
        self.thread.start()
        assert self.ready.wait(PATIENCE_S)

    def _run(self) -> None:
        config = Config(
            path=self.folder / "a.toml", endpoint=self.endpoint, node_id=7, name="node", credential_file=self.folder / "c",
            data_dir=self.folder, agent_id="test", backend="simulated", mode="metrics",
        )  # fmt: skip
        store = Store(self.folder / "agent.db")
        try:
            self.reporter = Reporter(
                config=config,
                version="1.2.3",
                store=store,
                probe=InlineProbe(SimulatedBackend()),
                client=HttpClient(self.endpoint, authorization=self.auth),
                listener=lambda wake: Listener(self.endpoint, authorization=self.auth, wake=wake),
                extra_advice=lambda: ("device_code_43",),
            )
            self.ready.set()
            self.code = self.reporter.run(signals=False)
        finally:
            self.ready.set()
            store.close()

    def stop(self) -> int | None:
        self.reporter.stop()
        self.thread.join(PATIENCE_S)
        return self.code


@pytest.fixture
def node(plane: FakeControlPlane, tmp_path: Path) -> Iterator[Node]:
    found = Node(plane, tmp_path)
    yield found
    plane.sync_gate.set()
    found.stop()


def test_it_tells_cards_and_host_and_that_it_launches_nothing(plane: FakeControlPlane, node: Node) -> None:
    plane.wait(lambda: len(plane.syncs) >= 3, what="three syncs")
    first = plane.syncs[0]
    assert first.inventory is not None
    assert first.inventory.metrics_only
    assert len(first.inventory.gpus) == 2
    # Root, missing cgroups: nothing that matters where nothing is launched.
    assert first.inventory.advice == ("device_code_43",)
    assert [status.temp_c is not None for status in first.gpus] == [True, True]
    assert first.processes is None  # what its owner does there is nobody's business
    assert first.host is not None
    assert first.host.memory_mib
    assert [sync.seq for sync in plane.syncs[:3]] == [1, 2, 3]
    assert all(sync.inventory is None for sync in plane.syncs[1:3])
    assert node.stop() == 0


def test_a_job_that_is_sent_there_all_the_same_is_told_never_started_until_it_is_forgotten(plane: FakeControlPlane, node: Node) -> None:
    plane.run("4.1.0", "/bin/true")
    plane.wait(lambda: plane.observed.get("4.1.0"), what="an answer about the rank")
    seen = plane.observed["4.1.0"]
    assert (seen.state, seen.exit.cause if seen.exit else None, seen.released) == ("EXITED", "never_started", True)
    with plane.lock:
        plane.desired["4.1.0"] = Desired(rank="4.1.0", epoch=1, want="FORGET")
    plane.wait(lambda: plane.syncs and plane.syncs[-1].observed == (), what="the rank to be forgotten")


def test_it_answers_what_asks_nothing_of_a_card_and_refuses_the_rest(plane: FakeControlPlane, node: Node) -> None:
    with plane.lock:
        for cid, kind in enumerate(("ping", "diagnose", "reset"), 1):
            plane.commands[cid] = Command(cid=cid, kind=kind)
    plane.wait(lambda: len(plane.results) == 3, what="three answers")
    assert (plane.results[1].ok, plane.results[1].text) == (True, "pong")
    assert "2 cards" in plane.results[2].text
    assert (plane.results[3].ok, "only reports" in plane.results[3].text) == (False, True)


def test_a_second_agent_ends_the_first(plane: FakeControlPlane, node: Node) -> None:
    plane.wait(lambda: plane.syncs, what="a sync")
    with plane.lock:
        plane.sessions.append("another")
    node.thread.join(PATIENCE_S)
    assert node.code == EXIT_SESSION_REFUSED


def test_an_agent_that_still_has_jobs_does_not_become_one_that_only_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('endpoint = "http://127.0.0.1:9"\nnode_id = 7\nmode = "metrics"\nbackend = "none"\ndata_dir = "data"\n')
    (tmp_path / "agent.credential").write_text("c" * 64)
    (tmp_path / "agent.credential").chmod(0o600)
    (tmp_path / "data" / "ranks" / "4.1.0").mkdir(parents=True)
    assert main(["run", "--config", str(path)]) == 1
    assert "still holds ranks of jobs" in capsys.readouterr().err


# --- where pipes can't be waited for ------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path / "state")
    found.card(**HEALTHY)
    monkeypatch.setenv("NEBULA_NVML_STATE", str(found.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    monkeypatch.setattr(probe_module, "RESTART_S", (0.05, 0.05))
    return found


def test_a_thread_reads_the_child_as_well_as_a_descriptor_does(machine: Machine) -> None:
    """Samples, an XID at once, a child that dies, a driver that hangs."""
    probe = ThreadProbe("nvml", deadline_s=0.2)
    samples, events = [], []

    def poll() -> None:
        probe.request(processes=False)
        found, told = probe.poll()
        samples.extend(found)
        events.extend(told)

    try:
        assert probe.fileno() is None
        wait_until(lambda: poll() or samples, "a sample")
        assert samples[0].status[0].used_mib == 700
        machine.xid(0, 79)
        wait_until(lambda: events.extend(probe.poll()[1]) or events, "the XID")
        assert [(event.kind, event.data["xid"]) for event in events] == [("xid", 79)]
        child = probe.child_pid
        os.kill(child or 0, signal.SIGKILL)
        samples.clear()
        wait_until(lambda: poll() or (samples and probe.child_pid != child), "a sample of another child")
        machine.say("hang nvmlDeviceGetUtilizationRates 600000")
        wait_until(lambda: poll() or probe.unresponsive, "unresponsive")
        assert probe.child_pid is not None
    finally:
        machine.unsay("hang")
        probe.close()


PLAIN = """
import ctypes, http.client, json, logging, os, select, selectors, shutil, signal, socket, sqlite3, ssl, subprocess, sys, tempfile, threading
import tomllib, urllib.parse, uuid
class Not:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "pwd", "grp", "resource", "termios", "pty", "agent.procs", "agent.ranks", "agent.runner", "agent.shim"}:
            raise ImportError(name)
sys.meta_path.insert(0, Not())
for name in ("fcntl", "pwd", "grp", "resource"):
    sys.modules.pop(name, None)
for name in ("fork", "geteuid", "getuid", "sched_getaffinity", "pipe2", "set_blocking", "killpg", "posix_spawn", "setsid", "O_CLOEXEC",
             "pread", "pwrite"):
    delattr(os, name)
for name in ("epoll", "poll"):
    delattr(select, name)
from pathlib import Path
from agent.config import config_load
from agent.http import HttpClient, authorization, credential_read
from agent.probe_thread import ThreadProbe
from agent.reporter import Reporter
from agent.store import Store
config = config_load(Path(sys.argv[1]))
config.data_dir.mkdir()
client = HttpClient(config.endpoint, authorization=authorization(config.node_id, credential_read(str(config.credential_file))))
reporter = Reporter(config=config, version="1", store=Store(config.data_dir / "agent.db"), probe=ThreadProbe("nvml"), client=client)
sys.exit(reporter.run())
"""


def test_it_runs_without_anything_that_windows_lacks(plane: FakeControlPlane, machine: Machine, tmp_path: Path) -> None:
    """In a Python without POSIX's modules, process calls and waits on pipes: cards by NVML, an XID at once."""
    path = tmp_path / "agent.toml"
    path.write_text(f'endpoint = "{plane.url}"\nnode_id = 7\nmode = "metrics"\nbackend = "nvml"\ndata_dir = "data"\n')
    (tmp_path / "agent.credential").write_text(plane.credential)
    (tmp_path / "agent.credential").chmod(0o600)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    agent = subprocess.Popen([sys.executable, "-c", PLAIN, str(path)], env=env, cwd=ROOT)
    try:
        plane.wait(lambda: plane.inventory, what="an inventory")
        assert plane.inventory is not None
        assert [gpu.model for gpu in plane.inventory.gpus] == ["NVIDIA GeForce RTX 4090"]
        plane.wait(lambda: plane.syncs[-1].gpus[0].util_pct == 37, what="figures of the card")
        with plane.lock:
            plane.next_in_s, count = 600, len(plane.syncs)
        plane.wait(lambda: len(plane.syncs) > count, what="the last sync by the clock")
        machine.xid(0, 79)
        plane.wait(lambda: plane.events, what="the XID, which waits for no clock")
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(PATIENCE_S) == 0
    finally:
        agent.kill()
        agent.wait()
