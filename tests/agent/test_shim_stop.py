"""Stopping politely (lifecycle.md), with real handlers in real processes and a grace made short."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import procs
from agent.protocol import ExitInfo
from tests.agent.rank_lab import PYTHON, Lab
from tests.waiting import wait_until


def handler(work: str, *, before: str = "", exit_code: int = 0) -> str:
    """A program that on SIGUSR1 does ``work`` and ends."""
    return f"""
import os, signal, subprocess, sys, time
def save(*_):
    {work}
    os.write(1, b'saved\\n')  # not print: the signal may come while print writes
    os._exit({exit_code})
signal.signal(signal.SIGUSR1, save)
{before}
os.write(1, b'ready\\n')
while True:
    time.sleep(0.05)
"""


def test_without_a_handler_sigterm_comes_at_once(lab: Lab) -> None:
    rank = lab.running("sleep", "600")
    began = time.monotonic()
    lab.ranks.stop(rank, grace_s=900, reason="cancelled")
    assert lab.end(rank).exit == ExitInfo(cause="stopped", signal=signal.SIGTERM, detail="cancelled")
    assert time.monotonic() - began < 600  # the grace was not waited for


def test_a_slow_handler_under_a_shell_finishes(lab: Lab) -> None:
    # Nothing but SIGUSR1 may come in the 0.8 s that the handler needs: the grace is for a machine that takes its time.
    code = handler("time.sleep(0.8)", before="signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'TERM '))")
    rank = lab.running("bash", "-c", f'{PYTHON[0]} -I -S -c "$0"; echo shell ends; exit 7', code)
    lab.said(rank, "ready")
    lab.ranks.stop(rank, grace_s=60, reason="preempted")
    assert lab.end(rank).exit == ExitInfo(cause="stopped", code=7, detail="preempted")
    assert lab.text(rank) == "ready\nsaved\nshell ends\n"


@pytest.mark.soak
def test_a_12_s_handler_under_bash_finishes_inside_15_s(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(term_lead_s=2.0)
    rank = lab.running("bash", "-c", f'{PYTHON[0]} -I -S -c "$0"', handler("time.sleep(12)"))
    lab.said(rank, "ready")
    lab.ranks.stop(rank, grace_s=15, reason="gpu_fault")
    assert lab.end(rank).exit == ExitInfo(cause="stopped", code=0, detail="gpu_fault")
    assert lab.text(rank).endswith("saved\n")


def test_the_end_of_the_main_process_does_not_cut_a_handler_short(lab: Lab) -> None:
    go = lab.data / "go"
    code = handler(f"while not os.path.exists({str(go)!r}): time.sleep(0.01)")
    rank = lab.running("bash", "-c", f'trap "exit 0" USR1; {PYTHON[0]} -I -S -c "$0" & while :; do wait; done', code)
    lab.said(rank, "ready")
    main = lab.program(rank)
    lab.ranks.stop(rank, grace_s=60)
    wait_until(lambda: not procs.is_alive(*main), "the shell's end")
    assert "saved" not in lab.text(rank)
    go.touch()
    assert lab.end(rank).exit == ExitInfo(cause="stopped", code=0)
    assert lab.text(rank).endswith("saved\n")


def test_a_process_without_a_handler_gets_no_sigusr1(lab: Lab) -> None:
    work = "time.sleep(0.2); print('neighbour', child.poll(), flush=True)"
    rank = lab.running(*PYTHON, handler(work, before="child = subprocess.Popen(['sleep', '600'])"))
    lab.said(rank, "ready")
    lab.ranks.stop(rank, grace_s=60)
    assert lab.end(rank).exit == ExitInfo(cause="stopped", code=0)
    assert "neighbour None\n" in lab.text(rank)
    assert lab.ranks.tree_gone(rank)


def test_a_handler_that_never_ends_gets_sigterm_before_the_kill(lab: Lab) -> None:
    code = handler("time.sleep(600)", before="signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'TERM\\n'))")
    for job, grace_s in enumerate((0.8, 8, 80), 1):  # on a machine too slow to say a word within the lead, a longer one
        rank = lab.running(*PYTHON, code, rank=f"{job}.1.0")
        lab.said(rank, "ready")
        began = time.monotonic()
        lab.ranks.stop(rank, grace_s=grace_s)
        assert lab.end(rank).exit == ExitInfo(cause="stopped", signal=signal.SIGKILL)
        assert time.monotonic() - began >= grace_s
        if "TERM" in lab.text(rank):
            return
    raise AssertionError("no SIGTERM came before the kill")


def test_what_ignores_everything_is_killed_at_the_grace(lab: Lab) -> None:
    rank = lab.running("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    lab.said(rank, "ready")
    lab.ranks.stop(rank, grace_s=0.4)
    assert lab.end(rank).exit == ExitInfo(cause="stopped", signal=signal.SIGKILL)
    assert lab.ranks.tree_gone(rank)


def test_a_sigterm_handler_may_finish_after_its_shell(lab: Lab) -> None:
    code = """
