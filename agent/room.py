"""Whether the agent can write: room on the disk of its data folder, and what its store says of the last write."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from agent.store import Store

log = logging.getLogger("nebula-agent")

#: Below this the disk counts as full, so that what runs can still end and be written down; above twice as much it has room again.
FLOOR_MIB = 64
FLOOR_FILES = 200
LOOK_S = 5.0
MIB = 1024 * 1024
#: What the store says → the code of the advice.
ADVICE = {"full": "disk_full", "readonly": "store_unwritable", "locked": "store_unwritable", "io": "store_unwritable"}


class Room:
    """One per agent. Only the loop's thread uses it."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store
        self._looked_at = float("-inf")
        self._is_low = False
        self.advice: tuple[str, ...] = ()

    def look(self) -> dict[str, Any] | None:
        """What changed, for an event: the advice that began or ended, with the numbers. Looks at the disk every few seconds; a write
        that failed is known at once, and what is owed since is tried again."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S and (self._store.trouble is None or bool(self.advice)):
            return None
        self._looked_at = now
        self._store.settle()
        numbers = self._measure()
        trouble = ADVICE[self._store.trouble] if self._store.trouble is not None else None
        advice = tuple(dict.fromkeys(code for code in (trouble, "disk_full" if self._is_low else None) if code is not None))
        if advice == self.advice:
            return None
        before, self.advice = self.advice, advice
        if advice:
            log.error("%s: %s; no new job is started here until that is over (%s).", self._folder, ", ".join(advice), numbers)
        else:
            log.warning("%s can be written again (%s).", self._folder, numbers)
        return {"kind": advice[0] if advice else f"{before[0]}_over", **numbers}

    def _measure(self) -> dict[str, int]:
        """Free MiB and files, as far as the file system tells; also notes whether it is too little."""
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return {}
        free_mib, factor = found.f_bavail * found.f_frsize // MIB, 2 if self._is_low else 1
        numbers = {"free_mib": free_mib}
        self._is_low = free_mib < FLOOR_MIB * factor
        if found.f_files:
            numbers["free_files"] = found.f_favail
            self._is_low |= found.f_favail < FLOOR_FILES * factor
        return numbers
