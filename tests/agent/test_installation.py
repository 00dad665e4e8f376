"""Agents of several control planes on one machine: what they share is named so that they never meet."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import cgroups, secretdir
from agent.config import Config, config_load
from agent.installation import FILE, name_make, name_of
from agent.main import main, shared_name
from agent.ranks import RankProcesses
from agent.testing import FakeControlPlane
from tests.agent.rank_lab import Lab


def enrolled(folder: Path, *, control_plane: str | None, node_id: int = 2) -> Config:
    """The configuration of an agent that a control plane of this name has just enrolled."""
    folder.mkdir()
    token = folder / "token"
    token.write_text("one-use")
    with FakeControlPlane(node_id=node_id) as plane:
        plane.installation = control_plane
        plane.tokens["one-use"] = "node"
        argv = [
            "--endpoint",
            plane.url,
            "--token-file",
            str(token),
            "--config",
            str(folder / "agent.toml"),
            "--data-dir",
            str(folder / "d"),
        ]
        assert main(["enroll", *argv]) == 0
    return config_load(folder / "agent.toml", {})


@pytest.mark.parametrize(
    "control_planes", [("aaaaaaaaaaaa", "bbbbbbbbbbbb"), ("aaaaaaaaaaaa", "aaaaaaaaaaaa"), (None, None)], ids=["two", "a-copy", "older"]
)
def test_the_same_node_number_of_two_control_planes_on_one_machine_does_not_meet(
    control_planes: tuple[str | None, str | None], kind: str | None, new_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    labs = []
    for number, control_plane in enumerate(control_planes):
        config = enrolled(tmp_path / f"etc{number}", control_plane=control_plane)
        labs.append(new_lab(f"data{number}", cgroup=kind))
        labs[-1].agent_id = shared_name(config)
    one, two = labs
    assert one.agent_id != two.agent_id
    # Both have a node 2, both run the first lap of their job 1.
    first, second = one.running("sleep", "600"), two.running("sleep", "600")
    assert (one.ranks.strangers(), two.ranks.strangers()) == ([], [])
    assert not one.ranks.pids(first) & two.ranks.pids(second)
    one.ranks.kill(first)
    one.end(first)
    one.ranks.forget(first)
    assert two.ranks.pids(second) == {two.program(second)[0]}
    two.ranks.kill(second)
    two.end(second)


def test_a_group_that_is_there_already_is_somebody_elses_and_nothing_in_it_is_killed(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab()
    if lab.ranks.layout.kind == "none":
        pytest.skip("no cgroup is writable")
    theirs = cgroups.group_open(lab.ranks.layout.plan("1.1.0"))
    theirs.create()
    other = subprocess.Popen(["sleep", "600"], preexec_fn=theirs.join)
    try:
        state = lab.end(lab.start("sleep", "1"))
        assert (state.state, state.launch_error) == ("LAUNCH_FAILED", "cgroup")
        assert other.poll() is None
        assert theirs.pids() == {other.pid}
    finally:
        other.kill()
        other.wait()


def test_what_an_older_agent_started_under_its_old_name_is_adopted_until_it_ends(lab: Lab) -> None:
    agent = lab.agent_start("sleep", "600")
    lab.agent_kill(agent)
    old = cgroups.layout_find(lab.agent_id, force=lab.settings["cgroup"])
    upgraded = RankProcesses(lab.data, f"{name_of(lab.data)}-{lab.agent_id}", **lab.settings)
    lab._ranks = upgraded
    assert lab.ranks.strangers() == ["1.1.0"]  # found by its directory
    assert lab.recover().state == "RUNNING"
    assert lab.ranks.pids("1.1.0") == {lab.program("1.1.0")[0]}
    lab.ranks.stop("1.1.0", grace_s=10)
    exit = lab.end("1.1.0").exit
    assert exit is not None
    assert exit.cause == "stopped"
    lab.ranks.forget("1.1.0")
    assert old.names() == []
    old.remove()


def test_a_name_is_kept_where_the_same_control_plane_enrols_again() -> None:
    first = name_make("aaaaaaaaaaaa")
    assert first.startswith("aaaaaaaaaaaa-")
    assert name_make("aaaaaaaaaaaa", first) == first
    assert name_make("bbbbbbbbbbbb", first).startswith("bbbbbbbbbbbb-")
    assert name_make(None) != name_make(None)


def test_an_agent_without_one_makes_a_name_that_lasts(tmp_path: Path) -> None:
    first = name_of(tmp_path)
    assert name_of(tmp_path) == first
    (tmp_path / FILE).write_text("../../etc\n")
    assert name_of(tmp_path) != "../../etc"


def test_an_agent_starts_though_its_name_can_not_be_kept(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()  # in the place of the file
    assert name_of(tmp_path) != name_of(tmp_path)


def test_secrets_of_ranks_with_the_same_number_lie_apart(tmp_path: Path) -> None:
    one, two = (secretdir.prefix_of(f"{name_make(half * 12)}-node2") for half in "ab")
    theirs = Path(secretdir.write(str(tmp_path), two, "1.1.0", (), {}))
    try:
        assert secretdir.sweep(str(tmp_path), one, living=()) == 0
        assert theirs.is_dir()
    finally:
        secretdir.remove(str(theirs))
