"""A rank's output: a file, not rows. Appends are keyed by offset, so that a repeat or a gap can't corrupt it.

The file lives under the data folder as ``logs/<job // 1000>/<job>/<rank>.log``. Offsets are bytes.

Nobody waits for a log's lock: an agent that repeats a chunk because its first try takes long would otherwise occupy one thread of
the web process a try. Who finds it taken is told to come again, and what shall be written at the end is left to whoever holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

from agent.protocol import LogAnswer, RankId, rank_parts
from quotas.masking import Masks


class WrongOffset(Exception):
    """The data does not begin where the log ends; ``length`` says where that is."""

    def __init__(self, length: int) -> None:
        super().__init__(f"the log has {length} bytes")
        self.length = length


class LogBusy(Exception):
    """Somebody else writes to this log at this moment; ``length`` is what it has so far."""

    def __init__(self, length: int) -> None:
        super().__init__("another chunk of this log is being written")
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


def _last_line(path: Path) -> Path:
    """Holds the line that ends this log, until somebody with the lock has written it."""
    return path.with_suffix(".closing")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The log, open for appending and locked. Raises LogBusy instead of waiting."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogBusy(os.fstat(descriptor).st_size) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _close(path: Path, descriptor: int) -> None:
    """Writes the last line, if one is to be written. Call while holding the log's lock."""
    try:
        line = _last_line(path).read_text()
    except FileNotFoundError:
        return
    if not _is_closed(path):
        _write(descriptor, f"\n[nebulagrid] {line}\n".encode())
        path.with_suffix(".closed").touch()
    _last_line(path).unlink(missing_ok=True)


def _close_if_wanted(path: Path) -> None:
    """Whoever asked for the end of the log while the lock was held has left it to us: this is asked after the lock is free."""
    while _last_line(path).exists():
        try:
            with _locked(path) as descriptor:
                _close(path, descriptor)
        except LogBusy:
            return  # whoever holds it now asks the same question afterwards


def log_append(rank: RankId, *, offset: int, data: bytes, masks: Masks | None = None, is_end: bool = False) -> LogAnswer:
    """Appends if ``offset`` is the present length. Raises WrongOffset otherwise, LogBusy while another append is at work.

    ``masks``: values that must not get into the log. An end of ``data`` that may be the begin of one is not taken; the answer's length
    says so, and it comes again with what follows. With ``is_end`` nothing follows.

    Past the cap (NEBULA_LOG_CAP_MIB) one notice is written and the rest stays on the node.
    """
    path = log_path(rank)
    try:
        with _locked(path) as descriptor:
            _close(path, descriptor)
            length = os.fstat(descriptor).st_size
            if _is_closed(path):
                return LogAnswer(length=length, capped=True)
            if offset != length:
                raise WrongOffset(length)
            if masks is not None:
                data = masks.take(data, is_last=is_end)
            cap = settings.LOG_CAP_MIB * 1024 * 1024
            is_capped = length + len(data) > cap
            if is_capped:
                data = data[: max(0, cap - length)]
                data += f"\n[nebulagrid] The log is cut here at {settings.LOG_CAP_MIB} MiB; the job goes on.\n".encode()
                path.with_suffix(".closed").touch()
            _write(descriptor, data)
            return LogAnswer(length=length + len(data), capped=is_capped)
    finally:
        _close_if_wanted(path)


def log_close(rank: RankId, *, line: str) -> None:
    """Ends a log with a line of the system's own; later output of that rank is refused. A second call does nothing.

    Never waits, so that it may be called inside a transaction: while an append is at work, that one writes the line.
    """
    path = log_path(rank)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if _is_closed(path):
        return
    # Written aside, so that nobody finds half of it.
    aside = path.with_suffix(f".closing.{os.getpid()}.{threading.get_ident()}")
    aside.write_text(line)
    aside.replace(_last_line(path))
    _close_if_wanted(path)


def log_is_closed(rank: RankId) -> bool:
    return _is_closed(log_path(rank))
