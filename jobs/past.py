"""What the database knows of a period's jobs: when each came, when and where it ran, when it was let go. Reads only, five queries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Q

from jobs.lifecycle import FINAL
from jobs.models import Attempt, Job, JobEvent, Rank, Slice
from jobs.scheduler import types as core
from jobs.snapshot import request_of


@dataclass(slots=True)
class Lap:
    """An attempt that began to run. Seconds since the epoch; ``end`` None = it runs. ``cards``: (card, MiB, whole, share of it).

    Where it held cards, ``end`` is when they were no longer used, by its node's word: not when the control plane heard of it.
    """

    start: float
    end: float | None
    reason: str
    cards: list[tuple[int, int, bool, float]] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Cards that it took; a slice counts by its memory."""
        return sum(1.0 if whole else share for _gpu, _mib, whole, share in self.cards)


@dataclass(slots=True)
class PastJob:
    """A job with its laps in order; ``released``: when it was let go after a hold."""

    id: int
    user: int
    project: int
    name: str
    is_over: bool
    held: bool
    submitted: float
    request: core.Request
    time_limit_s: int | None
    priority: int
    queue: str
    qos: str
    laps: list[Lap] = field(default_factory=list)
    released: list[float] = field(default_factory=list)


def past_read(*, since: datetime, until: datetime) -> list[PastJob]:
    """The jobs that came before ``until`` and had not ended at ``since``, by number."""

    def there(job: str) -> Q:
        return Q(**{f"{job}submitted_at__lt": until}) & (Q(**{f"{job}ended_at__isnull": True}) | Q(**{f"{job}ended_at__gte": since}))

    jobs = _jobs(there(""))
    laps: dict[tuple[int, int], Lap] = {}
    for job, epoch, start, end, reason in (
        Attempt.objects.filter(there("job__"), started_at__isnull=False)
        .order_by("job_id", "epoch")
        .values_list("job_id", "epoch", "started_at", "ended_at", "end_reason")
        .iterator()
    ):
        lap = laps[job, epoch] = Lap(start=start.timestamp(), end=None if end is None else end.timestamp(), reason=reason)
        jobs[job].laps.append(lap)
    for job, epoch, node in (
        Rank.objects.filter(there("attempt__job__")).order_by("pk").values_list("attempt__job_id", "attempt__epoch", "node_id").iterator()
    ):
        if (job, epoch) in laps and node not in laps[job, epoch].nodes:
            laps[job, epoch].nodes.append(node)
    left: dict[tuple[int, int], float] = {}
    for job, epoch, gpu, mib, whole, share, leaves in (
        Slice.objects.filter(there("rank__attempt__job__"))
        .order_by("pk")
        .values_list("rank__attempt__job_id", "rank__attempt__epoch", "gpu_id", "mib", "is_exclusive", "share", "releasing_at")
        .iterator()
    ):
        if (job, epoch) in laps:
            laps[job, epoch].cards.append((gpu, mib, whole, share))
            if leaves is not None:
                left[job, epoch] = max(left.get((job, epoch), 0.0), leaves.timestamp())
    for key, at in left.items():
        lap = laps[key]
        if lap.end is not None:
            lap.end = min(lap.end, max(at, lap.start))
    for job, at in JobEvent.objects.filter(there("job__"), code="released").order_by("pk").values_list("job_id", "at").iterator():
        jobs[job].released.append(at.timestamp())
    return list(jobs.values())


def _jobs(wanted: Q) -> dict[int, PastJob]:
    requests: dict[str, core.Request] = {}
    found = {}
    rows = Job.objects.filter(wanted).order_by("pk").values_list(
        "pk", "owner_id", "project_id", "name", "state", "held", "submitted_at", "gpu_count", "gpu_mem_mib", "nodes", "constraints",
        "time_limit_s", "priority", "queue", "qos",
    )  # fmt: skip
    for pk, owner, project, name, state, held, submitted, count, mem, nodes, limits, limit, priority, queue, qos in rows.iterator():
        shape = json.dumps((count, mem, nodes, limits), sort_keys=True)
        if shape not in requests:
            requests[shape] = request_of(Job(gpu_count=count, gpu_mem_mib=mem, nodes=nodes, constraints=limits))
        found[pk] = PastJob(
            id=pk,
            user=owner,
            project=project,
            name=name,
            is_over=state in FINAL,
            held=held,
            submitted=submitted.timestamp(),
            request=requests[shape],
            time_limit_s=limit,
            priority=priority,
            queue=queue,
            qos=qos,
        )
    return found
