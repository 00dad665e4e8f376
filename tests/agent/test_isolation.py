"""Who jobs run as and what they can reach: the rules."""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import Config
from agent.http import endpoint_parse
from agent.isolation import (
    MASK_VARIABLE,
    NOTHING,
    Accounts,
    Isolation,
    Places,
    accounts_judge,
    isolation_find,
    reach_judge,
)
from agent.isolation_words import isolation_lines
from agent.protocol import REACH, IsolationInfo
from agent.sandbox_probe import Finding


def judge(identity: str, agent_uid: int, job_account: str | None = None, job_uid: int | None = None) -> IsolationInfo:
    return accounts_judge(Accounts(identity=identity, agent_uid=agent_uid, agent_name="agent", job_account=job_account, job_uid=job_uid))


def test_the_account_of_jobs_is_the_agents_own_one_for_all_or_each_persons() -> None:
    assert (judge("same", 1000).uid, judge("same", 1000).account) == (1000, "agent")
    assert (judge("shared", 0, "nebula-job", 1500).uid, judge("shared", 0, "nebula-job", 1500).account) == (1500, "nebula-job")
    assert (judge("mapped", 0).uid, judge("mapped", 0).account) == (0, None)
    assert all(found.ready for found in (judge("same", 1000), judge("shared", 0, "nebula-job", 1500), judge("mapped", 0)))


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (judge("same", 0), "root_same"),
        (judge("mapped", 1000), "not_root"),
        (judge("shared", 1000, "nebula-job", 1500), "not_root"),
        (judge("shared", 0), "job_account_missing"),
        (judge("shared", 0, "nobody-here"), "job_account_unknown"),
        (judge("shared", 0, "daemon", 1), "job_account_system"),
        (judge("shared", 0, "root", 0), "job_account_system"),
    ],
)
def test_where_no_job_can_be_launched_the_reason_is_told_and_nobody_counts_as_isolated(found: IsolationInfo, problem: str) -> None:
    assert (found.ready, found.problem, found.isolates_people) == (False, problem, False)
    assert found.open == REACH, "with nothing tried, nothing counts as closed"
    ((level, text),) = isolation_lines(Isolation(info=found, finding=NOTHING))
    assert level == logging.ERROR
    assert text.startswith("No job can be launched here.")


def reach(identity: str, *doors: str, **places: tuple[str, ...]) -> tuple[str, ...]:
    return reach_judge(identity, Finding(plan={"kind": "mounts"}, doors=frozenset(doors)), Places(**places))


def test_what_was_found_open_is_what_is_reported() -> None:
    assert reach("same") == ("home",)
    assert reach("mapped") == ()
    assert reach("same", "signals") == ("signals", "home")
    assert reach("same", "hidden_stat") == reach("same", "jobs_stat") == ("paths", "home")
    assert reach("shared", "jobs_read", "jobs_stat", "processes", "signals") == (
        "other_jobs_files",
        "processes",
        "signals",
        "paths",
        "home",
    )
    assert reach("same", "hidden_read", "hidden_stat") == ("control_files", "agent_files", "paths", "home")


def test_a_folder_that_can_not_be_hidden_counts_as_open() -> None:
    assert reach("same", control_exposed=("/srv/grid",)) == ("control_files", "home")
    assert reach("same", agent_exposed=("/home/ann",)) == ("agent_files", "home")


@pytest.mark.parametrize("word", ["control_files", "agent_files", "other_jobs_files", "processes", "a_word_of_tomorrow"])
def test_one_open_door_between_people_is_enough_and_so_is_one_that_is_not_known(word: str) -> None:
    assert not IsolationInfo(identity="same", uid=1000, open=(word,)).isolates_people


def test_signals_paths_and_the_home_are_told_and_do_not_stand_between_people() -> None:
    assert IsolationInfo(identity="same", uid=1000, open=("signals", "paths", "home")).isolates_people


@pytest.fixture
def config(tmp_path: Path) -> Config:
    data = tmp_path / "grid" / "agent"
    data.mkdir(parents=True)
    return Config(
        path=data / "agent.toml",
        endpoint=endpoint_parse("http://127.0.0.1:1"),
        node_id=1,
        name="n",
        credential_file=data / "agent.credential",
        data_dir=data,
        agent_id="n",
        hidden_dirs=(tmp_path / "grid",),
    )


def test_a_folder_that_is_not_there_or_holds_the_home_is_told_and_not_taken_for_hidden(config: Config, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path / "people" / "ann")}
    (tmp_path / "people" / "ann").mkdir(parents=True)
    odd = replace(config, hidden_dirs=(tmp_path / "people", tmp_path / "nowhere", tmp_path / "grid"))
    found = isolation_find(odd, env)
    assert found.places.control_exposed == (str(tmp_path / "nowhere"), str(tmp_path / "people"))
    assert str(tmp_path / "grid") in found.places.hidden
    if found.info.ready:
        assert "control_files" in found.info.open
        assert "agent_files" not in found.info.open


def test_a_data_folder_in_a_place_for_all_is_hidden_and_a_folder_of_sockets_is_no_reason_to_close_that_place(config: Config) -> None:
    """/tmp/grid and /tmp/nebulagrid-1000-…: with rights on files alone, the first must be closed and the second can't."""
    data, sockets = (Path(tempfile.mkdtemp(prefix="isolation-")) for _ in range(2))
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.bind(str(sockets / "redis.sock"))
            (data / "key").touch(mode=0o600)
            odd = replace(config, hidden_dirs=(data, sockets))
            found = isolation_find(odd, {"HOME": "/nonexistent", MASK_VARIABLE: "mounts"})
            assert str(data) in found.places.hidden
            assert str(sockets) in found.places.sessions
            if found.info.sandbox == "landlock":
                assert str(data) in found.finding.plan["hidden"]
                assert str(sockets) not in found.finding.plan["hidden"]
                assert "paths" in found.info.open
    finally:
        for folder in (data, sockets):
            shutil.rmtree(folder)


@pytest.mark.parametrize("mask", ["mount", "landlock=9", "mounts;userns"])
def test_a_mask_with_a_slip_of_the_pen_is_refused(config: Config, mask: str) -> None:
    with pytest.raises(ValueError, match="no word of a test mask"):
        isolation_find(config, {"HOME": "/nonexistent", MASK_VARIABLE: mask})


def test_a_mask_only_takes_away_and_is_told(config: Config) -> None:
    env = {"HOME": "/nonexistent"}
    whole, masked = (isolation_find(config, {**env, MASK_VARIABLE: mask}) for mask in ("", "mounts,landlock"))
    assert masked.masked == ("landlock", "mounts")
    assert masked.info.sandbox == "none"
    assert set(whole.info.open) <= set(masked.info.open)
    if masked.info.identity == "same":
        assert masked.info.open == REACH
    assert any(MASK_VARIABLE in text for _, text in isolation_lines(masked)) or not masked.info.ready
