"""What a card's fault means for the jobs on it. Reads the cards' states, so that nothing depends on being told in time."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from jobs.lifecycle import RANK_FINAL, SLICE_LIVE, EndReason, JobState, Want
from jobs.models import Attempt, Job, Rank, Slice
from jobs.services.stop import attempt_stop
from nodes.events import Holder
from nodes.incidents import incident_add, incident_of
from nodes.models import Gpu, GpuState, HealthEvent, Node

log = logging.getLogger(__name__)

GRACE_S = 15
#: A card that is not seen for so long is gone: a driver that starts anew is back before that.
MISSING_S = 15
#: A program that ends with an error so soon after its card's fault ended because of it.
BLAME_S = 120
#: State reasons that name a fault of the card itself.
CARD_FAULTS = ("xid:", "xid_again:", "lost", "test_failed", "not_seen", "hot", "remap_failed", "ecc_uncorrected")


def card_holders(gpu_ids: Iterable[int]) -> Mapping[int, Sequence[Holder]]:
    """Card → the ranks that hold it and are not over, oldest first. One query."""
    found: dict[int, list[Holder]] = defaultdict(list)
    rows = Slice.objects.filter(gpu__in=list(gpu_ids), state__in=SLICE_LIVE).exclude(rank__observed__in=RANK_FINAL).order_by("pk")
    of = "rank__attempt__job"
    for gpu, key, job, owner, epoch in rows.values_list("gpu_id", "rank__key", f"{of}_id", f"{of}__owner_id", "rank__attempt__epoch"):
        found[gpu].append(Holder(rank=key, job=job, owner=owner, epoch=epoch))
    return found


def faults_apply(*, now: datetime, node: Node | None = None) -> list[int]:
    """Stop what runs on cards that are isolated or gone (it goes back to the queue), and fail the jobs whose programs broke
    something. Returns the jobs. Without any, two queries and no write."""
    return [*_evict(now=now, node=node), *_fail(now=now, node=node)]


def _evict(*, now: datetime, node: Node | None) -> list[int]:
    gone = Q(slices__gpu__state=GpuState.MISSING, slices__gpu__state_at__lte=now - timedelta(seconds=MISSING_S))
    ranks = Rank.objects.filter(Q(slices__gpu__state=GpuState.ISOLATED) | gone, desired=Want.RUN, slices__state__in=SLICE_LIVE)
    ranks = ranks.exclude(observed__in=RANK_FINAL)
    if node is not None:
        ranks = ranks.filter(node=node)
    stopped = []
    found = ranks.values_list("attempt_id", "attempt__job_id", "slices__gpu_id").order_by("attempt__job_id").distinct()
    for attempt_id, job_id, gpu_id in found:
        gpu = Gpu.objects.select_related("node").get(pk=gpu_id)
        params = {"node": gpu.node.name, "gpu": gpu.index, "why": gpu.state_reason[:60]}
        if _stop(job_id, attempt_id, params):
            stopped.append(job_id)
            log.warning("job %s is stopped: card %s is %s", job_id, gpu.uuid, gpu.state)
            incident = incident_of(gpu_id)
            if incident is not None:
                incident_add(incident, code="job_stopped", params={"job": job_id}, now=now)
    return stopped


def _fail(*, now: datetime, node: Node | None) -> list[int]:
    events = HealthEvent.objects.filter(fails_job__isnull=False).select_related("node", "gpu").order_by("pk")
    if node is not None:
        events = events.filter(node=node)
    failed = []
    for event in events:
        params = {
            "node": event.node.name,
            "gpu": event.gpu.index if event.gpu is not None else None,
            "xid": event.data.get("xid"),
            # Without a program to blame it is the card's fault, and the job goes on elsewhere.
            **({} if event.data.get("restarts") else {"cause": "program"}),
        }
        running = Attempt.objects.filter(job=event.fails_job, ended_at__isnull=True)
        # The agent named the rank: its epoch says which attempt it was. Else it is the one that had begun by then.
        epoch = event.data.get("epoch")
        attempt = (running.filter(epoch=epoch) if isinstance(epoch, int) else running.filter(created_at__lte=event.at)).first()
        if event.fails_job is not None and attempt is not None and _stop(event.fails_job, attempt.pk, params):
            failed.append(event.fails_job)
        HealthEvent.objects.filter(pk=event.pk).update(fails_job=None)
    return failed


def _stop(job_id: int, attempt_id: int, params: dict[str, Any]) -> bool:
    """False if it is over or being stopped already."""
    with transaction.atomic():
        job = Job.objects.select_for_update().filter(pk=job_id, state__in=(JobState.STARTING, JobState.RUNNING)).first()
        attempt = Attempt.objects.filter(pk=attempt_id, ended_at__isnull=True).first()
        if job is None or attempt is None:
            return False
        attempt_stop(attempt=attempt, reason=EndReason.GPU_FAULT, grace_s=max(GRACE_S, job.grace_s or 0), params=params)
        return True


def card_to_blame(attempt: Attempt, *, now: datetime) -> dict[str, Any] | None:
    """The fault of a card of this attempt that its program has just died of, as an end's params; None if there is none. One query."""
    since = max(now - timedelta(seconds=BLAME_S), attempt.created_at)
    cards = Gpu.objects.filter(slices__rank__attempt=attempt, state_at__gte=since).exclude(state=GpuState.HEALTHY)
    for gpu in cards.select_related("node").distinct().order_by("pk"):
        if gpu.state_reason.startswith(CARD_FAULTS):
            return {"node": gpu.node.name, "gpu": gpu.index, "why": gpu.state_reason[:60]}
    return _contained_fault(attempt, since=since)


def _contained_fault(attempt: Attempt, *, since: datetime) -> dict[str, Any] | None:
    """A fault that took this job's program alone and left its card in service (XID 94). One query."""
    found = HealthEvent.objects.filter(kind="xid", at__gte=since, gpu__slices__rank__attempt=attempt, data__restarts=True)
    event = found.filter(data__job=attempt.job_id).select_related("node", "gpu").order_by("pk").first()
    if event is None or event.gpu is None:
        return None
    return {"node": event.node.name, "gpu": event.gpu.index, "why": f"xid:{event.data.get('xid')}"}
