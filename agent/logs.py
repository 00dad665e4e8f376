"""Shipping what the ranks print: `PUT /api/agent/v1/logs/{rank}?offset=N`, raw bytes.

One thread, one connection. The output is a file that the rank writes by itself; this thread looks at file sizes only
while ranks run (every 50 ms after something moved, slowing to 200 ms) and sleeps without a timer when none does. Chunks
go round robin, so a rank with 200 MB of output delays another by one chunk, and memory holds one chunk in all.

The server's length is the truth: 409 carries it, and shipping goes on from there. Its offsets only grow: where a job cuts its
file, a line says so, and what the file holds then follows behind that line (``_Track.base``).
"""

from __future__ import annotations

import errno
import logging
import os
import random
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from agent.http import Answer, Unreachable
from agent.protocol import LogAnswer, ProtocolError, RankId

log = logging.getLogger("nebula-agent")

CHUNK = 256 * 1024
#: The first PUT after a restart may be answered 409; a small one wastes little.
FIRST_CHUNK = 4 * 1024
LOOK_S = (0.05, 0.2)
RETRY_S = (0.2, 10.0)
TAIL = 64
#: The end of an output of which the middle is left out, sent when the rank is over.
TAIL_BYTES = CHUNK
CUT = b"\n[nebulagrid] The job cut its output file; it follows from its beginning.\n"


class Client(Protocol):
    def request(self, method: str, path: str, body: bytes, *, content_type: str) -> Answer: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Track:
    rank: RankId
    path: str
    offset: int  # in the server's log
    sure: bool  # the server has confirmed this offset in this process
    # Where the file's first byte is in the server's log: above 0 once the job has cut the file, or the server wrote lines of its own.
    base: int = 0
    inserted: int = 0  # bytes of such lines, that we know of
    is_cut: bool = False  # the line that says so is to be sent next
    rewinds: int = 0
    tail: bytes = b""  # the last bytes of the file that the server took: another end in their place is a cut, too
    mtime_ns: int = 0  # of the file when its tail was last looked at
    ended: bool = False  # nothing more will be written: ship to the end, then tell
    closed: bool = False  # refused for good, or its end was sent: ship no more
    capped: bool = False  # the control plane takes no more than it has, but the end of it when the rank is over
    head: int | None = None  # so many bytes at the beginning stay in the file; what follows may be given back to the disk (outfile.py)
    size: int = 0  # of the file when its last chunk was read
    held_at: int = -1  # length of the file at which the server wanted to see more before it takes the rest
    wait_until: float = 0.0  # monotonic; this rank alone waits
    retry_s: float = RETRY_S[0]


