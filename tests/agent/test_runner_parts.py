"""Artefacts, commands and the view of the cards, each alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agent import artifacts as artifacts_module
from agent import commands as commands_module
from agent.artifacts import ArtifactUploader, name_is_sane
from agent.backends.base import Cards, HardwareEvent, Placed
from agent.cards import CardView
from agent.commands import CommandRunner
from agent.hardware import Hardware
from agent.http import HttpClient, authorization, endpoint_parse
from agent.probe import Sample
from agent.protocol import Command, CommandResult, GpuInfo, GpuProcess, GpuStatus
from agent.store import Store
from agent.testing import Failure, FakeControlPlane
from agent.testing_ranks import FakeProcesses
from tests.waiting import wait_until

# --- artefacts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.bin", "a", "Größe 中文 😀.pt", "-rf", "x" * 200, "a'b\"c;$(touch x)"])
def test_a_sane_name(name: str) -> None:
    assert name_is_sane(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\\b", "a\nb", "a\x1b[31m", "x" * 201, "é" * 101, "\udcff", "a\u202eb"])
def test_a_name_that_is_not_allowed(name: str) -> None:
    assert not name_is_sane(name)


class Uploading:
    def __init__(self, plane: FakeControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        folder.mkdir()
        self.done: list[str] = []
        auth = authorization(plane.node_id, plane.credential)
        self.uploader = ArtifactUploader(lambda: HttpClient(endpoint_parse(plane.url), authorization=auth), done=self._done)

    def _done(self, rank: str) -> None:
        with self.plane.lock:
            self.done.append(rank)
            self.plane.lock.notify_all()

    def upload(self, rank: str = "1.1.0") -> dict[str, bytes]:
        assert self.uploader.add(rank, str(self.folder))
        self.plane.wait(lambda: rank in self.done)
        return {name: data for (who, name), data in self.plane.artifacts.items() if who == rank}


@pytest.fixture
def uploading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Uploading]:
    monkeypatch.setattr(artifacts_module, "RETRY_S", (0.1, 0.1))
    with FakeControlPlane() as plane:
        found = Uploading(plane, tmp_path / "artifacts")
        yield found
        found.uploader.stop()
        assert plane.problems == []


def test_an_empty_or_missing_folder_is_nothing_to_do(uploading: Uploading) -> None:
    assert not uploading.uploader.add("1.1.0", str(uploading.folder))
    assert not uploading.uploader.add("1.1.0", "/nowhere")


def test_files_arrive_whole_and_by_name(uploading: Uploading) -> None:
    big = os.urandom(1_500_000)
    uploading.folder.joinpath("big.bin").write_bytes(big)
    uploading.folder.joinpath("empty").touch()
    uploading.folder.joinpath("100% & more?.txt").write_bytes(b"x")
    assert uploading.upload() == {"big.bin": big, "empty": b"", "100% & more?.txt": b"x"}


def test_only_regular_files_of_the_jobs_user_go(uploading: Uploading, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"credential")
    uploading.folder.joinpath("link").symlink_to(secret)
    os.mkfifo(uploading.folder / "pipe")
    uploading.folder.joinpath("folder").mkdir()
    uploading.folder.joinpath("good").write_bytes(b"1")
    assert uploading.upload() == {"good": b"1"}


@pytest.mark.root
def test_a_hard_link_to_anothers_file_does_not_go(uploading: Uploading, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"another user's")
    os.chown(foreign, 1, 1)
    os.link(foreign, uploading.folder / "hard-link")
    uploading.folder.joinpath("good").write_bytes(b"1")
    assert uploading.upload() == {"good": b"1"}


def test_a_folder_that_is_a_link_is_not_followed(uploading: Uploading, tmp_path: Path) -> None:
    uploading.folder.joinpath("x").write_bytes(b"1")
    link = tmp_path / "link"
    link.symlink_to(uploading.folder)
    assert not uploading.uploader.add("1.1.0", str(link))
    assert uploading.plane.artifacts == {}


def test_a_file_above_the_limit_is_left_out(uploading: Uploading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts_module, "ASK_BYTES", 100)
    uploading.plane.artifact_most = 1000
    uploading.folder.joinpath("fits").write_bytes(b"x" * 1000)
    uploading.folder.joinpath("large").write_bytes(b"x" * 1001)
    assert uploading.upload() == {"fits": b"x" * 1000}


@pytest.mark.parametrize("status", [0, 500, 503, 429])
def test_it_tries_again(uploading: Uploading, status: int) -> None:
    uploading.plane.failures.append(Failure("/api/agent/v1/artifacts/", status, 2, retry_after="0"))
    uploading.folder.joinpath("a").write_bytes(b"x" * 300_000)
    assert uploading.upload() == {"a": b"x" * 300_000}


def test_one_refused_file_does_not_keep_the_others(uploading: Uploading) -> None:
    uploading.plane.failures.append(Failure("/api/agent/v1/artifacts/1.1.0/a", 413, 1))
    uploading.folder.joinpath("a").write_bytes(b"1")
    uploading.folder.joinpath("b").write_bytes(b"2")
    assert uploading.upload() == {"b": b"2"}


def test_a_full_disk_of_the_control_plane_is_waited_for_longer_than_a_restart(uploading: Uploading) -> None:
    uploading.plane.failures.append(Failure("/api/agent/v1/artifacts/", 507, artifacts_module.MAX_TRIES + 4, retry_after="0"))
    uploading.folder.joinpath("a").write_bytes(b"1")
    assert uploading.upload() == {"a": b"1"}


def test_a_disk_that_stays_full_is_given_up_on_too(uploading: Uploading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts_module, "FULL_TRIES", 3)
    uploading.plane.failures.append(Failure("/api/agent/v1/artifacts/", 507, 10**6, retry_after="0"))
    uploading.folder.joinpath("a").write_bytes(b"1")
    assert uploading.upload() == {}


def test_it_gives_up_in_the_end(uploading: Uploading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts_module, "RETRY_S", (0.0, 0.0))
    uploading.plane.failures.append(Failure("/api/agent/v1/artifacts/", 500, 10**6, retry_after="0"))
    uploading.folder.joinpath("a").write_bytes(b"1")
    assert uploading.upload() == {}


# --- commands -------------------------------------------------------------------------------------------------


def runner(backend: str = "nvml", cards: tuple[GpuStatus, ...] = ()) -> CommandRunner:
    return CommandRunner(backend=backend, output_path=lambda rank: None, status=lambda: cards)


def outcome(found: CommandRunner) -> CommandResult:
    results: list[CommandResult] = []
    wait_until(lambda: results.extend(found.poll()) or results, "the result")
    return results[0]


def stub(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi on PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_diagnose_asks_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, f'echo "$@" > {tmp_path}/argv; echo temperature 61', monkeypatch)
    found = runner()
    assert found.run(Command(cid=1, kind="diagnose")) is None
    assert found.busy
    assert outcome(found) == CommandResult(cid=1, ok=True, text="temperature 61")
    assert not found.busy
    assert (tmp_path / "argv").read_text() == "-q -d MEMORY,UTILIZATION,TEMPERATURE,POWER\n"


def test_a_diagnose_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "DIAGNOSE_S", 0.2)
    stub(tmp_path, "echo half; sleep 1000", monkeypatch)
    found = runner()
    found.run(Command(cid=1, kind="diagnose"))
    result = outcome(found)
    assert not result.ok
    assert "half" in result.text
    assert "did not end in time" in result.text


def test_a_diagnose_that_fails_brings_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, "echo 'No devices were found' >&2; exit 6", monkeypatch)
    found = runner()
    found.run(Command(cid=1, kind="diagnose"))
    assert outcome(found) == CommandResult(cid=1, ok=False, text="No devices were found")


def test_without_nvidia_smi_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = runner().run(Command(cid=1, kind="diagnose"))
    assert result is not None
    assert not result.ok


def test_an_expired_command_does_nothing() -> None:
    result = runner().run(Command(cid=1, kind="ping", expires_in_s=0))
    assert result is not None
    assert not result.ok


@pytest.mark.parametrize(
    "args",
    [{}, {"rank": 5}, {"rank": "x"}, {"rank": "1.1.0", "lines": 0}, {"rank": "1.1.0", "lines": "all"}, {"rank": "1.1.0", "lines": True}],
)
def test_tail_checks_its_arguments(args: dict[str, object]) -> None:
    result = runner().run(Command(cid=1, kind="tail", args=args))
    assert result is not None
    assert not result.ok


# --- the view of the cards ------------------------------------------------------------------------------------

GPU = GpuInfo(uuid="A", index=0, model="m", vendor="nvidia", total_mib=24564)


class Desk:
    """Which ranks hold the card, with which processes."""

    def __init__(self) -> None:
        self.starts: dict[int, int] = {}
        self.pids: dict[str, set[int]] = {}
        self.asked: list[str] = []
        self.view = CardView(start_of=lambda pid: self.starts.get(pid))

    def read(self, *processes: tuple[int, int], used: int = 0, listed: bool = True) -> GpuStatus:
        sample = Sample(
            at=time.monotonic(),
            cards=Cards(gpus=(GPU,)),
            status=(GpuStatus(uuid="A", used_mib=used),),
            processes=tuple(GpuProcess(uuid="A", pid=pid, used_mib=mib) for pid, mib in processes) if listed else None,
            processes_read=listed,
        )
        self.view.take(sample, holders={"A": list(self.pids)}, pids_of=self._pids_of)
        return self.view.status["A"]

    def _pids_of(self, rank: str) -> set[int]:
        self.asked.append(rank)
        return self.pids[rank]


def test_a_process_is_its_ranks_until_it_is_gone_from_the_list() -> None:
    desk = Desk()
    desk.pids, desk.starts = {"1.1.0": {10}}, {10: 111}
    desk.read((10, 8000), used=8000)
    assert desk.view.left_of("1.1.0") == {10}
    desk.pids, desk.starts = {"1.1.0": set()}, {}  # dead, and still on the card
    desk.read((10, 8000), used=8000)
    assert desk.view.left_of("1.1.0") == {10}
    desk.read(used=0)
    assert desk.view.left_of("1.1.0") == frozenset()


def test_a_pid_that_another_process_took_over_is_not_the_ranks() -> None:
    desk = Desk()
    desk.pids, desk.starts = {"1.1.0": {10}}, {10: 111}
    desk.read((10, 8000), used=8000)
    desk.pids, desk.starts = {"1.1.0": set()}, {10: 999}
    assert desk.read((10, 500), used=500).foreign_mib == 500
    assert desk.view.left_of("1.1.0") == frozenset()


def test_known_processes_are_not_looked_up_again() -> None:
    desk = Desk()
    desk.pids, desk.starts = {"1.1.0": {10}}, {10: 111, 20: 222}
    for _ in range(3):
        assert desk.read((10, 4000), (20, 12000), used=16000).foreign_mib == 12000
    assert desk.asked == ["1.1.0"]


def test_foreign_use_stays_known_between_two_lists() -> None:
    desk = Desk()
    desk.pids, desk.starts = {"1.1.0": {10}}, {10: 111, 20: 222}
    assert desk.read((10, 4000), (20, 12000), used=16000).foreign_mib == 12000
    assert desk.read(used=20000, listed=False).foreign_mib == 12000  # the rank may have taken more: nobody knows yet


def test_a_broken_layer_keeps_the_cards_of_an_earlier_run() -> None:
    view = CardView(start_of=lambda pid: None, remembered=Cards(gpus=(GPU,)))
    broken = Sample(at=1.0, error="Driver and library differ: reboot.", error_kind="driver_mismatch")
    (event,) = view.take(broken, holders={}, pids_of=lambda rank: ())
    assert event.kind == "driver_mismatch"
    assert view.gpus == (GPU,)
    assert view.statuses(unresponsive=False) == (GpuStatus(uuid="A", error="driver_mismatch"),)
    assert view.take(broken, holders={}, pids_of=lambda rank: ()) == []  # said once


# --- events ---------------------------------------------------------------------------------------------------


class Flood:
    """A probe that tells the same XID with every look."""

    unresponsive = False

    def __init__(self, events: list[HardwareEvent]) -> None:
        self.events = events

    def fileno(self) -> int | None:
        return None

    def request(self, *, processes: bool) -> None:
        return

    def poll(self) -> tuple[list[Sample], list[HardwareEvent]]:
        return [], list(self.events)

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    def close(self) -> None:
        return


def test_a_flood_of_one_xid_is_told_once_and_another_is_not_lost_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[HardwareEvent] = []
    store = Store(tmp_path / "agent.db")
    processes = FakeProcesses(tmp_path)
    flood = Flood([HardwareEvent(kind="xid", gpu="A", data={"xid": 13})] * 1000 + [HardwareEvent(kind="xid", gpu="A", data={"xid": 79})])
    hardware = Hardware(probe=flood, processes=processes, store=store, event=told.append)
    for _ in range(3):
        hardware.turn(dict)
    assert [e.data for e in told] == [{"xid": 13}, {"xid": 79}]
    monkeypatch.setattr("agent.hardware.EVENT_QUIET_S", 0.0)
    flood.events = flood.events[-1:]
    hardware.turn(dict)
    assert told[-1].data == {"xid": 79, "unsent_before": 2}
    processes.close()
    store.close()


@pytest.mark.parametrize("gpus", ["GPU-a", [], [7], ["--gpu-reset"], ["GPU-a,GPU-b"], ["GPU-a b"], ["GPU-" + "a" * 99], ["GPU-a"] * 65])
def test_what_is_no_name_of_a_card_reaches_no_command_line(gpus: object) -> None:
    runner = CommandRunner(backend="nvml", output_path=lambda rank: None, status=tuple)
    result = runner.run(Command(cid=1, kind="diagnose", args={"gpus": gpus}))
    assert result is not None
    assert (result.ok, "UUIDs" in result.text) == (False, True)


def test_a_diagnosis_of_some_cards_tells_of_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    runner = CommandRunner(backend="nvml", output_path=lambda rank: None, status=tuple)
    assert runner.run(Command(cid=1, kind="diagnose", args={"gpus": ["GPU-a-1", "MIG-b"]})) is None
    results: list[CommandResult] = []
    wait_until(lambda: results.extend(runner.poll()) or results, "the answer")
    assert results[0].text == "-q -d MEMORY,UTILIZATION,TEMPERATURE,POWER -i GPU-a-1,MIG-b"
    status = (GpuStatus(uuid="GPU-a", temp_c=41), GpuStatus(uuid="GPU-b", temp_c=42))
    simulated = CommandRunner(backend="simulated", output_path=lambda rank: None, status=lambda: status)
    told = simulated.run(Command(cid=2, kind="diagnose", args={"gpus": ["GPU-b"]}))
    assert told is not None
    assert ("GPU-a" in told.text, "temp_c 42" in told.text) == (False, True)
