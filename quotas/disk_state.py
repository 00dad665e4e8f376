"""Whether the control plane can write where it must: room above the floor, and a file that is really written.

Asked by /healthz, by the answer to a write that failed, and by an alert. Looks at most every few seconds, whoever asks.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from quotas.disk import Disk, DiskFull, disk_of

#: A look is good for so long.
FRESH_S = 5.0
#: With less than so many floors free, staff are warned.
LOW_FLOORS = 4
#: Enough that a file system has to find room for it.
_TRIED = b"\0" * 4096

_lock = threading.Lock()
_last: tuple[float, tuple[DiskState, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskState:
    """``place``: data, database, output or files. ``problem``: what the system said when a file was written; None = it was."""

    place: str
    disk: Disk
    problem: str | None

    @property
    def is_full(self) -> bool:
        return self.problem is not None or self.disk.refusal is not None

    @property
    def is_low(self) -> bool:
        return self.is_full or self.disk.free_mib < LOW_FLOORS * settings.DISK_FLOOR_MIB

    def refusal(self) -> DiskFull:
        """The sentence for who wanted to write."""
        if self.problem is None and (found := self.disk.refusal) is not None:
            return found
        return DiskFull("disk_unwritable", params={"folder": self.disk.folder, "problem": self.problem or ""})


def places() -> dict[str, Path]:
    """What the control plane writes to. A database of its own machine is not among them."""
    found = {"data": settings.DATA_DIR, "output": settings.LOG_DIR, "files": settings.ARTIFACT_DIR}
    database = settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        found["database"] = Path(str(database["NAME"])).absolute().parent
    return found


def disk_states(*, fresh: bool = False) -> tuple[DiskState, ...]:
    """One for each place. Writes a small file to each folder, at most every few seconds unless ``fresh``."""
    global _last
    with _lock:
        if fresh or _last is None or time.monotonic() - _last[0] > FRESH_S:
            tried: dict[Path, str | None] = {}
            states = []
            for place, folder in places().items():
                if folder not in tried:
                    tried[folder] = _write_problem(folder)
                states.append(DiskState(place=place, disk=disk_of(folder), problem=tried[folder]))
            _last = (time.monotonic(), tuple(states))
        return _last[1]


def disk_full(*, fresh: bool = False) -> DiskState | None:
    """The first place that takes nothing more."""
    return next((state for state in disk_states(fresh=fresh) if state.is_full), None)


def states_forget() -> None:
    global _last
    with _lock:
        _last = None


def _write_problem(folder: Path) -> str | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        fd, name = tempfile.mkstemp(dir=folder, prefix=".room-")
    except OSError as error:
        return error.strerror or "OSError"
    problem = None
    # Room is found at the write, on a file server at the latest at the close. Waiting for the disk itself would keep /healthz waiting.
    for step in (lambda: os.write(fd, _TRIED), lambda: os.close(fd)):
        try:
            step()
        except OSError as error:
            problem = problem or error.strerror or "OSError"
    with contextlib.suppress(OSError):
        Path(name).unlink()
    return problem
