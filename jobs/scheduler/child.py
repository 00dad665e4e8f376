"""Estimates in a process of their own, of low priority: a simulation of a long queue takes seconds of CPU, and a thread of the
process that serves pages or runs passes would take them from those.

``python -m jobs.scheduler.child``: one pickled ``Question`` on standard input, its pickled answers on standard output, each as soon
as it is there. It ends by itself when nobody reads any more. No Django, so it starts in a blink.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from jobs.scheduler.estimate import Alternative, Budget, Estimate, alternatives, estimate_start
from jobs.scheduler.outlook import QueueOutlook, outlooks
from jobs.scheduler.types import Policy, Snapshot

Answer = QueueOutlook | Estimate | Alternative
NICENESS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``job`` None: the outlooks of all. Else the job's estimate, if ``first`` is not that already, and with ``most`` > 0 so many
    alternatives after it. ``budget_s`` is for each simulation of a pair, not for all together."""

    snapshot: Snapshot
    policy: Policy
    job: int | None = None
    first: Estimate | None = None
    most: int = 0
    budget_s: float = 3.0


def answers(question: Question, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Answer]:
    """Raises KeyError for a job that is not in the snapshot."""
    snapshot, policy, job = question.snapshot, question.policy, question.job
    budget = Budget(clock=clock, seconds=question.budget_s)
    if job is None:
        yield outlooks(snapshot, policy, budget=budget)
        return
    first = question.first
    if first is None:
        first = estimate_start(snapshot, job, policy, budget=budget)
        yield first
    if question.most > 0:
        yield from alternatives(snapshot, job, policy, most=question.most, budget=budget, first=first)


def clock_of(parent: int) -> Callable[[], float]:
    """A clock that ends this process once its parent is gone: nobody would read what it finds."""

    def now() -> float:
        if os.getppid() != parent:
            os._exit(1)
        return time.monotonic()

    return now


def main(source: IO[bytes], sink: IO[bytes]) -> None:
    parent = os.getppid()
    question: Question = pickle.load(source)  # noqa: S301 - written by the process that started this one
    for answer in answers(question, clock=clock_of(parent)):
        pickle.dump(answer, sink)
        sink.flush()


if __name__ == "__main__":
    os.nice(NICENESS)
    try:
        main(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)
