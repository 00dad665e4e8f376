"""What a program is closed in before its exec: folders that it sees empty, code that it can't change, processes that it can't touch.

Runs in the forked child of a shim, which then becomes the user's program. A plan (JSON, part of spec.json) says what to do; it was
tried once at the agent's start (sandbox_probe.py), and a child that can't carry out its plan fails the launch: no program runs less
contained than the agent reports.

    mounts     a mount namespace, and where we are not root a user namespace around it: an empty folder over each hidden one
    landlock   where mounts are refused: rights on files, by a list of what stays allowed (landlock.py)
    scope      with either: a Landlock domain of the rank's own, out of which no signal and no ptrace leads

What stays open to a program of our own account whatever we do is in docs/agent.md, "What a job can reach".

Standard library only and few imports: every shim carries this module in its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os

from agent import landlock, procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
_MS_BIND, _MS_REC, _MS_SLAVE, _MS_RELATIME = 0x1000, 0x4000, 0x80000, 0x200000
_PR_SET_DUMPABLE = 4
#: Options of a mount that a user namespace must keep when it makes that mount read-only. All but RELATIME are equal in statvfs.
_KEPT = 0x2 | 0x4 | 0x8 | 0x400 | 0x800
_ST_RELATIME = 0x1000
#: The empty folder: nobody can put anything in, and its few inodes and pages hold the ways to what stays visible below it.
_EMPTY = "size=64k,nr_inodes=64,mode=0555"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.unshare.argtypes = [ctypes.c_int]


class SandboxError(OSError):
    """A step was refused. ``strerror`` names it."""


def _check(result: int, step: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise SandboxError(code, f"{step}: {os.strerror(code)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(_libc.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]), f"mount on {target}")


def plan_of_rank(base: dict[str, Any], *, keep: Iterable[str], files: Iterable[str] = ()) -> dict[str, Any]:
    """The plan of one rank: ``keep`` are its own folders below hidden ones, ``files`` single files of them that it has open."""
    return {**base, "keep": list(keep), "files": list(files)}


def prepare(plan: dict[str, Any] | None, *, output: int | None = None) -> int | None:
    """The part before the change of account: root may do and see more. ``output``: the file that the program prints to.

    What it returns is for `enter`. Raises OSError."""
    if plan is None:
        return None
    if plan["kind"] == "mounts" and not plan["userns"]:
        _check(_libc.unshare(_CLONE_NEWNS), "mount namespace")
        _mounts(plan)
    if plan["kind"] == "landlock":
        # Listed before, because the account may pass through folders that it can't list.
        return landlock.files_list(plan, output=output)
    return None


def enter(plan: dict[str, Any] | None, prepared: int | None) -> None:
    """The rest, as the account of the program, after PR_SET_NO_NEW_PRIVS. Raises OSError."""
    if plan is None or plan["kind"] == "none":
        return
    if plan["kind"] == "mounts" and plan["userns"]:
        uid, gid = os.geteuid(), os.getegid()
        # After a change of account /proc/self belongs to root until we say that we may be looked at.
        procs.prctl(_PR_SET_DUMPABLE, 1)
        _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "user namespace")
        _put("/proc/self/setgroups", "deny")
        _put("/proc/self/uid_map", f"{uid} {uid} 1")
        _put("/proc/self/gid_map", f"{gid} {gid} 1")
        _mounts(plan)
    if prepared is not None:
        landlock.enter(prepared)
    elif plan["scope"]:
        landlock.enter(landlock.scope_only())


def _put(path: str, text: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise SandboxError(error.errno or errno.EIO, f"{path}: {error.strerror}") from error


def _mounts(plan: dict[str, Any]) -> None:
    # 1. What is mounted outside later still arrives (a home on demand, say); nothing of ours goes out.
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)
    # 2. What the account could rename above a hidden folder becomes a mount, which nobody can rename: else a program moves the folder to
    #    a name that no later program finds covered.
    if plan["userns"]:
        for path in _movable([*plan["hidden"], *plan["readonly"]]):
            _mount(path, path, None, _MS_BIND | _MS_REC)
    # 3. Hold what stays visible before anything covers it.
    kept: list[tuple[str, int]] = []
    for path in plan["keep"]:
        kept.append((path, os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)))
    # 4. Our code.
    for path in plan["readonly"]:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            options = os.statvfs(path).f_flag
            flags = options & _KEPT | (_MS_RELATIME if options & _ST_RELATIME else 0)
            _mount(path, path, None, _MS_BIND | _MS_REC)
            _mount(None, path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)
    # 5. An empty folder over each hidden one, with the ways to what stays visible.
    for path in plan["hidden"]:
        _cover(path, [(p, fd) for p, fd in kept if p.startswith(f"{path}/")])
    for path, fd in kept:
        # Below a folder of code only: its own folder stays writable.
        if not any(path.startswith(f"{h}/") for h in plan["hidden"]):
            _mount(f"/proc/self/fd/{fd}", path, None, _MS_BIND)
        os.close(fd)


def _movable(paths: Iterable[str]) -> list[str]:
    """The folders above these that lie in a folder of which we may change the entries, from the top down."""
    found = set()
    for path in paths:
        above = os.path.dirname(path)
        while above not in ("/", ""):
            if os.path.isdir(above) and os.access(os.path.dirname(above), os.W_OK | os.X_OK):
                found.add(above)
            above = os.path.dirname(above)
    return sorted(found)


def _way_make(top: str, path: str) -> None:
    """The folders from ``top`` down to ``path``: for every account to pass, whatever the agent's umask."""
    here = top
    for name in path.removeprefix(f"{top}/").split("/"):
        here = f"{here}/{name}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(here)
            os.chmod(here, 0o755)  # noqa: S103 - the way to a folder that has modes of its own


def _cover(path: str, kept: list[tuple[str, int]]) -> None:
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    try:
        _mount("none", path, "tmpfs", flags, _EMPTY)
    except SandboxError as error:
        # Not there, or behind a folder that this account may not enter: closed already.
        if error.errno in (errno.ENOENT, errno.EACCES) and not kept and not os.access(path, os.R_OK):
            return
        raise
    for own, fd in kept:
        _way_make(path, own)
        _mount(f"/proc/self/fd/{fd}", own, None, _MS_BIND)
    _mount(None, path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)