class LogShipper:
    """`done(rank, offset)` is called from the shipping thread when an ended rank's last byte is acknowledged, or when the
    server takes no more of it; ``offset`` is the length that the server holds."""

    def __init__(self, client: Client, *, done: Callable[[RankId, int], None], rng: random.Random | None = None) -> None:
        self._client, self._done = client, done
        self._rng = rng or random.Random()
        self._lock = threading.Condition()
        self._tracks: dict[RankId, _Track] = {}
        self._stopping = False
        self._kicked = False
        self._thread: threading.Thread | None = None

    # --- called by the loop -----------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def track(self, rank: RankId, path: str, *, offset: int = 0, is_new: bool = True, head: int | None = None) -> None:
        """Ship this file. ``is_new``: the server surely holds nothing of it, so no careful first chunk is needed. ``head``: beyond so
        many bytes only the file's end is there."""
        with self._lock:
            self._tracks.setdefault(rank, _Track(rank, path, offset, sure=is_new and offset == 0, head=head))
            self._kick()

    def end(self, rank: RankId) -> None:
        """The rank writes no more: `done` follows once everything is shipped. Nothing follows for an unknown rank."""
        with self._lock:
            track = self._tracks.get(rank)
            if track is not None and not track.ended:
                track.ended = True
                self._kick()

    def drop(self, rank: RankId) -> None:
        with self._lock:
            self._tracks.pop(rank, None)

    def rewind(self) -> None:
        """Ask the server anew where each log ends there, those that it took no more of included."""
        with self._lock:
            for track in self._tracks.values():
                # Where a cut file begins in what the server has kept, nobody can tell: once more from its beginning, and said so.
                track.is_cut = track.is_cut or track.base > 0
                track.offset, track.base, track.sure, track.wait_until = 0, 0, False, 0.0
                track.closed = track.capped = False
                track.inserted = 0
                track.rewinds += 1
                track.tail = b""
            self._kick()

    def offsets(self) -> dict[RankId, int]:
        """What the server has acknowledged, by rank."""
        with self._lock:
            return {t.rank: t.offset for t in self._tracks.values()}

    def _kick(self) -> None:
        self._kicked = True
        self._lock.notify()

    def stop(self, timeout_s: float = 2.0) -> None:
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        look_s = LOOK_S[0]
        all_wait_until, all_retry_s = 0.0, RETRY_S[0]  # the control plane as a whole is away or busy
        while True:
            with self._lock:
                if self._stopping:
                    break
                self._kicked = False
                tracks = list(self._tracks.values())
            moved = False
            now = time.monotonic()
            for track in tracks:
                if now < max(all_wait_until, track.wait_until):
                    continue
                try:
                    moved |= self._ship(track)
                    track.retry_s = all_retry_s = RETRY_S[0]
                except _Later as later:
                    # Full jitter keeps a hundred agents from coming back in step.
                    retry_s = all_retry_s if later.is_general else track.retry_s
                    until = now + (later.wait_s if later.wait_s is not None else self._rng.uniform(0.05, retry_s))
                    if later.is_general:
                        all_wait_until, all_retry_s = until, min(RETRY_S[1], retry_s * 2)
                        break
                    track.wait_until, track.retry_s = until, min(RETRY_S[1], retry_s * 2)
                except Exception:
                    log.exception("Shipping the output of rank %s failed; it is tried again.", track.rank)
                    track.wait_until = now + RETRY_S[1]
            look_s = LOOK_S[0] if moved else min(LOOK_S[1], look_s * 1.5)
            with self._lock:
                if self._stopping:
                    break
                if moved or self._kicked:
                    continue
                is_active = any(t.ended or not (t.closed or t.capped) for t in self._tracks.values())
                away_s = all_wait_until - time.monotonic()
                self._lock.wait(None if not is_active else max(look_s, away_s))
        self._client.close()

    def _ship(self, track: _Track) -> bool:
        """Send one chunk of one rank; True when there was something to do. Raises _Later when the server cannot take it."""
        ended, rewinds = track.ended, track.rewinds  # before reading: what is written before `end` is then surely seen
        is_tail = not track.closed and ended and self._is_past_head(track)
        data = b"" if track.closed else self._tail(track) if is_tail else self._next(track, ended=ended)
        if not data:
            if ended:
                with self._lock:
                    self._tracks.pop(track.rank, None)
                self._done(track.rank, track.offset)
                return True
            return False
        # The end of a file may look like the begin of a secret: the server keeps nothing back for what will not come.
        is_end = ended and data is not CUT and track.offset - track.base + len(data) == track.size
        path = f"/api/agent/v1/logs/{quote(track.rank, safe='')}?offset={track.offset}&inserted={track.inserted}"
        path += f"&end=1&tail_of={track.base + track.size}" if is_tail else "&end=1" if is_end else ""
        try:
            answer = self._client.request("PUT", path, data, content_type="application/octet-stream")
        except Unreachable as error:
            log.debug("Output of rank %s waits: %s", track.rank, error)
            raise _Later(None, is_general=True) from error
        if rewinds != track.rewinds:
            return True  # an answer of before: the server may hold less by now
        if answer.status == 409 and answer.error_code() == "busy":
            raise _Later(answer.retry_after_s)  # the control plane still works on an earlier try: only this rank waits
        if answer.status == 200 and is_tail:
            self._take_tail(track, answer)
        elif answer.status in (200, 409):
            self._take(track, answer, data)
        elif answer.status in (400, 403, 404, 410, 413):
            log.warning("The control plane takes no output of rank %s: %d %s", track.rank, answer.status, answer.error_text())
            track.closed = True
        else:  # a credential that is not taken, too many requests, a server in trouble; 500 may be this rank's alone
            raise _Later(answer.retry_after_s, is_general=answer.status in (401, 429, 502, 503, 504))
        return True

    def _is_past_head(self, track: _Track) -> bool:
        """Whether of what is left to send only the end will be sent."""
        found = self._stat(track)
        at = track.offset - track.base
        if found is None:
            return False
        is_past = track.head is not None and at >= track.head and found.st_size > at
        return track.capped or (is_past and track.sure and not track.is_cut)

    def _tail(self, track: _Track) -> bytes:
        found = self._stat(track)
        track.size = found.st_size if found is not None else 0
        length = min(TAIL_BYTES, track.size)
        return self._bytes(track, length, track.size - length) or b""

    def _take_tail(self, track: _Track, answer: Answer) -> None:
        # Taken, or closed for good.
        try:
            track.offset = LogAnswer.from_json(answer.json()).length
        except (ValueError, ProtocolError) as error:
            raise _Later(None) from error
        track.closed = True

    def _next(self, track: _Track, *, ended: bool) -> bytes:
        """What to send now: the line about a cut, or the next chunk of the file; empty = nothing."""
        if track.capped:
            return b""
        if self._was_cut(track):
            track.is_cut = track.sure = True
        # An unsure server is asked first where its log ends: the line must stand there.
        return CUT if track.is_cut and track.sure else self._read(track, ended=ended)

    def _was_cut(self, track: _Track) -> bool:
        """Whether the file is shorter than what was sent of it, or has grown anew to that length or beyond."""
        found = self._stat(track)
        if found is None:
            return False
        at = track.offset - track.base
        if found.st_size < at:
            return True
        if not track.tail or (found.st_size == at and found.st_mtime_ns == track.mtime_ns):
            return False
        track.mtime_ns = found.st_mtime_ns
        return self._bytes(track, len(track.tail), at - len(track.tail)) not in (track.tail, None)

    def _take(self, track: _Track, answer: Answer, sent: bytes) -> None:
        is_line = sent is CUT
        try:
            told = LogAnswer.from_json(answer.json())
        except (ValueError, ProtocolError) as error:
            raise _Later(None) from error
        if answer.status == 409 and told.inserted > track.inserted:
            # The server had given up waiting and said so in a line; what follows in the file goes behind it.
            track.base += told.inserted - track.inserted
            track.offset, track.inserted, track.sure, track.tail = told.length, told.inserted, True, b""
            return
        # The line went in, now or with an earlier try whose answer was lost.
        if is_line and told.length == track.offset + len(CUT):
            track.base, track.is_cut, track.tail = told.length, False, b""
        elif answer.status == 409:
            found = self._stat(track)
            if told.length == track.offset:
                raise _Later(None)  # it refused the offset that it asks for: don't run in circles
            if found is None:
                log.warning("The output file of rank %s is gone; shipping ends at %d bytes.", track.rank, told.length)
                track.closed = True
            elif told.length > track.base + found.st_size:
                # This agent has started anew since: where the file was cut is forgotten. Rather twice than never.
                track.is_cut = True
        elif track.is_cut and not is_line:
            track.is_cut = False  # it had nothing at all: the file stands there from its first byte on
        is_whole = answer.status == 200 and not is_line and told.length == track.offset + len(sent)
        track.tail = (track.tail + sent)[-TAIL:] if is_whole else b""
        is_partly = answer.status == 200 and not is_line and not told.capped and told.length < track.offset + len(sent)
        track.held_at = track.size if is_partly and track.offset - track.base + len(sent) == track.size else -1
        if is_partly and track.head is not None and track.offset - track.base + len(sent) == track.head:
            track.head = told.length - track.base  # it waits for more, which is left out
        track.offset, track.sure = told.length, True
        if told.capped:
            log.info("The control plane keeps no more of the output of rank %s (%d bytes) but its end.", track.rank, told.length)
            track.capped = True

    @staticmethod
    def _stat(track: _Track) -> os.stat_result | None:
        """None as well for what is no file: the job can put a link, a pipe or a folder in its place."""
        try:
            found = os.lstat(track.path)
        except OSError:
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def _read(self, track: _Track, *, ended: bool) -> bytes:
        """The next chunk, empty at the end of the file, when it is gone, and while the server waits for more than there is."""
        found, at = self._stat(track), track.offset - track.base
        if found is None or found.st_size <= at or (found.st_size == track.held_at and not ended):
            return b""
        track.size = found.st_size
        length = CHUNK if track.sure else FIRST_CHUNK
        if track.head is not None:
            length = min(length, track.head - at)  # what follows may be a hole by now
        return (self._bytes(track, length, at) if length > 0 else None) or b""

    @staticmethod
    def _bytes(track: _Track, length: int, at: int) -> bytes | None:
        """None when it can't be read."""
        try:
            fd = os.open(track.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                log.warning("The output of rank %s cannot be read: %s", track.rank, error)
            return None
        try:
            return os.pread(fd, length, at)
        finally:
            os.close(fd)


class _Later(Exception):
    """The server cannot take it now; ``wait_s`` None = back off."""

    def __init__(self, wait_s: float | None, *, is_general: bool = False) -> None:
        super().__init__()
        self.wait_s, self.is_general = wait_s, is_general


def output_tail(path: str, lines: int, *, max_bytes: int = 64 * 1024) -> str:
    """The last ``lines`` lines of a file, at most ``max_bytes`` of it; empty when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, max_bytes, max(0, size - max_bytes))
    finally:
        os.close(fd)
    return "\n".join(data.decode("utf-8", "replace").splitlines()[-max(0, lines) :] if lines > 0 else [])
