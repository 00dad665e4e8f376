"""What a node reports → rows, and rows → what the node shall do. Every change is a compare-and-swap.

Reports for another node's rank, an older epoch or a final rank change nothing and are logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from agent.protocol import Desired, ExitInfo, Observed, RankSpec, RestoreAsk, from_json, rank_parts
from jobs.lifecycle import RANK_FINAL, JobState, RankState, Want
from jobs.models import Attempt, Job, Rank, Restore, Slice
from jobs.notify import jobs_changed, pass_nudge
from jobs.services.finish import attempt_maybe_finish, ranks_forget
from jobs.services.moves import jobs_move
from jobs.services.slices import slices_activate, slices_quarantine, slices_release, slices_releasing
from jobs.services.stop import attempt_stop
from nodes.models import Gpu, Node, NodeState
from nodes.text import text_clean
from quotas.services import quotas_lock

log = logging.getLogger(__name__)


class ForeignRank(Exception):
    """The agent reported a rank that belongs to another node."""

    def __init__(self, key: str) -> None:
        super().__init__(f"rank {key} is not this node's")
        self.key = key


@dataclass(slots=True)
class Applied:
    """What a sync's observed list came to: the node's ranks as they are now, and orders that no row carries."""

    ranks: list[Rank] = field(default_factory=list)
    extra: list[Desired] = field(default_factory=list)
    ask: RestoreAsk | None = None


def ranks_of(node: Node) -> list[Rank]:
    """The node's ranks that its agent may still hold. One query."""
    return list(Rank.objects.filter(node=node, is_forgotten=False).select_related("attempt__job").order_by("pk"))


def observed_apply(*, node: Node, observed: Sequence[Observed], now: datetime, boot_changed: bool) -> Applied:
    """Applies a complete observed list. An unchanged list costs one query and no write.

    Raises ForeignRank when one of the ranks is another node's; nothing of the list is applied then.
    """
    ranks = ranks_of(node)
    by_key = {rank.key: rank for rank in ranks}
    extra = _strangers(node=node, keys=[seen.rank for seen in observed if seen.rank not in by_key], observed=observed)
    news: list[tuple[Rank, Observed]] = []
    for seen in observed:
        rank = by_key.get(seen.rank)
        if rank is not None and _is_news(rank, seen):
            news.append((rank, seen))
    reported = {seen.rank for seen in observed}
    absent = [rank for rank in ranks if rank.key not in reported and not _is_as_expected(rank)]
    if not news and not absent:
        return Applied(ranks=ranks, extra=extra)
    try:
        with transaction.atomic():
            _apply(news, absent, now=now, boot_changed=boot_changed)
    except DatabaseError:
        # One rank that the database refuses must not keep the others, and this node, out for ever.
        log.exception("the news of %s are applied one by one", node.name)
        for rank, seen in news:
            _alone([(rank, seen)], [], now=now, boot_changed=boot_changed)
        for rank in absent:
            _alone([], [rank], now=now, boot_changed=boot_changed)
    return Applied(ranks=ranks_of(node), extra=extra)


def _apply(news: Sequence[tuple[Rank, Observed]], absent: Sequence[Rank], *, now: datetime, boot_changed: bool) -> None:
    if news:
        ranks_observe(news, now=now)
    forgotten = [rank.pk for rank in absent if rank.desired == Want.FORGET]
    if forgotten:
        Rank.objects.filter(pk__in=forgotten).update(is_forgotten=True)  # as told
    for rank in absent:
        if rank.desired != Want.FORGET:
            _absent(rank, now=now, boot_changed=boot_changed)


def _alone(news: Sequence[tuple[Rank, Observed]], absent: Sequence[Rank], *, now: datetime, boot_changed: bool) -> None:
    try:
        with transaction.atomic():
            _apply(news, absent, now=now, boot_changed=boot_changed)
    except DatabaseError:
        log.exception("rank %s can't be moved on", [rank.key for rank, _ in news] or [rank.key for rank in absent])


