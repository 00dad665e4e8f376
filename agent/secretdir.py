"""Where the values of a rank's secrets are while it lives: a folder of its own in memory (tmpfs), removed with the rank.

    NAME     a secret as a file, $NEBULA_SECRETS/NAME                                  read by the program
    .env     the values of those that are variables; read and removed by the shim before the program starts

Written by the agent, 0700 and 0600. The folders of all ranks of an agent lie in one parent, and the parents of all agents of an
account in one folder, which stays: a sandbox hides it and shows a rank its own. Where there is no tmpfs the parent is beside the jobs'
own folders. A rank's folder has a name that ends in chance, so that nobody can put one in its place. Standard library only: every shim
carries this module in its memory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pwd
    from collections.abc import Iterable, Mapping
    from typing import Any

    from agent.protocol import SecretRef

VARIABLE = "NEBULA_SECRETS"
MEMORY = "/dev/shm"  # noqa: S108 - sticky, and the folder is made by mkdir with a name of chance
ENV = ".env"
#: The parent where there is no memory: a folder of this name beside the jobs' own.
BESIDE = ".secrets"
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def memory_folder(mounts: str = "/proc/mounts") -> str | None:
    """A tmpfs that we may write to; None where there is none."""
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            kinds = {parts[1]: parts[2] for parts in (line.split() for line in file) if len(parts) > 2}
    except OSError:
        return None
    return MEMORY if kinds.get(MEMORY) in ("tmpfs", "ramfs") and os.access(MEMORY, os.W_OK | os.X_OK) else None


def prefix_of(agent_id: str) -> str:
    return f"nebula-{''.join(char if char in _SAFE or char == '.' else '-' for char in agent_id)[:120]}-"


def top_path(base: str) -> str:
    """The folder above those of all agents of this account; what a sandbox hides. It stays, so that nothing appears in its place."""
    return f"{base}/nebulagrid-{os.geteuid()}"


def parent_path(base: str, prefix: str, root: str) -> str:
    """Where the folders of one agent's ranks lie. ``root``: its own folder of ranks, which no other agent of this machine has."""
    from hashlib import sha256

    return f"{top_path(base)}/{prefix}{sha256(os.fsencode(root)).hexdigest()[:16]}"


def parent_make(path: str, *, is_root: bool) -> None:
    """Make a folder for folders, or make sure that the one which is there is ours: anybody may have put something there first.

    Accounts of jobs pass through it and can't list it. Raises OSError."""
    mode = 0o711 if is_root else 0o700
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(errno.EEXIST, f"{path} is not ours")
    os.chmod(path, mode)


def write(base: str, prefix: str, rank: str, refs: Iterable[SecretRef], values: Mapping[str, str]) -> str:
    """Make the folder and put the values there; its path. Raises OSError, ValueError for a name that is none; nothing is left then."""
    refs = tuple(refs)
    for ref in refs:
        if not 1 <= len(ref.name) <= 64 or not _SAFE.issuperset(ref.name):
            raise ValueError(f"{ref.name[:64]!r} is no name of a secret")
    path = f"{base}/{prefix}{rank}.{os.urandom(8).hex()}"
    os.mkdir(path, 0o700)
    try:
        variables = {ref.env: values[ref.name] for ref in refs if ref.env is not None}
        for ref in refs:
            if ref.env is None:
                _put(f"{path}/{ref.name}", values[ref.name].encode())
        if variables:
            _put(f"{path}/{ENV}", json.dumps(variables).encode())
    except BaseException:
        remove(path)
        raise
    return path


def _put(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def variables_take(order: dict[str, Any]) -> dict[str, str]:
    """The variables of the rank of ``order`` (spec.json), which are gone from the disk then. Raises OSError, ValueError."""
    path = order.get("secrets")
    if not path or not any(ref.get("env") for ref in order["spec"].get("secrets", ())):
        return {}
    with open(f"{path}/{ENV}", encoding="utf-8") as file:
        found = json.load(file)
    os.unlink(f"{path}/{ENV}")
    return {str(name): str(value) for name, value in found.items()}


def hand_over(order: dict[str, Any], account: pwd.struct_passwd) -> None:
    """The files become those of the job's own user. Raises OSError."""
    path = order.get("secrets")
    if path:
        for name in os.listdir(path):
            os.chown(f"{path}/{name}", account.pw_uid, account.pw_gid)
        os.chown(path, account.pw_uid, account.pw_gid)


def remove(path: str | None) -> None:
    """Whatever is in it. Harmless when repeated. The folder is the job's user's by now, and another program of his may put a link in
    the place of anything in it while we look: it goes by descriptors, which no link can lead away."""
    if path:
        from shutil import rmtree

        rmtree(path, ignore_errors=True)


def sweep(base: str | None, prefix: str, living: Iterable[str]) -> int:
    """Remove the folders of ranks that do not live any more; how many. What only begins like ours is another agent's."""
    if base is None:
        return 0
    kept, count = set(living), 0
    with contextlib.suppress(OSError):
        for name in os.listdir(base):
            rank, _dot, chance = name[len(prefix) :].rpartition(".") if name.startswith(prefix) else ("", "", "")
            is_ours = rank.count(".") == 2 and rank.replace(".", "").isdigit() and len(chance) == 16
            if is_ours and rank not in kept:
                remove(f"{base}/{name}")
                count += 1
    return count
