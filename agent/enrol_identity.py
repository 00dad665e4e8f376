"""Who jobs run as on a node whose agent is root: what enrolment writes into agent.toml where nobody has said it yet.

A root agent launches no job as root, so without this a freshly joined node would take no work. The default is one account for all jobs;
``mapped``, each job as its owner's own account, is a decision of whoever runs the lab (docs/install.md).
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from typing import Any

from agent.accounts import AccountError, account_add
from agent.launch import MIN_UID

JOB_ACCOUNT = "nebulagrid-jobs"
NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_SHELLS = ("/usr/sbin/nologin", "/sbin/nologin", "/bin/false")


class IdentityError(ValueError):
    """The account that jobs should run as can't be used."""


def identity_values(
    values: Mapping[str, Any], *, identity: str | None, job_account: str | None, mode: str | None, uid: int | None = None
) -> dict[str, str]:
    """The keys to add to the configuration ``values``; makes the account of all jobs where it is missing. Raises IdentityError."""
    is_root = (os.geteuid() if uid is None else uid) == 0
    if identity is None and (not is_root or mode == "metrics" or "identity" in values):
        return {}
    chosen = identity or "shared"
    if chosen != "same" and not is_root:
        raise IdentityError(f"--identity {chosen} needs an agent that runs as root; jobs of this one run as its own account.")
    if chosen == "same" and is_root:
        raise IdentityError("--identity same would run jobs as root, which no agent does: choose shared or mapped.")
    if chosen != "shared":
        return {"identity": chosen}
    name = job_account or JOB_ACCOUNT
    account_make(name)
    return {"identity": "shared", "job_account": name}


def account_make(name: str) -> None:
    """See to it that the account is there and is one that jobs may run as. Raises IdentityError."""
    if not NAME.fullmatch(name):
        raise IdentityError(f"--job-account {name[:40]!r} is no name of an account.")
    found = _account(name)
    if found is None:
        shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[0])
        try:
            account_add(name, "--home-dir", f"/var/lib/{name}", "--shell", shell)
        except AccountError as error:
            text = f"The account {name} for jobs can't be made: {error}."
            raise IdentityError(f"{text} Make it yourself, with uid {MIN_UID} or above, or name another one.") from error
        found = pwd.getpwnam(name)
    if found.pw_uid < MIN_UID:
        raise IdentityError(
            f"The account {name} has uid {found.pw_uid}; jobs run as accounts with uid {MIN_UID} and above. Name another one."
        )


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
