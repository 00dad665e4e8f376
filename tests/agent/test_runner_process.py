"""A real agent process with real ranks, against an honest control plane in this process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import procs
from agent.protocol import Desired, ExitInfo, GpuGrant, Observed
from agent.testing import FakeControlPlane
from tests.agent.rank_lab import PYTHON, ROOT
from tests.waiting import PATIENCE_S, wait_until


class Machine:
    """One node: its configuration, its data directory, and the agent that runs on it at the moment."""

    def __init__(self, plane: FakeControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.data = folder / "data"
        # Jobs of these tests work in `folder`; the agent's own files are hidden from them.
        self.config = folder / "etc" / "agent.toml"
        self.config.parent.mkdir()
        self.agent: subprocess.Popen[bytes] | None = None
        self.log = folder / "agent.log"
        self.agent_id = f"test-{uuid.uuid4().hex[:12]}"
        credential = self.config.with_name("agent.credential")
        credential.write_text(plane.credential)
        credential.chmod(0o600)
        self.write_config()

    def write_config(self, **changes: str) -> None:
        values: dict[str, object] = {
            "endpoint": self.plane.url,
            "node_id": self.plane.node_id,
            "name": "node",
            "data_dir": str(self.data),
            "backend": "simulated",
            "agent_id": self.agent_id,
            **changes,
        }
        self.config.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items()))

    def command(self, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agent.main", *args, "--config", str(self.config)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            **more,
        )

    def start(self) -> Machine:
        with open(self.log, "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "agent.main", "run", "--config", str(self.config)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "NEBULA_AGENT_TEST_SECRET": "agents-own-secret"},
            )
        sessions = len(self.plane.sessions)
        self.plane.wait(lambda: len(self.plane.sessions) > sessions and self.plane.listeners, what="the agent's first sync")
        return self

    def kill(self) -> None:
        """As when the kernel or an admin kills it: no clean-up at all."""
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait(PATIENCE_S)
        self.plane.wait(lambda: not self.plane.listeners)

    def close(self) -> None:
        for rank in list(self.plane.observed):
            self.plane.halt(rank, grace_s=0)
        if self.agent is not None and self.agent.poll() is None:
            with contextlib.suppress(TimeoutError):
                self.plane.wait(lambda: not self._live())
            self.agent.terminate()
            self.agent.wait(PATIENCE_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _live(self) -> list[str]:
        return [r for r in self.plane.present if self.plane.observed[r].state in ("PREPARING", "RUNNING")]

    def started(self, rank: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "ranks" / rank / "started.json").read_text())
        return found

    def output(self, rank: str) -> bytes:
        return bytes(self.plane.logs.get(rank, b""))

    def ended(self, rank: str, state: str = "EXITED") -> Observed:
        """The last report, with the log's length and the decision on the cards; they may come later than the end."""

        def decided() -> Observed | None:
            seen = self.plane.observed[rank]
            return seen if seen.released is not None and seen.final_log_offset is not None else None

        self.plane.wait_state(rank, state)
        found: Observed = self.plane.wait(decided, what=f"the log and the cards of {rank}")
        return found

    def printed(self, rank: str, text: bytes) -> None:
        self.plane.wait(lambda: text in self.output(rank), what=f"{text!r} from {rank}")


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane(next_in_s=0.2, forgets=False) as found:
        yield found
        assert found.problems == []


