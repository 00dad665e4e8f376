"""Who jobs run as on this node and what they can reach here: facts in, the report of `protocol.IsolationInfo` out.

`accounts_judge` and `reach_judge` are pure and hold the rules; `isolation_find` asks this machine for the facts, and tries the sandbox.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent import jobdir, secretdir
from agent.launch import MIN_UID
from agent.protocol import REACH, IsolationInfo
from agent.sandbox_probe import Finding, Wish, mask_read, sandbox_find

if TYPE_CHECKING:
    from agent.config import Config

#: A test-only variable: features of the kernel that the sandbox does without (sandbox_probe.MASKS). It can only take away.
MASK_VARIABLE = "NEBULA_AGENT_TEST_MASK"
#: Where the servers of a person's session have their sockets: a way to have something run outside of the job.
SESSIONS = "/run/user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """``agent_uid``: who the agent runs as. ``job_uid``: the uid of ``job_account``, None = there is no such account."""

    identity: str
    agent_uid: int
    agent_name: str | None
    job_account: str | None = None
    job_uid: int | None = None
    job_gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What is hidden, and what ought to be and can't: a folder that is not there yet, or that holds what jobs need, too.

    ``sessions``: sockets that only an empty folder over them can close."""

    hidden: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()
    control_exposed: tuple[str, ...] = ()
    agent_exposed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """``info`` is told to the control plane, ``finding.plan`` is what shims carry out; the rest is for `doctor`."""

    info: IsolationInfo
    finding: Finding
    places: Places = field(default_factory=Places)
    masked: tuple[str, ...] = ()


# --- the rules ------------------------------------------------------------------------------------------------------------


def accounts_judge(accounts: Accounts) -> IsolationInfo:
    """Who jobs run as, and why none can be launched if that is so. With nothing known of what is closed, all is open."""
    is_root = accounts.agent_uid == 0
    problem: str | None = None
    uid, account = accounts.agent_uid, accounts.agent_name
    if accounts.identity == "same":
        problem = "root_same" if is_root else None
    elif not is_root:
        problem = "not_root"
    elif accounts.identity == "shared":
        account = accounts.job_account
        uid = accounts.job_uid if accounts.job_uid is not None else uid
        if account is None:
            problem = "job_account_missing"
        elif accounts.job_uid is None:
            problem = "job_account_unknown"
        elif accounts.job_uid < MIN_UID:
            problem = "job_account_system"
    else:
        account = None
    return IsolationInfo(identity=accounts.identity, uid=uid, account=account, open=REACH, ready=problem is None, problem=problem)


def reach_judge(identity: str, finding: Finding, places: Places) -> tuple[str, ...]:
    """What a job can reach, in words of REACH: by what was tried, and by what lies where it can't be hidden."""
    doors = finding.doors
    is_open = {
        "control_files": "hidden_read" in doors or bool(places.control_exposed),
        "agent_files": "hidden_read" in doors or bool(places.agent_exposed),
        "other_jobs_files": "jobs_read" in doors,
        "processes": "processes" in doors,
        "signals": "signals" in doors,
        "paths": bool({"hidden_stat", "jobs_stat"} & doors),
        # Whatever closes our folders, the account's own stay its own.
        "home": identity != "mapped",
    }
    return tuple(word for word in REACH if is_open[word])


# --- the facts ------------------------------------------------------------------------------------------------------------


def isolation_find(config: Config, env: Mapping[str, str] = os.environ) -> Isolation:
    """Look at this machine and try the sandbox: call it while the process has one thread. Makes the folders that it hides.

    Raises OSError when they can't be made, ValueError for a test mask that is none."""
    jobs_dir = jobs_dir_of(config)
    jobdir.root_make(str(jobs_dir), is_root=os.geteuid() == 0)
    return _find(config, jobs_dir, env, makes=True)


def isolation_try(config: Config, env: Mapping[str, str] = os.environ) -> Isolation:
    """The same as an answer for this process's user, which leaves nothing behind. Raises as `isolation_find`."""
    jobs_dir = jobs_dir_of(config)
    if jobs_dir.is_dir() and os.access(jobs_dir, os.W_OK | os.X_OK):
        return _find(config, jobs_dir, env, makes=False)
    with tempfile.TemporaryDirectory(prefix="nebula-doctor-") as folder:
        if os.geteuid() == 0:
            os.chmod(folder, 0o711)  # noqa: S103 - as the agent makes it: to pass through
        return _find(config, Path(folder), env, makes=False)


def _find(config: Config, jobs_dir: Path, env: Mapping[str, str], *, makes: bool) -> Isolation:
    accounts = _accounts(config)
    info = accounts_judge(accounts)
    mask = mask_read(env.get(MASK_VARIABLE))
    places = _places(config, accounts, jobs_dir, env, makes=makes)
    wish = Wish(
        hidden=places.hidden,
        only_mounts=places.sessions,
        readonly=places.readonly,
        jobs_dir=os.path.realpath(jobs_dir),
        job_uid=None if config.identity == "mapped" else info.uid,
        job_gid=accounts.job_gid,
        mask=mask,
    )
    if not info.ready:
        return Isolation(info=info, finding=NOTHING, places=places, masked=tuple(sorted(mask)))
    finding = sandbox_find(wish)
    info = replace(info, sandbox=finding.kind, open=reach_judge(config.identity, finding, places))
    return Isolation(info=info, finding=finding, places=places, masked=tuple(sorted(mask)))


