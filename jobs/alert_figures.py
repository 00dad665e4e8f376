"""What alert rules can watch of jobs and passes, and whose job an alert is about. nodes/alerts.py asks for it at each look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Min, Q

from jobs.counts import pass_counts
from jobs.lifecycle import RANK_FINAL, SLICE_LIVE, EndReason, JobState
from jobs.models import Attempt, Job, Rank, Slice
from jobs.scheduler.reasons import QUOTA_EXCEEDED
from jobs.services.faults import card_holders
from nodes import telemetry
from nodes.alert_metrics import Figures, Pool
from quotas.disk_state import disk_states

PASSES_KEY = "nebula:alerts:pass"
#: Attempts that ended in this time are counted, if there were enough of them to tell anything.
LAUNCHES = timedelta(minutes=15)
LAUNCHES_LEAST = 4
#: Ends that are the launch's or the machine's doing.
LAUNCH_ENDS = (EndReason.LAUNCH_FAILED, EndReason.HOOK_FAILED)
#: A list of processes that is older says nothing of now.
PROCESSES_FRESH_S = 60.0
HELD_COLUMNS = ("owner_id", "owner__email", "queued_at", "held_s")


def figures(pool: Pool, now: float) -> tuple[Figures, dict[tuple[str, str], dict[str, Any]]]:
    """metric → subject → figure, and (metric, subject) → names for the sentence. Four SELECTs, three round trips. ``now``: Unix time."""
    at = datetime.fromtimestamp(now, UTC)
    names: dict[tuple[str, str], dict[str, Any]] = {}
    found: Figures = {
        "wait_s": _waits(at, names),
        "over_request_pct": _over_request(pool, now, names),
        "launch_failed_pct": {"pool": _launches(at)},
        "pass_late_s": {"pool": _pass_late(now)},
        "control_disk": {"pool": _control_disk(names)},
    }
    return found, names


def _control_disk(names: dict[tuple[str, str], dict[str, Any]]) -> float:
    """0, 1 = room gets low, 2 = nothing more is taken. The one with the least room is named."""
    worst = min(disk_states(), key=lambda state: (not state.is_full, state.disk.free_mib))
    facts = {"disk": worst.disk.folder, "free_mib": worst.disk.free_mib, "floor_mib": settings.DISK_FLOOR_MIB}
    names["control_disk", "pool"] = facts
    return 2.0 if worst.is_full else 1.0 if worst.is_low else 0.0


def _waits(at: datetime, names: dict[tuple[str, str], dict[str, Any]]) -> dict[str, float | None]:
    """Of each person with jobs in the queue: for how long the longest has been waiting for a place. Holds, and waiting for more
    GPU-hours, are nobody's delay."""
    waiting = Job.objects.filter(state=JobState.WAITING, held=False).exclude(wait_code=QUOTA_EXCEEDED).order_by()
    found: dict[str, float | None] = {}
    # Time on hold is no waiting. Few jobs had any: those are read one by one, the others are counted by the database.
    rows = [*waiting.filter(held_s=0).values_list("owner_id", "owner__email").annotate(since=Min("queued_at"), n=Count("pk"))]
    rows += [(*row[:2], row[2] + timedelta(seconds=row[3]), 1) for row in waiting.filter(held_s__gt=0).values_list(*HELD_COLUMNS)[:1000]]
    for owner, email, since, n in rows:
        subject, value = f"owner:{owner}", max(0.0, (at - since).total_seconds())
        before, known = found.get(subject) or 0.0, names.get(("wait_s", subject), {})
        found[subject] = max(before, value)
        names["wait_s", subject] = {"owner": email, "jobs": n + known.get("jobs", 0)}
    return found


def _over_request(pool: Pool, now: float, names: dict[tuple[str, str], dict[str, Any]]) -> dict[str, float | None]:
    """Of each job with slices: the most that one of its ranks uses of what it asked for on a card. A process without a figure leaves its
    rank's unknown; whole cards have no limit but their size."""
    rows = (
        Slice.objects.filter(state__in=SLICE_LIVE, is_exclusive=False, rank__node__in=pool.nodes)
        .order_by()
        .values_list("rank__key", "gpu_id", "gpu__uuid", "mib", "rank__attempt__job_id", "rank__node_id")
    )
    slices = list(rows)
    if not slices:
        return {}
    used: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    fresh: set[int] = set()
    for node, (listed_at, processes) in telemetry.nodes_processes({row[5] for row in slices}).items():
        if now - listed_at >= PROCESSES_FRESH_S:
            continue
        fresh.add(node)
        for process in processes:
            if process.get("rank") is not None:
                mib = process.get("used_mib")
                used[str(process["rank"]), str(process.get("uuid"))].append(mib if isinstance(mib, int) and mib >= 0 else None)
    found: dict[str, float | None] = {}
    for rank, gpu, uuid, mib, job, node in slices:
        subject, told = f"job:{job}", used.get((rank, uuid), [])
        value = None if node not in fresh or None in told else 100.0 * sum(n for n in told if n is not None) / mib
        before = found.get(subject)
        if subject not in found or (value is not None and (before is None or value > before)):
            found[subject] = value
            place = pool.place(gpu) if gpu in pool.cards else ""
            names["over_request_pct", subject] = {"job": job, "place": place, "node_id": node, "gpu_id": gpu, "asked_mib": mib}
    return found


def _launches(at: datetime) -> float | None:
    """In percent; None while too few ended to tell."""
    row = Attempt.objects.filter(ended_at__gte=at - LAUNCHES).aggregate(
        n=Count("pk"), failed=Count("pk", filter=Q(end_reason__in=LAUNCH_ENDS))
    )
    return 100.0 * row["failed"] / row["n"] if row["n"] >= LAUNCHES_LEAST else (0.0 if not row["failed"] else None)


def _pass_late(now: float) -> float | None:
    """Seconds since the number of passes that ended well has grown. None while Redis is away."""
    counts = pass_counts()
    if counts is None:
        return None
    good = sum(counts.buckets)
    mark = telemetry.ask(lambda c: c.get(PASSES_KEY), None)
    try:
        before, since = (mark or "").split(" ")
        if int(before) == good:
            return max(0.0, now - float(since))
    except ValueError:
        pass  # the first look, or another version's
    telemetry.ask(lambda c: c.set(PASSES_KEY, f"{good} {now:.3f}"), None)
    return 0.0


def owners(subject: str) -> Sequence[tuple[int, int | None]]:
    """(user id, job id) of who has to do with it; at most one query."""
    kind, _, number = subject.partition(":")
    if kind == "gpu":
        return [(holder.owner, holder.job) for holder in card_holders([int(number)]).get(int(number), ())]
    if kind == "job":
        return [(owner, int(number)) for owner in Job.objects.filter(pk=int(number)).values_list("owner_id", flat=True)]
    if kind == "node":
        ranks = Rank.objects.filter(node=int(number), attempt__ended_at__isnull=True).exclude(observed__in=RANK_FINAL).order_by("pk")
        return list(ranks.values_list("attempt__job__owner_id", "attempt__job_id"))
    return [(int(number), None)] if kind == "owner" else []
