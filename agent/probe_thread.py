"""ChildProbe where pipes can't be waited for without blocking (Windows): a small thread reads the child's answers."""

from __future__ import annotations

import os
import queue
import subprocess
import threading

from agent.probe import ChildProbe


class ThreadProbe(ChildProbe):
    """The same promises. There is no descriptor to wait on: whoever uses it calls `poll` several times a second."""

    def fileno(self) -> int | None:
        return None

    def _watch(self) -> None:
        self._said: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def _unwatch(self) -> None:
        return

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        self._watch()  # what an earlier child still says is nobody's
        if child.stdout is not None:
            threading.Thread(target=_read, args=(child.stdout.fileno(), self._said), name="probe", daemon=True).start()

    def _read(self, child: subprocess.Popen[bytes]) -> bytes | None:
        try:
            return self._said.get_nowait()
        except queue.Empty:
            return None


def _read(fd: int, said: queue.SimpleQueue[bytes]) -> None:
    """Until the child has closed its end; b"" tells that."""
    data = b"\n"
    while data:
        try:
            data = os.read(fd, 1 << 16)
        except OSError:  # closed under us
            data = b""
        said.put(data)
