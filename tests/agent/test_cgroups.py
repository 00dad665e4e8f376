"""Process groups by themselves: what this machine allows, and that a group holds, counts and kills."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import cgroups, procs
from tests.agent.rank_lab import ROOT, Lab
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture(params=["v2", "v1"])
def layout(request: pytest.FixtureRequest) -> Iterator[cgroups.Layout]:
    try:
        found = cgroups.layout_find(f"test-{uuid.uuid4().hex[:12]}", force=request.param)
    except OSError as error:
        pytest.skip(str(error))
    yield found
    for name in found.names():
        group = cgroups.group_open(found.plan(name))
        group.kill()
        wait_until(lambda g=group: not g.populated(), "an empty group")
        group.remove()
    found.remove()


def child(group: cgroups.CgroupGroup, code: str = "import time; time.sleep(600)") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", code], preexec_fn=group.join, stdout=subprocess.PIPE, text=True)


def group_of(layout: cgroups.Layout, rank: str = "1.1.0") -> cgroups.CgroupGroup:
    group = cgroups.group_open(layout.plan(rank, pids_max=1000))
    assert isinstance(group, cgroups.CgroupGroup)
    return group


def test_a_group_is_made_once(layout: cgroups.Layout) -> None:
    group_of(layout).create()
    with pytest.raises(FileExistsError):
        group_of(layout).create()
    assert layout.names() == ["1.1.0"]
    assert not group_of(layout).populated()


def test_a_failed_creation_leaves_nothing(layout: cgroups.Layout) -> None:
    if not layout.extra:
        pytest.skip("one hierarchy only")
    path = Path(layout.plan("1.1.0")["extra"][sorted(layout.extra)[-1]])
    path.mkdir(parents=True)
    try:
        with pytest.raises(FileExistsError):
            group_of(layout).create()
        assert layout.names() == []
    finally:
        path.rmdir()


def test_a_group_kills_all_that_is_in_it_nested_groups_too(layout: cgroups.Layout) -> None:
    group = group_of(layout)
    group.create()
    main = child(group)
    nested = Path(layout.plan("1.1.0")["main"], "inside")
    nested.mkdir()
    inner = subprocess.Popen(["sleep", "600"], preexec_fn=lambda: cgroups._write(f"{nested}/cgroup.procs", "0"))
    assert group.pids() == {main.pid, inner.pid}
    assert group.populated()
    assert not group.remove()
    group.kill()
    assert (main.wait(PATIENCE_S), inner.wait(PATIENCE_S)) == (-9, -9)
    assert main.stdout is not None
    main.stdout.close()
    assert not group.populated()
    assert group.remove()
    assert layout.names() == []


def test_it_kills_what_forks_faster_than_one_can_look(layout: cgroups.Layout) -> None:
    group = cgroups.group_open(layout.plan("1.1.0", pids_max=60))
    assert isinstance(group, cgroups.CgroupGroup)
    group.create()
    code = """
import os, time
print('ready', flush=True)
while True:
    try:
        if os.fork() == 0:
            time.sleep(0.05)
    except OSError:
        time.sleep(0.01)
"""
    bomb = child(group, code)
    assert bomb.stdout is not None
    bomb.stdout.readline()
    wait_until(lambda: len(group.pids()) > 20, "a crowd")

    def killed() -> bool:
        group.kill()
        return not group.populated()

    wait_until(killed, "the end of the bomb")
    bomb.wait()
    bomb.stdout.close()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x" * 121, "ä"])
def test_an_agent_id_is_a_plain_name(name: str) -> None:
    with pytest.raises(ValueError, match="agent id"):
        cgroups.layout_find(name, force="none")


def test_a_way_that_does_not_work_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_own_places", dict)
    with pytest.raises(OSError, match="no such group can be made"):
        cgroups.layout_find("x", force="v2")
    layout = cgroups.layout_find("x")
    assert (layout.kind, layout.names()) == ("none", [])
    assert "mark in their environment" in layout.note


def test_v1_runs_and_stops_a_rank(new_lab: Callable[..., Lab]) -> None:
    lab: Lab = new_lab(cgroup="v1")
    try:
        rank = lab.running("sh", "-c", "setsid sleep 601 & trap '' TERM; echo ready; sleep 602")
    except OSError as error:
        lab.settings["cgroup"] = None
        pytest.skip(str(error))
    lab.said(rank, "ready")
    lab.ranks.stop(rank, grace_s=0.4)
    exit = lab.end(rank).exit
    assert exit is not None
    assert (exit.cause, exit.signal) == ("stopped", 9)
    assert lab.ranks.tree_gone(rank)


def test_the_shims_modules_pull_in_no_package_of_others() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import agent.zygote; print(*sorted(m for m in sys.modules if m.startswith('agent')))"
    )
    found = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(ROOT)], capture_output=True, text=True, check=True).stdout.split()
    own = (
        "cgroups", "jobdir", "landlock", "launch", "outfile", "placed", "procs", "rankdir", "sandbox", "secretdir", "shim", "stopping",
        "zygote",
    )  # fmt: skip
    assert found == ["agent", *(f"agent.{module}" for module in own)]


def test_a_pid_with_another_start_time_is_another_process() -> None:
    stat = procs.process_stat(os.getpid())
    assert stat is not None
    assert procs.is_alive(stat.pid, stat.start)
    assert not procs.is_alive(stat.pid, stat.start + 1)
    assert not procs.signal_send(stat.pid, stat.start + 1, 9)
    assert procs.pidfd_open(stat.pid, stat.start - 1) is None
