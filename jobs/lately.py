"""What was submitted in the last days, for forecasts: they expect more of it (jobs/scheduler/coming.py)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from jobs.models import Job
from jobs.requests import Requests
from jobs.scheduler import Job as Waiting
from jobs.scheduler import Policy, Snapshot
from jobs.scheduler.types import Came

DAYS = 7
MOST = 3_000
#: Less than a day says nothing of nights and of the days to come: then nothing is expected.
LEAST_S = 86_400.0
#: So long what was read is good enough.
KEEP_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """``seconds``: for how long all that came is known."""

    at: float
    came: tuple[Came, ...]
    seconds: float


_lock = threading.Lock()
_kept: Arrivals | None = None


def lately_forget() -> None:
    """Read it anew at the next call: for tests, whose rows vanish."""
    global _kept
    _kept = None


def expecting(view: Snapshot, policy: Policy) -> Snapshot:
    """The snapshot with what came lately, where that matters: in an order in which jobs pass. One query, at most every ten minutes."""
    global _kept
    if policy.order == "fifo":
        return view
    with _lock:
        if _kept is None or not 0 <= view.now - _kept.at < KEEP_S:
            _kept = arrivals_read(datetime.fromtimestamp(view.now, tz=UTC))
        found = _kept
    return view if found.seconds < LEAST_S else replace(view, recent=found.came, recent_s=found.seconds)


def arrivals_read(now: datetime) -> Arrivals:
    """The last jobs of the last days. What ended without having started took no card, and is left out."""
    rows = (
        Job.objects.filter(submitted_at__gt=now - timedelta(days=DAYS), submitted_at__lte=now)
        .exclude(ended_at__isnull=False, started_at__isnull=True)
        .order_by("-submitted_at", "-pk")
        .values_list(
            "pk", "submitted_at", "started_at", "ended_at", "gpu_count", "gpu_mem_mib", "nodes", "constraints", "priority", "owner_id",
            "project_id", "time_limit_s", "predicted_s", "queue", "qos",
        )
    )  # fmt: skip
    requests = Requests()
    found: list[Came] = []
    oldest = now
    for pk, came, started, ended, count, mem, nodes, asked, priority, owner, project, limit, predicted, queue, qos in rows[:MOST]:
        likely = predicted if predicted is not None else limit
        seconds = (ended - started).total_seconds() if ended is not None and started is not None else likely
        oldest = came
        if seconds is None:
            continue  # nobody knows how long it takes
        job = Waiting(
            id=pk,
            request=requests(count, mem, nodes, asked),
            submitted=came.timestamp(),
            priority=priority,
            user=owner,
            project=project,
            time_limit_s=limit,
            predicted_s=predicted,
            queue=queue,
            qos=qos,
        )
        found.append(Came(job=job, seconds=max(float(seconds), 1.0)))
    return Arrivals(at=now.timestamp(), came=tuple(found), seconds=(now - oldest).total_seconds())
