"""Threads for requests, kept apart by who asks: what one kind of caller makes slow, the others don't feel.

Health, agents' syncs, agents' output and people have a lane each. Within a lane the addresses that call take turns, and one
address never holds all of the lane's threads where others may need them. A lane whose queue is full says so at once.

Everything here runs on the event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

AGENTS = "/api/agent/"
OUTPUT = ("/api/agent/v1/logs/", "/api/agent/v1/artifacts/")


def lane_of(path: str) -> str:
    """``health``, ``agents``, ``output`` or ``people``."""
    if path == "/healthz":
        return "health"
    if path.startswith(OUTPUT):
        return "output"
    return "agents" if path.startswith(AGENTS) else "people"


class LaneFull(Exception):
    """So many requests wait already that another one would wait for longer than its caller does."""


class Lane:
    """``share``: how many threads one caller may hold at a time. ``waiting_most``: how many requests may wait for a thread."""

    def __init__(self, name: str, threads: int, *, share: int | None = None, waiting_most: int = 256) -> None:
        self.threads, self.share, self.waiting_most = threads, share or threads, waiting_most
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"http-{name}")
        self._running: Counter[str] = Counter()
        #: Who waits, in the order of turns, with a future for each request.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        return sum(len(turns) for turns in self._waiting.values())

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises, in a thread, when it is the caller's turn. Raises LaneFull."""
        if self._may_start(caller):
            self._running[caller] += 1
        else:
            await self._turn(caller)
        try:
            return await self.thread(work)
        finally:
            self._leave(caller)

    async def thread(self, work: Callable[[], T]) -> T:
        """In one of the lane's threads, out of turn: for what ends a request that had its turn."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _may_start(self, caller: str) -> bool:
        return self._running.total() < self.threads and self._running[caller] < self.share

    async def _turn(self, caller: str) -> None:
        """Returns when a thread is kept for the caller."""
        if self.waiting >= self.waiting_most:
            raise LaneFull
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(caller)  # it had just got its thread
            elif turn in self._waiting.get(caller, ()):
                self._waiting[caller].remove(turn)
                if not self._waiting[caller]:
                    del self._waiting[caller]
            raise

    def _leave(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        # Whoever is next in turn and holds less than its share; who has more to ask goes to the end of the line.
        while (found := next((waiter for waiter in self._waiting if self._may_start(waiter)), None)) is not None:
            turns = self._waiting.pop(found)
            turn = turns.popleft()
            if turns:
                self._waiting[found] = turns
            if not turn.done():  # its request may have been given up
                self._running[found] += 1
                turn.set_result(None)
