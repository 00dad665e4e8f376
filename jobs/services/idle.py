"""Jobs that hold cards and do nothing: told first, with time to answer, then stopped politely. Off unless policy says otherwise.

The rule is jobs/idle.py. A look every 30 s reads the samples of cards and machines as they were taken. A job that was told and works
again before its grace is over is let alone; the next time it is told again.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Max

from jobs.idle import Rule, Seen, is_idle, queues_read, window_of
from jobs.lifecycle import EndReason, JobState
from jobs.models import Attempt, Job, Slice
from jobs.notify import jobs_changed
from jobs.services.moves import event_add
from jobs.services.stop import attempt_stop
from nodes import telemetry
from nodes.models import GpuSample, Level, NodeSample
from nodes.samples import step_of
from quotas.notify import notify

log = logging.getLogger(__name__)


TURN_KEY, EVERY_S = "nebula:idle:turn", 30


def idle_turn(*, now: datetime) -> list[int]:
    """``idle_look`` once within 30 s, whatever calls; nothing without Redis, without which no sample is taken either."""
    mine = telemetry.ask(lambda c: c.set(f"{TURN_KEY}:{int(now.timestamp()) // EVERY_S}", "1", nx=True, ex=2 * EVERY_S), None)
    return idle_look(now=now) if mine else []


def idle_look(*, now: datetime) -> list[int]:
    """One look; returns the jobs that are stopped. One query where nobody is watched, a handful more for each window otherwise."""
    rows = Job.objects.filter(state=JobState.RUNNING, started_at__isnull=False, gpu_count__gt=0, is_restored=False).order_by("pk")
    if not settings.IDLE_AFTER_S and not queues_read(settings.IDLE_QUEUES):
        rows = rows.filter(idle_after_s__isnull=False)
    by_window: dict[int, list[Job]] = defaultdict(list)
    for job in rows.select_related("owner").defer("argv", "env"):
        window_s = window_of(queue=job.queue, job_s=job.idle_after_s)
        if window_s is not None:
            by_window[window_s].append(job)
    stopped: list[int] = []
    for window_s, jobs in sorted(by_window.items()):
        stopped += _look(jobs, window_s, now=now)
    return stopped


def _look(jobs: list[Job], window_s: int, *, now: datetime) -> list[int]:
    rule = Rule(util_below=settings.IDLE_UTIL_PCT, cores_below=settings.IDLE_CPU_CORES)
    step_s = step_of(Level.RAW)
    cards: dict[int, set[int]] = defaultdict(set)
    machines: dict[int, set[int]] = defaultdict(set)
    held = Slice.objects.filter(rank__attempt__job__in=[job.pk for job in jobs], rank__attempt__ended_at__isnull=True)
    for job_id, gpu, node in held.order_by("pk").values_list("rank__attempt__job_id", "gpu_id", "rank__node_id"):
        cards[job_id].add(gpu)
        machines[job_id].add(node)
    since = int(now.timestamp()) - window_s
    by_card = _seen_cards({gpu for mine in cards.values() for gpu in mine}, since)
    by_machine = _seen_machines({node for mine in machines.values() for node in mine}, since)
    nothing = Seen(samples=0, told=0, most=None)
    stopped = []
    for job in jobs:
        idle = is_idle(
            ran_s=(now - job.started_at).total_seconds() if job.started_at is not None else 0.0,
            window_s=window_s,
            step_s=step_s,
            cards=[by_card.get(gpu, nothing) for gpu in cards[job.pk]],
            machines=[by_machine.get(node, nothing) for node in machines[job.pk]],
            rule=rule,
        )
        if _act(job, idle=idle, window_s=window_s, now=now):
            stopped.append(job.pk)
    return stopped


def _seen_cards(gpus: set[int], since: int) -> Mapping[int, Seen]:
    rows = GpuSample.objects.filter(gpu_id__in=gpus, level=Level.RAW, at__gt=since).order_by()
    sums = rows.values_list("gpu_id").annotate(n=Count("pk"), told=Count("util_pct"), most=Max("util_pct"))
    return {gpu: Seen(samples=n, told=told, most=most) for gpu, n, told, most in sums}


def _seen_machines(nodes: set[int], since: int) -> Mapping[int, Seen]:
    """In cores; a machine that does not tell how many it has is not known to rest."""
    rows = NodeSample.objects.filter(node_id__in=nodes, level=Level.RAW, at__gt=since).order_by()
    sums = rows.values_list("node_id", "node__cpu_cores").annotate(n=Count("pk"), told=Count("cpu_pct"), most=Max("cpu_pct"))
    return {
        node: Seen(samples=n, told=told, most=most / 100 * cores if most is not None and cores else None)
        for node, cores, n, told, most in sums
    }


def _act(job: Job, *, idle: bool, window_s: int, now: datetime) -> bool:
    """Tells, forgets or stops; whether it stopped. Each is a compare-and-swap: of two looks at once one acts."""
    running = Job.objects.filter(pk=job.pk, state=JobState.RUNNING)
    if not idle:
        if job.idle_warned_at is not None and running.filter(idle_warned_at=job.idle_warned_at).update(idle_warned_at=None):
            event_add(job.pk, code="idle_over", epoch=job.epoch, at=now)
            jobs_changed([job.pk])
        return False
    params = {"window_s": window_s, "grace_s": settings.IDLE_GRACE_S}
    if job.idle_warned_at is None or (job.started_at is not None and job.idle_warned_at < job.started_at):
        with transaction.atomic():
            if running.filter(idle_warned_at=job.idle_warned_at).update(idle_warned_at=now):
                event_add(job.pk, code="idle", params=params, epoch=job.epoch, at=now)
                notify("job_idle", [job.owner], {"job": job.pk, "name": job.name, **params}, path=f"/jobs/{job.pk}/", at=now)
                jobs_changed([job.pk])
        return False
    if now < job.idle_warned_at + timedelta(seconds=settings.IDLE_GRACE_S):
        return False
    with transaction.atomic():
        locked = Job.objects.select_for_update().filter(pk=job.pk, state=JobState.RUNNING).first()
        attempt = Attempt.objects.filter(job_id=job.pk, ended_at__isnull=True).first()
        if locked is None or attempt is None:
            return False
        attempt_stop(attempt=attempt, reason=EndReason.IDLE, grace_s=job.grace_s or settings.STOP_GRACE_S, params={"window_s": window_s})
    log.warning("job %s is stopped: it has done nothing on its cards for %s s", job.pk, window_s)
    return True
