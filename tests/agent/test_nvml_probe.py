"""The probe's child process: NVML in it, a driver that hangs, a driver that comes late."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import probe as probe_module
from agent.backends.base import HardwareEvent
from agent.probe import ChildProbe, Sample
from tests.agent.nvml_lab import Machine
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def machine(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path / "state")
    found.write()
    monkeypatch.setenv("NEBULA_NVML_STATE", str(found.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    monkeypatch.setattr(probe_module, "RESTART_S", (0.05, 0.05))
    return found


@pytest.fixture
def make() -> Iterator[Callable[..., ChildProbe]]:
    probes: list[ChildProbe] = []

    def new(**settings: float) -> ChildProbe:
        probes.append(ChildProbe(**settings))  # type: ignore[arg-type]
        return probes[-1]

    yield new
    for probe in probes:
        probe.close()


class Reader:
    """Collects all that a probe says."""

    def __init__(self, probe: ChildProbe) -> None:
        self.probe = probe
        self.samples: list[Sample] = []
        self.events: list[HardwareEvent] = []

    def poll(self) -> None:
        samples, events = self.probe.poll()
        self.samples += samples
        self.events += events

    def sample(self, *, processes: bool = False) -> Sample:
        """Ask until an answer comes, as the loop does."""
        before = len(self.samples)

        def ask() -> bool:
            self.probe.request(processes=processes)
            self.poll()
            return len(self.samples) > before

        wait_until(ask, "a sample")
        return self.samples[-1]


def test_it_reads_the_cards_in_one_child_that_stays(machine: Machine, make: Callable[..., ChildProbe]) -> None:
    uuid = machine.card()
    machine.say(f"proc 0 {os.getpid()} 1048576")
    reader = Reader(make())
    first = reader.sample()
    child = reader.probe.child_pid
    assert [g.uuid for g in first.cards.gpus] == [uuid]
    assert (first.status[0].used_mib, first.processes, first.processes_read) == (700, None, False)
    second = reader.sample(processes=True)
    assert second.processes is not None
    assert [(p.pid, p.used_mib) for p in second.processes] == [(os.getpid(), 1)]
    assert second.processes[0].command
    assert reader.probe.child_pid == child  # no new process, no new NVML for a sample


def test_an_xid_comes_at_once_and_unasked(machine: Machine, make: Callable[..., ChildProbe]) -> None:
    uuid = machine.card()
    reader = Reader(make())
    reader.sample()
    machine.xid(0, 31)
    wait_until(lambda: reader.poll() or reader.events, "the event")
    assert [(e.kind, e.gpu, e.data) for e in reader.events] == [("xid", uuid, {"xid": 31})]


def test_a_hang_of_ten_minutes_blocks_nothing_and_ends_when_the_driver_comes_back(
    machine: Machine, make: Callable[..., ChildProbe]
) -> None:
    machine.card()
    reader = Reader(make(deadline_s=0.2))
    reader.sample()
    stuck = reader.probe.child_pid
    machine.say("hang nvmlDeviceGetUtilizationRates 600000")

    def ask() -> bool:
        reader.probe.request(processes=True)
        reader.poll()
        return reader.probe.unresponsive

    wait_until(ask, "unresponsive")
    assert reader.probe.child_pid == stuck  # no second child beside the one that hangs
    assert len(reader.samples) == 1
    machine.unsay("hang")
    reader.probe._kill_after_s = 0.1
    wait_until(lambda: reader.probe.request(processes=False) or reader.poll() or reader.probe.child_pid != stuck, "the kill")
    reader.probe._kill_after_s = 60.0  # a new interpreter may be slow to start
    assert reader.sample().status[0].util_pct == 37
    assert not reader.probe.unresponsive
    assert reader.probe.child_pid != stuck
    with pytest.raises(ProcessLookupError):
        os.kill(stuck or 0, 0)  # ended and reaped


def test_a_child_that_cannot_be_killed_is_left_alone(
    machine: Machine, make: Callable[..., ChildProbe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process stuck in the driver survives SIGKILL: a stopped child whose kill does nothing stands for it."""
    machine.card()
    reader = Reader(make(deadline_s=0.05))
    reader.sample()
    reader.probe._kill_after_s = 0.1
    child = reader.probe.child_pid or 0
    os.kill(child, signal.SIGSTOP)
    kills: list[int] = []
    process = reader.probe._child
    assert process is not None
    monkeypatch.setattr(process, "kill", lambda: kills.append(1))

    def ask() -> bool:
        reader.probe.request(processes=False)
        reader.poll()
        return bool(kills)

    wait_until(ask, "the kill")
    for _ in range(50):
        reader.probe.request(processes=False)
    assert kills == [1]
    assert reader.probe.child_pid == child
    assert reader.probe.unresponsive
    monkeypatch.undo()


