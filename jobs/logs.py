"""A rank's output: a file, not rows. Appends are keyed by offset, so that a repeat or a gap can't corrupt it.

The file lives under the data folder as ``logs/<job // 1000>/<job>/<rank>.log``. Offsets are bytes.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from django.conf import settings

from agent.protocol import LogAnswer, RankId, rank_parts
from quotas.masking import Masks


class WrongOffset(Exception):
    """The data does not begin where the log ends; ``length`` says where that is."""

    def __init__(self, length: int) -> None:
        super().__init__(f"the log has {length} bytes")
        self.length = length


def log_path(rank: RankId) -> Path:
    """Raises ProtocolError for anything but job.epoch.index, so that no name can leave the folder."""
    job, epoch, index = rank_parts(rank)
    return Path(settings.LOG_DIR) / str(job // 1000) / str(job) / f"{job}.{epoch}.{index}.log"


def log_length(rank: RankId) -> int:
    try:
        return log_path(rank).stat().st_size
    except FileNotFoundError:
        return 0


def log_read(rank: RankId, *, offset: int, limit: int) -> bytes:
    """At most ``limit`` bytes from ``offset``; empty past the end."""
    try:
        with open(log_path(rank), "rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""


def _is_closed(path: Path) -> bool:
    return path.with_suffix(".closed").exists()


def log_append(rank: RankId, *, offset: int, data: bytes, masks: Masks | None = None, is_end: bool = False) -> LogAnswer:
    """Appends if ``offset`` is the present length; raises WrongOffset otherwise. Holds the file's lock meanwhile.

    ``masks``: values that must not get into the log. An end of ``data`` that may be the begin of one is not taken; the answer's length
    says so, and it comes again with what follows. With ``is_end`` nothing follows.

    Past the cap (NEBULA_LOG_CAP_MIB) one notice is written and the rest stays on the node.
    """
    path = log_path(rank)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        length = os.fstat(descriptor).st_size
        if _is_closed(path):
            return LogAnswer(length=length, capped=True)
        if offset != length:
            raise WrongOffset(length)
        if masks is not None:
            data = masks.take(data, is_last=is_end)
        cap = settings.LOG_CAP_MIB * 1024 * 1024
        if length + len(data) > cap:
            data = data[: max(0, cap - length)]
            data += f"\n[nebulagrid] The log is cut here at {settings.LOG_CAP_MIB} MiB; the job goes on.\n".encode()
            path.with_suffix(".closed").touch()
            capped = True
        else:
            capped = False
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        return LogAnswer(length=length + len(data), capped=capped)
    finally:
        os.close(descriptor)


def log_close(rank: RankId, *, line: str) -> None:
    """Ends a log with a line of the system's own; later output of that rank is refused. A second call does nothing."""
    path = log_path(rank)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not _is_closed(path):
            os.write(descriptor, f"\n[nebulagrid] {line}\n".encode())
            path.with_suffix(".closed").touch()
    finally:
        os.close(descriptor)


def log_is_closed(rank: RankId) -> bool:
    return _is_closed(log_path(rank))