def _strangers(*, node: Node, keys: list[str], observed: Sequence[Observed]) -> list[Desired]:
    """Orders for ranks that no live row of this node names."""
    if not keys:
        return []
    known = {row.key: row for row in Rank.objects.filter(key__in=keys).only("key", "node_id")}
    orders: list[Desired] = []
    for seen in observed:
        if seen.rank not in keys:
            continue
        row = known.get(seen.rank)
        if row is not None and row.node_id != node.pk:
            raise ForeignRank(seen.rank)
        if row is not None:
            orders.append(Desired(rank=seen.rank, epoch=seen.epoch, want="FORGET"))  # the FORGET was lost on its way
        else:
            orders += _unknown(node, seen)
    return orders


def _unknown(node: Node, seen: Observed) -> list[Desired]:
    """Only a restored database forgets a rank. What belongs to a lap that is over here is ended; of anything else the node
    is asked (services/restore.py), and keeps it running. Causes up to three queries."""
    from jobs.services.restore import stale_order

    job = Job.objects.filter(pk=rank_parts(seen.rank)[0]).first()
    order = stale_order(job=job, seen=seen) if job is not None else None
    if order is not None:
        log.warning("%s reports rank %s, a lap that is over here: %s", node.name, seen.rank, order.want)
        return [order]
    log.warning("%s reports rank %s, which this database does not know", node.name, seen.rank)
    restore = Restore.objects.first()
    if restore is not None:
        # It joined after the backup: it has not been asked yet. Out of the pool with it until it was.
        Node.objects.filter(pk=node.pk, restore="").update(restore=restore.pk, state=NodeState.RECOVERING, state_at=timezone.now())
    return []


def _is_news(rank: Rank, seen: Observed) -> bool:
    if seen.epoch != rank.attempt.epoch:
        log.warning("rank %s reported with epoch %s; ignored", rank.key, seen.epoch)
        return False
    if rank.observed in RANK_FINAL:
        # The state is for ever; only the proof that the memory is back may still come.
        return seen.released is not None and rank.desired != Want.FORGET
    return rank.observed != seen.state


def _is_as_expected(rank: Rank) -> bool:
    """Whether the agent's complete list may lack this rank: it has not begun it, or its end is settled."""
    if rank.desired == Want.FORGET:
        return False  # it has forgotten, as told
    return rank.observed in RANK_FINAL or rank.observed == RankState.NONE


def _absent(rank: Rank, *, now: datetime, boot_changed: bool) -> None:
    """The agent's complete list lacks this rank, which it should have."""
    if rank.observed == RankState.UNKNOWN and rank.started_at is None:
        # Never seen alive before the silence: the order stands, the agent's own fence keeps it from running twice.
        Rank.objects.filter(pk=rank.pk, observed=RankState.UNKNOWN).update(observed=RankState.NONE, observed_at=now)
    elif boot_changed:
        rank_observe(
            rank=rank,
            seen=from_json(
                Observed,
                {"rank": rank.key, "epoch": rank.attempt.epoch, "state": "EXITED", "exit": {"cause": "node_rebooted"}, "released": True},
            ),
            now=now,
        )
    elif rank.desired == Want.RUN:
        # It ran and the agent no longer knows it (its store was lost?): a STOP makes the agent look, kill and confirm.
        Rank.objects.filter(pk=rank.pk, desired=Want.RUN).update(desired=Want.STOP, stop_reason="exit_unknown", stop_at=now, grace_s=0)


def rank_observe(*, rank: Rank, seen: Observed, now: datetime) -> None:
    """One rank's news, in one transaction: the rank, its slices, its attempt and its job move together."""
    ranks_observe([(rank, seen)], now=now)


