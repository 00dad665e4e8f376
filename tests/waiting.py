"""How a test waits for what another process, thread or page does: for the thing itself, and long.

A wait ends when its condition is true, so that patience costs nothing where all is well; where the machine is busy it is all that
keeps a test from failing for nothing. `docs/architecture.md`, Tests, says more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from bench.live.grid import PATIENCE_S

__all__ = ["PATIENCE_S", "until", "wait_until"]

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, deadline_s: float = PATIENCE_S) -> T:
    """The first true value of ``condition``, which is asked every 5 ms."""
    end = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {deadline_s:g} s"
        time.sleep(0.005)


async def until(condition: Callable[[], T], what: str, deadline_s: float = PATIENCE_S) -> T:
    """The same in an event loop."""
    end = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {deadline_s:g} s"
        await asyncio.sleep(0.005)
