"""Estimates in a process of their own, of low priority: a simulation of a long queue takes seconds of CPU, and a thread of the
process that serves pages or runs passes would take them from those.

``python -m jobs.scheduler.child``: one pickled ``Question`` on standard input, its pickled answers on standard output, each as soon
as it is there. It ends by itself when nobody reads any more. No Django, so it starts in a blink.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

from jobs.scheduler.estimate import Alternative, Aside, Budget, Estimate, alternatives, estimate_start
from jobs.scheduler.outlook import QueueOutlook, outlooks
from jobs.scheduler.simulate import Trace
from jobs.scheduler.types import Policy, Request, Snapshot

Answer = QueueOutlook | Estimate | Alternative


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``job`` None: the outlooks of all. Else the job's estimate, if ``first`` is not that already, and with ``most`` > 0 so many
    alternatives after it; ``predicted``: how long it would run if it asked for something else. ``budget_s`` is for each pair of
    simulations, not for all together."""

    snapshot: Snapshot
    policy: Policy
    job: int | None = None
    first: Estimate | None = None
    most: int = 0
    predicted: Mapping[Request, float] = field(default_factory=dict)
    budget_s: float = 3.0
    niceness: int = 10


def answers(
    question: Question,
    *,
    clock: Callable[[], float] = time.monotonic,
    aside: Callable[[Callable[[], Trace]], Aside] | None = None,
) -> Iterator[Answer]:
    """Raises KeyError for a job that is not in the snapshot."""
    snapshot, policy, job = question.snapshot, question.policy, question.job
    budget = Budget(clock=clock, seconds=question.budget_s, aside=aside)
    if job is None:
        yield outlooks(snapshot, policy, budget=budget)
        return
    first = question.first
    if first is None:
        first = estimate_start(snapshot, job, policy, budget=budget)
        yield first
    if question.most > 0:
        yield from alternatives(snapshot, job, policy, most=question.most, budget=budget, first=first, predicted=question.predicted)


class Forked:
    """A simulation in a fork of this process, on another core. Only for a process that has no threads."""

    def __init__(self, work: Callable[[], Trace], clock: ParentClock) -> None:
        self._work = work
        source, sink = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(source)
                clock.parent = os.getppid()
                with os.fdopen(sink, "wb") as out:
                    pickle.dump(work(), out, protocol=pickle.HIGHEST_PROTOCOL)
            finally:
                os._exit(0)  # whatever happened: the caller's work is not this process's
        os.close(sink)
        self._source = os.fdopen(source, "rb")

    def result(self) -> Trace:
        """It is done here once more if the other process did not come to its end."""
        try:
            found: Trace = pickle.load(self._source)  # noqa: S301 - written by our own fork
        except (EOFError, pickle.UnpicklingError):
            found = self._work()
        self._close()
        return found

    def drop(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        self._source.close()
        os.waitpid(self._pid, 0)


class ParentClock:
    """A clock that ends this process once its parent is gone: nobody would read what it finds."""

    def __init__(self) -> None:
        self.parent = os.getppid()

    def __call__(self) -> float:
        if os.getppid() != self.parent:
            os._exit(1)
        return time.monotonic()


def main(source: IO[bytes], sink: IO[bytes]) -> None:
    clock = ParentClock()

    def aside(work: Callable[[], Trace]) -> Forked:
        return Forked(work, clock)

    question: Question = pickle.load(source)  # noqa: S301 - written by the process that started this one
    os.nice(question.niceness)
    for answer in answers(question, clock=clock, aside=aside if (os.cpu_count() or 1) > 1 else None):
        pickle.dump(answer, sink)
        sink.flush()


if __name__ == "__main__":
    try:
        main(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)