def ranks_observe(news: Sequence[tuple[Rank, Observed]], *, now: datetime) -> None:
    """The news of several ranks in one transaction.

    The jobs' rows are locked first, in id order, here and wherever a person acts on a job: two nodes that report parts
    of the same jobs, or jobs of the same owner, wait for each other instead of meeting crosswise.
    """
    with transaction.atomic(savepoint=False):
        ids = {rank.attempt.job_id for rank, _ in news}
        _rows_lock(jobs=ids, ranks=[rank.pk for rank, _ in news])
        current = Rank.objects.select_related("attempt__job", "node").in_bulk([rank.pk for rank, _ in news])
        for rank, seen in news:
            _observe(current[rank.pk], seen, now=now)
        jobs_changed(sorted(ids))


def _rows_lock(*, jobs: set[int], ranks: Sequence[int]) -> None:
    """Jobs, then cards, then quotas, each in id order: what a sync will touch, before it touches any. A pass takes cards
    and quotas in the same order, and no job that is live. Nothing on SQLite, where a writer is alone."""
    if not connection.features.has_select_for_update:
        return
    owners = list(Job.objects.select_for_update().filter(pk__in=jobs).order_by("pk").values_list("owner_id", "project_id"))
    cards = Slice.objects.filter(rank_id__in=ranks).values("gpu_id")
    list(Gpu.objects.select_for_update().filter(pk__in=cards).order_by("pk").values_list("pk"))
    quotas_lock(users=[owner for owner, _ in owners], projects=[project for _, project in owners])


def _observe(rank: Rank, seen: Observed, *, now: datetime) -> None:
    old = RankState(rank.observed)
    if old in RANK_FINAL:
        _settle_slices(rank, seen, now=now)
    elif seen.state == "PREPARING":
        _swap(rank, old, RankState.PREPARING, now=now)
    elif seen.state == "RUNNING":
        _running(rank, old, seen, now=now)
    else:
        _ended(rank, old, seen, now=now)


def _swap(rank: Rank, old: RankState, new: RankState, *, now: datetime, **fields: object) -> bool:
    return bool(Rank.objects.filter(pk=rank.pk, observed=old).update(observed=new, observed_at=now, **fields))


def _started_at(rank: Rank, seen: Observed, now: datetime) -> datetime:
    """When it began, by the node's clock, kept between the grant and now so that no clock can charge too much."""
    held = rank.attempt.created_at
    if seen.started_at is None:
        return now
    try:
        return min(now, max(held, datetime.fromtimestamp(seen.started_at, tz=UTC)))
    except (OverflowError, OSError, ValueError):
        return now


def _int32(value: int | None) -> int | None:
    """None for a code that no program can end with: the column could not hold it, and the rank would never be over."""
    return value if value is not None and abs(value) < 2**31 else None


def _ended_at(info: ExitInfo | None, started: datetime | None, now: datetime) -> datetime:
    """When its cards were no longer used: not when we were told. Nobody pays for a control plane that was away."""
    if info is None or started is None or info.ran_s is None or not 0 <= info.ran_s < 10**9:
        return now
    return min(now, started + timedelta(seconds=info.ran_s))


def _running(rank: Rank, old: RankState, seen: Observed, *, now: datetime) -> None:
    started = rank.started_at or _started_at(rank, seen, now)
    if not _swap(rank, old, RankState.RUNNING, now=now, started_at=started):
        return
    slices_activate(rank, at=now)
    attempt = rank.attempt
    if attempt.job.state != JobState.STARTING:
        return
    if Rank.objects.filter(attempt=attempt).exclude(observed=RankState.RUNNING).exists():
        return  # a gang runs when all of it runs
    Attempt.objects.filter(pk=attempt.pk).update(started_at=now)
    jobs_move([attempt.job_id], to=JobState.RUNNING, code="running", expect=JobState.STARTING, fields={"started_at": started})


