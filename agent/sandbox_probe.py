"""Which sandbox works here, and what a job in it can still reach: tried, not guessed.

Each way is gone through once, from the first step to the last, in a forked child that then tries the doors: where a distribution
restricts user namespaces, for example, the namespace is made and the mount in it is refused. The agent asks at its start, `doctor`
at any time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import signal
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent import landlock, procs, sandbox

#: Words of NEBULA_AGENT_TEST_MASK, by which tests play an older machine. A mask only takes away: whatever then stays open is reported.
MASKS = ("mounts", "userns", "landlock", *(f"landlock={abi}" for abi in range(1, 7)))
#: How long one way may take.
WAIT_S = 60.0
#: Accounts that nobody has, for a root agent whose jobs have an account each.
_SOME_UIDS = (64998, 64999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be closed. All paths are absolute and without links. ``job_uid``: who jobs run as, None = each as somebody else."""

    hidden: tuple[str, ...]
    readonly: tuple[str, ...]
    jobs_dir: str
    job_uid: int | None
    job_gid: int | None = None
    only_mounts: tuple[str, ...] = ()  # what rights on files can't close without closing more
    mask: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``plan``: what shims carry out; ``doors``: what was tried and found open; ``refused``: why better ways don't work here."""

    plan: dict[str, Any]
    doors: frozenset[str] = frozenset()
    refused: tuple[str, ...] = field(default=())

    @property
    def kind(self) -> str:
        return str(self.plan["kind"])


def mask_read(text: str | None) -> frozenset[str]:
    """Raises ValueError for a word that is none: a mask with a slip of the pen would test nothing."""
    words = frozenset(word for word in (text or "").split(",") if word)
    unknown = words.difference(MASKS)
    if unknown:
        raise ValueError(f"{min(unknown)!r} is no word of a test mask; known are {', '.join(MASKS)}")
    return words


