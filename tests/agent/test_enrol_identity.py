"""Who jobs run as on a node that has just joined."""

from __future__ import annotations

import pwd
from typing import Any

import pytest

from agent import enrol_identity
from agent.enrol_identity import IdentityError, account_make, identity_values

NOBODY = pwd.getpwnam("nobody").pw_name  # there on every machine, with a uid of 1000 or more


def chosen(**changes: Any) -> dict[str, str]:
    return identity_values(**{"values": {}, "identity": None, "job_account": None, "mode": None, "uid": 0, **changes})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(enrol_identity, "account_make", names.append)
    return names


def test_roots_agent_runs_jobs_as_one_account_unless_told_otherwise(made: list[str]) -> None:
    assert chosen() == {"identity": "shared", "job_account": "nebulagrid-jobs"}
    assert chosen(job_account="gpu-jobs") == {"identity": "shared", "job_account": "gpu-jobs"}
    assert made == ["nebulagrid-jobs", "gpu-jobs"]
    assert chosen(identity="mapped") == {"identity": "mapped"}


@pytest.mark.parametrize("changes", [{"uid": 1000}, {"mode": "metrics"}, {"values": {"identity": "mapped"}}])
def test_nothing_is_said_where_nothing_runs_as_root_or_somebody_has_said_it(made: list[str], changes: dict[str, Any]) -> None:
    assert (chosen(**changes), made) == ({}, [])


@pytest.mark.parametrize(("identity", "uid"), [("same", 0), ("shared", 1000), ("mapped", 1000)])
def test_what_could_not_work_is_refused_in_a_sentence(made: list[str], identity: str, uid: int) -> None:
    with pytest.raises(IdentityError, match=f"--identity {identity}"):
        chosen(identity=identity, uid=uid)
    assert made == []


@pytest.mark.parametrize("name", ["root", "daemon"])
def test_accounts_of_the_system_are_nobodys_to_run_jobs_as(name: str) -> None:
    with pytest.raises(IdentityError, match="with uid 1000 and above"):
        account_make(name)


def test_an_account_that_is_there_is_taken_as_it_is_and_a_strange_name_never() -> None:
    account_make(NOBODY)
    with pytest.raises(IdentityError, match="is no name of an account"):
        account_make("-o /etc")
