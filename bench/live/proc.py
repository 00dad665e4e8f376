"""Memory and processor time of a process tree, from /proc. Memory is ΣPSS: shared pages count once."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(place.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def pss_mib(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def cpu_s(pids: list[int]) -> float:
    """Seconds of processor time so far, of those that still run."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total * TICK_S
