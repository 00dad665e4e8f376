"""The two accounts of an installation that root starts: one of the system for the control plane, one for all jobs.

Both are made where they are missing. Neither can sign in, and neither is ever uid 0.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nebulagrid.rooted.errors import RootedError

#: Settings that name other accounts, and what the accounts are called without them.
CONTROL_VARIABLE, JOB_VARIABLE = "NEBULA_ACCOUNT", "NEBULA_JOB_ACCOUNT"
CONTROL_NAME, JOB_NAME = "nebulagrid", "nebulagrid-jobs"
#: Jobs never run as one of the machine's own accounts.
JOB_UID_LEAST = 1000
NOLOGIN = ("/usr/sbin/nologin", "/sbin/nologin", "/bin/false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Account:
        return cls(**{**value, "groups": tuple(value["groups"])})

    def become(self) -> None:
        """For good: all three ids, and no group but its own. Raises OSError."""
        os.setgroups(list(self.groups))
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)

    def environ(self, base: Mapping[str, str], *, home: str) -> dict[str, str]:
        """``base`` without what is the caller's own."""
        kept = {k: v for k, v in base.items() if not k.startswith(("XDG_", "SUDO_", "SSH_", "DBUS_")) and k not in ("MAIL", "OLDPWD")}
        return {**kept, "HOME": home, "USER": self.name, "LOGNAME": self.name}


def account_read(name: str) -> Account | None:
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    return Account(name=found.pw_name, uid=found.pw_uid, gid=found.pw_gid, groups=tuple(groups), home=found.pw_dir)


def account_of(uid: int) -> Account | None:
    try:
        return account_read(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return None


def control_account(env: Mapping[str, str] = os.environ) -> Account:
    """The account of web, worker, beat and Redis; made if need be. Raises RootedError."""
    name = env.get(CONTROL_VARIABLE) or CONTROL_NAME
    account = account_read(name) or _made(name, control_commands(name), CONTROL_VARIABLE)
    if account.uid == 0:
        raise RootedError(f"{CONTROL_VARIABLE} names {name}, which is root: the control plane never runs as root.")
    return account


def job_account(env: Mapping[str, str] = os.environ, *, control: Account) -> Account:
    """The account of all jobs of this machine; made if need be. Raises RootedError."""
    name = env.get(JOB_VARIABLE) or JOB_NAME
    account = account_read(name) or _made(name, job_commands(name), JOB_VARIABLE)
    if account.uid < JOB_UID_LEAST:
        raise RootedError(f"{JOB_VARIABLE} names {name}, an account of the system (uid {account.uid}): jobs need a uid of 1000 or more.")
    if account.uid == control.uid:
        raise RootedError(f"{CONTROL_VARIABLE} and {JOB_VARIABLE} both name {name}: jobs could read the control plane's files.")
    return account


# --- making them ----------------------------------------------------------------------------------------------------


def control_commands(name: str, find: Callable[[str], str | None] = shutil.which) -> list[list[str]]:
    """The commands that make a system account; none where this system has no program for it."""
    shell = _shell()
    if program := find("useradd"):
        return [[program, "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent", "--shell", shell, name]]
    if (program := find("adduser")) and (group := find("addgroup")):  # busybox
        return [[group, "-S", name], [program, "-S", "-D", "-H", "-h", "/nonexistent", "-s", shell, "-G", name, name]]
    return []


def job_commands(name: str, find: Callable[[str], str | None] = shutil.which) -> list[list[str]]:
    shell, home = _shell(), f"/var/lib/{name}"
    if program := find("useradd"):
        return [[program, "--user-group", "--create-home", "--home-dir", home, "--shell", shell, name]]
    if program := find("adduser"):
        return [[program, "-D", "-h", home, "-s", shell, name]]
    return []


def _shell() -> str:
    return next((path for path in NOLOGIN if os.access(path, os.X_OK)), NOLOGIN[0])


def _made(name: str, commands: list[list[str]], variable: str) -> Account:
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", name):
        raise RootedError(f"{variable} is {name[:60]!r}, which is no name of an account.")
    if not commands:
        raise RootedError(
            f"There is no account {name}, and neither useradd nor adduser to make it. Make it yourself, name another one with {variable}, "
            "or start as an ordinary user: then everything runs as that one."
        )
    for command in commands:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode and account_read(name) is None and not _is_group_there(command, name):
            why = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"status {done.returncode}"]
            raise RootedError(
                f"The account {name} can't be made: {why[0]} ({Path(command[0]).name}). Make it yourself, or name another with {variable}."
            )
    account = account_read(name)
    if account is None:
        raise RootedError(f"{Path(commands[-1][0]).name} made no account {name}. Make it yourself, or name another one with {variable}.")
    if variable == JOB_VARIABLE:
        with contextlib.suppress(OSError):
            Path(account.home).chmod(0o700)
    return account


def _is_group_there(command: list[str], name: str) -> bool:
    if Path(command[0]).name != "addgroup":
        return False
    with contextlib.suppress(KeyError):
        return bool(grp.getgrnam(name))
    return False


# --- becoming them --------------------------------------------------------------------------------------------------


def as_account(account: Account, work: Callable[[], bytes]) -> bytes:
    """What ``work`` answers in a process of that account.

    Raises RootedError where root can't become it, and OSError for what ``work`` raised."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b"!The process ended."
        try:
            os.close(read)
            try:
                account.become()
            except OSError as error:
                answer = b"?" + (error.strerror or "").encode()
            else:
                answer = b"+" + work()
        except BaseException as error:  # must not unwind into the caller's code
            answer = b"!" + (getattr(error, "strerror", None) or str(error)).encode()
        finally:
            with contextlib.suppress(OSError):
                view = memoryview(answer)
                while view:
                    view = view[os.write(write, view) :]
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    if answer[:1] == b"?":
        raise RootedError(
            f"Root can't become the account {account.name} here ({answer[1:].decode()}), and nothing of the control plane runs as root: "
            "start it as an ordinary user, or in a container that may change accounts (CAP_SETUID, CAP_SETGID, and more than one user)."
        )
    if answer[:1] != b"+":
        raise OSError(0, answer[1:].decode(errors="replace"))
    return answer[1:]


def unreadable(account: Account, paths: list[Path]) -> list[Path]:
    """Those of ``paths`` that the account can't read, or pass through where it is a folder."""

    def look() -> bytes:
        return bytes(os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)) for path in paths)  # noqa: PTH112 - False where it may not look

    return [path for path, can in zip(paths, as_account(account, look), strict=True) if not can]
