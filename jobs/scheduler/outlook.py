"""What is told to those who wait: place, estimated start, and until when what is in the way stays there. For the whole queue at once.

One explaining ``plan()`` and the two simulations of ``forecast``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jobs.scheduler import reasons
from jobs.scheduler.estimate import MOST_PASSES, Budget, Estimate, forecast
from jobs.scheduler.plan import plan
from jobs.scheduler.types import Placement, Policy, Reason, Request, Snapshot
from jobs.scheduler.until import Ends

#: Reasons that the end of a running job takes away.
ENDS_WITH_A_JOB = frozenset({reasons.GPU_MEMORY, reasons.GPU_COUNT, reasons.WHOLE_CARD_BUSY, reasons.SLICE_LIMIT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Of one waiting job. Times are seconds since the epoch; ``p50``, ``p90`` and ``after`` as in ``Estimate``.

    ``position``: 1 = head of the queue; None = it is in nobody's way (held, or it can never run) or starts now.
    ``until``: when enough memory or cards come back for it (reason ``code``), or when the job ``behind`` starts that keeps
    the cards; None = nobody knows.
    """

    position: int | None
    p50: float | None = None
    p90: float | None = None
    after: float | None = None
    code: str = ""
    until: float | None = None
    behind: int | None = None
    placement: Placement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOutlook:
    """``good_until``: before then a snapshot that differs in nothing but its time has the same outlooks, as good as."""

    at: float
    jobs: Mapping[int, Outlook]
    good_until: float


def outlooks(snapshot: Snapshot, policy: Policy, *, most_passes: int = MOST_PASSES, budget: Budget | None = None) -> QueueOutlook:
    """Of every waiting job of the snapshot."""
    decided = plan(snapshot, policy)
    told = forecast(snapshot, policy, most_passes=most_passes, budget=budget)
    ends = Ends(snapshot, policy)
    requests = {job.id: job.request for job in snapshot.jobs}
    held = {job.id for job in snapshot.jobs if job.hold is not None}
    until = Until(ends, told)
    found = {placed.job: _outlook(told[placed.job], None) for placed in decided.placements}
    for refusal in decided.refusals:
        job = refusal.job
        position = None if refusal.never or job in held else refusal.position
        found[job] = _outlook(told[job], position, refusal.reason, until.of(refusal.reason, requests[job]))
    soon = [item.p50 for item in told.values() if item.p50 is not None and item.p50 > snapshot.now]
    return QueueOutlook(at=snapshot.now, jobs=found, good_until=min([ends.next_end(), *soon]))


class Until:
    """The time that goes with a reason. Equal requests are asked once."""

    def __init__(self, ends: Ends, told: Mapping[int, Estimate]) -> None:
        self._ends = ends
        self._told = told
        self._rooms: dict[int, float | None] = {}  # by the request's serial

    def of(self, reason: Reason, request: Request) -> float | None:
        if reason.code == reasons.BLOCKED_BY:
            ahead = self._told.get(reason.params.get("job") or 0)
            return None if ahead is None else ahead.p50
        if reason.code not in ENDS_WITH_A_JOB:
            return None
        key = request.serial
        if key not in self._rooms:
            self._rooms[key] = self._ends.room_anywhere_at(request)
        return self._rooms[key]


def _outlook(told: Estimate, position: int | None, reason: Reason | None = None, until: float | None = None) -> Outlook:
    code = "" if reason is None else reason.code
    behind = reason.params.get("job") if reason is not None and code == reasons.BLOCKED_BY else None
    return Outlook(
        position=position,
        p50=told.p50,
        p90=told.p90,
        after=told.after if told.after is not None and told.after < math.inf else None,
        code=code,
        until=until if until is not None and until < math.inf else None,
        behind=behind,
        placement=told.placement,
    )
