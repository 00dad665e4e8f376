"""What a job used of what it held: its peak of memory, the use of its cards, the time without any. Measured once, after its end.

Memory is of its own processes, as the driver lists them; where nobody lists them, of whole cards that it had alone. Use is of the
card: on a shared one it is others' too, so that it says at most; a card without use is idle for all who share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Max, Q, Sum
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from jobs.lifecycle import JobState
from jobs.models import Job, Slice
from jobs.policy import policy_current
from nodes.formats import gib
from nodes.models import GpuSample, Level, RankSample
from quotas.models import JobUse, LedgerEntry

#: Below this a card does nothing: drivers and idle contexts show up as a percent or two.
IDLE_BELOW_PCT = 5
#: The last samples of a job are written by then.
SETTLED_AFTER = timedelta(seconds=75)
LOOK_BACK = timedelta(hours=20)  # samples as they were taken are kept for a day
#: A shorter run leaves no sample to speak of: there is nothing to measure.
LEAST = timedelta(seconds=30)
BATCH = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A slice's time on a card, Unix time."""

    rank: str
    gpu: int
    begin: int
    end: int
    mib: int
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    asked_mib: int
    peak_mib: int | None
    is_shared: bool
    util_pct: int | None
    idle_share: float | None
    samples: int


def use_of(held: Sequence[Held]) -> Use | None:
    """None for a job that held no card. Two queries for each slice's card, one for the memory of all."""
    if not held:
        return None
    told, total, idle, card_peak = 0, 0, 0, None
    for one in held:
        samples = GpuSample.objects.filter(gpu_id=one.gpu, level=Level.RAW, at__gte=one.begin, at__lte=one.end)
        found = samples.aggregate(
            n=Count("util_pct"), util=Sum("util_pct"), idle=Count("pk", filter=Q(util_pct__lt=IDLE_BELOW_PCT)), used=Max("used_mib")
        )
        told, total, idle = told + found["n"], total + (found["util"] or 0), idle + found["idle"]
        if one.is_whole and found["used"] is not None:
            card_peak = max(card_peak or 0, found["used"])
    own = RankSample.objects.filter(rank__in={one.rank for one in held}).aggregate(peak=Max(Coalesce(F("used_max_mib"), F("used_mib"))))
    is_shared = not all(one.is_whole for one in held)
    return Use(
        asked_mib=max(one.mib for one in held),
        peak_mib=own["peak"] if own["peak"] is not None else card_peak if not is_shared else None,
        is_shared=is_shared,
        util_pct=round(total / told) if told else None,
        idle_share=idle / told if told else None,
        samples=told,
    )


def _held(jobs: Sequence[int]) -> dict[int, list[Held]]:
    found: dict[int, list[Held]] = {}
    rows = Slice.objects.filter(rank__attempt__job_id__in=jobs, active_at__isnull=False, releasing_at__isnull=False).order_by("pk")
    for job, rank, gpu, begin, end, mib, whole in rows.values_list(
        "rank__attempt__job_id", "rank__key", "gpu_id", "active_at", "releasing_at", "mib", "is_exclusive"
    ):
        one = Held(rank=rank, gpu=gpu, begin=int(begin.timestamp()), end=int(end.timestamp()), mib=mib, is_whole=whole)
        found.setdefault(job, []).append(one)
    return found


def efficiency_measure(*, now: datetime) -> int:
    """Measures jobs with cards that ran for LEAST or more and ended a while ago, at most BATCH; returns how many. One query where there
    is none."""
    done = JobUse.objects.filter(ended_at__gt=now - LOOK_BACK - timedelta(minutes=5)).values("job_id")
    rows = Job.objects.filter(ended_at__gt=now - LOOK_BACK, ended_at__lte=now - SETTLED_AFTER, gpu_count__gt=0)
    rows = rows.filter(ended_at__gte=F("started_at") + LEAST)
    jobs = list(rows.exclude(pk__in=done).order_by("ended_at", "pk")[:BATCH])
    if not jobs:
        return 0
    held = _held([job.pk for job in jobs])
    charged = dict(LedgerEntry.objects.filter(job_id__in=list(held)).order_by().values_list("job_id").annotate(total=Sum("gpu_seconds")))
    uses = []
    for job in jobs:
        use = use_of(held.get(job.pk, []))
        gpu_s = float(charged.get(job.pk) or 0.0)
        idle = use.idle_share if use is not None else None
        uses.append(
            JobUse(
                job_id=job.pk,
                user_id=job.owner_id,
                project_id=job.project_id,
                name=job.name,
                is_success=job.state == JobState.SUCCEEDED,
                cards=job.gpu_count,
                asked_mib=use.asked_mib if use is not None else job.gpu_mem_mib or 0,
                peak_mib=use.peak_mib if use is not None else None,
                is_shared=use.is_shared if use is not None else False,
                util_pct=use.util_pct if use is not None else None,
                idle_share=idle,
                samples=use.samples if use is not None else 0,
                gpu_s=gpu_s,
                idle_gpu_s=None if idle is None else idle * gpu_s,
                ended_at=job.ended_at,
            )
        )
    JobUse.objects.bulk_create(uses, ignore_conflicts=True)
    return len(uses)


