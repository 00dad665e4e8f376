"""A slice's way: HELD → ACTIVE → RELEASING → RELEASED | QUARANTINED. Each move writes its time, its counters, its charge.

Call inside a transaction, with the ranks' jobs locked. ``ranks`` are loaded with their attempt and job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import DatabaseError

from jobs.lifecycle import SliceState
from jobs.models import Rank, Slice
from nodes.models import Gpu
from quotas.counters import Counters
from quotas.ledger import Charge, charge
from quotas.sql import Select, rows_update, swap


class SlicesMoved(DatabaseError):
    """Somebody moved slices of a job that is locked here: nothing of this transaction may stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """How a rank leaves its cards. ``at``: charging stops then. ``active_since`` is for a program that came and went between two
    reports. ``released`` True = process tree gone and memory back, False = no such proof, None = not known yet."""

    rank: Rank
    at: datetime
    released: bool | None
    active_since: datetime | None = None


_live = Select(
    lambda ranks: (
        Slice.objects.filter(rank_id__in=ranks)
        .exclude(state=SliceState.RELEASED)
        .order_by("pk")
        .values_list("pk", "rank_id", "gpu_id", "mib", "share", "state", "active_at", "gpu__model")
    )
)


@dataclass(slots=True)
class Left:
    """What came of it: slices that returned to the pool, and the ranks whose slices went to quarantine now."""

    freed: int = 0
    quarantined: set[int] = field(default_factory=set)


def slices_activate(rank: Rank, *, at: datetime) -> None:
    """The rank's program runs: from now on its slices are charged."""
    Slice.objects.filter(rank=rank, state=SliceState.HELD).update(state=SliceState.ACTIVE, active_at=at)


def slices_leave(leaving: Sequence[Leaving], *, now: datetime, counters: Counters) -> Left:
    """The ranks' slices stop being charged and return to the pool as far as that is proven: RELEASING, RELEASED, or QUARANTINED,
    which stays taken, charged to nobody, until a proof or an admin. Repeats change nothing.

    ``counters.save()`` is the caller's. A statement a slice and a handful for all.
    """
    left = Left()
    by_rank = {one.rank.pk: one for one in leaving}
    changes: list[tuple[int, str, dict[str, Any]]] = []
    charges: list[Charge] = []
    freed: dict[int, list[int]] = defaultdict(list)  # card → MiB of each slice
    for pk, rank_id, gpu_id, mib, share, state, active_at, model in _live(list(by_rank)):
        one = by_rank[rank_id]
        job = one.rank.attempt.job
        new: dict[str, Any] = {}
        if state in (SliceState.HELD, SliceState.ACTIVE):
            if state == SliceState.HELD and one.active_since is not None:
                active_at = one.active_since
            new = {"state": SliceState.RELEASING, "releasing_at": one.at, "active_at": active_at}
            if active_at is not None:
                charges.append(
                    Charge(
                        slice_id=pk, job_id=job.pk, user=job.owner_id, project=job.project_id, gpu_model=model, share=share, mib=mib,
                        started_at=active_at, ended_at=one.at,
                    )
                )  # fmt: skip
        if one.released is True:
            new |= {"state": SliceState.RELEASED, "released_at": now}
            freed[gpu_id].append(mib)
            counters.cards_release(user=job.owner_id, project=job.project_id, n=1)
        elif one.released is False and state != SliceState.QUARANTINED:
            new |= {"state": SliceState.QUARANTINED}
            left.quarantined.add(rank_id)
        if new:
            changes.append((pk, state, new))
    for pk, old, new in changes:
        if not swap(Slice, pk, old={"state": old}, new=new):
            raise SlicesMoved
    if charges:
        charge(charges, counters)
    # An exclusive slice was alone, so what is left after it is never exclusive.
    rows_update(
        Gpu,
        [(gpu_id, sum(mibs), len(mibs)) for gpu_id, mibs in sorted(freed.items())],
        assign="held_mib = held_mib - v.column2, live_slices = live_slices - v.column3, is_exclusive = FALSE",
    )
    left.freed = sum(len(mibs) for mibs in freed.values())
    return left


def slices_quarantine(rank: Rank, *, at: datetime, now: datetime) -> None:
    """No proof that the memory of this one rank is back; ``at`` is the last proof that it was alive."""
    job = rank.attempt.job
    counters = Counters(users=[job.owner_id], projects=[job.project_id])
    slices_leave([Leaving(rank=rank, at=at, released=False)], now=now, counters=counters)
    if not counters.save():
        raise SlicesMoved
