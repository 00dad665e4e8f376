"""The files in a rank's directory: how they are written, and the claim that lets one shim at a time own the rank.

    spec.json      what to run: RankSpec, final environment, process group            written by the agent
    claim          locked by the living shim for its whole life; holds its pid and start time
    output.log     the program's stdout and stderr
    started.json   pid, start time, boot id, group, shim                              before the user's code runs
    launch.json    why the program could not be started
    stop.json      the order to stop: cause, reason, grace, when                      written by the agent
    stopping.json  what the shim has already done about it, for the shim that replaces it
    code.json      the exit code of a program whose shim was killed                   written by the zygote
    exit.json      how it ended; final
    lease.json     a changed lease                                                    written by the agent

None of it is the job's: its own folder lies elsewhere (jobdir.py), and the sandbox hides this one from it.
Standard library only and few imports: every shim carries this module in its memory.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

from agent import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SPEC = "spec.json"
CLAIM = "claim"
OUTPUT = "output.log"
STARTED = "started.json"
LAUNCH = "launch.json"
STOP = "stop.json"
STOPPING = "stopping.json"
CODE = "code.json"
EXIT = "exit.json"
LEASE = "lease.json"

#: In the directory above all ranks: the agent's socket for hints, and the time of the last answered sync.
NOTIFY = ".notify"
RENEWED = ".renewed"


#: What a file must have to be one; where jobs run as the agent's own user, a job may have written it.
_NUMBER = (int, float)
_FIELDS: dict[str, dict[str, Any]] = {
    SPEC: {"rank": str, "spec": dict, "group": dict},
    CLAIM: {"pid": int, "start": int},
    STARTED: {"pid": int, "start": int, "shim": dict, "started_at": _NUMBER},
    LAUNCH: {"kind": str, "text": str},
    STOP: {"cause": str, "grace_s": _NUMBER, "at": _NUMBER},
    CODE: {"pid": int, "status": int},
    EXIT: {"exit": dict},
    LEASE: {"lease_s": (int, float, type(None))},
}


def file_read(path: str, name: str) -> dict[str, Any] | None:
    """None when the file is not there or isn't what it should be (a power cut may leave an empty one)."""
    try:
        with open(f"{path}/{name}", "rb") as file:
            value = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value if all(isinstance(value.get(key), kind) for key, kind in _FIELDS.get(name, {}).items()) else None


def file_write(path: str, name: str, value: dict[str, Any], *, durable: bool = False) -> None:
    """Replace the file in one step. ``durable``: it is on the disk when this returns (causes two fsyncs).

    A folder in the file's place (a job that runs as the agent's own user can make one) is put aside.
    """
    temporary = f"{path}/.{name}.{os.getpid()}"
    try:
        fd = _open_new(temporary)
    except IsADirectoryError:
        _put_aside(path, temporary)
        fd = _open_new(temporary)
    try:
        data = json.dumps(value).encode()
        while data:
            data = data[os.write(fd, data) :]
        if durable:
            os.fsync(fd)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    try:
        os.rename(temporary, f"{path}/{name}")
    except IsADirectoryError:
        _put_aside(path, f"{path}/{name}")
        os.rename(temporary, f"{path}/{name}")
    if durable:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _open_new(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _put_aside(path: str, folder: str) -> None:
    os.rename(folder, f"{path}/.aside.{os.getpid()}.{time.monotonic_ns()}")


def _claim_sign(fd: int) -> None:
    stat = procs.process_stat(os.getpid())
    text = json.dumps({"pid": os.getpid(), "start": stat.start if stat else 0})
    os.pwrite(fd, f"{text:<64}".encode(), 0)  # one write of one length: a reader sees the old or the new, never half


def claim_block(path: str) -> bool:
    """See to it that no shim can ever claim this rank. False: one has already."""
    fd = claim_create(path, is_shim=False)
    if fd is not None:
        os.close(fd)
    return fd is not None


def claim_create(path: str, *, is_shim: bool = True) -> int | None:
    """Claim a rank that nobody ever claimed; the descriptor holds the claim. None: it was claimed before.

    The file appears already locked, so that nobody can take a claim for abandoned that is only just being made. Only a
    shim signs: who has signed may be signalled. Raises FileNotFoundError when the directory is gone.
    """
    temporary = f"{path}/.{CLAIM}.{os.getpid()}"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if is_shim:
            _claim_sign(fd)
        os.link(temporary, f"{path}/{CLAIM}")
    except FileExistsError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    finally:
        os.unlink(temporary)
    return fd


def claim_inherit(path: str, wait_s: float) -> int | None:
    """Take over the claim of a dead shim. None: it lives, or another one was faster."""
    try:
        fd = os.open(f"{path}/{CLAIM}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _claim_sign(fd)
            return fd
        except BlockingIOError:
            # `claim_held` borrows the lock for a moment, hence the patience.
            if time.monotonic() > end:
                os.close(fd)
                return None
            time.sleep(0.005)


def claim_held(path: str) -> bool | None:
    """True: a shim lives. False: there was one and it is dead. None: never claimed."""
    try:
        fd = os.open(f"{path}/{CLAIM}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def claim_owner(path: str) -> tuple[int, int] | None:
    """Pid and start time of the shim that made the claim last; None when no shim ever did."""
    found = file_read(path, CLAIM)
    return (int(found["pid"]), int(found["start"])) if found else None


def exit_write(
    path: str,
    *,
    cause: str,
    code: int | None,
    signal: int | None,
    detail: str | None,
    checkpoint_seen: bool = False,
    ran_s: float | None = None,
) -> None:
    """The last word on a rank, on the disk when this returns. Fields of ``exit`` as protocol.ExitInfo has them."""
    info = {"cause": cause, "code": code, "signal": signal, "detail": detail, "ran_s": ran_s}
    value = {"exit": {k: v for k, v in info.items() if v is not None}, "checkpoint_seen": checkpoint_seen, "ended_at": time.time()}
    file_write(path, EXIT, value, durable=True)
