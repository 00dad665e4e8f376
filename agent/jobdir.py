"""The folder of a rank that is its job's: the second root, beside the agent's own data and never in it.

    <jobs_dir>/<rank>/             owned by the job's account, 0700
        artifacts/                 $NEBULA_ARTIFACTS
        tmp/                       $TMPDIR

Made by the shim, removed when the rank is forgotten. The names below ``jobs_dir`` are the agent's; everything below ``<rank>``
is the job's, and nothing there is trusted. Few imports: every shim carries this module in its memory.
"""

from __future__ import annotations

import contextlib
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pwd
    from collections.abc import Iterable

ARTIFACTS, TMP = "artifacts", "tmp"
#: A folder that waits for its removal: no rank's name begins with a dot.
GONE = ".gone-"
#: Longer paths for temporary files leave no room for the sockets that programs make there (107 bytes in all).
TMP_MOST = 72
#: A removal holds so many folders open at most.
_DEEP = 50


def make(path: str, account: pwd.struct_passwd | None) -> None:
    """Raises FileExistsError if it is there: a rank's name is used once. ``account`` None = it stays ours."""
    os.mkdir(path, 0o700)
    for name in (ARTIFACTS, TMP):
        os.mkdir(f"{path}/{name}", 0o700)
        if account is not None:
            os.chown(f"{path}/{name}", account.pw_uid, account.pw_gid)
    if account is not None:
        # Last: until then nobody but us could put anything in the way.
        os.chown(path, account.pw_uid, account.pw_gid)


def root_beside(data: str) -> str:
    """Where the jobs' folders are if nothing else is said: beside the agent's data. ``data`` is absolute."""
    return f"{data.rstrip('/')}-jobs"


def root_make(path: str, *, is_root: bool) -> None:
    """Make the folder above all of them. Accounts of jobs pass through it and can't list it. Raises OSError."""
    mode = 0o711 if is_root else 0o700
    os.makedirs(path, mode=mode, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"{path} is not a folder of this agent's own account")
    os.chmod(path, mode)


def put_away(root: str, rank: str) -> str | None:
    """Take the rank's folder out of the way in one step; what then is to be removed, None if there is none."""
    gone = f"{root}/{GONE}{rank}-{os.urandom(4).hex()}"
    try:
        os.rename(f"{root}/{rank}", gone)
    except FileNotFoundError:
        return None
    return gone


def orphans(root: str, living: Iterable[str]) -> list[str]:
    """What is to be removed at an agent's start: folders of ranks that are not here any more, and removals that were cut short."""
    kept, found = set(living), []
    with contextlib.suppress(OSError):
        for name in os.listdir(root):
            is_rank = name.count(".") == 2 and name.replace(".", "").isdigit()
            if name.startswith(GONE):
                found.append(f"{root}/{name}")
            elif is_rank and name not in kept:
                gone = put_away(root, name)
                found += [gone] if gone is not None else []
    return found


def remove(path: str) -> None:
    """Whatever a job left there: folders that may not be written to, and as deep as it liked. No link leads away from it."""
    with contextlib.suppress(OSError):
        top = _open_folder(path, None)
        try:
            while _empty(top, top, 0):
                pass
        finally:
            os.close(top)
        os.rmdir(path)


def _open_folder(name: str, parent: int | None) -> int:
    """With its owner's rights given back. By descriptors, which mean this very folder whatever has its name by now."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _empty(folder: int, top: int, depth: int) -> bool:
    """Remove what is in it. What lies too deep is moved up to ``top``; True: some was, so look there again."""
    moved = False
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            inner = _open_folder(name, folder)
            try:
                if depth >= _DEEP:
                    os.rename(name, f"{name[:60]}-{os.urandom(8).hex()}", src_dir_fd=folder, dst_dir_fd=top)
                    moved = True
                    continue
                moved = _empty(inner, top, depth + 1) or moved
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
    return moved