def efficiency_of(job: Job) -> JobUse | None:
    """None until it is measured, a minute or two after the end. One query for a job that has ended."""
    return JobUse.objects.filter(job_id=job.pk).first() if job.is_final and job.gpu_count else None


def efficiency_json(use: JobUse | None) -> dict[str, Any] | None:
    if use is None:
        return None
    return {
        "asked_mib": use.asked_mib,
        "peak_mib": use.peak_mib,
        "util_pct": use.util_pct,
        "idle_pct": None if use.idle_share is None else round(100 * use.idle_share),
        "is_shared": use.is_shared,
        "gpu_hours": round(use.gpu_s / 3600, 4),
        "idle_gpu_hours": None if use.idle_gpu_s is None else round(use.idle_gpu_s / 3600, 4),
        "samples": use.samples,
    }


# --- the right size ---------------------------------------------------------------------------------------------------

RUNS = 5
RUNS_LEAST = 3
#: What is left above the peak of earlier runs: data differ from run to run, and an allocator grows in steps.
HEADROOM = 1.15
#: A suggestion that saves less than this is not worth a changed request.
WORTH = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class RightSize:
    """``runs`` earlier ones of this name had ``peak_mib`` on a card at most; ``asked_mib`` is what is asked now."""

    runs: int
    peak_mib: int
    asked_mib: int
    suggested_mib: int

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("runs", "peak_mib", "asked_mib", "suggested_mib")}


def right_size(*, owner: int, name: str, gpu_count: int, gpu_mem_mib: int | None, min_slice_mib: int) -> RightSize | None:
    """What the owner's last runs of this name say of a new one that asks for ``gpu_mem_mib`` on each card (None = whole cards).

    None where fewer than RUNS_LEAST succeeded with a known peak, or where there is little to save. One query.
    """
    if gpu_count == 0:
        return None
    runs = JobUse.objects.filter(user_id=owner, name=name, is_success=True, peak_mib__isnull=False).order_by("-job_id")
    rows = list(runs.values_list("peak_mib", "asked_mib")[:RUNS])
    if len(rows) < RUNS_LEAST:
        return None
    peak = max(peak for peak, _asked in rows)
    asked = gpu_mem_mib if gpu_mem_mib is not None else max(held for _peak, held in rows)
    whole_gib = -(-int(peak * HEADROOM) // 1024)
    suggested = max(whole_gib * 1024, min_slice_mib)
    if suggested > asked * WORTH:
        return None
    return RightSize(runs=len(rows), peak_mib=peak, asked_mib=asked, suggested_mib=suggested)


def advice_text(advice: RightSize) -> str:
    values = {"n": advice.runs, "peak": gib(advice.peak_mib), "asked": gib(advice.asked_mib), "suggested": gib(advice.suggested_mib)}
    return _("Your last %(n)d runs of this name peaked at %(peak)s on one card; you ask for %(asked)s. %(suggested)s would do.") % values


def advice_of(job: Job, *, gpu_mem_mib: int | None) -> RightSize | None:
    policy = policy_current()
    return right_size(
        owner=job.owner_id, name=job.name, gpu_count=job.gpu_count, gpu_mem_mib=gpu_mem_mib, min_slice_mib=policy.min_slice_mib
    )


# --- waste ------------------------------------------------------------------------------------------------------------


def waste(where: Q, *, begin: datetime, end: datetime, by: str, most: int = 10) -> list[Mapping[str, Any]]:
    """Of jobs that ended in the time: ``name``, GPU-hours held (``gpu_h``), without use (``idle_h``) and jobs, by ``user`` or
    ``project``, the most wasteful first. Jobs of which nobody told the use are not in it. One query."""
    column = {"user": "user__email", "project": "project__name"}[by]
    rows = JobUse.objects.filter(where, ended_at__gte=begin, ended_at__lt=end, idle_gpu_s__isnull=False).order_by()
    sums = rows.values(label=F(column)).annotate(gpu_s=Sum("gpu_s"), idle_s=Sum("idle_gpu_s"), n=Count("pk")).order_by("-idle_s")
    return [
        {"name": row["label"], "gpu_h": row["gpu_s"] / 3600, "idle_h": row["idle_s"] / 3600, "jobs": row["n"]}
        for row in sums[:most]
        if row["idle_s"]
    ]


def wasteful_jobs(where: Q, *, begin: datetime, end: datetime, most: int = 5) -> list[JobUse]:
    """The jobs with the most GPU-time without use. One query."""
    rows = JobUse.objects.filter(where, ended_at__gte=begin, ended_at__lt=end, idle_gpu_s__gt=0)
    return list(rows.select_related("user", "project").order_by("-idle_gpu_s")[:most])