def _ended(rank: Rank, old: RankState, seen: Observed, *, now: datetime) -> None:
    # 1. The rank.
    info = seen.exit
    started = rank.started_at or (_started_at(rank, seen, now) if seen.started_at is not None else None)
    cause = info.cause if info else ""
    if cause == "never_started" and rank.started_at is not None:
        cause = "exit_unknown"  # we saw it run: an agent that lost its store can't unmake that
    state = RankState(seen.state)
    if state is RankState.LAUNCH_FAILED and rank.started_at is not None:
        state, cause = RankState.EXITED, "exit_unknown"  # nor can one say that what ran could not be started: it would run twice
    detail = text_clean(seen.launch_detail or (info.detail if info else None) or "")[:4000]
    swapped = _swap(
        rank,
        old,
        state,
        now=now,
        started_at=started,
        exited_at=now,
        exit_cause=cause,
        exit_code=_int32(info.code if info else None),
        exit_signal=_int32(info.signal if info else None),
        launch_error=seen.launch_error or "",
        detail=detail,
        final_log_offset=None if seen.final_log_offset is None else max(0, seen.final_log_offset),
        checkpoint_seen=seen.checkpoint_seen,
    )
    if not swapped:
        return
    # 2. Its slices: charging stops now; the memory returns with the proof.
    ran_unseen = started if rank.started_at is None and seen.state == "EXITED" and cause != "never_started" else None
    slices_releasing(rank, now=_ended_at(info, started, now), active_since=ran_unseen)
    _settle_slices(rank, seen, now=now)
    # 3. Its gang: one that failed takes the others with it.
    attempt = rank.attempt
    is_clean = seen.state == "EXITED" and cause == "exited" and info is not None and info.code == 0 and not info.signal
    if not is_clean and Rank.objects.filter(attempt=attempt).exclude(observed__in=RANK_FINAL).exclude(pk=rank.pk).exists():
        attempt_stop(
            attempt=attempt,
            reason="gang",
            grace_s=rank.grace_s or settings.STOP_GRACE_S,
            params={"rank": rank.index},
        )
    # 4. Its attempt and job.
    attempt_maybe_finish(attempt, now=now)


def _settle_slices(rank: Rank, seen: Observed, *, now: datetime) -> None:
    if seen.released is True:
        if slices_release(rank, now=now):
            pass_nudge()
    elif seen.released is False and slices_quarantine(rank, now=now):
        log.error("memory of rank %s is not back after 60 s; its slices are quarantined", rank.key)
    if rank.attempt.ended_at is not None:
        ranks_forget(rank.attempt)


def orders_build(ranks: Sequence[Rank]) -> list[Desired]:
    """The complete desired list of one node. A spec travels only until the agent has shown that it has it."""
    orders: list[Desired] = []
    for rank in ranks:
        epoch = rank.attempt.epoch
        if rank.desired == Want.STOP and rank.observed not in RANK_FINAL:
            orders.append(Desired(rank=rank.key, epoch=epoch, want="STOP", grace_s=rank.grace_s, stop_reason=rank.stop_reason or None))
        elif rank.observed in RANK_FINAL:
            if rank.desired == Want.FORGET:
                orders.append(Desired(rank=rank.key, epoch=epoch, want="FORGET"))
            elif rank.observed == RankState.LOST:
                # Fenced while the node was away: should it still run there, it must not any more.
                orders.append(Desired(rank=rank.key, epoch=epoch, want="STOP", grace_s=0, stop_reason="fenced"))
            else:
                orders.append(Desired(rank=rank.key, epoch=epoch, want="STOP", grace_s=rank.grace_s))
        else:
            needs_spec = rank.observed in (RankState.NONE, RankState.UNKNOWN)
            orders.append(
                Desired(
                    rank=rank.key,
                    epoch=epoch,
                    want="RUN",
                    spec=from_json(RankSpec, rank.spec) if needs_spec else None,
                    spec_sha256=rank.spec_sha256,
                    lease_s=rank.lease_s,
                )
            )
    return orders
