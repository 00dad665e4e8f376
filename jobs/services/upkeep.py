"""What time brings: silent nodes, leases, limits, offers that nobody took, reports whose logs never came.

Every step is a bulk condition or a compare-and-swap and may run twice, or in two workers at once.
"""

from __future__ import annotations

import functools
import logging
import time
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from jobs import logs
from jobs.alive import alive_until
from jobs.efficiency import efficiency_measure
from jobs.job_secrets import ids_in_use
from jobs.lifecycle import RANK_FINAL, EndReason, Fence, JobState, RankState, Want
from jobs.live_use import live_use_refresh
from jobs.models import Attempt, IdempotencyKey, Job, Rank
from jobs.services.files import log_bytes_measure
from jobs.services.finish import attempt_maybe_finish, rank_end_unheard
from jobs.services.moves import event_add
from jobs.services.ownerless import leases_look
from jobs.services.predict import predictions_are_old, predictions_refresh
from jobs.services.retention import retention_run
from jobs.services.slices import slices_quarantine
from jobs.services.stop import attempt_stop
from jobs.storage import storage_meter
from nodes import selectors as node_selectors
from nodes import telemetry
from nodes.alerts import alerts_prune
from nodes.models import Node, NodeState
from nodes.services import node_cordon
from quotas.audit import audit, audit_chain
from quotas.audit_segments import audit_prune
from quotas.deliver import notices_prune
from quotas.models import User
from quotas.notify import notify, staff
from quotas.quota_notices import limits_tell
from quotas.secrets import secrets_purge
from quotas.sessions import sessions_prune

log = logging.getLogger(__name__)

SILENT = (NodeState.UNKNOWN, NodeState.DOWN, NodeState.RETIRED)


def upkeep_run(*, now: datetime) -> None:
    """Everything below, in an order that lets one step's effect be seen by the next."""
    ranks_silence(now=now)
    silence_forget()
    leases_expire(now=now)
    time_limits_enforce(now=now)
    offers_expire(now=now)
    attempts_settle(now=now)
    if predictions_are_old(now=now):
        predictions_refresh(now=now)
    alerts_prune(now=now)
    notices_prune(now=now)
    sessions_prune(now=now)
    for step in (
        live_use_refresh,
        limits_tell,
        log_bytes_measure,
        storage_meter,
        efficiency_measure,
        leases_look,
        retention_run,
        audit_prune,
    ):
        try:
            step(now=now)
        except Exception:  # what is counted and told must not keep what comes after it from being done
            log.exception("%s failed; the next upkeep tries again", step.__name__)
    IdempotencyKey.objects.filter(created_at__lt=now - timedelta(days=1)).delete()
    audit_chain()
    secrets_prune(now=now)


_pruned_at = 0.0
PRUNE_S = 600.0


def secrets_prune(*, now: datetime) -> int:
    """Every ten minutes a process: values of secrets that were replaced, and that nothing can print any more."""
    global _pruned_at
    if now.timestamp() - _pruned_at < PRUNE_S:
        return 0
    _pruned_at = now.timestamp()
    return secrets_purge(used=ids_in_use(), now=now)


def ranks_silence(*, now: datetime) -> int:
    """Live ranks of silent nodes become UNKNOWN; their jobs go on. Nothing is started elsewhere for that."""
    silent = list(
        Rank.objects.filter(node__state__in=SILENT, observed__in=(RankState.NONE, RankState.PREPARING, RankState.RUNNING)).values_list(
            "pk", "attempt__job_id", "attempt__epoch", "node__name", "observed"
        )
    )
    for pk, job_id, epoch, node, observed in silent:
        with transaction.atomic():
            if Rank.objects.filter(pk=pk, observed=observed).update(observed=RankState.UNKNOWN, observed_at=now):
                event_add(job_id, code="node_silent", params={"node": node}, epoch=epoch)
    return len(silent)


def leases_expire(*, now: datetime) -> int:
    """on_node_loss=requeue: after lease + grace + 60 s of silence, by this machine's monotonic clock, the agent has
    certainly stopped the rank itself. No clocks of two machines are compared. Frozen while half of the pool is silent."""
    if node_selectors.fencing_frozen():
        return 0
    lost = 0
    unknown = Rank.objects.filter(observed=RankState.UNKNOWN, lease_s__isnull=False).select_related("node", "attempt")
    for rank in unknown:
        silent_s = node_silent_s(rank.node_id)
        if silent_s is None or silent_s < (rank.lease_s or 0) + rank.grace_s + 60:
            continue
        rank_lose(rank=rank, fence=Fence.SELF_FENCE_EXPIRED, params={"silent_s": round(silent_s)}, now=now)
        lost += 1
    return lost


def node_silent_s(node_id: int) -> float | None:
    """Seconds since this control plane first found the node silent, by this machine's monotonic clock; None = just now.

    Kept in Redis with the boot id: with Redis emptied, or after this machine's restart, the count begins anew. That only
    makes a fence later, never earlier.
    """
    key, mark = f"nebula:silent:{node_id}", f"{boot_id()} {time.monotonic():.3f}"
    was = telemetry.ask(lambda client: client.set(key, mark, nx=True, get=True), None)
    if not was:
        return None
    boot, _, since = (was.decode() if isinstance(was, bytes) else str(was)).partition(" ")
    if boot != boot_id():
        telemetry.ask(lambda client: client.set(key, mark), None)
        return None
    return time.monotonic() - float(since)


