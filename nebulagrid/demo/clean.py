"""Ends what a demo left running, and removes its data folder and the folders of its jobs."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from pathlib import Path

from agent import jobdir, procs, rankdir
from nebulagrid.demo import FOLDER

GRACE_S = 2.0
DEADLINE_S = 20.0


class DemoError(RuntimeError):
    """There is nothing here that may be removed."""


def demo_clean(data: Path) -> int:
    """Stop the demo's jobs through their shims, then remove ``data`` and their folders; how many jobs ran. Raises DemoError."""
    if not (data / FOLDER / "feeder.json").exists():
        raise DemoError(f"There is no demo in {data}; nothing was removed.")
    count = demo_stop(agents=data, lock=data / "run" / "up.lock", name=str(data))
    shutil.rmtree(data)
    jobdir.remove(jobdir.root_beside(str(data.absolute())))
    return count


def demo_stop(*, agents: Path, lock: Path, name: str) -> int:
    """End the jobs of the agents in ``agents`` through their shims; how many ran. Raises DemoError."""
    if _is_in_use(lock):
        raise DemoError(f"The demo in {name} runs; stop it first (Ctrl-C in its terminal).")
    ranks = [path for path in sorted(agents.glob("agent-*/ranks/*.*.*")) if rankdir.claim_held(str(path))]
    for path in ranks:
        order = {"cause": "stopped", "reason": "the demo is removed", "grace_s": GRACE_S, "at": procs.boottime()}
        rankdir.file_write(str(path), rankdir.STOP, order)
        if owner := rankdir.claim_owner(str(path)):
            procs.signal_send(*owner, signal.SIGUSR2)  # its shim looks at once
    end = time.monotonic() + DEADLINE_S
    while left := [path.name for path in ranks if rankdir.claim_held(str(path))]:
        if time.monotonic() > end:
            raise DemoError(f"Rank {left[0]} did not end within {DEADLINE_S:.0f} s; nothing was removed.")
        time.sleep(0.05)
    return len(ranks)


def _is_in_use(lock: Path) -> bool:
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
