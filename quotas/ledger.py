"""What was used, written once a slice. The unit is the whole card (D15): a slice costs its share of the card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite

from quotas.counters import Counters
from quotas.models import LedgerEntry
from quotas.sql import rows_insert


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One slice, for the time that it was ACTIVE. ``share`` in 0–1; 1 = the whole card."""

    slice_id: int
    job_id: int
    user: int
    project: int
    gpu_model: str
    share: float
    mib: int
    started_at: datetime
    ended_at: datetime

    @property
    def seconds(self) -> float:
        """Never negative: a clock that was set back between the two must not give time away, nor break the end of the job."""
        return max(0.0, (self.ended_at - self.started_at).total_seconds())


def charge(charges: Sequence[Charge], counters: Counters) -> list[int]:
    """Writes each slice's charge unless it was charged before, and counts it; returns the slices that this call charged.

    Call in the transaction that moves the slices on, so that a slice is never moved without its charge nor charged without its
    move; ``counters.save()`` is the caller's. gpu_seconds = share × seconds. A time that crosses a month's end (installation's
    zone) counts to the month of the counter with its part. Raises ValueError if a share is not in 0–1.
    """
    for one in charges:
        if not (isfinite(one.share) and 0 <= one.share <= 1):
            raise ValueError(f"share is {one.share}; expected 0–1")
    rows = [
        {
            "slice_id": one.slice_id,
            "job_id": one.job_id,
            "user_id": one.user,
            "project_id": one.project,
            "gpu_model": one.gpu_model[:120],
            "share": one.share,
            "mib": one.mib,
            "started_at": one.started_at,
            "ended_at": max(one.ended_at, one.started_at),
            "seconds": one.seconds,
            "gpu_seconds": one.share * one.seconds,
        }
        for one in charges
    ]
    new = set(rows_insert(LedgerEntry, rows, once="slice_id"))
    for one in charges:
        if one.slice_id in new and one.share * one.seconds > 0:
            counters.use(user=one.user, project=one.project, share=one.share, started_at=one.started_at, ended_at=one.ended_at)
    return sorted(new)