def silence_forget() -> None:
    """Nodes that are heard again start from nothing the next time."""
    heard = Node.objects.exclude(state__in=SILENT).values_list("pk", flat=True)
    keys = [f"nebula:silent:{pk}" for pk in heard]
    if keys:
        telemetry.ask(lambda client: client.delete(*keys), 0)


@functools.cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def rank_lose(*, rank: Rank, fence: Fence, params: dict[str, object], now: datetime) -> bool:
    """Writes a rank off, with its proof. Its slices stay in quarantine until the node itself reports that they are free."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=rank.attempt.job_id)
        attempt = Attempt.objects.select_for_update().get(pk=rank.attempt_id)
        rank.attempt = attempt
        attempt.job = job
        if not rank_end_unheard(rank, now=now, observed=RankState.LOST, detail=""):
            return False
        Attempt.objects.filter(pk=attempt.pk).update(fence=fence, fence_params=params)
        slices_quarantine(rank, at=alive_until(rank.started_at, rank.ran_s, now=now), now=now)
        seen = rank.node.last_seen_at.strftime("%Y-%m-%d %H:%M:%S UTC") if rank.node.last_seen_at else "never"
        logs.log_close(rank.key, line=f"killed: node_lost ({rank.node.name} was last heard at {seen}; proof: {fence})")
        if Rank.objects.filter(attempt=attempt).exclude(observed__in=RANK_FINAL).exists():
            attempt_stop(attempt=attempt, reason="gang", grace_s=rank.grace_s, params={"rank": rank.index})
        attempt_maybe_finish(attempt, now=now)
    return True


def node_confirm_lost(*, node: Node, by: User, reason: str, now: datetime) -> int:
    """An admin vouches that the node's programs are dead (its plug is pulled): its live ranks are LOST.

    Returns how many. Raises ValueError while the node still reports.
    """
    if node.state not in SILENT:
        raise ValueError(f"{node.name} is {node.state}: it still reports, so its jobs can be stopped in the ordinary way.")
    ranks = Rank.objects.filter(node=node).exclude(observed__in=RANK_FINAL).select_related("node", "attempt")
    audit(by, "node.lost", f"node {node.name}", {"reason": reason}, now=now)
    return sum(rank_lose(rank=rank, fence=Fence.ADMIN_CONFIRMED, params={"by": by.email, "reason": reason}, now=now) for rank in ranks)


def time_limits_enforce(*, now: datetime) -> int:
    """The shim watches its limit itself; this is for the shim that could not."""
    margin = timedelta(seconds=settings.STOP_GRACE_S + 30)
    late = Job.objects.filter(state=JobState.RUNNING, time_limit_s__isnull=False, started_at__isnull=False)
    stopped = 0
    for job in late.only("pk", "started_at", "time_limit_s", "grace_s"):
        if job.started_at is None or job.time_limit_s is None or now < job.started_at + timedelta(seconds=job.time_limit_s) + margin:
            continue
        with transaction.atomic():
            if not Job.objects.select_for_update().filter(pk=job.pk, state=JobState.RUNNING).exists():
                continue
            attempt = Attempt.objects.get(job=job, ended_at__isnull=True)
            attempt_stop(attempt=attempt, reason=EndReason.TIME_LIMIT, grace_s=job.grace_s or settings.STOP_GRACE_S)
            stopped += 1
    return stopped


def offers_expire(*, now: datetime) -> int:
    """Offered for 60 s to a node that reports but doesn't start it: the node gets no new work, and the rank is asked
    back. The job returns to the queue only when the agent confirms that it never started it."""
    stuck = Rank.objects.filter(
        observed=RankState.NONE, desired=Want.RUN, node__state=NodeState.READY, attempt__created_at__lt=now - timedelta(seconds=60)
    ).select_related("node", "attempt")
    for rank in stuck:
        with transaction.atomic():
            if not Job.objects.select_for_update().filter(pk=rank.attempt.job_id, state=JobState.STARTING).exists():
                continue
            log.error("%s did not start rank %s within 60 s; the node is cordoned", rank.node.name, rank.key)
            node_cordon(node=rank.node, by=None, reason=f"did not start {rank.key} within 60 s")
            attempt_stop(
                attempt=rank.attempt,
                reason=EndReason.LAUNCH_FAILED,
                grace_s=0,
                params={"node": rank.node.name, "kind": "no_answer", "rank": rank.index, "detail": ""},
            )
            # Once an hour and node, however many ranks it did not start.
            told = {"node": rank.node.name, "job": rank.attempt.job_id}
            notify(
                "node_no_start", staff(), told, key=f"no_start:{rank.node_id}:{now:%Y%m%d%H}", path=f"/nodes/{rank.node.name}/", lab=True
            )
    return len(stuck)


def attempts_settle(*, now: datetime) -> int:
    """Attempts whose ranks are all over but whose last output never came (see attempt_maybe_finish's patience)."""
    open_ranks = Q(ranks__observed__in=[s for s in RankState if s not in RANK_FINAL])
    waiting = Attempt.objects.filter(ended_at__isnull=True, ranks__exited_at__lt=now - timedelta(seconds=5)).exclude(open_ranks).distinct()
    settled = 0
    for attempt in waiting:
        with transaction.atomic():
            settled += attempt_maybe_finish(attempt, now=now)
    return settled
