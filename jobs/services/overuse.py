"""Slices are logical (D25): what keeps a program within its own is this look at what it really holds, every 30 s.

A program above its slice and a margin is told of in its job's history; one that still is after ``SLICE_GRACE_S`` is stopped, if
``SLICE_EXCEEDED`` says so. Only that job: never its neighbour, and never for a figure that is not told. A card that a job has whole has
no limit but its size. The memory between two looks is in Redis; an emptied one begins anew, in the program's favour.

  nebula:overuse   hash  "<rank>/<card id>" → since when it is above, Unix time
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.conf import settings
from django.db import transaction

from jobs.lifecycle import RANK_FINAL, EndReason, JobState, SliceState
from jobs.models import Attempt, Job, JobEvent, Slice
from jobs.notify import jobs_changed
from jobs.services.stop import attempt_stop
from nodes import telemetry

log = logging.getLogger(__name__)

KEY, TURN_KEY = "nebula:overuse", "nebula:overuse:turn"
EVERY_S = 30
#: A list of processes that is older says nothing of now.
FRESH_S = 60.0


class Part(NamedTuple):
    """A slice that a program is in."""

    rank: str
    gpu: int
    uuid: str
    index: int
    mib: int
    node: int
    node_name: str
    job: int
    attempt: int


def overuse_look(*, now: float) -> list[int]:
    """One look; more than one call within 30 s does nothing. Returns the jobs that are stopped. ``now``: Unix time.

    One query and three round trips to Redis while everybody keeps to what they asked for.
    """
    if not telemetry.ask(lambda c: c.set(f"{TURN_KEY}:{int(now) // EVERY_S}", "1", nx=True, ex=2 * EVERY_S), None):
        return []
    before = telemetry.ask(lambda c: c.hgetall(KEY), None)
    if before is None:
        return []
    parts = _parts()
    held = _held(parts, now=now)
    kept: dict[str, str] = {}
    stopped: list[int] = []
    for part in parts:
        key = f"{part.rank}/{part.gpu}"
        used = held.get((part.rank, part.uuid))
        if used is None:
            kept |= {key: before[key]} if key in before else {}  # not told: neither begins nor ends anything
        elif used > part.mib + settings.SLICE_MARGIN_MIB:
            since = kept[key] = before.get(key, f"{now:.0f}")
            numbers = {"node": part.node_name, "gpu": part.index, "used_mib": used, "asked_mib": part.mib}
            if key not in before:
                _tell(part, numbers, now=now)
            elif settings.SLICE_EXCEEDED == "stop" and now - float(since) >= settings.SLICE_GRACE_S and _stop(part, numbers):
                stopped.append(part.job)
    telemetry.hash_replace(KEY, before, kept)
    return stopped


def _parts() -> list[Part]:
    rows = (
        Slice.objects.filter(state=SliceState.ACTIVE, is_exclusive=False)
        .exclude(rank__observed__in=RANK_FINAL)
        .order_by("pk")
        .values_list(
            "rank__key", "gpu_id", "gpu__uuid", "gpu__index", "mib", "rank__node_id", "rank__node__name", "rank__attempt__job_id",
            "rank__attempt_id",
        )
    )  # fmt: skip
    return [Part(*row) for row in rows]


def _held(parts: list[Part], *, now: float) -> Mapping[tuple[str, str], int | None]:
    """(rank, card) → MiB that its processes hold there; None where one of them has no figure. Left out: nodes without a fresh list."""
    found: dict[tuple[str, str], int | None] = {}
    listed = telemetry.nodes_processes({part.node for part in parts})
    fresh = {node for node, (at, _processes) in listed.items() if now - at < FRESH_S}
    for part in parts:
        if part.node in fresh:
            found[part.rank, part.uuid] = 0
    for node in fresh:
        for process in listed[node][1]:
            key = str(process.get("rank")), str(process.get("uuid"))
            so_far, mib = found.get(key), process.get("used_mib")
            if so_far is not None:
                found[key] = so_far + mib if isinstance(mib, int) and mib >= 0 else None
    return found


def _tell(part: Part, numbers: Mapping[str, Any], *, now: float) -> None:
    code = "slice_over_stop" if settings.SLICE_EXCEEDED == "stop" else "slice_over"
    params = {**numbers, "grace_s": settings.SLICE_GRACE_S}
    JobEvent.objects.create(job_id=part.job, code=code, params=params, at=datetime.fromtimestamp(now, UTC))
    log.warning("job %s holds %s MiB of its %s MiB on card %s", part.job, numbers["used_mib"], part.mib, part.uuid)
    jobs_changed([part.job])


def _stop(part: Part, numbers: Mapping[str, Any]) -> bool:
    """False if it is over or being stopped already."""
    with transaction.atomic():
        job = Job.objects.select_for_update().filter(pk=part.job, state=JobState.RUNNING).first()
        attempt = Attempt.objects.filter(pk=part.attempt, ended_at__isnull=True).first()
        if job is None or attempt is None:
            return False
        grace_s = job.grace_s if job.grace_s is not None else settings.STOP_GRACE_S
        attempt_stop(attempt=attempt, reason=EndReason.SLICE_EXCEEDED, grace_s=grace_s, params=dict(numbers))
    log.warning("job %s is stopped: it holds %s MiB of its %s MiB on card %s", part.job, numbers["used_mib"], part.mib, part.uuid)
    return True
