"""Files of an installation that ran as root before, given to the control plane's account once.

1. What was the control plane's moves into ``control``, agents' folders into ``agents``; each by one rename, or, from another disk, by a
   copy that gets its name when it is whole.
2. What is in ``control`` changes owner, the folder itself last. As long as root owns it, all of this is done again at the next start.

Root owns every folder on the way, and no link is followed: an entry is opened by its parent's descriptor and changed by its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from nebulagrid.rooted.accounts import Account
from nebulagrid.rooted.errors import RootedError
from nebulagrid.rooted.layout import Layout

#: What a control plane keeps in its data folder. Anything else at the top is somebody's own and stays.
_OURS = (
    "nebula.sqlite3", "nebula.sqlite3-wal", "nebula.sqlite3-shm", "secret-key", "secrets-key", "redis-password", "logs", "artifacts",
    "redis", "redis.aside", "static", "dist", "tls", "demo",
)  # fmt: skip
_PART = ".handed-"


def hand_over(layout: Layout, control: Account, say: Callable[[str], None]) -> bool:
    """Whether there was anything to do. The account's folder is never walked again once it is its own. Raises RootedError."""
    if layout.control.stat().st_uid == control.uid:
        return False
    names = sorted(path.name for path in layout.top.iterdir() if is_ours(path.name))
    try:
        if names:
            say(f"{layout.top} is of an earlier start as root: its data move to {layout.control} and belong to {control.name} from now on")
        _unused(layout)
        for name in names:
            _move(layout.top / name, (layout.agents if is_agents(name) else layout.control) / name)
        for folder in (layout.control, layout.agents):
            for path in folder.glob(f"{_PART}*"):
                _remove(path)
        _give(layout.control, control)
    except OSError as error:
        raise RootedError(
            f"{error.filename or layout.top} can't be handed over to {control.name}: {error.strerror}. Nothing is lost: put that "
            "right, then start again."
        ) from error
    return True


def is_ours(name: str) -> bool:
    return name in _OURS or is_agents(name) or name.startswith("replaced-")


def is_agents(name: str) -> bool:
    return name == "agent" or name.startswith("agent-")


def _unused(layout: Layout) -> None:
    """Files of a control plane that runs are not moved away from under it."""
    lock = layout.top / "run" / "up.lock"
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 20, 0).decode().strip() or "unknown"
        if owner != str(os.getpid()):
            raise RootedError(f"Another `up` (process {owner}) uses {layout.top}; stop it first.") from None
    finally:
        os.close(fd)


def _move(source: Path, target: Path) -> None:
    if os.path.lexists(target):
        raise RootedError(f"{source} and {target} are both there; move aside the one that is not wanted.")
    try:
        source.rename(target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    # Programs that run would go on in the old folder, which is about to go.
    if is_agents(source.name) and _is_lived_in(source):
        raise RootedError(
            f"Jobs still run from {source}, which has to move to another disk: let them end, or cancel them, then start again."
        )
    part = target.with_name(f"{_PART}{target.name}")
    _remove(part)
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, part, symlinks=True)
    else:
        shutil.copy2(source, part, follow_symlinks=False)
    part.rename(target)
    _remove(source)


def _is_lived_in(folder: Path) -> bool:
    inside = f"{folder}/"
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if f"{(process / 'cwd').readlink()}/".startswith(inside):
                    return True
            except OSError:
                continue
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _give(folder: Path, account: Account) -> None:
    """Everything in it, then itself. A file of root's with another name elsewhere is replaced by a copy: it may be anything."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _give_all(fd, account)
        os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)


def _give_all(folder: int, account: Account) -> None:
    names = os.listdir(folder)
    for name in [name for name in names if name.startswith(_PART)]:  # half a copy of a start that ended in the middle
        os.unlink(name, dir_fd=folder)
        names.remove(name)
    for name in names:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                _give_all(inner, account)
                os.fchown(inner, account.uid, account.gid)
            finally:
                os.close(inner)
        elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and found.st_uid != account.uid:
            _copy_give(folder, name, stat.S_IMODE(found.st_mode), account)
        elif not stat.S_ISSOCK(found.st_mode):
            os.chown(name, account.uid, account.gid, dir_fd=folder, follow_symlinks=False)


def _copy_give(folder: int, name: str, mode: int, account: Account) -> None:
    part = f"{_PART}{name}"
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            while chunk := os.read(source, 1 << 20):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(target, view) :]
            os.fchmod(target, mode & 0o777)
            os.fchown(target, account.uid, account.gid)
        finally:
            os.close(target)
    finally:
        os.close(source)
    os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
