"""Who jobs run as and what they can reach: the rules."""

from __future__ import annotations

import os

import pytest

from agent.isolation import Accounts, accounts_judge, isolation_find
from agent.protocol import REACH, IsolationInfo


def judge(identity: str, agent_uid: int, job_account: str | None = None, job_uid: int | None = None) -> IsolationInfo:
    accounts = Accounts(identity=identity, agent_uid=agent_uid, agent_name="agent", job_account=job_account, job_uid=job_uid)
    return accounts_judge(accounts, limits={"pids": True})


def test_jobs_of_the_agents_own_account_can_reach_everything() -> None:
    found = judge("same", 1000)
    assert (found.ready, found.uid, found.account, found.open) == (True, 1000, "agent", REACH)
    assert not found.isolates_people


def test_an_account_for_jobs_closes_our_files_and_leaves_jobs_open_to_each_other() -> None:
    found = judge("shared", 0, "nebula-job", 1500)
    assert (found.ready, found.uid, found.account) == (True, 1500, "nebula-job")
    assert found.open == ("other_jobs_files", "processes", "signals", "home")
    assert not found.isolates_people


def test_an_account_for_each_person_closes_everything() -> None:
    found = judge("mapped", 0)
    assert (found.ready, found.account, found.open) == (True, None, ())
    assert found.isolates_people


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


@pytest.mark.parametrize("word", ["control_files", "agent_files", "other_jobs_files", "processes", "a_word_of_tomorrow"])
def test_one_open_door_between_people_is_enough_and_so_is_one_that_is_not_known(word: str) -> None:
    assert not IsolationInfo(identity="same", uid=1000, open=(word,)).isolates_people


def test_signals_paths_and_the_home_are_told_and_do_not_stand_between_people() -> None:
    assert IsolationInfo(identity="same", uid=1000, open=("signals", "paths", "home")).isolates_people


def test_this_process_is_asked() -> None:
    found = isolation_find("same", None, limits={})
    assert found.uid == os.geteuid()
    assert found.problem == ("root_same" if os.geteuid() == 0 else None)