def outermost(paths: Collection[str]) -> tuple[str, ...]:
    """Without those that lie in another one."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{other}/") for other in found):
            found.append(path)
    return tuple(found)


def landlock_version(mask: Collection[str]) -> int:
    if "landlock" in mask:
        return 0
    most = [int(word.partition("=")[2]) for word in mask if word.startswith("landlock=")]
    return min([landlock.version(), *most])


def plans(wish: Wish, *, is_root: bool, abi: int) -> Iterator[dict[str, Any]]:
    """From the best way to none."""
    scope = abi >= 6
    base: dict[str, Any] = {"hidden": list(outermost(wish.hidden)), "readonly": list(wish.readonly), "abi": abi, "scope": scope}
    covered = list(outermost((*wish.hidden, *wish.only_mounts)))
    if "mounts" not in wish.mask:
        # Jobs of one account are kept from each other's memory by a domain, or else by a user namespace.
        ways = [False] if is_root and (scope or wish.job_uid is None) else [True, False] if is_root else [True]
        for userns in ways:
            if not (userns and "userns" in wish.mask):
                yield {**base, "kind": "mounts", "userns": userns, "hidden": covered}
    if abi >= 1:
        yield {**base, "kind": "landlock", "userns": False}
    yield {**base, "kind": "none", "userns": False, "scope": False}


def sandbox_find(wish: Wish) -> Finding:
    """The best way that works. Call it while this process has one thread."""
    refused: list[str] = []
    for plan in plans(wish, is_root=os.geteuid() == 0, abi=landlock_version(wish.mask)):
        try:
            doors = _try(plan, wish)
        except OSError as error:
            refused.append(f"{plan['kind']}: {error.strerror or error}")
            continue
        return Finding(plan=plan, doors=doors, refused=tuple(refused))
    # Not even a child without any sandbox could be asked: nothing is known to be closed.
    return Finding(
        plan={"kind": "none", "userns": False, "scope": False, "abi": 0, "hidden": [], "readonly": []},
        doors=frozenset({"hidden_read", "hidden_stat", "jobs_read", "jobs_stat", "processes", "signals"}),
        refused=tuple(refused),
    )


# --- one trial ------------------------------------------------------------------------------------------------------------


def _try(plan: dict[str, Any], wish: Wish) -> frozenset[str]:
    """What a job would find open. Raises OSError where a step is refused, or where a job could not do its own work."""
    victim_uid, uid = (wish.job_uid, wish.job_uid) if wish.job_uid is not None else _SOME_UIDS
    gid = wish.job_gid if wish.job_gid is not None else os.getegid() if os.geteuid() != 0 else _SOME_UIDS[0]
    word = secrets.token_hex(8)
    made: list[str] = []
    try:
        # 1. A file in each hidden folder that we may write to, a folder of another job, and the job's own.
        canaries = [path for folder in plan["hidden"] if (path := _canary(folder, word)) is not None]
        made += canaries
        other, own = f"{wish.jobs_dir}/.probe-{word}-other", f"{wish.jobs_dir}/.probe-{word}"
        for folder, owner in ((other, victim_uid), (own, uid)):
            os.mkdir(folder, 0o700)
            made.append(folder)
            if os.geteuid() == 0:
                os.chown(folder, owner, gid)
        theirs = f"{other}/file"
        Path(theirs).touch(mode=0o600)
        if os.geteuid() == 0:
            os.chown(theirs, victim_uid, gid)
        # 2. Another job's process, and one that tries the doors.
        with _victim(victim_uid, gid) as victim:
            code, text = _ask(
                lambda: _doors(sandbox.plan_of_rank(plan, keep=[own]), uid, gid, canaries=canaries, theirs=theirs, own=own, victim=victim)
            )
        if code != 0:
            raise OSError(code, text)
        return frozenset(json.loads(text))
    finally:
        for path in made:
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _canary(folder: str, word: str) -> str | None:
    if not os.access(folder, os.W_OK | os.X_OK):
        return None
    path = f"{folder}/.probe-{word}-canary"
    try:
        Path(path).touch(mode=0o600)
    except OSError:
        return None
    return path


@contextlib.contextmanager
def _victim(uid: int, gid: int) -> Iterator[int]:
    """A process as another job's would be."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            _become(uid, gid)
            procs.prctl(4, 1)  # PR_SET_DUMPABLE: as a program is after its exec
            os.write(write, b"r")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    try:
        os.read(read, 1)
        yield pid
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _become(uid: int, gid: int) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _ask(function: Any) -> tuple[int, str]:
    """Run it in a child: (0, its answer as JSON), or (error number, text)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            signal.alarm(int(WAIT_S))
            try:
                answer = [0, json.dumps(sorted(function()))]
            except OSError as error:
                answer = [error.errno or errno.EIO, error.strerror or str(error)]
            except BaseException as error:  # it must not unwind into the parent's code
                answer = [errno.EIO, f"{type(error).__name__}: {error}"]
            os.write(write, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        data = b""
        while chunk := os.read(read, 65536):
            data += chunk
    finally:
        os.close(read)
        os.waitpid(pid, 0)
    if not data:
        return errno.EIO, f"it did not answer within {WAIT_S:g} s"
    code, text = json.loads(data)
    return int(code), str(text)


def _doors(plan: dict[str, Any], uid: int, gid: int, *, canaries: Sequence[str], theirs: str, own: str, victim: int) -> set[str]:
    # 1. As a shim does it.
    prepared = sandbox.prepare(plan)
    _become(uid, gid)
    procs.prctl(procs.PR_SET_NO_NEW_PRIVS, 1)
    sandbox.enter(plan, prepared)
    # 2. What a job must be able to do.
    os.close(os.open(f"{own}/file", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # 3. What it must not.
    found: set[str] = set()
    for area, paths in (("hidden", canaries), ("jobs", [theirs])):
        for path in paths:
            if _opens(path):
                found.add(f"{area}_read")
            if _exists(path):
                found.add(f"{area}_stat")
    if _opens(f"/proc/{victim}/environ"):
        found.add("processes")
    with contextlib.suppress(OSError):
        os.kill(victim, 0)
        found.add("signals")
    return found


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError:
        return False
    return True
