"""Unix accounts that the control plane made up for people (NEBULA_UNIX_RANGE): made on this node when the first job needs one.

Only where agent.toml says ``make_accounts = "yes"``, only as root, never with a number below ``launch.MIN_UID``, and never over an account
that is there already: one of another number is somebody else.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import shutil
import subprocess

from agent.jobenv import SpecError
from agent.launch import MIN_UID
from agent.protocol import RankSpec

log = logging.getLogger("nebula-agent")

NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
TIMEOUT_S = 30.0


class AccountError(ValueError):
    """The account can't be made; the text says why."""


def account_ensure(spec: RankSpec, *, may_make: bool) -> None:
    """See to it that a made-up account of the spec is there and is the one that is meant. Raises SpecError."""
    name, uid = spec.unix_user, spec.unix_uid
    if name is None or uid is None:
        return
    if not NAME.fullmatch(name) or uid < MIN_UID:
        raise SpecError(f"{name[:40]!r} with uid {uid} can't be an account of a person; those have uid {MIN_UID} and above.", "user")
    if _is_there(name, uid):
        return
    if not may_make:
        raise SpecError(
            f'There is no Unix user {name!r} on this node. Make it with uid {uid}, or set make_accounts = "yes" in agent.toml.', "user"
        )
    _make(name, uid)
    if not _is_there(name, uid):
        raise SpecError(f"The Unix user {name!r} was made, but is not found on this node.", "user")
    _home_close(pwd.getpwnam(name).pw_dir, uid)


def _is_there(name: str, uid: int) -> bool:
    """Raises SpecError where the name or the number is somebody else's."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        found = None
    if found is not None and found.pw_uid != uid:
        text = f"The Unix user {name!r} has uid {found.pw_uid} on this node, and uid {uid} is meant: it is somebody else."
        raise SpecError(f"{text} Change NEBULA_UNIX_PREFIX or NEBULA_UNIX_RANGE.", "user")
    try:
        other = pwd.getpwuid(uid)
    except KeyError:
        return False
    if other.pw_name != name:
        raise SpecError(f"The uid {uid} that {name!r} should have is {other.pw_name!r}'s on this node. Change NEBULA_UNIX_RANGE.", "user")
    return found is not None


def _home_close(home: str, uid: int) -> None:
    """To everybody else. A HOME_MODE in /etc/login.defs goes before the UMASK that useradd was given, and a folder may have been there."""
    try:
        folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        log.warning("The home %s of the new account can't be closed to others: %s.", home, error.strerror)
        return
    try:
        if os.fstat(folder).st_uid == uid:
            os.fchmod(folder, 0o700)
        else:
            log.warning("The home %s of the new account is another's; it stays as it is.", home)
    except OSError as error:
        log.warning("The home %s of the new account can't be closed to others: %s.", home, error.strerror)
    finally:
        os.close(folder)


def _make(name: str, uid: int) -> None:
    try:
        account_add(name, "--uid", str(uid), "--comment", "NebulaGrid", "--shell", "/bin/bash")
    except AccountError as error:
        raise SpecError(f"The Unix user {name!r} can't be made on this node: {error}.", "user") from error
    log.info("The Unix user %s (uid %d) was made.", name, uid)


def account_add(name: str, *options: str) -> None:
    """Run useradd for a person's or the jobs' account, with a group and a home of its own that are closed to others. No password is
    set, so nobody signs in as it. Raises AccountError."""
    program = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        raise AccountError("there is no useradd")
    argv = (program, *options, "--user-group", "--create-home", "-K", "UMASK=0077", name)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AccountError(str(error)) from error
    if done.returncode:
        raise AccountError(f"{done.stderr.strip()[:200]} (status {done.returncode})")
