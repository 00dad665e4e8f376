"""The zygote: where shims come from, and what happens to everybody else when one of the three processes is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import procs, rankdir
from agent.protocol import ExitInfo
from tests.agent.rank_lab import PYTHON, Lab
from tests.waiting import wait_until


def kill_shim(lab: Lab, rank: str) -> bool:
    """False: it had ended by itself."""
    shim = lab.shim(rank)
    was_there = procs.signal_send(*shim, signal.SIGKILL)
    wait_until(lambda: not procs.is_alive(*shim), "the shim's end")
    return was_there


def adopted(lab: Lab, rank: str, old: tuple[int, int]) -> None:
    def look() -> bool:
        lab.poll()
        return lab.shim(rank) != old

    wait_until(look, "a new shim")


@pytest.mark.parametrize(("end", "exit"), [("exit 9", {"code": 9}), ("kill -KILL $$", {"signal": 9})])
def test_a_killed_shim_does_not_cost_the_exit_code(lab: Lab, end: str, exit: dict[str, int]) -> None:
    go = lab.data / "go"
    rank = lab.running("sh", "-c", f'while ! [ -e "$0" ]; do sleep 0.02; done; {end}', str(go))
    program, old = lab.program(rank), lab.shim(rank)
    assert kill_shim(lab, rank)
    adopted(lab, rank, old)
    assert lab.program(rank) == program
    assert lab.states[rank].state == "RUNNING"
    go.touch()
    assert lab.end(rank).exit == ExitInfo(cause="exited", **exit)
    assert [s.state for s in lab.history] == ["RUNNING", "EXITED"]


def test_the_exit_code_is_kept_even_if_the_program_ends_before_a_new_shim_comes(lab: Lab) -> None:
    go = lab.data / "go"
    rank = lab.running("sh", "-c", 'while ! [ -e "$0" ]; do sleep 0.02; done; exit 9', str(go))
    assert kill_shim(lab, rank)
    program = lab.program(rank)
    go.touch()
    wait_until(lambda: not procs.is_alive(*program), "the program's end")  # nobody polls: no new shim yet
    wait_until(lambda: (lab.ranks.rank_dir(rank) / rankdir.CODE).exists(), "the zygote's word")
    ended = procs.boottime()
    time.sleep(1.0)  # what comes later is not run time
    exit = lab.end(rank).exit
    assert exit == ExitInfo(cause="exited", code=9)
    started = rankdir.file_read(str(lab.ranks.rank_dir(rank)), rankdir.STARTED)
    assert exit is not None
    assert started is not None
    assert exit.ran_s is not None
    assert 0 < exit.ran_s <= ended - started["began_at"]


def test_the_exit_code_is_kept_if_the_zygote_is_slow_to_see_it(lab: Lab) -> None:
    go = lab.data / "go"
    rank = lab.running("sh", "-c", 'while ! [ -e "$0" ]; do sleep 0.02; done; exit 9', str(go))
    program, old = lab.program(rank), lab.shim(rank)
    assert kill_shim(lab, rank)
    adopted(lab, rank, old)
    zygote = lab.ranks._zygote.pid
    os.kill(zygote, signal.SIGSTOP)
    go.touch()
    wait_until(lambda: not procs.is_alive(*program), "the program's end")
    time.sleep(2.5)  # the new shim waits: longer than it takes a machine that is only busy
    os.kill(zygote, signal.SIGCONT)
    assert lab.end(rank).exit == ExitInfo(cause="exited", code=9)


def test_a_new_shim_stops_politely_and_takes_the_whole_tree(lab: Lab) -> None:
    code = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
signal.signal(signal.SIGUSR1, lambda *_: (time.sleep(0.4), os.write(1, b'saved\\n'), os._exit(3)))
print('ready', flush=True)
time.sleep(600)
"""
    rank = lab.running(*PYTHON, code)
    lab.said(rank, "ready")
    old = lab.shim(rank)
    assert kill_shim(lab, rank)
    lab.ranks.stop(rank, grace_s=120, reason="cancelled")  # while there is no shim at all
    adopted(lab, rank, old)
    assert lab.end(rank).exit == ExitInfo(cause="stopped", code=3, detail="cancelled")
    assert lab.text(rank) == "ready\nsaved\n"
    assert lab.ranks.tree_gone(rank)


def test_a_stop_that_was_begun_is_not_begun_again(lab: Lab) -> None:
    code = """
import os, signal, time
count = 0
def save(*_):
    global count
    count += 1
    print('save', count, flush=True)
signal.signal(signal.SIGUSR1, save)
print('ready', flush=True)
while True: time.sleep(0.05)
"""
    for job, grace_s in enumerate((0.9, 5, 25), 1):  # where this machine is too slow to kill the shim in time, a longer one
        rank = lab.running(*PYTHON, code, rank=f"{job}.1.0")
        lab.said(rank, "ready")
        old = lab.shim(rank)
        lab.ranks.stop(rank, grace_s=grace_s, reason="preempted")
        lab.said(rank, "save 1")
        if kill_shim(lab, rank):
            break
    else:
        pytest.fail("no shim was killed in time")
    adopted(lab, rank, old)
    exit = lab.end(rank).exit
    assert exit is not None
    assert (exit.cause, exit.detail) == ("stopped", "preempted")
    assert exit.signal in (signal.SIGTERM, signal.SIGKILL)  # a new shim that comes late sends both
    assert lab.text(rank) == "ready\nsave 1\n"


