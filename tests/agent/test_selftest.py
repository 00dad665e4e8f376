"""The self-test of a card on memory of our own, the commands that ask for it, and whose program an XID names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import selftest
from agent.backends.base import HardwareEvent
from agent.backends.simulated import SimulatedBackend
from agent.commands import CommandRunner
from agent.hardware import Hardware
from agent.probe import InlineProbe
from agent.protocol import Command, CommandResult
from agent.selftest import MIB, CardError, main, memory_test, run
from tests.agent.test_runner_parts import outcome


class FakeMemory:
    """``stuck``: a byte of the first piece that always reads as this value. ``mib``: what there is."""

    def __init__(self, mib: int = 1024, stuck: int | None = None, dies: bool = False) -> None:
        self.left, self.stuck, self.dies = mib, stuck, dies
        self.words: dict[int, int] = {}
        self.closed = False

    def take(self, mib: int) -> int:
        if mib > self.left:
            raise CardError("out of memory")
        self.left -= mib
        self.words[len(self.words)] = 0
        return len(self.words) - 1

    def fill(self, piece: int, word: int, mib: int) -> None:
        if self.dies:
            raise CardError("cuMemsetD32_v2: the card has fallen off the bus")
        self.words[piece] = word

    def read(self, piece: int, mib: int) -> bytes:
        found = bytearray(self.words[piece].to_bytes(4, "little") * (mib * MIB // 4))
        if self.stuck is not None and piece == 0:
            found[8] = self.stuck
        return bytes(found)

    def close(self) -> None:
        self.closed = True


def temperatures(*told: int | None) -> Callable[[], int | None]:
    left = list(told)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_memory_that_holds_what_is_written_passes() -> None:
    memory = FakeMemory()
    report = run(memory, mib=8, heat_s=0, temperature=lambda: None)
    assert (report["result"], report["mib"], report["errors"]) == ("passed", 8, 0)
    assert memory.closed


def test_a_bit_that_sticks_fails() -> None:
    report = run(FakeMemory(stuck=0x55), mib=1, heat_s=0, temperature=lambda: None)
    assert (report["result"], report["errors"]) == ("failed", 1)  # found by the first pattern that needs it


def test_a_card_that_dies_on_the_way_fails() -> None:
    memory = FakeMemory(dies=True)
    report = run(memory, mib=8, heat_s=0, temperature=lambda: None)
    assert (report["result"], report["text"]) == ("failed", "cuMemsetD32_v2: the card has fallen off the bus")
    assert memory.closed


def test_it_takes_no_more_than_there_is_and_tests_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "CHUNK_MIB", 2)
    pieces, wrong = memory_test(FakeMemory(mib=5), 8)
    assert ([size for _, size in pieces], wrong) == ([2, 2], 0)
    assert run(FakeMemory(mib=0), mib=8, heat_s=0, temperature=lambda: None)["result"] == "failed"


@pytest.mark.parametrize(
    ("told", "result", "hottest"),
    [((40, 70, 60), "passed", 70), ((40, 96, 60), "failed", 96), ((86, 90, 86), "failed", 90), ((None,), "passed", None)],
)
def test_the_cooling_is_judged_under_load_and_after_a_rest(told: tuple[int | None, ...], result: str, hottest: int | None) -> None:
    report = run(FakeMemory(), mib=1, heat_s=0.2, temperature=temperatures(*told), rest_s=0.0)
    assert (report["result"], report.get("max_temp_c")) == (result, hottest)


@pytest.mark.parametrize(("argv", "said"), [(["--gpu", "GPU-1", "--mib", "64"], "No CUDA driver library")])
def test_without_the_drivers_library_it_is_impossible(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes

    def missing(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert main(argv) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["result"] == "impossible"
    assert said in report["text"]


# --- commands -------------------------------------------------------------------------------------------------------


def runner(backend: str = "nvml", **more: object) -> CommandRunner:
    return CommandRunner(backend=backend, output_path=lambda rank: None, status=lambda: (), **more)  # type: ignore[arg-type]


def test_a_self_test_runs_as_a_child_and_its_report_is_the_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()  # where somebody started the agent, not its code
    (tmp_path / "agent" / "__init__.py").write_text("")
    (tmp_path / "agent" / "selftest.py").write_text("print('not ours')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent")
    found = runner()
    assert found.run(Command(cid=1, kind="selftest", args={"gpu": "no-card", "mib": 64}, expires_in_s=60)) is None
    result = outcome(found)
    assert not result.ok
    assert json.loads(result.text.splitlines()[-1])["result"] == "impossible"


def test_a_reset_is_refused_while_anybody_is_on_the_card() -> None:
    rested: list[float] = []
    found = runner(users=lambda uuid: 2, rest=rested.append)
    result = found.run(Command(cid=1, kind="reset", args={"gpu": "GPU-1"}))
    assert result == CommandResult(cid=1, ok=False, text="2 jobs or processes are on the card; it is not reset.")
    assert rested == []


def test_a_reset_of_an_idle_card_lets_go_of_the_driver_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    rested: list[float] = []
    found = runner(rest=rested.append)
    assert found.run(Command(cid=1, kind="reset", args={"gpu": "GPU-1"})) is None
    assert rested == [20.0]
    assert outcome(found) == CommandResult(cid=1, ok=True, text="--gpu-reset -i GPU-1")


def test_a_backend_without_resets_says_so() -> None:
    result = runner("ascend").run(Command(cid=1, kind="reset", args={"gpu": "NPU-1"}))
    assert result is not None
    assert (result.ok, result.text) == (False, "The ascend backend can't reset a card.")


def test_real_cards_take_no_drill() -> None:
    result = runner().run(Command(cid=1, kind="drill", args={"gpu": "GPU-1", "xid": 79}))
    assert result is not None
    assert (result.ok, result.text) == (False, "This node's cards are real: no drill here.")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"gpu": "GPU-none", "xid": 79}, "There is no simulated card 'GPU-none' here."),
        ({"xid": 0}, "xid is a whole number from 1 to 1000."),
        ({"xid": 79, "count": 10**6}, "count is a whole number from 1 to 100000."),
        ({"xid": 79, "test": "maybe"}, "test is one of passed, failed, impossible."),
        ({"gone_s": -1}, "gone_s is a number of seconds from 1 to 3600."),
    ],
)
def test_a_drill_that_makes_no_sense_names_what_is_wrong(args: dict[str, object], said: str) -> None:
    backend = SimulatedBackend()
    backend.initialize()
    uuid = backend.inventory().gpus[0].uuid
    result = runner("simulated", simulation=InlineProbe(backend).simulation).run(Command(cid=1, kind="drill", args={"gpu": uuid, **args}))
    assert result is not None
    assert (result.ok, result.text) == (False, said)


def test_a_drill_makes_a_card_vanish_fail_its_test_and_throw_xids() -> None:
    now = [0.0]
    backend = SimulatedBackend(clock=lambda: now[0])
    backend.initialize()
    first, second = (gpu.uuid for gpu in backend.inventory().gpus)
    backend.drill({"gpu": first, "gone_s": 10})
    assert [gpu.uuid for gpu in backend.inventory().gpus] == [second]
    assert backend.selftest(first, mib=64, heat_s=0)["result"] == "failed"
    now[0] = 10.0
    assert len(backend.inventory().gpus) == 2
    backend.drill({"gpu": first, "xid": 79, "count": 3, "test": "impossible"})
    assert [(event.kind, event.data.get("xid")) for event in backend.events()] == [("xid", 79)] * 3 + [("kernel_log", None)]
    assert backend.events() == []
    assert [backend.selftest(first, mib=64, heat_s=20)["result"] for _ in range(2)] == ["impossible", "passed"]


# --- whose program it was ---------------------------------------------------------------------------------------------


class Pids:
    def pids(self, rank: str) -> set[int]:
        return {100, 101} if rank == "1.1.0" else {200}


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=101, name=python, Ch 00000010", "1.1.0"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid='200', name=python", "2.1.0"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=999, name=Xorg", None),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid='<unknown>', name=<unknown>", None),
        ("", None),
    ],
)
def test_an_xid_is_attributed_to_the_rank_whose_process_the_kernel_names(text: str, rank: str | None) -> None:
    hardware = Hardware.__new__(Hardware)
    hardware._processes = Pids()  # type: ignore[assignment]
    event = HardwareEvent(kind="xid", gpu="GPU-1", data={"xid": 31, "text": text})
    found = hardware._attribute(event, lambda: {"GPU-1": ["1.1.0", "2.1.0"], "GPU-2": ["3.1.0"]})
    assert found.data.get("rank") == rank
