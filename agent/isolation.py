"""Who jobs run as on this node and what they can reach here: facts in, the report of `protocol.IsolationInfo` out.

`accounts_judge` is pure and holds the rules; `isolation_find` asks this machine for the facts.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from agent.launch import MIN_UID
from agent.protocol import REACH, IsolationInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """``agent_uid``: who the agent runs as. ``job_uid``: the uid of ``job_account``, None = there is no such account."""

    identity: str
    agent_uid: int
    agent_name: str | None
    job_account: str | None = None
    job_uid: int | None = None


def accounts_judge(accounts: Accounts, *, limits: Mapping[str, bool]) -> IsolationInfo:
    """What jobs can reach by the accounts alone, and why none can be launched if that is so."""
    is_root = accounts.agent_uid == 0
    problem: str | None = None
    reach: tuple[str, ...] = REACH
    uid, account = accounts.agent_uid, accounts.agent_name
    if accounts.identity == "same":
        problem = "root_same" if is_root else None
    elif not is_root:
        problem = "not_root"
    elif accounts.identity == "shared":
        # Our own files are root's. What is left open is what jobs of one account can do to each other.
        reach = ("other_jobs_files", "processes", "signals", "home")
        account = accounts.job_account
        uid = accounts.job_uid if accounts.job_uid is not None else uid
        if account is None:
            problem = "job_account_missing"
        elif accounts.job_uid is None:
            problem = "job_account_unknown"
        elif accounts.job_uid < MIN_UID:
            problem = "job_account_system"
    else:
        reach, account = (), None
    return IsolationInfo(
        identity=accounts.identity, uid=uid, account=account, open=reach, limits=dict(limits), ready=problem is None, problem=problem
    )


def isolation_find(identity: str, job_account: str | None, *, limits: Mapping[str, bool]) -> IsolationInfo:
    """The report of this process's node. Asks the system's list of accounts."""
    uid = os.geteuid()
    return accounts_judge(
        Accounts(
            identity=identity,
            agent_uid=uid,
            agent_name=_name_of(uid),
            job_account=job_account,
            job_uid=_uid_of(job_account),
        ),
        limits=limits,
    )


def _name_of(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _uid_of(name: str | None) -> int | None:
    try:
        return None if name is None else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None