def test_a_new_shim_keeps_the_time_limit(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab()
    for job, limit_s in enumerate((1, 5, 25), 1):  # where this machine is too slow to kill the shim in time, a longer one
        rank = lab.start("sleep", "600", rank=f"{job}.1.0", time_limit_s=limit_s)
        if lab.wait(rank, "RUNNING", "EXITED").state == "RUNNING" and kill_shim(lab, rank):
            break
    else:
        pytest.fail("no shim was killed in time")
    said = f"The time limit of {limit_s} s is over."
    assert lab.end(rank).exit == ExitInfo(cause="time_limit", signal=signal.SIGTERM, detail=said)


def test_a_shim_that_is_killed_again_and_again_is_replaced_again_and_again(lab: Lab) -> None:
    go = lab.data / "go"
    rank = lab.running("sh", "-c", 'while ! [ -e "$0" ]; do sleep 0.02; done; exit 9', str(go))
    for _ in range(3):
        old = lab.shim(rank)
        assert kill_shim(lab, rank)
        adopted(lab, rank, old)
    go.touch()
    assert lab.end(rank).exit == ExitInfo(cause="exited", code=9)


def test_a_killed_zygote_is_replaced_and_nobody_else_notices(lab: Lab) -> None:
    go = lab.data / "go"
    first = lab.running("sh", "-c", 'while ! [ -e "$0" ]; do sleep 0.02; done; exit 9', str(go))
    zygote = lab.ranks._zygote.pid
    os.kill(zygote, signal.SIGKILL)
    second = lab.start("sh", "-c", "exit 4", rank="2.1.0")  # asked of the dead one
    assert lab.end(second).exit == ExitInfo(cause="exited", code=4)
    assert lab.ranks._zygote.pid != zygote
    go.touch()
    assert lab.end(first).exit == ExitInfo(cause="exited", code=9)


def test_a_program_whose_shim_and_zygote_were_killed_has_no_known_exit(lab: Lab) -> None:
    rank = lab.running("sh", "-c", 'while ! [ -e "$0" ]; do sleep 0.02; done; exit 9', str(lab.data / "go"))
    old = lab.shim(rank)
    os.kill(lab.ranks._zygote.pid, signal.SIGKILL)
    assert kill_shim(lab, rank)
    adopted(lab, rank, old)
    (lab.data / "go").touch()
    exit = lab.end(rank).exit
    assert exit is not None
    assert (exit.cause, exit.code, exit.signal) == ("exit_unknown", None, None)


def test_twenty_launches_at_once_all_run(lab: Lab) -> None:
    ranks = [lab.start("sh", "-c", f"exit {i}", rank=f"{i}.1.0") for i in range(1, 21)]
    for i, rank in enumerate(ranks, 1):
        assert lab.end(rank).exit == ExitInfo(cause="exited", code=i)
    assert len([s for s in lab.history if s.state == "EXITED"]) == 20


def open_files(pid: int) -> set[str]:
    """What the descriptors of a process lead to; one that was closed meanwhile is left out."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(fd.readlink()).removesuffix(" (deleted)"))
    return found


def test_shims_hold_nothing_of_the_agents(plain: Lab) -> None:
    rank = plain.running("sleep", "600")
    pid = plain.shim(rank)[0]
    folder = str(plain.ranks.rank_dir(rank))
    wanted = {"/dev/null", f"{folder}/shim.log", f"{folder}/output.log", f"{folder}/.claim.{pid}"}
    # Its news that the program runs goes out by a socket that it closes right after we have read of it.
    wait_until(lambda: open_files(pid) == wanted, "a shim with its own files alone")


def test_a_shim_is_small(plain: Lab) -> None:
    rank = plain.running("sleep", "600")
    lines = Path(f"/proc/{plain.shim(rank)[0]}/smaps_rollup").read_text().splitlines()
    pss_kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    assert pss_kib < 6_000  # measured 2,400 among twenty; alone it shares its pages with the zygote only


def test_warming_up_is_harmless_and_leaves_nothing(plain: Lab) -> None:
    for _ in range(50):
        plain.ranks.warm()
    rank = plain.start("sh", "-c", "exit 4")
    assert plain.end(rank).exit == ExitInfo(cause="exited", code=4)
    zygote = plain.ranks._zygote.pid
    wait_until(lambda: not procs.descendants([zygote], procs.process_all()), "a zygote without children")
