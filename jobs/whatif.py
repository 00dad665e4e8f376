"""When a job would start, asked of the scheduler's own core: at once for a short queue, in a process of its own for a long one."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from django.conf import settings

from jobs.errors import EstimatesBusy
from jobs.lately import expecting
from jobs.scheduler import Alternative, Budget, Estimate, Policy, Request, Snapshot, estimate_start
from jobs.scheduler.child import Answer, Question, answers
from jobs.scheduler.estimate import MOST_ALTERNATIVES
from jobs.scheduler.outlook import QueueOutlook

#: For the simulations of one estimate; they run side by side.
BUDGET_S = 2.5
#: What takes longer is done elsewhere: meanwhile this process could do nothing else.
INLINE_S = 0.15
INLINE_JOBS = 60
#: So many such processes at once; who comes then waits for so long.
CHILDREN_MOST = 2
QUEUE_S = 8.0
#: Somebody waits for it, so it gives way less than the forecast in the background does.
NICENESS = 3

log = logging.getLogger(__name__)
_children = threading.BoundedSemaphore(CHILDREN_MOST)


def estimate_of(view: Snapshot, job: int, policy: Policy) -> Estimate:
    """Of a job of the snapshot. Raises EstimatesBusy when too many are being made."""
    view = expecting(view, policy)
    if len(view.jobs) <= INLINE_JOBS:
        found = estimate_start(view, job, policy, budget=Budget(clock=time.monotonic, seconds=INLINE_S))
        if found.after is None:
            return found
    for answer in _child(Question(snapshot=view, policy=policy, job=job, budget_s=BUDGET_S, niceness=NICENESS)):
        if isinstance(answer, Estimate):
            return answer
    raise EstimatesBusy


def alternatives_of(
    view: Snapshot, job: int, policy: Policy, first: Estimate, *, predicted: Mapping[Request, float], most: int = MOST_ALTERNATIVES
) -> Iterator[Alternative]:
    """What would start sooner, each as soon as it is found. ``first``: what ``estimate_of`` said. Raises EstimatesBusy."""
    view = expecting(view, policy)
    question = Question(
        snapshot=view, policy=policy, job=job, first=first, most=most, predicted=predicted, budget_s=BUDGET_S, niceness=NICENESS
    )
    is_small = len(view.jobs) + len(view.running) + len(view.recent) <= INLINE_JOBS // 4
    found = answers(question) if is_small else _child(question)
    for answer in found:
        if isinstance(answer, Alternative):
            yield answer


def forecast_of(view: Snapshot, policy: Policy, *, budget_s: float) -> QueueOutlook | None:
    """Of the whole queue; None if the process that makes it failed."""
    question = Question(snapshot=expecting(view, policy), policy=policy, budget_s=budget_s)
    for answer in _child(question, is_counted=False):
        if isinstance(answer, QueueOutlook):
            return answer
    return None


def _child(question: Question, *, is_counted: bool = True) -> Iterator[Answer]:
    """The answers of a process of its own, as they come. It is ended when the generator is closed."""
    with _room() if is_counted else nullcontext():
        argv = [sys.executable, "-m", "jobs.scheduler.child"]
        with subprocess.Popen(argv, cwd=settings.BASE_DIR, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            try:
                if child.stdin is None or child.stdout is None:
                    raise RuntimeError("started without pipes")
                pickle.dump(question, child.stdin, protocol=pickle.HIGHEST_PROTOCOL)
                child.stdin.close()
                while True:
                    yield pickle.load(child.stdout)  # noqa: S301 - our own process, on a pipe that nobody else has
            except EOFError:
                if child.wait() != 0:
                    log.error("an estimate failed: its process ended with status %d", child.returncode)
            except BrokenPipeError:
                log.error("an estimate failed: its process took no question")
            finally:
                child.kill()


@contextmanager
def _room() -> Iterator[None]:
    if not _children.acquire(timeout=QUEUE_S):
        raise EstimatesBusy
    try:
        yield
    finally:
        _children.release()
