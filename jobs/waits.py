"""Waiting for a job without keeping a thread: a long poll of at most 25 s, below what proxies cut.

A view that has nothing to say yet answers ``Deferred``. The handler of the web process waits on its event loop and then asks the
view again, from the first middleware on: who was switched off meanwhile, or lost the job, is refused by the same door as ever. One
query every half second tells of all jobs that are waited for, however many wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from typing import Any

from channels.db import database_sync_to_async
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse

from jobs.models import Job

log = logging.getLogger(__name__)

MOST_S = 25  # a proxy that closes after 45 s, or 30, never sees a quiet connection for that long
LOOK_S = 0.5
#: At least so often the view is asked again, though nothing changed: who was switched off or lost the token does not wait on.
LAP_S = 4.0
#: Where the request keeps until when it waits: the same for all of its laps.
DEADLINE = "nebula.wait_until"


class Deferred(HttpResponse):
    """Nothing to say yet: to be asked again when the job's state is not ``state`` any more, or the time is over."""

    def __init__(self, *, job: int, state: str, until: float) -> None:
        super().__init__(status=202)  # nobody sees it; one from 400 on would be logged as an error
        self.job, self.state, self.until = job, state, until

    async def wait(self) -> None:
        await _watch.changed(self.job, self.state, min(LAP_S, max(0.0, self.until - time.monotonic())))


def deadline_of(request: HttpRequest, timeout_s: int) -> float | None:
    """Until when this request may wait (monotonic); None where nobody waits for it: a server without an event loop."""
    scope: dict[str, Any] | None = getattr(request, "scope", None)
    if scope is None:
        return None
    until: float = scope.setdefault(DEADLINE, time.monotonic() + timeout_s)
    return until


class _Watch:
    """The jobs that somebody waits for in this process, and the task that looks after them while there are any."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[tuple[str, asyncio.Future[None]]]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    async def changed(self, job: int, state: str, timeout_s: float) -> None:
        """Until the job's state is another one, or for ``timeout_s``."""
        entry = (state, asyncio.get_running_loop().create_future())
        self._waiting[job].add(entry)
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            self._task = asyncio.create_task(self._look_on(), name="job-waits")
        try:
            await asyncio.wait((entry[1],), timeout=timeout_s)
        finally:
            self._waiting[job].discard(entry)
            if not self._waiting[job]:
                del self._waiting[job]

    async def _look_on(self) -> None:
        while self._waiting:
            await asyncio.sleep(LOOK_S)
            try:
                states = await database_sync_to_async(_states)(list(self._waiting))
            except DatabaseError as error:  # who waits is told in time; the view then says it
                log.warning("jobs that are waited for could not be looked at: %s", error)
                continue
            for job, entries in self._waiting.items():
                for state, future in entries:
                    if states.get(job) != state and not future.done():
                        future.set_result(None)


def _states(jobs: list[int]) -> dict[int, str]:
    return dict(Job.objects.filter(pk__in=jobs).values_list("pk", "state"))


_watch = _Watch()
