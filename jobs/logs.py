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

#: In what an output's end begins with, the rest of a secret may be: so much is left out where there are secrets (the longest piece that
#: is looked for has 1 KiB, quotas.masking.PIECE).
TAIL_UNSURE = 2048
#: Masking has a budget a call; the end of an output gets so many calls.
TAIL_TRIES = 8


class WrongOffset(Exception):
    """The data does not begin where the log ends; ``length`` says where that is, ``inserted`` how much of it is our own."""

    def __init__(self, length: int, *, inserted: int = 0) -> None:
        super().__init__(f"the log has {length} bytes")
        self.length, self.inserted = length, inserted


class LogBusy(Exception):
    """Somebody else writes to this log at this moment; ``length`` is what it has so far."""

    def __init__(self, length: int) -> None:
        super().__init__("another chunk of this log is being written")
        self.length = length


def log_path(rank: RankId) -> Path:
    """Raises ProtocolError for anything but job.epoch.index, so that no name can leave the folder."""
    job, epoch, index = rank_parts(rank)
    return log_folder(job) / f"{job}.{epoch}.{index}.log"


def log_folder(job: int) -> Path:
    return Path(settings.LOG_DIR) / str(job // 1000) / str(job)


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


def _number(path: Path) -> int | None:
    """What is written in a small file beside a log; None where there is no such file, or no number in it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _kept(path: Path) -> Path:
    """Holds how much of the output was taken, once the rest is left out but for its end."""
    return path.with_suffix(".capped")


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
        text = f"\n[nebulagrid] {line}\n".encode()
        _write(descriptor, text)
        # How much of the log is ours: output that comes late goes on behind it.
        path.with_suffix(".closed").write_text(str(len(text)))
    _last_line(path).unlink(missing_ok=True)


def _close_if_wanted(path: Path) -> None:
    """Whoever asked for the end of the log while the lock was held has left it to us: this is asked after the lock is free."""
    while _last_line(path).exists():
        try:
            with _locked(path) as descriptor:
                _close(path, descriptor)
        except LogBusy:
            return  # whoever holds it now asks the same question afterwards


def log_append(
    rank: RankId,
    *,
    offset: int,
    data: bytes,
    masks: Masks | None = None,
    is_end: bool = False,
    inserted: int | None = None,
    cap: tuple[int, str] | None = None,
) -> LogAnswer:
    """Appends if ``offset`` is the present length. Raises WrongOffset otherwise, LogBusy while another append is at work.

    ``masks``: values that must not get into the log. An end of ``data`` that may be the begin of one is not taken; the answer's length
    says so, and it comes again with what follows. With ``is_end`` nothing follows.

    ``inserted``: how many bytes of this log the agent knows to be ours. Behind the line that closed a log for want of output, the
    output may go on, if the agent knows of that line; else it would go on at the wrong place of its file.

    Past the cap (NEBULA_LOG_CAP_MIB) one notice is written; of the rest only the end is taken (``log_tail``). ``cap``: a lower
    one in bytes, and why.
    """
    path = log_path(rank)
    try:
        with _locked(path) as descriptor:
            _close(path, descriptor)
            length = os.fstat(descriptor).st_size
            ours = 0
            if _is_closed(path):
                ours = _number(path.with_suffix(".closed")) or 0
                if not ours or inserted is None:
                    return LogAnswer(length=length, capped=True)
            if _kept(path).exists():
                return LogAnswer(length=length, capped=True, inserted=ours)
            if offset != length or (ours and inserted != ours):
                raise WrongOffset(length, inserted=ours)
            if masks is not None:
                data = masks.take(data, is_last=is_end)
            most, why = settings.LOG_CAP_MIB * 1024 * 1024, f"The log is cut here at {settings.LOG_CAP_MIB} MiB"
            if cap is not None and cap[0] < most:
                most, why = cap[0], f"The log is cut here: {cap[1]}"
            is_capped = length + len(data) > most
            if is_capped:
                data = data[: max(0, most - length)]
                _kept(path).write_text(str(length + len(data)))
                data += f"\n[nebulagrid] {why}; the job goes on.\n".encode()
            _write(descriptor, data)
            if ours and is_end and not is_capped:
                path.with_suffix(".closed").write_text("")  # now it is whole
            return LogAnswer(length=length + len(data), capped=is_capped, inserted=ours)
    finally:
        _close_if_wanted(path)


def log_tail(rank: RankId, *, offset: int, data: bytes, total: int, masks: Masks | None = None) -> LogAnswer:
    """Takes the end of an output of which the middle is left out, whatever the cap, and closes the log. One line says how much is missing.

    ``total``: how long the output is in all; ``data`` is its end. Raises WrongOffset, LogBusy.
    """
    path = log_path(rank)
    try:
        with _locked(path) as descriptor:
            _close(path, descriptor)
            length = os.fstat(descriptor).st_size
            closed = path.with_suffix(".closed")
            if closed.exists() and not _number(closed):
                return LogAnswer(length=length, capped=True)
            if offset != length:
                raise WrongOffset(length, inserted=_number(closed) or 0)
            kept = _number(_kept(path))
            have, begin = length if kept is None else kept, max(0, total - len(data))
            text, skipped = _tail_of(data, known=have - begin, is_whole=begin == 0, masks=masks)
            missing = begin + skipped - have
            if missing > 0:
                text = f"\n[nebulagrid] {missing} bytes of output are left out here; its end follows.\n".encode() + text
            _write(descriptor, text)
            closed.write_text("")
            _kept(path).unlink(missing_ok=True)
            return LogAnswer(length=length + len(text), capped=True)
    finally:
        _close_if_wanted(path)


def _tail_of(data: bytes, *, known: int, is_whole: bool, masks: Masks | None) -> tuple[bytes, int]:
    """The end of an output, masked, and how many bytes of ``data`` are not in it. ``known``: so many are in the log already; below 0
    something is missing between the two, and the end begins with a whole line. ``is_whole``: ``data`` is all of the output.

    What ``data`` begins with may be the rest of a secret, which nobody could recognise: where there are secrets the beginning is left
    out, and masking that would be too much work leaves out all of it.
    """
    unsure = 0
    if masks is not None:
        masked = b""
        for _ in range(TAIL_TRIES):
            masked += masks.take(data[len(masked) :], is_last=True)
            if len(masked) >= len(data):
                break
        else:
            return b"", len(data)
        data, unsure = masked, 0 if is_whole else min(len(data), TAIL_UNSURE)
    if known >= unsure:
        return data[known:], known
    begin = max(known, unsure)
    line = data.find(b"\n", begin) + 1
    begin = line if 0 < line < len(data) else begin
    return data[begin:], begin


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
