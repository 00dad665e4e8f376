"""The end of an attempt: from how its ranks ended to what becomes of the job."""

from __future__ import annotations

import functools
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from jobs import logs
from jobs.alive import seen_s
from jobs.known_errors import OUT_OF_MEMORY, error_in, output_tail
from jobs.lifecycle import INFRASTRUCTURE, NOT_HELD, RANK_FINAL, SLICE_LIVE, EndReason, Fence, JobState, RankState, Want
from jobs.models import Attempt, Job, Rank, Slice
from jobs.notify import pass_nudge
from jobs.services.faults import card_to_blame
from jobs.services.known import known_error_note
from jobs.services.moves import jobs_move
from nodes.launches import launch_spoilt, launch_worked
from nodes.sync import nodes_seen
from quotas.counters import Counters
from quotas.sql import swap

#: A launch that failed for these is the user's to mend: another node would say the same.
USERS_LAUNCH_ERRORS = frozenset({"exec", "workdir", "user", "spec"})
CAUSE_REASONS = {
    "time_limit": EndReason.TIME_LIMIT,
    "lease_expired": EndReason.NODE_LOST,
    "exit_unknown": EndReason.EXIT_UNKNOWN,
    "node_rebooted": EndReason.NODE_REBOOTED,
    "host_memory": EndReason.HOST_MEMORY,
    "pids_limit": EndReason.PIDS_LIMIT,
}
END_REASONS = frozenset(reason.value for reason in EndReason)
#: What an agent says of a rank that it does not hold (any more).
UNSURE = frozenset({"exit_unknown", "never_started"})
FENCES = {"node_rebooted": Fence.BOOT_ID_CHANGED, "lease_expired": Fence.SELF_FENCE_EXPIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What an attempt came to. ``can_requeue`` False = trying again would end the same way."""

    reason: EndReason
    params: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    can_requeue: bool = True


def end_of(attempt: Attempt, ranks: Sequence[Rank]) -> End:
    """Pure but for reading its arguments; ``ranks`` are all final, in rank order.

    1. A rank that never got going decides first, since the others were only stopped for it.
    2. Then what the infrastructure did, then what we stopped it for, then the program's own exit codes.
    """
    for rank in ranks:
        if rank.observed == RankState.LAUNCH_FAILED:
            params = {"rank": rank.index, "node": rank.node.name, "kind": rank.launch_error, "detail": rank.detail[:500]}
            return End(reason=EndReason.LAUNCH_FAILED, params=params, can_requeue=rank.launch_error not in USERS_LAUNCH_ERRORS)
    for rank in ranks:
        where = {"rank": rank.index, "node": rank.node.name}
        if rank.observed == RankState.LOST:
            return End(reason=EndReason.NODE_LOST, params=where)
        if rank.exit_cause == "never_started" and not attempt.stop_reason:
            return End(reason=EndReason.LAUNCH_FAILED, params={**where, "kind": "fenced", "detail": rank.detail[:500]})
        reason = CAUSE_REASONS.get(rank.exit_cause)
        if reason is not None and not (reason is EndReason.EXIT_UNKNOWN and attempt.stop_reason):
            return End(reason=reason, params=where, exit_code=rank.exit_code)
    bad = [rank for rank in ranks if rank.exit_code != 0 or rank.exit_signal]
    own = [rank for rank in bad if rank.exit_cause == "exited"]
    stopped = [rank for rank in ranks if rank.exit_cause in ("stopped", "never_started", "exit_unknown")]
    if attempt.stop_reason in END_REASONS and stopped:
        # What a program broke it would break again.
        is_own = attempt.stop_params.get("cause") == "program"
        return End(
            reason=EndReason(attempt.stop_reason), params=dict(attempt.stop_params), exit_code=ranks[0].exit_code, can_requeue=not is_own
        )
    for rank in own or bad:
        params: dict[str, Any] = {"rank": rank.index, "node": rank.node.name, "exit_code": rank.exit_code}
        if rank.exit_signal:
            params["signal"] = rank.exit_signal
        return End(reason=EndReason.NONZERO_EXIT, params=params, exit_code=rank.exit_code)
    return End(reason=EndReason.COMPLETED, exit_code=0)


def _logs_complete(ranks: Sequence[Rank], *, now: datetime, patience_s: float) -> bool:
    for rank in ranks:
        wanted = rank.final_log_offset
        if wanted is None or rank.observed != RankState.EXITED:
            continue
        have = logs.log_length(rank.key)
        if have >= wanted or logs.log_is_closed(rank.key):
            continue
        if rank.exited_at is not None and (now - rank.exited_at).total_seconds() < patience_s:
            return False
        logs.log_close(rank.key, line=f"The last {wanted - have} bytes of output did not arrive from {rank.node.name}.")
    return True


def attempt_maybe_finish(attempt: Attempt, *, now: datetime, patience_s: float = 60.0) -> bool:
    """Ends the attempt if all its ranks are over and their output has arrived; True if this call did it.

    Call inside a transaction. The attempt's row is swapped from live to ended, so that of two callers one acts.
    """
    job = Job.objects.select_for_update().get(pk=attempt.job_id)
    ranks = list(Rank.objects.filter(attempt=attempt).select_related("node").order_by("index"))
    fresh = Attempt.objects.get(pk=attempt.pk)
    fresh.job = job
    return attempt_finish(fresh, ranks, now=now, patience_s=patience_s)


def attempt_finish(
    attempt: Attempt,
    ranks: Sequence[Rank],
    *,
    now: datetime,
    patience_s: float = 60.0,
    counters: Counters | None = None,
    free: Set[int] = frozenset(),
) -> bool:
    """``attempt_maybe_finish`` on rows that this transaction has read under the job's lock and kept up to date: the attempt with
    its job, and all its ranks in order, with their nodes. ``free``: ranks that are known to hold no card any more."""
    if any(rank.observed not in RANK_FINAL for rank in ranks) or not _logs_complete(ranks, now=now, patience_s=patience_s):
        return False
    job = attempt.job
    if job.is_restored and (len(ranks) < job.nodes or any(rank.exit_cause in UNSURE for rank in ranks)):
        return False  # a node that was not heard yet may hold another part of it, or a later attempt (services/restore.py)
    end = end_of(attempt, ranks)
    if end.reason is EndReason.NONZERO_EXIT and (fault := card_to_blame(attempt, now=now)) is not None:
        end = End(reason=EndReason.GPU_FAULT, params=fault, exit_code=end.exit_code)
    elif end.reason is EndReason.NONZERO_EXIT and job.gpu_count and _is_out_of_memory(ranks[end.params["rank"]]):
        end = End(reason=EndReason.GPU_MEMORY, params=end.params, exit_code=end.exit_code)
    causes = {rank.exit_cause for rank in ranks}
    fence = attempt.fence or next((f for cause, f in FENCES.items() if cause in causes), Fence.AGENT_ACK_STOPPED)
    changes = {"ended_at": now, "end_reason": end.reason, "end_params": end.params, "exit_code": end.exit_code, "fence": fence}
    if not swap(Attempt, attempt.pk, old={"ended_at": None}, new=changes):
        return False
    attempt.ended_at = now
    _job_settle(job, end=end, now=now, started_at=min((r.started_at for r in ranks if r.started_at), default=None), counters=counters)
    _launches_count(ranks, end=end)
    if end.reason in (EndReason.NONZERO_EXIT, EndReason.GPU_MEMORY):
        transaction.on_commit(functools.partial(known_error_note, job.pk), robust=True)
    ranks_forget(ranks, free=free)
    pass_nudge()
    return True


def _launches_count(ranks: Sequence[Rank], *, end: End) -> None:
    """Has each node remember whether it spoilt a launch or ran a program. In transactions of their own: a node's row is no part of
    the order of locks."""
    spoils = end.reason is EndReason.LAUNCH_FAILED and end.can_requeue and all(rank.detail != NOT_HELD for rank in ranks)
    for rank in ranks:
        if rank.observed == RankState.LAUNCH_FAILED or (spoils and rank.index == end.params.get("rank")):
            if spoils and rank.launch_error not in (*USERS_LAUNCH_ERRORS, "port"):  # a port is nobody's fault
                transaction.on_commit(functools.partial(launch_spoilt, rank.node_id), robust=True)
        elif rank.started_at is not None and rank.node.spoilt_launches:
            transaction.on_commit(functools.partial(launch_worked, rank.node_id), robust=True)


def rank_end_unheard(rank: Rank, *, now: datetime, **changes: Any) -> bool:
    """Ends a rank that its node does not report. It ran until its last proof of life, which is written down; False: it was over.
    ``rank`` is loaded with its node."""
    if rank.started_at is not None and rank.ran_s is None:
        last = nodes_seen([rank.node], now=now).get(rank.node_id)
        rank.ran_s = seen_s(started_at=rank.started_at, began_s=rank.began_s, last=last)
    rows = Rank.objects.filter(pk=rank.pk).exclude(observed__in=RANK_FINAL)
    return bool(rows.update(observed_at=now, exited_at=now, ran_s=rank.ran_s, **changes))


def _is_out_of_memory(rank: Rank) -> bool:
    """Whether that is the last that its output says. Reads the end of a file."""
    found = error_in(output_tail(rank.key))
    return found is not None and found.error is OUT_OF_MEMORY


def ranks_forget(ranks: Sequence[Rank], *, free: Set[int] = frozenset()) -> None:
    """Lets the agents drop what they keep of an ended attempt's ranks, but for those whose memory isn't proven back yet. ``free``:
    ranks that are known to hold no card; the others are looked up."""
    over = [rank.pk for rank in ranks if rank.observed in (RankState.EXITED, RankState.LAUNCH_FAILED)]
    unsure = [pk for pk in over if pk not in free]
    holding = set(Slice.objects.filter(rank_id__in=unsure, state__in=SLICE_LIVE).values_list("rank_id", flat=True)) if unsure else set()
    for pk in over:
        if pk not in holding:
            swap(Rank, pk, old={}, new={"desired": Want.FORGET})


def _job_settle(job: Job, *, end: End, now: datetime, started_at: datetime | None, counters: Counters | None) -> None:
    """``job`` as it is under its lock."""
    move = functools.partial(jobs_move, [job.pk], locked=[job], counters=counters, now=now)
    common: dict[str, Any] = {"end_reason": end.reason, "end_params": end.params, "exit_code": end.exit_code}
    params = {"reason": end.reason, **end.params}
    through: dict[str, Any] = {}
    begun: dict[str, Any] = {}
    if job.state == JobState.STARTING and end.reason in (EndReason.COMPLETED, EndReason.NONZERO_EXIT):
        # It came and went between two reports: its RUNNING is recorded all the same, so that events replay.
        through, begun = {"via": (JobState.RUNNING, "running")}, {"started_at": started_at or now}
    if end.reason is EndReason.COMPLETED:
        move(to=JobState.SUCCEEDED, code="succeeded", fields={**common, **begun}, **through)
        return
    if end.reason is EndReason.CANCELLED or (job.want_cancel and end.reason in INFRASTRUCTURE):
        common["end_reason"] = EndReason.CANCELLED
        if job.state != JobState.STOPPING:
            move(to=JobState.STOPPING, code="stopping", params={"reason": EndReason.CANCELLED})
        move(to=JobState.CANCELLED, code="cancelled", params=params, by=job.cancel_by_id, fields=common)
        return
    again = end.reason in INFRASTRUCTURE and end.can_requeue and job.requeue
    if again and (end.reason is EndReason.PREEMPTED or job.requeues < job.max_requeues):
        move(
            to=JobState.WAITING,
            code="requeued",
            params=params,
            fields={
                "requeues": F("requeues") + (0 if end.reason is EndReason.PREEMPTED else 1),
                "wait_code": "requeued",
                "wait_params": params,
                "wait_at": now,
                "queued_at": now,
                "started_at": None,
            },
        )
        return
    if again:
        common["end_params"] = {"reason": end.reason, "times": job.requeues + 1, **end.params}
        common["end_reason"] = EndReason.CRASH_LIMIT
    failed = {**params, "reason": common["end_reason"]}
    move(to=JobState.FAILED, code="failed", params=failed, fields={**common, **begun}, **through)
