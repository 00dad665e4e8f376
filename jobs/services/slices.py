"""A slice's way: HELD → ACTIVE → RELEASING → RELEASED | QUARANTINED. Each move writes its time, its counters, its charge.

Call inside a transaction. ``ranks`` are loaded with their attempt and job.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import F

from jobs.lifecycle import SliceState
from jobs.models import Rank, Slice
from nodes.models import Gpu
from quotas.ledger import charge
from quotas.services import cards_release


def slices_activate(rank: Rank, *, at: datetime) -> None:
    """The rank's program runs: from now on its slices are charged."""
    Slice.objects.filter(rank=rank, state=SliceState.HELD).update(state=SliceState.ACTIVE, active_at=at)


def slices_releasing(rank: Rank, *, now: datetime, active_since: datetime | None = None) -> None:
    """The program has ended: stop charging. ``active_since`` is for a program that came and went between two reports."""
    for part in Slice.objects.filter(rank=rank, state__in=(SliceState.HELD, SliceState.ACTIVE)).select_related("gpu").order_by("pk"):
        if part.state == SliceState.HELD and active_since is not None:
            part.active_at = active_since
        swapped = Slice.objects.filter(pk=part.pk, state=part.state).update(
            state=SliceState.RELEASING, releasing_at=now, active_at=part.active_at
        )
        if swapped and part.active_at is not None:
            _charge(rank, part, now)


def _charge(rank: Rank, part: Slice, now: datetime) -> None:
    job = rank.attempt.job
    charge(
        slice_id=part.pk,
        job_id=job.pk,
        user=job.owner_id,
        project=job.project_id,
        gpu_model=part.gpu.model,
        share=part.share,
        mib=part.mib,
        started_at=part.active_at or now,
        ended_at=now,
    )


def slices_release(rank: Rank, *, now: datetime) -> int:
    """Process tree gone and memory back: the slices return to the pool. Returns how many did; repeats change nothing."""
    parts = list(
        Slice.objects.filter(rank=rank, state__in=(SliceState.RELEASING, SliceState.QUARANTINED))
        .order_by("gpu_id")
        .values_list("pk", "gpu_id", "mib")
    )
    released = 0
    for pk, gpu_id, mib in parts:
        swapped = Slice.objects.filter(pk=pk, state__in=(SliceState.RELEASING, SliceState.QUARANTINED)).update(
            state=SliceState.RELEASED, released_at=now
        )
        if swapped:
            # An exclusive slice was alone, so what is left after it is never exclusive.
            Gpu.objects.filter(pk=gpu_id).update(held_mib=F("held_mib") - mib, live_slices=F("live_slices") - 1, is_exclusive=False)
            released += 1
    if released:
        job = rank.attempt.job
        cards_release(user=job.owner_id, project=job.project_id, n=released)
    return released


def slices_quarantine(rank: Rank, *, now: datetime) -> int:
    """No proof that the memory is back: the slices stay taken, charged to nobody, until a proof or an admin."""
    slices_releasing(rank, now=now)
    return Slice.objects.filter(rank=rank, state=SliceState.RELEASING).update(state=SliceState.QUARANTINED)