import os, signal, time
signal.signal(15, lambda *_: (time.sleep(0.5), os.write(1, b'saved\\n'), os._exit(0)))
os.write(1, b'ready\\n')
time.sleep(600)
"""
    rank = lab.running("sh", "-c", f'{PYTHON[0]} -I -S -c "$0" & wait; sleep 600', code)
    lab.said(rank, "ready")
    lab.ranks.stop(rank, grace_s=60)
    assert lab.end(rank).exit == ExitInfo(cause="stopped", signal=signal.SIGTERM)
    assert lab.text(rank).endswith("saved\n")


def test_a_setsid_child_does_not_survive_a_stop(lab: Lab) -> None:
    rank = lab.running("sh", "-c", "setsid sh -c 'trap \"\" TERM HUP; echo $$; while :; do sleep 1; done' & wait; sleep 600")
    child = int(wait_until(lambda: lab.text(rank).strip(), "the child's pid"))
    lab.ranks.stop(rank, grace_s=2)
    assert lab.end(rank).exit == ExitInfo(cause="stopped", signal=signal.SIGTERM)
    stat = procs.process_stat(child)
    assert stat is None or stat.is_dead
    assert lab.ranks.tree_gone(rank)


def test_a_second_stop_can_only_shorten_the_grace(lab: Lab) -> None:
    rank = lab.running(*PYTHON, handler("time.sleep(600)"))
    lab.said(rank, "ready")
    lab.ranks.stop(rank, grace_s=600, reason="preempted")
    lab.ranks.stop(rank, grace_s=900, cause="lease_expired", reason="later")
    lab.ranks.kill(rank)
    ended = lab.end(rank).exit
    assert ended is not None
    # A shim that hears of the stop and of the kill at once sends both signals; the program may die of the first.
    assert ended.signal in (signal.SIGKILL, signal.SIGTERM)
    assert (ended.cause, ended.detail) == ("stopped", "preempted")


def test_a_program_that_was_faster_than_its_stop_ended_by_itself(lab: Lab) -> None:
    rank = lab.running("sh", "-c", "echo ready; kill -STOP $$; exit 6")
    program, shim = lab.program(rank), lab.shim(rank)
    lab.said(rank, "ready")
    assert procs.signal_send(*shim, signal.SIGSTOP)  # a shim that is slow to notice
    wait_until(lambda: procs.process_stat(shim[0]).state == "T" and procs.process_stat(program[0]).state == "T", "both stopped")
    procs.signal_send(*program, signal.SIGCONT)
    wait_until(lambda: not procs.is_alive(*program), "the program's end")
    lab.ranks.stop(rank, grace_s=10, reason="cancelled")
    procs.signal_send(*shim, signal.SIGCONT)
    assert lab.end(rank).exit == ExitInfo(cause="exited", code=6)


def test_a_stop_that_comes_before_the_start_prevents_it(plain: Lab) -> None:
    witness = plain.data / "witness"
    rank = plain.start("touch", str(witness))
    plain.ranks.stop(rank, grace_s=0, reason="cancelled")
    exit = plain.end(rank).exit
    assert exit is not None
    if exit.cause == "never_started":
        assert not witness.exists()
    else:  # the shim was faster
        assert exit.cause in ("stopped", "exited")


@pytest.mark.parametrize("saves", [True, False])
def test_it_sees_whether_a_checkpoint_was_written(plain: Lab, tmp_path: Path, saves: bool) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "epoch-1").write_text("old")
    rank = plain.running(*PYTHON, handler(f"open('{folder}/epoch-2', 'w').write('new')" if saves else "pass"), checkpoint=str(folder))
    plain.said(rank, "ready")
    plain.ranks.stop(rank, grace_s=60)
    state = plain.end(rank)
    assert state.exit == ExitInfo(cause="stopped", code=0)
    assert state.checkpoint_seen is saves


@pytest.mark.root  # a v1 freezer is root's
def test_what_cannot_be_killed_is_reported_and_not_called_gone(new_lab: Callable[..., Lab]) -> None:
    freezer = Path("/sys/fs/cgroup/freezer")
    lab = new_lab(kill_wait_s=0.3)
    group = freezer / lab.agent_id
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no v1 freezer to play a process that is stuck in the kernel")
    try:
        rank = lab.running("sleep", "600", unix_user="nobody", workdir="/")
        (group / "cgroup.procs").write_text(str(lab.program(rank)[0]))
        (group / "freezer.state").write_text("FROZEN")
        lab.ranks.kill(rank)
        exit = lab.end(rank).exit
        assert exit == ExitInfo(cause="stopped", detail="1 processes did not end when killed.")
        assert not lab.ranks.tree_gone(rank)
        (group / "freezer.state").write_text("THAWED")
        wait_until(lambda: lab.ranks.tree_gone(rank), "the end after the thaw")
    finally:
        (group / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "an empty freezer")
        group.rmdir()