@pytest.fixture
def machine(plane: FakeControlPlane, tmp_path: Path) -> Iterator[Machine]:
    found = Machine(plane, tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("damage", ["page", "gone"])
def test_with_a_damaged_store_what_runs_is_adopted_and_what_ended_is_told(damage: str, machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    go = machine.folder / "go"
    plane.run("1.1.0", "sh", "-c", "echo begins; exec sleep 600")
    plane.run("2.1.0", "sh", "-c", f"echo waits; while ! [ -e {go} ]; do sleep 0.02; done; echo ends; exit 7")
    machine.printed("1.1.0", b"begins")
    machine.printed("2.1.0", b"waits")
    before = machine.started("1.1.0")
    ended = machine.started("2.1.0")
    machine.kill()
    go.touch()
    wait_until(lambda: (machine.data / "ranks" / "2.1.0" / "exit.json").exists(), "an end that nobody heard of")
    assert not procs.is_alive(ended["pid"], ended["start"])
    store = machine.data / "agent.db"
    for suffix in ("-wal", "-shm"):
        Path(f"{store}{suffix}").unlink(missing_ok=True)
    if damage == "page":
        store.write_bytes(b"\xff" * 20_000)
    else:
        store.unlink()
    with plane.lock:
        plane.desired["1.1.0"] = replace(plane.desired["1.1.0"], want="RUN")
    machine.start()
    assert machine.ended("2.1.0").exit == ExitInfo(cause="exited", code=7)  # and it does not run once more
    machine.printed("2.1.0", b"ends\n")
    assert machine.output("2.1.0") == b"waits\nends\n"
    assert machine.started("1.1.0") == before
    assert procs.is_alive(before["pid"], before["start"])
    assert plane.observed["1.1.0"].state == "RUNNING"
    text = machine.log.read_text()
    assert ("It is put aside" in text) == (damage == "page")
    assert bool(list(machine.data.glob("agent.db.damaged-*"))) == (damage == "page")


@pytest.mark.parametrize("trouble", ["locked", "folder"])
def test_a_store_that_can_not_be_used_is_one_sentence(trouble: str, machine: Machine) -> None:
    store = machine.data / "agent.db"
    machine.data.mkdir()
    if trouble == "folder":
        store.mkdir()
        done = machine.command("run")
    else:
        with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as other:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("CREATE TABLE x (y)")
            other.execute("BEGIN EXCLUSIVE")
            done = machine.command("run")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"nebula-agent: The agent's store {store} cannot be used")
    assert trouble == "folder" or last.endswith("Another program holds it: end that.")


def whole_card(plane: FakeControlPlane, index: int = 0) -> tuple[GpuGrant, ...]:
    assert plane.inventory is not None
    gpu = plane.inventory.gpus[index]
    return (GpuGrant(uuid=gpu.uuid, mib=gpu.total_mib or 0, exclusive=True),)


def test_a_job_runs_prints_leaves_a_file_and_ends(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    program = 'env; echo "loss 0.5"; echo model > "$NEBULA_ARTIFACTS/model.txt"; exit 3'
    plane.run("1.1.0", "/bin/sh", "-c", program, gpus=whole_card(plane, 1), env={"NAME": "a b $HOME ☠"}, name="hello")
    seen = machine.ended("1.1.0")
    assert (seen.exit, seen.released) == (ExitInfo(cause="exited", code=3), True)
    text = machine.output("1.1.0").decode()
    assert seen.final_log_offset == len(text.encode())
    assert "loss 0.5\n" in text
    assert "NAME=a b $HOME ☠\n" in text
    assert "CUDA_VISIBLE_DEVICES=1\n" in text
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in text
    assert f"NEBULA_GPU_LIST={whole_card(plane, 1)[0].uuid}\n" in text
    assert "agents-own-secret" not in text
    assert plane.credential not in text
    plane.wait(lambda: plane.artifacts == {("1.1.0", "model.txt"): b"model\n"})
    plane.order(Desired(rank="1.1.0", epoch=1, want="FORGET"))
    plane.wait(lambda: not plane.present)
    wait_until(lambda: not (machine.data / "ranks" / "1.1.0").exists(), "the rank's directory gone")


def test_what_it_prints_arrives_while_it_runs(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    plane.run("1.1.0", "/bin/sh", "-c", "echo one; read line < $FIFO; echo two", env={"FIFO": str(machine.folder / "fifo")})
    os.mkfifo(machine.folder / "fifo")
    machine.printed("1.1.0", b"one\n")
    plane.wait_state("1.1.0", "RUNNING")
    (machine.folder / "fifo").write_text("go\n")
    machine.ended("1.1.0")
    assert machine.output("1.1.0") == b"one\ntwo\n"


COUNTER = """
import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print(n, flush=True)
    time.sleep(0.01)
sys.exit(7)
"""


def test_killed_in_mid_job_and_started_again_it_adopts(machine: Machine, plane: FakeControlPlane) -> None:
    """Same process, contiguous log, right exit code."""
    machine.start()
    stop = machine.folder / "stop"
    plane.run("1.1.0", *PYTHON, COUNTER, str(stop), gpus=whole_card(plane))
    machine.printed("1.1.0", b"\n10\n")
    before = machine.started("1.1.0")
    machine.kill()
    assert procs.is_alive(before["pid"], before["start"])
    held = len(machine.output("1.1.0"))
    machine.start()
    plane.wait(lambda: len(machine.output("1.1.0")) > held + 20)
    assert machine.started("1.1.0") == before
    assert procs.is_alive(before["pid"], before["start"])
    stop.touch()
    seen = machine.ended("1.1.0")
    assert (seen.exit, seen.released) == (ExitInfo(cause="exited", code=7), True)
    lines = machine.output("1.1.0").split()
    assert lines == [str(i).encode() for i in range(1, len(lines) + 1)]
    assert [state for _, state in plane.history if state == "EXITED"] == ["EXITED"]


def test_a_job_that_ended_while_no_agent_ran_is_told_with_its_code(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    stop = machine.folder / "stop"
    plane.run("1.1.0", *PYTHON, COUNTER, str(stop))
    machine.printed("1.1.0", b"\n3\n")
    before = machine.started("1.1.0")
    machine.kill()
    stop.touch()
    wait_until(lambda: not procs.is_alive(before["pid"], before["start"]), "the program's end")
    wait_until(lambda: (machine.data / "ranks" / "1.1.0" / "exit.json").exists(), "the shim's word")
    machine.start()
    assert machine.ended("1.1.0").exit == ExitInfo(cause="exited", code=7)
    lines = machine.output("1.1.0").split()
    assert lines == [str(i).encode() for i in range(1, len(lines) + 1)]


def test_killed_again_and_again_under_many_jobs_none_is_lost_and_none_runs_twice(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    witness = machine.folder / "witness"
    program = f'echo "start $1" >> {witness}; sleep 0.1; echo "stop $1" >> {witness}'
    epochs = dict.fromkeys(range(1, 13), 1)

    def run(job: int) -> None:
        rank = f"{job}.{epochs[job]}.0"
        plane.run(rank, "/bin/sh", "-c", program, "sh", str(job))

    for job in epochs:
        run(job)
        if job % 5 == 0:
            machine.kill()
            machine.start()
    for job in epochs:
        while True:
            seen = plane.wait_state(f"{job}.{epochs[job]}.0", "EXITED")
            assert seen.exit is not None
            if seen.exit.cause != "never_started":
                break
            # Prepared, and the agent died before it was started: it may run again, as the control plane would let it.
            epochs[job] += 1
            run(job)
        assert seen.exit == ExitInfo(cause="exited", code=0)
    lines = witness.read_text().splitlines()
    assert sorted(lines) == sorted(f"{word} {job}" for job in epochs for word in ("start", "stop"))


def test_stop_reaches_the_whole_tree(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    plane.run("1.1.0", "/bin/sh", "-c", "setsid sleep 1000 & echo child $!; wait", gpus=whole_card(plane))
    machine.printed("1.1.0", b"child ")
    child = int(machine.output("1.1.0").split()[1])
    plane.halt("1.1.0", grace_s=60, reason="cancelled")
    seen = machine.ended("1.1.0")
    assert seen.exit is not None
    assert (seen.exit.cause, seen.released) == ("stopped", True)
    left = procs.process_stat(child)
    assert left is None or left.is_dead


def test_a_refused_epoch_never_starts_whatever_restarts(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    plane.halt("1.5.0")
    plane.wait_state("1.5.0", "EXITED")
    plane.order(Desired(rank="1.5.0", epoch=5, want="FORGET"))
    plane.wait(lambda: not plane.present)
    machine.kill()
    machine.start()
    witness = machine.folder / "witness"
    plane.run("1.4.0", "/usr/bin/touch", str(witness))
    plane.run("1.5.0", "/usr/bin/touch", str(witness))
    for rank in ("1.4.0", "1.5.0"):
        seen = plane.wait_state(rank, "EXITED")
        assert seen.exit is not None
        assert seen.exit.cause == "never_started"
    assert not witness.exists()
    plane.run("1.6.0", "/usr/bin/touch", str(witness))
    plane.wait_state("1.6.0", "EXITED")
    assert witness.exists()


def test_a_program_that_is_not_there_fails_the_launch(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    plane.run("1.1.0", "/no/such/program")
    seen = machine.ended("1.1.0", "LAUNCH_FAILED")
    assert (seen.launch_error, seen.released) == ("exec", True)


def test_sigterm_ends_the_agent_and_leaves_the_job(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    plane.run("1.1.0", "/bin/sleep", "1000")
    plane.wait_state("1.1.0", "RUNNING")
    before = machine.started("1.1.0")
    assert machine.agent is not None
    machine.agent.send_signal(signal.SIGTERM)
    assert machine.agent.wait(PATIENCE_S) == 0
    assert procs.is_alive(before["pid"], before["start"])
    status = machine.command("status", "--json")
    assert status.returncode == 1  # no agent runs
    assert json.loads(status.stdout)["ranks"][0]["state"] == "RUNNING"
    machine.start()
    assert machine.started("1.1.0") == before


def test_two_agents_on_one_data_directory_are_refused(machine: Machine) -> None:
    machine.start()
    second = machine.command("run")
    assert second.returncode == 1
    assert re.fullmatch(r"nebula-agent: Another agent \(process \d+\) runs on .*\n", second.stderr.splitlines(keepends=True)[-1])


def test_status_shows_node_cards_and_ranks(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    plane.run("1.1.0", "/bin/sleep", "1000", name="a\x1b[31mred")
    plane.wait_state("1.1.0", "RUNNING")
    shown = machine.command("status")
    assert shown.returncode == 0
    assert "Node      node (id 7)" in shown.stdout
    assert "Simulated RTX 4090 (simulated)" in shown.stdout
    assert "1.1.0  RUNNING  a?[31mred" in shown.stdout


def test_a_session_that_a_newer_agent_took_over_ends_with_a_clear_message(machine: Machine, plane: FakeControlPlane) -> None:
    machine.start()
    with plane.lock:
        plane.sessions.append("a newer one")
    assert machine.agent is not None
    assert machine.agent.wait(PATIENCE_S) == 3
    assert "A newer session speaks for this node" in machine.log.read_text()


def test_the_agent_itself_is_small(machine: Machine, plane: FakeControlPlane) -> None:
    """The loop's process in its usual state: cards read, a job running, logs shipped. 40 MB is the aim; about 20 were measured."""
    machine.start()
    plane.run("1.1.0", "/bin/sh", "-c", "echo hello; sleep 1000")
    machine.printed("1.1.0", b"hello\n")
    assert machine.agent is not None
    rollup = Path(f"/proc/{machine.agent.pid}/smaps_rollup").read_text()
    pss_kib = int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1])
    assert pss_kib < 40 * 1024
