"""Uploading what a job left in $NEBULA_ARTIFACTS, after its exit: `PUT /api/agent/v1/artifacts/{rank}/{name}`.

A thread of its own that lives only while there is something to upload, so that a gigabyte delays neither a sync nor a log.
The folder is the job's: nothing in it is trusted, nor is the folder itself, which the job may put another in the place of. Each step
down is taken by descriptor, no link is followed, and only regular files of the job's own account go.
"""

from __future__ import annotations

import logging
import os
import random
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from agent.http import Answer, Unreachable
from agent.protocol import RankId

log = logging.getLogger("nebula-agent")

#: For a larger file the control plane is asked first whether it has room: a gigabyte that is refused would be sent in vain.
ASK_BYTES = 8 * 1024**2
MAX_FILES = 1000
MAX_TRIES = 6
#: While the control plane's disk is full it says when to come again, half a minute later each time: about an hour of that.
FULL_TRIES = 120
INSUFFICIENT_STORAGE = 507
PIECE = 256 * 1024
RETRY_S = (1.0, 60.0)


class Client(Protocol):
    def request(self, method: str, path: str, body: Iterator[bytes], *, length: int, content_type: str) -> Answer: ...

    def close(self) -> None: ...


def name_is_sane(name: str) -> bool:
    """Whether a file may go by this name: one visible path component, printable, at most 200 bytes of UTF-8."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return False  # bytes that are no text
    return 0 < size <= 200 and not name.startswith(".") and name.isprintable() and "/" not in name and "\\" not in name


@dataclass(slots=True)
class _Upload:
    rank: RankId
    folder: str


class ArtifactUploader:
    """`done(rank)` is called from the thread when nothing of the rank is left to upload, given up included."""

    def __init__(self, connect: Callable[[], Client], *, done: Callable[[RankId], None]) -> None:
        self._connect, self._done = connect, done
        self._lock = threading.Lock()
        self._queue: deque[_Upload] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def add(self, rank: RankId, folder: str) -> bool:
        """Queue a rank's files. False: there are none, and `done` will not be called."""
        if not _has_files(folder):
            return False
        with self._lock:
            self._queue.append(_Upload(rank, folder))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="artifacts", daemon=True)
                self._thread.start()
        return True

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        client = self._connect()
        try:
            while True:
                with self._lock:
                    if not self._queue or self._stopping.is_set():
                        self._thread = None
                        return
                    upload = self._queue.popleft()
                try:
                    self._upload(client, upload)
                except Exception:
                    log.exception("Uploading the artefacts of rank %s failed.", upload.rank)
                if not self._stopping.is_set():
                    self._done(upload.rank)
        finally:
            client.close()

    def _upload(self, client: Client, upload: _Upload) -> None:
        try:
            folder, owner = folder_open(upload.folder)
        except OSError as error:
            log.warning("The artefacts of rank %s cannot be read: %s", upload.rank, error)
            return
        try:
            names = sorted(os.listdir(folder))
            if len(names) > MAX_FILES:
                log.warning("Rank %s left %d artefacts; the first %d are uploaded.", upload.rank, len(names), MAX_FILES)
            for name in names[:MAX_FILES]:
                if not name_is_sane(name):
                    log.warning("Artefact %r of rank %s is not uploaded: its name is not allowed.", name[:80], upload.rank)
                elif not self._one(client, upload.rank, folder, name, owner):
                    return
        finally:
            os.close(folder)

    def _one(self, client: Client, rank: RankId, folder: int, name: str, owner: int) -> bool:
        """Upload one file with retries. False: the control plane takes nothing more of this rank."""
        retry_s, left, full_left = RETRY_S[0], MAX_TRIES, FULL_TRIES
        while True:
            wait_s = random.uniform(0.1, retry_s)
            try:
                answer = self._send(client, rank, folder, name, owner)
            except Unreachable as error:
                log.debug("Artefact %r of rank %s waits: %s", name, rank, error)
            else:
                if answer is None or 200 <= answer.status < 300:
                    return True
                if answer.status in (401, 403, 404, 410):
                    log.warning("The control plane takes no artefacts of rank %s: %d %s", rank, answer.status, answer.error_text())
                    return False
                if answer.status < 500 and answer.status != 429:
                    log.warning("Artefact %r of rank %s was refused: %d %s", name, rank, answer.status, answer.error_text())
                    return True
                wait_s = answer.retry_after_s if answer.retry_after_s is not None else wait_s
                if answer.status == INSUFFICIENT_STORAGE and full_left:
                    # Its disk is full: somebody has to make room, which takes longer than a restart.
                    full_left, left = full_left - 1, left + 1
            left -= 1
            if left <= 0:
                log.warning("Artefact %r of rank %s was not taken after %d tries; giving up.", name, rank, MAX_TRIES)
                return True
            if self._stopping.wait(wait_s):
                return False
            retry_s = min(RETRY_S[1], retry_s * 2)

    @staticmethod
    def _send(client: Client, rank: RankId, folder: int, name: str, owner: int) -> Answer | None:
        """One PUT; None when there is nothing to send. Raises Unreachable."""
        try:
            # O_NONBLOCK: a named pipe must not hold this thread for ever.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            log.warning("Artefact %r of rank %s cannot be read: %s", name, rank, error)
            return None
        try:
            found = os.fstat(fd)
            # Another owner's file is here by a hard link: the agent may read it, the job may not.
            if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
                log.warning("Artefact %r of rank %s is not a regular file of the job's user; left out.", name, rank)
                return None
            path = f"/api/agent/v1/artifacts/{quote(rank, safe='')}/{quote(name, safe='')}"
            if found.st_size > ASK_BYTES:
                kind = "application/octet-stream"
                answer = client.request("PUT", f"{path}?size={found.st_size}", iter(()), length=0, content_type=kind)
                if not 200 <= answer.status < 300:
                    return answer
            body = _pieces(fd, found.st_size)
            return client.request("PUT", path, body, length=found.st_size, content_type="application/octet-stream")
        finally:
            os.close(fd)


def folder_open(path: str) -> tuple[int, int]:
    """(descriptor of ``<root>/<rank>/artifacts``, uid of the job's account). Raises OSError where any of it is not what it must be.

    ``<root>`` is the agent's. ``<rank>`` is the job's, and the job can put any folder that it may move, somebody else's even, in the
    place of the last one.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    above, name = os.path.split(path)
    root, rank = os.path.split(above)
    opened = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        opened.append(os.open(rank, flags, dir_fd=opened[-1]))
        folder = os.open(name, flags, dir_fd=opened[-1])
        mine, owner = os.fstat(opened[-1]).st_uid, os.fstat(folder).st_uid
    finally:
        for fd in opened:
            os.close(fd)
    # A rank that an older agent started has the folder in the agent's own, where nothing else can be put in its place.
    if mine not in (owner, os.geteuid()):
        os.close(folder)
        raise PermissionError(1, "the folder is not the job's own")
    return folder, owner


def _has_files(folder: str) -> bool:
    try:
        fd, _ = folder_open(folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("The artefacts in %s are left out: %s", folder, error.strerror)
        return False
    try:
        return bool(os.listdir(fd))
    finally:
        os.close(fd)


def _pieces(fd: int, size: int) -> Iterator[bytes]:
    """Exactly ``size`` bytes. Raises Unreachable when the file shrinks meanwhile: the request is then cut off."""
    offset = 0
    while offset < size:
        data = os.pread(fd, min(PIECE, size - offset), offset)
        if not data:
            raise Unreachable("the file became shorter while it was read")
        offset += len(data)
        yield data
        time.sleep(0)  # the loop's thread comes first