def test_a_child_that_dies_is_replaced(machine: Machine, make: Callable[..., ChildProbe]) -> None:
    machine.card()
    reader = Reader(make())
    reader.sample()
    os.kill(reader.probe.child_pid or 0, signal.SIGKILL)
    assert reader.sample().status[0].used_mib == 700


def test_a_driver_that_does_not_open_is_told_and_looked_at_again(
    machine: Machine, make: Callable[..., ChildProbe], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.card()
    machine.say("init 18")
    code = "import agent.probe_child as p; p.REOPEN_S = 0.05; p.child_main('nvml')"
    reader = Reader(make(argv=[sys.executable, "-P", "-c", code]))
    broken = reader.sample()
    assert broken.error_kind == "driver_mismatch"
    assert broken.error is not None
    assert "reboot" in broken.error
    machine.unsay("init")
    wait_until(lambda: reader.sample().error is None, "NVML opened")
    assert reader.samples[-1].status[0].used_mib == 700


def test_after_an_upgrade_of_the_driver_the_new_library_is_loaded_by_the_same_child(
    machine: Machine, nvml_library: Path, tmp_path: Path, make: Callable[..., ChildProbe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library stays loaded for the life of a process: the child has to become a new program."""
    lib = tmp_path / "lib"
    lib.mkdir()
    for version in ("570.86.10", "580.65.06"):
        shutil.copy(nvml_library, lib / f"libnvidia-ml.so.{version}")
    name = lib / "libnvidia-ml.so.1"
    name.symlink_to("libnvidia-ml.so.570.86.10")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(lib))
    machine.card()
    machine.say("init 18")
    code = "import agent.probe_child as p; p.REOPEN_S = 0.05; p.child_main('nvml')"
    reader = Reader(make(argv=[sys.executable, "-P", "-c", code]))
    assert reader.sample().error_kind == "driver_mismatch"
    child = reader.probe.child_pid
    name.unlink()
    name.symlink_to("libnvidia-ml.so.580.65.06")
    machine.unsay("init")
    wait_until(lambda: reader.sample().error is None, "NVML opened")
    assert reader.probe.child_pid == child  # nothing was started
    assert "libnvidia-ml.so.580.65.06" in Path(f"/proc/{child}/maps").read_text()


def test_it_starts_without_cards_and_picks_up_two(machine: Machine, make: Callable[..., ChildProbe]) -> None:
    reader = Reader(make())
    assert reader.sample().cards.gpus == ()
    uuids = [machine.card(), machine.card()]
    wait_until(lambda: len(reader.sample().cards.gpus) == 2, "two cards")
    assert [g.uuid for g in reader.samples[-1].cards.gpus] == uuids


def test_the_child_ends_with_its_agent(machine: Machine, make: Callable[..., ChildProbe]) -> None:
    machine.card()
    probe = make()
    reader = Reader(probe)
    reader.sample()
    child = probe._child
    assert child is not None
    assert child.stdin is not None
    child.stdin.close()  # as when the agent is gone, in whatever way
    assert child.wait(timeout=PATIENCE_S) == 0
