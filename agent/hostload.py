"""The machine itself: how busy its processors are, how much memory and disk is left. Reads two files of /proc; never raises."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from agent import windows
from agent.protocol import HostStatus

#: Syncs may follow each other within milliseconds, and a share of so short a time says nothing: the last reading stands.
FRESH_S = 4.0
MIB = 1024 * 1024


class HostLoad:
    """One per agent. ``folder`` names the disk that is watched."""

    def __init__(self, folder: Path, *, proc: Path = Path("/proc")) -> None:
        self._folder, self._proc = folder, proc
        self._ticks = self._cpu_ticks()
        self._last, self._read_at = HostStatus(), float("-inf")

    def read(self, *, now: float | None = None) -> HostStatus:
        """``now``: a clock that nobody sets. The first reading has no ``cpu_pct``: it takes two to tell a share."""
        now = time.monotonic() if now is None else now
        if now - self._read_at < FRESH_S:
            return self._last
        before, self._ticks = self._ticks, self._cpu_ticks()
        free, total = self._disk()
        is_first = self._read_at == float("-inf")
        self._read_at = now
        self._last = HostStatus(
            cpu_pct=None if is_first else cpu_share(before, self._ticks),
            memory_mib=self._memory(),
            disk_free_mib=free,
            disk_total_mib=total,
        )
        return self._last

    def _cpu_ticks(self) -> tuple[int, int] | None:
        """(busy, all) since boot. Waiting for a disk is idle; a guest's time is in user's already."""
        if os.name == "nt":
            return windows.cpu_ticks()
        try:
            fields = [int(text) for text in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
            idle = fields[3] + fields[4]
            return sum(fields) - idle, sum(fields)
        except (OSError, ValueError, IndexError):
            return None

    def _memory(self) -> int | None:
        if os.name == "nt":
            found = windows.memory_mib()
            return found[1] if found is not None else None
        try:
            lines = (line.split(":") for line in (self._proc / "meminfo").read_text().splitlines())
            kib = {name: int(value.split()[0]) for name, value in lines}
            return max(0, kib["MemTotal"] - kib["MemAvailable"]) // 1024
        except (OSError, ValueError, KeyError, IndexError):
            return None

    def _disk(self) -> tuple[int | None, int | None]:
        try:
            found = shutil.disk_usage(self._folder)
        except OSError:
            return None, None
        return found.free // MIB, found.total // MIB


def cpu_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> int | None:
    """Per cent of all processors between two readings of (busy, all); None where it can't be told."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return max(0, min(100, round(100 * (after[0] - before[0]) / (after[1] - before[1]))))
