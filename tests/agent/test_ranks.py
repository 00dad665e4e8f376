"""Restarts of the agent: the table of lifecycle.md, with agents that are really killed."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import procs, rankdir
from agent.protocol import ExitInfo, ProtocolError, RankSpec
from agent.recovery import final_read
from tests.agent.rank_lab import Lab
from tests.waiting import PATIENCE_S, wait_until

WAITS = ("sh", "-c", 'echo begun; while ! [ -e "$0" ]; do sleep 0.02; done; echo ended; exit 9')


@pytest.mark.parametrize("zygote", [False, True], ids=["agent", "agent-and-zygote"])
def test_a_killed_agent_finds_its_rank_again(lab: Lab, zygote: bool) -> None:
    go = lab.data / "go"
    agent = lab.agent_start(*WAITS, str(go))
    program, shim = lab.program("1.1.0"), lab.shim("1.1.0")
    lab.agent_kill(agent, zygote=zygote)
    assert procs.is_alive(*program)
    assert procs.is_alive(*shim)
    state = lab.recover()
    assert (state.state, state.started_at is not None) == ("RUNNING", True)
    assert (lab.program("1.1.0"), lab.shim("1.1.0")) == (program, shim)
    go.touch()
    assert lab.end("1.1.0").exit == ExitInfo(cause="exited", code=9)
    assert lab.text("1.1.0") == "begun\nended\n"
    assert lab.ranks.tree_gone("1.1.0")


def test_a_rank_that_ended_while_no_agent_was_there_is_reported(lab: Lab) -> None:
    go = lab.data / "go"
    agent = lab.agent_start(*WAITS, str(go))
    lab.agent_kill(agent)
    go.touch()
    wait_until(lambda: (lab.data / "ranks/1.1.0/exit.json").exists(), "exit.json")
    state = lab.recover()
    assert (state.state, state.exit) == ("EXITED", ExitInfo(cause="exited", code=9))


def test_agent_zygote_and_shim_killed_the_program_is_adopted(lab: Lab) -> None:
    go = lab.data / "go"
    agent = lab.agent_start(*WAITS, str(go))
    program, shim = lab.program("1.1.0"), lab.shim("1.1.0")
    lab.agent_kill(agent, zygote=True)
    procs.signal_send(*shim, signal.SIGKILL)
    wait_until(lambda: not procs.is_alive(*shim), "the shim's end")
    assert procs.is_alive(*program)
    assert lab.recover().state == "RUNNING"
    assert lab.ranks.pids("1.1.0") >= {program[0]}
    go.touch()
    exit = lab.end("1.1.0").exit
    assert exit is not None
    assert (exit.cause, exit.code) == ("exit_unknown", None)


def test_a_job_that_removes_its_directory_has_run_and_does_not_again(lab: Lab) -> None:
    go = lab.data / "go"
    script = 'while ! [ -e "$0" ]; do sleep 0.02; done; rm -rf "$1"; setsid sleep 603 & sleep 0.2'
    rank = lab.running("sh", "-c", script, str(go), str(lab.data / "ranks" / "1.1.0"))
    go.touch()
    state = lab.end(rank)
    assert (state.state, state.exit and state.exit.cause) == ("EXITED", "exit_unknown")
    wait_until(lambda: lab.ranks.tree_gone(rank), "the end of what it left")


def test_a_halted_shim_goes_on(lab: Lab) -> None:
    go = lab.data / "go"
    rank = lab.running("sh", "-c", 'while ! [ -e "$0" ]; do sleep 0.02; done; kill -STOP $PPID; exit 7', str(go))
    go.touch()
    assert lab.end(rank).exit == ExitInfo(cause="exited", code=7)


def test_a_shim_that_lets_its_stop_pass_is_replaced(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.ranks._OVERDUE_S", -34.0)  # a shim that is on time looks late, by all but a second
    rank = lab.running("sh", "-c", "trap '' TERM USR1; while :; do sleep 0.1; done")
    shim = lab.shim(rank)
    lab.ranks.stop(rank, grace_s=30, reason="cancelled")
    assert lab.end(rank).state == "EXITED"
    wait_until(lambda: not procs.is_alive(*shim), "the shim's end")
    assert lab.ranks.tree_gone(rank)


def test_a_rank_whose_shims_die_again_and_again_is_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.ranks._MOST_ADOPTIONS", 1)
    rank = lab.running("sleep", "604")
    program = lab.program(rank)
    for _ in range(2):
        shim = wait_until(lambda: (lab.poll(), lab.shim(rank))[1] if procs.is_alive(*lab.shim(rank)) else lab.poll(), "a shim")
        procs.signal_send(*shim, signal.SIGKILL)
        wait_until(lambda s=shim: not procs.is_alive(*s), "its end")  # type: ignore[misc]
    exit = lab.end(rank).exit
    assert exit is not None
    assert exit.cause == "exit_unknown"
    wait_until(lambda: not procs.is_alive(*program), "the program's end")


@pytest.mark.parametrize("name", [rankdir.EXIT, rankdir.STARTED, rankdir.LAUNCH, rankdir.STOP, rankdir.CODE, rankdir.CLAIM, rankdir.SPEC])
@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"exit": 1, "pid": "x", "kind": null}', "[" * 9000])
def test_a_file_that_is_not_what_it_should_be_is_as_good_as_none(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert rankdir.file_read(str(tmp_path), name) is None


def test_an_end_that_no_shim_wrote_is_no_end(tmp_path: Path) -> None:
    (tmp_path / rankdir.EXIT).write_text('{"exit": {"cause": "magic"}}')
    assert final_read("1.1.0", str(tmp_path)) is None


def test_an_adopted_program_can_be_stopped(lab: Lab) -> None:
    agent = lab.agent_start("sh", "-c", "setsid sleep 601 & sleep 602")
    program, shim = lab.program("1.1.0"), lab.shim("1.1.0")
    lab.agent_kill(agent, zygote=True)
    procs.signal_send(*shim, signal.SIGKILL)
    wait_until(lambda: not procs.is_alive(*shim), "the shim's end")
    assert lab.recover().state == "RUNNING"
    lab.ranks.stop("1.1.0", grace_s=60, reason="cancelled")
    assert lab.end("1.1.0").exit == ExitInfo(cause="stopped", detail="cancelled")
    assert not procs.is_alive(*program)
    assert lab.ranks.tree_gone("1.1.0")


def test_a_program_that_is_gone_with_its_shim_has_an_unknown_exit(lab: Lab) -> None:
    agent = lab.agent_start("sleep", "600")
    program, shim = lab.program("1.1.0"), lab.shim("1.1.0")
    lab.agent_kill(agent, zygote=True)
    procs.signal_send(*shim, signal.SIGKILL)
    wait_until(lambda: not procs.is_alive(*shim), "the shim's end")
    procs.signal_send(*program, signal.SIGKILL)
    wait_until(lambda: not procs.is_alive(*program), "the program's end")
    state = lab.recover()
    assert state.state == "EXITED"
    assert state.exit is not None
    assert state.exit.cause == "exit_unknown"
    assert lab.recover() == state or lab.recover().exit == state.exit  # an answer is for ever


def test_after_a_reboot_what_ran_is_node_rebooted_and_what_did_not_never_started(new_lab: Callable[..., Lab], kind: str | None) -> None:
    lab = new_lab(cgroup=kind, boot_id="boot-2")
    folder = lab.data / "ranks" / "1.1.0"
    folder.mkdir(parents=True)
    rankdir.file_write(
        str(folder), rankdir.STARTED, {"pid": os.getpid(), "start": 1, "started_at": 1.0, "shim": {"pid": os.getpid(), "start": 1}}
    )
    state = lab.recover("1.1.0", boot_id="boot-1")
    assert (state.state, state.exit) == ("EXITED", ExitInfo(cause="node_rebooted", detail="This boot is boot-2, that one was boot-1."))
    other = lab.recover("2.1.0", boot_id="boot-1")
    assert other.exit is not None
    assert other.exit.cause == "never_started"
    assert procs.is_alive(os.getpid(), procs.process_stat(os.getpid()).start)  # its pid is in the file: nobody acted on it


@pytest.mark.parametrize("left", ["nothing", "directory", "spec"])
def test_a_rank_that_was_only_prepared_never_ran_and_never_will(lab: Lab, left: str) -> None:
    folder = lab.data / "ranks" / "1.1.0"
    witness = lab.data / "witness"
    if left != "nothing":
        folder.mkdir(parents=True)
    if left == "spec":
        order = {
            "rank": "1.1.0",
            "boot_id": lab.ranks.boot_id,
            "spec": {"argv": ["touch", str(witness)]},
            "env": {"PATH": os.environ["PATH"]},
        }
        order |= {"group": lab.ranks.layout.plan("1.1.0"), "term_lead_s": 0.3, "kill_wait_s": 1.0, "min_uid": 1000}
        rankdir.file_write(str(folder), rankdir.SPEC, order)
    state = lab.recover()
    assert state.exit is not None
    assert (state.state, state.exit.cause) == ("EXITED", "never_started")
    # The request of the old agent comes late: it must find the rank taken.
    late = lab.ranks._zygote
    late.ask("launch", rank="1.1.0", path=str(folder))
    wait_until(lambda: select.select([late.fileno()], [], [], 0)[0], "the zygote's answer")
    (answer,) = late.read() or []
    wait_until(lambda: answer.shim is None or not procs.is_alive(*answer.shim), "the late shim's end")
    assert not witness.exists()
    assert lab.ranks.tree_gone("1.1.0")


def test_two_agents_with_the_same_rank_do_not_meet(new_lab: Callable[..., Lab], kind: str | None) -> None:
    one, two = new_lab("one", cgroup=kind), new_lab("two", cgroup=kind)
    one.running("sleep", "600")
    two.running("sleep", "600")
    assert not one.ranks.pids("1.1.0") & two.ranks.pids("1.1.0")
    assert one.ranks.strangers() == two.ranks.strangers() == []
    one.ranks.kill("1.1.0")
    one.end("1.1.0")
    assert two.ranks.pids("1.1.0") == {two.program("1.1.0")[0]}
    two.ranks.kill("1.1.0")
    assert two.end("1.1.0").exit == ExitInfo(cause="stopped", signal=signal.SIGKILL)


def test_it_names_the_processes_of_each_rank(lab: Lab) -> None:
    lab.running("sh", "-c", "sleep 600 & echo ready; wait")
    lab.running("sleep", "600", rank="2.1.0")
    lab.said("1.1.0", "ready")
    owners = lab.ranks.owners()
    assert sorted(owners.values()) == ["1.1.0", "1.1.0", "2.1.0"]
    assert owners[lab.program("2.1.0")[0]] == "2.1.0"
    assert not lab.ranks.tree_gone("2.1.0")
    assert lab.ranks.pids("7.1.0") == frozenset()


def test_a_rank_without_a_row_is_reported_and_killed_only_on_demand(lab: Lab) -> None:
    agent = lab.agent_start("sh", "-c", "setsid sleep 601 & sleep 602", rank="5.1.0")
    lab.agent_kill(agent)
    program = lab.program("5.1.0")
    assert lab.ranks.strangers() == ["5.1.0"]
    assert procs.is_alive(*program)
    lab.ranks.stranger_kill("5.1.0")
    wait_until(lambda: lab.ranks.strangers() == [], "the stranger's end")
    assert not procs.is_alive(*program)


def test_forget_leaves_nothing(lab: Lab) -> None:
    (lab.data / "ranks" / ".gone-7.1.0" / "artifacts").mkdir(parents=True)  # begun by an agent that was killed
    rank = lab.start("sh", "-c", "mkdir -p $NEBULA_ARTIFACTS/a/b; ln -s / $NEBULA_ARTIFACTS/a/root; touch $NEBULA_ARTIFACTS/a/b/c")
    lab.end(rank)
    lab.ranks.forget(rank)
    lab.ranks.forget(rank)
    assert [p.name for p in (lab.data / "ranks").iterdir()] == [".notify"]
    assert lab.ranks.layout.names() == []
    assert Path("/etc/passwd").exists()


def test_a_rank_is_started_only_once(plain: Lab) -> None:
    rank = plain.start("sh", "-c", "echo once")
    plain.start("sh", "-c", "echo twice")
    plain.end(rank)
    plain.start("sh", "-c", "echo thrice")
    plain.poll()
    assert plain.text(rank) == "once\n"
    assert [s.state for s in plain.history if s.state != "RUNNING"] == ["EXITED"]


def test_a_directory_that_is_already_there_is_not_used(plain: Lab) -> None:
    (plain.data / "ranks" / "1.1.0").mkdir(parents=True)
    state = plain.end(plain.start("true"))
    assert (state.state, state.launch_error) == ("LAUNCH_FAILED", "internal")


@pytest.mark.parametrize("name", ["../x", "1.1", "a.b.c", "", "1.1.0/.."])
def test_a_name_that_is_no_rank_never_becomes_a_path(plain: Lab, name: str) -> None:
    with pytest.raises(ProtocolError):
        plain.ranks.start(name, RankSpec(job=1, index=0, argv=("true",)), {})


def test_its_descriptor_rests_while_nothing_happens(plain: Lab) -> None:
    rank = plain.running("sleep", "600")
    # The last word of the start may still be on its way.
    wait_until(lambda: plain.poll() or not select.select([plain.ranks.fileno()], [], [], 0.3)[0], "a descriptor at rest")
    plain.ranks.kill(rank)
    assert select.select([plain.ranks.fileno()], [], [], PATIENCE_S)[0] != []