#: Where no job is launched, nothing is tried.
NOTHING = Finding(plan={"kind": "none", "userns": False, "scope": False, "abi": 0, "hidden": [], "readonly": []})


def jobs_dir_of(config: Config) -> Path:
    return config.jobs_dir if config.jobs_dir is not None else Path(jobdir.root_beside(str(config.data_dir.absolute())))


def _accounts(config: Config) -> Accounts:
    uid = os.geteuid()
    job = None
    with contextlib.suppress(KeyError, ValueError):
        job = pwd.getpwnam(config.job_account) if config.job_account is not None else None
    name = None
    with contextlib.suppress(KeyError):
        name = pwd.getpwuid(uid).pw_name
    return Accounts(
        identity=config.identity,
        agent_uid=uid,
        agent_name=name,
        job_account=config.job_account,
        job_uid=job.pw_uid if job is not None else None,
        job_gid=job.pw_gid if job is not None else None,
    )


def _places(config: Config, accounts: Accounts, jobs_dir: Path, env: Mapping[str, str], *, makes: bool) -> Places:
    is_same = config.identity == "same"
    home = os.path.realpath(env.get("HOME") or _home_of(accounts.agent_uid))
    code = {os.path.realpath(path) for path in (Path(__file__).parent.parent, sys.prefix)}
    needed = {home, *code}
    # 1. The agent's own, and what the configuration names.
    own = {os.path.realpath(p) for p in (config.data_dir, jobs_dir, config.credential_file.parent)}
    control = {os.path.realpath(p) for p in config.hidden_dirs}
    if is_same:
        profile = os.path.realpath(Path(env.get("XDG_CONFIG_HOME") or f"{home}/.config") / "nebulagrid")
        own |= {profile} if os.path.isdir(profile) else set()
    hidden = {p for p in own | control if _can_hide(p, needed)}
    credentials = os.path.realpath(config.credential_file.parent)
    if not _holds_only_ours(credentials, config) and not any(p != credentials and _holds(p, {credentials}) for p in hidden):
        hidden.discard(credentials)  # somebody works in there
    # 2. Of what can't be hidden, what the modes of its folder don't close either.
    exposed = {p for p in (own | control) - hidden if is_same or not _is_private(p, accounts.job_uid)}
    # 3. Sockets of servers and sessions, and secrets in memory. Rights on files close no socket, and to hide a folder of /tmp by them
    #    would forbid jobs to make one there.
    sessions = [p for p in sorted(control & hidden) if _holds_only_sockets(p)]
    hidden -= set(sessions)
    sessions += [SESSIONS] if os.path.isdir(SESSIONS) else []
    if config.identity != "mapped":
        uid = accounts.agent_uid if is_same else accounts.job_uid
        sessions += [folder] if uid is not None and (folder := _tmux_folder(uid, accounts.job_gid, makes=makes)) is not None else []
    memory = secretdir.memory_folder()
    if memory is not None:
        sessions.append(secretdir.top_path(memory))
    readonly = tuple(sorted(p for p in code if is_same and os.access(p, os.W_OK) and not _holds(p, {home})))
    return Places(
        hidden=tuple(sorted(hidden)),
        sessions=tuple(sessions),
        readonly=readonly,
        control_exposed=tuple(sorted(exposed & control)),
        agent_exposed=tuple(sorted(exposed & own)),
    )


def _holds(path: str, others: set[str]) -> bool:
    return any(other == path or other.startswith(f"{path.rstrip('/')}/") for other in others)


def _can_hide(path: str, needed: set[str]) -> bool:
    """Whether an empty folder can be put over it: it is there, and holds nothing that jobs need, nor all of the system's settings."""
    return os.path.isdir(path) and not _holds(path, {*needed, "/etc/passwd", "/usr/bin", "/tmp", "/dev/shm"})  # noqa: S108


def _holds_only_ours(folder: str, config: Config) -> bool:
    """Whether a folder is there for the agent's files alone, so that nobody misses it."""
    if os.path.basename(folder).startswith("nebula"):
        return True
    ours = {config.path.name, config.credential_file.name, config.data_dir.name, f"{config.data_dir.name}-jobs", "ca.pem"}
    ours |= {p.name for p in (config.jobs_dir, config.ca_file, config.scenario) if p is not None}
    try:
        return all(name in ours or name.startswith(".") or name.endswith(".log") for name in os.listdir(folder))
    except OSError:
        return False


def _holds_only_sockets(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            modes = [entry.stat(follow_symlinks=False).st_mode for entry in entries]
    except OSError:
        return False
    return bool(modes) and all(map(stat.S_ISSOCK, modes))


def _is_private(path: str, job_uid: int | None) -> bool:
    """Whether the modes of the folder close it to the account of jobs. The agent's files have modes of their own besides."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return found.st_uid != job_uid and (not found.st_mode & 0o005 or path.startswith("/etc"))


def _home_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/nonexistent"


def _tmux_folder(uid: int, gid: int | None, *, makes: bool) -> str | None:
    """Where terminals that outlive a session have their sockets. Made here, so that it can be hidden before there is one."""
    path = f"/tmp/tmux-{uid}"  # noqa: S108 - that is where tmux looks
    if makes:
        with contextlib.suppress(OSError):
            os.mkdir(path, 0o700)
            if os.geteuid() != uid:
                os.chown(path, uid, gid if gid is not None else -1, follow_symlinks=False)
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return path
    return None
