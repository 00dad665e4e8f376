"""Removes folders of jobs beside the agent's loop."""

from __future__ import annotations

import threading

from agent import jobdir


class Removals:
    """Removes folders in a thread of its own, which lives while there is one: a job may leave a million files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._thread: threading.Thread | None = None

    def add(self, path: str) -> None:
        with self._lock:
            self._waiting.append(path)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="removals", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                path = self._waiting.pop(0)
            jobdir.remove(path)  # what can't be removed now is tried again at the next start
