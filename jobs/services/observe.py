"""What a node reports → rows, and rows → what the node shall do. Every change is a compare-and-swap.

Reports for another node's rank, an older epoch or a final rank change nothing and are logged.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import Model
from django.utils import timezone

from agent.protocol import Desired, ExitInfo, Observed, RankSpec, RestoreAsk, from_json, rank_parts
from jobs.alive import alive_until, begin_of, seen_s, told_s, until_now_s
from jobs.job_secrets import values_for
from jobs.lifecycle import RANK_FINAL, JobState, RankState, Want
from jobs.models import Attempt, Job, Rank, Restore, Slice
from jobs.notify import jobs_changed, pass_nudge
from jobs.services.finish import attempt_finish, ranks_forget
from jobs.services.moves import jobs_move
from jobs.services.slices import Leaving, SlicesMoved, slices_activate, slices_leave
from jobs.services.stop import attempt_stop
from nodes.models import Gpu, Node, NodeState
from nodes.telemetry import Seen
from nodes.text import text_clean
from quotas.counters import Counters
from quotas.sql import Select, swap

log = logging.getLogger(__name__)


class ForeignRank(Exception):
    """The agent reported a rank that belongs to another node."""

    def __init__(self, key: str) -> None:
        super().__init__(f"rank {key} is not this node's")
        self.key = key


@dataclass(frozen=True, slots=True)
class NodeRank:
    """A rank as its node's orders need it. No model object: a node may hold hundreds, and says so every few seconds."""

    pk: int
    key: str
    epoch: int
    desired: str
    observed: str
    grace_s: int
    stop_reason: str
    spec_sha256: str
    lease_s: int | None
    started_at: datetime | None
    began_s: float | None
    ran_s: float | None
    attempt: int
    job: int

    @property
    def needs_spec(self) -> bool:
        """A spec travels only until the agent has shown that it has it."""
        return self.desired == Want.RUN and self.observed in (RankState.NONE, RankState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Clock:
    """When a sync came. ``last``: the sync of the node before this one, the last proof of life of what it has no word for;
    ``uptime_s``: how long the node had been up at this one."""

    now: datetime
    last: Seen | None = None
    uptime_s: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What was seen of a rank, with the ids of the rank, its attempt and its job."""

    rank: int
    attempt: int
    job: int
    seen: Observed


@dataclass(slots=True)
class Applied:
    """What a sync's observed list came to: the node's ranks as they are now, and orders that no row carries."""

    ranks: list[NodeRank] = field(default_factory=list)
    extra: list[Desired] = field(default_factory=list)
    ask: RestoreAsk | None = None


def node_holds_jobs(node: Node) -> bool:
    """Whether ranks of ours may run on this node. One query."""
    return Rank.objects.filter(node=node, is_forgotten=False).exclude(observed__in=RANK_FINAL).exists()


def ranks_of(node: Node) -> list[NodeRank]:
    """The node's ranks that its agent may still hold. One query."""
    return [NodeRank(*row) for row in _of_node(node.pk)]


_of_node = Select(
    lambda node: Rank.objects.filter(node_id=node, is_forgotten=False)
    .order_by("pk")
    .values_list(
        "pk", "key", "attempt__epoch", "desired", "observed", "grace_s", "stop_reason", "spec_sha256", "lease_s", "started_at",
        "began_s", "ran_s", "attempt_id", "attempt__job_id",
    )
)  # fmt: skip
_specs = Select(lambda ranks: Rank.objects.filter(pk__in=ranks).order_by().values_list("pk", "spec"))


def observed_apply(
    *,
    node: Node,
    observed: Sequence[Observed],
    now: datetime,
    boot_changed: bool,
    last: Seen | None = None,
    uptime_s: float | None = None,
) -> Applied:
    """Applies a complete observed list. An unchanged list costs one query and no write. ``last`` and ``uptime_s``: see ``Clock``.

    Raises ForeignRank when one of the ranks is another node's; nothing of the list is applied then.
    """
    ranks = ranks_of(node)
    by_key = {rank.key: rank for rank in ranks}
    extra = _strangers(node=node, keys=[seen.rank for seen in observed if seen.rank not in by_key], observed=observed)
    news: list[tuple[NodeRank, Observed]] = []
    for seen in observed:
        rank = by_key.get(seen.rank)
        if rank is not None and _is_news(rank, seen):
            news.append((rank, seen))
    reported = {seen.rank for seen in observed}
    absent = [rank for rank in ranks if rank.key not in reported and not _is_as_expected(rank)]
    clock = Clock(now, last, uptime_s)
    if not news and not absent:
        return Applied(ranks=ranks, extra=extra)
    try:
        with transaction.atomic():
            _apply(news, absent, clock=clock, boot_changed=boot_changed)
    except DatabaseError:
        # One rank that the database refuses must not keep the others, and this node, out for ever.
        log.exception("the news of %s are applied one by one", node.name)
        for rank, seen in news:
            _alone([(rank, seen)], [], clock=clock, boot_changed=boot_changed)
        for rank in absent:
            _alone([], [rank], clock=clock, boot_changed=boot_changed)
    return Applied(ranks=ranks_of(node), extra=extra)


def _apply(news: Sequence[tuple[NodeRank, Observed]], absent: Sequence[NodeRank], *, clock: Clock, boot_changed: bool) -> None:
    reports = [Report(rank.pk, rank.attempt, rank.job, seen) for rank, seen in news]
    if boot_changed:
        # All in one go: one after the other would take the locks of one's quotas before those of the next one's job.
        gone = [rank for rank in absent if rank.desired != Want.FORGET and not _is_unseen(rank)]
        reports += [Report(rank.pk, rank.attempt, rank.job, _rebooted(rank)) for rank in gone]
    if reports:
        ranks_observe(reports, clock=clock)
    forgotten = [rank.pk for rank in absent if rank.desired == Want.FORGET]
    if forgotten:
        Rank.objects.filter(pk__in=forgotten).update(is_forgotten=True)  # as told
    for rank in absent:
        if rank.desired != Want.FORGET:
            _absent(rank, clock=clock, boot_changed=boot_changed)


def _rebooted(rank: NodeRank) -> Observed:
    return Observed(rank=rank.key, epoch=rank.epoch, state="EXITED", exit=ExitInfo(cause="node_rebooted"), released=True)


def _is_unseen(rank: NodeRank) -> bool:
    """Never seen alive before its node fell silent."""
    return rank.observed == RankState.UNKNOWN and rank.started_at is None


def _alone(news: Sequence[tuple[NodeRank, Observed]], absent: Sequence[NodeRank], *, clock: Clock, boot_changed: bool) -> None:
    try:
        with transaction.atomic():
            _apply(news, absent, clock=clock, boot_changed=boot_changed)
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


def _is_news(rank: NodeRank, seen: Observed) -> bool:
    if seen.epoch != rank.epoch:
        log.warning("rank %s reported with epoch %s; ignored", rank.key, seen.epoch)
        return False
    if rank.observed in RANK_FINAL:
        # The state is for ever; only the proof that the memory is back may still come.
        return seen.released is not None and rank.desired != Want.FORGET
    if seen.state == "RUNNING" == rank.observed:
        return (seen.exit is not None) != (rank.ran_s is not None)  # it is over, or it lives after all
    return rank.observed != seen.state


def _is_as_expected(rank: NodeRank) -> bool:
    """Whether the agent's complete list may lack this rank: it has not begun it, or its end is settled."""
    if rank.desired == Want.FORGET:
        return False  # it has forgotten, as told
    return rank.observed in RANK_FINAL or rank.observed == RankState.NONE


def _absent(rank: NodeRank, *, clock: Clock, boot_changed: bool) -> None:
    """The agent's complete list lacks this rank, which it should have. After a reboot that was a report (``_apply``)."""
    now = clock.now
    if rank.started_at is not None and rank.ran_s is None and not boot_changed:
        # From now on a sync proves no more that it lives.
        ran_s = seen_s(started_at=rank.started_at, began_s=rank.began_s, last=clock.last)
        Rank.objects.filter(pk=rank.pk, ran_s__isnull=True).exclude(observed__in=RANK_FINAL).update(ran_s=ran_s)
    if _is_unseen(rank):
        # The order stands, the agent's own fence keeps it from running twice.
        Rank.objects.filter(pk=rank.pk, observed=RankState.UNKNOWN).update(observed=RankState.NONE, observed_at=now)
    elif rank.desired == Want.RUN and not boot_changed:
        # It ran and the agent no longer knows it (its store was lost?): a STOP makes the agent look, kill and confirm.
        Rank.objects.filter(pk=rank.pk, desired=Want.RUN).update(desired=Want.STOP, stop_reason="exit_unknown", stop_at=now, grace_s=0)


def rank_observe(*, rank: Rank, seen: Observed, clock: Clock) -> None:
    """One rank's news, in one transaction: the rank, its slices, its attempt and its job move together."""
    ranks_observe([Report(rank.pk, rank.attempt_id, rank.attempt.job_id, seen)], clock=clock)


def ranks_observe(reports: Sequence[Report], *, clock: Clock) -> None:
    """The news of several ranks in one transaction.

    The jobs' rows are locked first, in id order, here and wherever a person acts on a job: two nodes that report parts
    of the same jobs, or jobs of the same owner, wait for each other instead of meeting crosswise.
    """
    with transaction.atomic(savepoint=False):
        # 1. Lock, then read everything that these reports are about, once.
        is_end = any(report.seen.state not in ("PREPARING", "RUNNING") for report in reports)
        _rows_lock(jobs={report.job for report in reports}, ranks=[report.rank for report in reports], with_cards=is_end)
        gangs = _gangs_read({report.attempt for report in reports})
        ranks = {rank.pk: rank for gang in gangs.values() for rank in gang}
        jobs = {rank.attempt.job_id: rank.attempt.job for rank in ranks.values()}
        # 2. The ranks.
        ended: list[_Ended] = []
        for report in reports:
            rank = ranks[report.rank]
            if (one := _observe(rank, report.seen, gangs[rank.attempt_id], clock=clock)) is not None:
                ended.append(one)
        # 3. Their slices, attempts and jobs, and what all that changes of the quotas.
        if ended:
            counters = Counters(users={job.owner_id for job in jobs.values()}, projects={job.project_id for job in jobs.values()})
            _ended_settle(ended, gangs, now=clock.now, counters=counters)
            if not counters.save():
                raise SlicesMoved
        jobs_changed(sorted(jobs))


def _rows_lock(*, jobs: set[int], ranks: Sequence[int], with_cards: bool) -> None:
    """Jobs, then cards (the quotas follow: ``Counters``), each in id order: what a sync will touch, before it touches any. A pass
    does the same. Nothing on SQLite, where a writer is alone."""
    if not connection.features.has_select_for_update:
        return
    list(Job.objects.select_for_update().filter(pk__in=jobs).order_by("pk").values_list("pk"))
    if with_cards:
        cards = Slice.objects.filter(rank_id__in=ranks).values("gpu_id")
        list(Gpu.objects.select_for_update().filter(pk__in=cards).order_by("pk").values_list("pk"))


def _fields(model: type[Model], *names: str) -> tuple[str, ...]:
    """These columns in the model's order, as ``from_db`` wants them."""
    found = tuple(field.attname for field in model._meta.concrete_fields if field.attname in names)
    if len(found) != len(names):
        raise TypeError(f"{model.__name__} has no {sorted(set(names) - set(found))}")
    return found


# What it takes to end a rank, an attempt and a job. What to run does not, and would be most of the bytes.
_RANK_FIELDS = _fields(
    Rank, "id", "attempt_id", "node_id", "index", "key", "desired", "observed", "grace_s", "started_at", "began_s", "ran_s", "exited_at",
    "exit_cause", "exit_code", "exit_signal", "launch_error", "detail", "final_log_offset",
)  # fmt: skip
_NODE_FIELDS = _fields(Node, "id", "name", "spoilt_launches")
_ATTEMPT_FIELDS = _fields(Attempt, "id", "job_id", "epoch", "created_at", "ended_at", "stop_reason", "stop_params", "fence")
_JOB_FIELDS = _fields(
    Job, "id", "owner_id", "project_id", "state", "epoch", "epoch_floor", "nodes", "is_restored", "want_cancel", "cancel_by_id",
    "requeue", "requeues", "max_requeues",
)  # fmt: skip
_gangs = Select(
    lambda attempts: (
        Rank.objects.filter(attempt_id__in=attempts)
        .order_by("attempt_id", "index")
        .values_list(
            *_RANK_FIELDS,
            *(f"node__{name}" for name in _NODE_FIELDS),
            *(f"attempt__{name}" for name in _ATTEMPT_FIELDS),
            *(f"attempt__job__{name}" for name in _JOB_FIELDS),
        )
    )
)


def _gangs_read(attempts: set[int]) -> dict[int, list[Rank]]:
    """Attempt → all its ranks in order; an attempt or a job is one object, however many ranks have it. Other fields than those
    above are deferred, as ``only`` would do it. One query."""
    gangs: dict[int, list[Rank]] = defaultdict(list)
    of_id: dict[int, Attempt] = {}
    jobs: dict[int, Job] = {}
    a, b, c = len(_RANK_FIELDS), len(_RANK_FIELDS) + len(_NODE_FIELDS), len(_RANK_FIELDS) + len(_NODE_FIELDS) + len(_ATTEMPT_FIELDS)
    for row in _gangs(sorted(attempts)):
        rank = Rank.from_db(connection.alias, _RANK_FIELDS, row[:a])
        rank.node = Node.from_db(connection.alias, _NODE_FIELDS, row[a:b])
        attempt = Attempt.from_db(connection.alias, _ATTEMPT_FIELDS, row[b:c])
        job = Job.from_db(connection.alias, _JOB_FIELDS, row[c:])
        rank.attempt = of_id.setdefault(attempt.pk, attempt)
        rank.attempt.job = jobs.setdefault(job.pk, job)
        gangs[attempt.pk].append(rank)
    return gangs


@dataclass(slots=True)
class _Ended:
    """A rank that is over. ``is_new``: by this report; else only its slices are left to settle."""

    leaving: Leaving
    is_new: bool
    is_clean: bool = True


def _observe(rank: Rank, seen: Observed, gang: Sequence[Rank], *, clock: Clock) -> _Ended | None:
    old = RankState(rank.observed)
    if old in RANK_FINAL:
        return _Ended(Leaving(rank=rank, at=clock.now, released=seen.released), is_new=False)
    if seen.state == "PREPARING":
        # Of one that ran before: a new agent has not reported its end yet. That is no proof of life.
        ran_s = _ran_s(rank, seen, rank.started_at, clock) if rank.started_at is not None else None
        _swap(rank, old, RankState.PREPARING, now=clock.now, ran_s=ran_s)
    elif seen.state == "RUNNING":
        _running(rank, old, seen, gang, clock=clock)
    else:
        return _ended(rank, old, seen, clock=clock)
    return None


def _swap(rank: Rank, old: RankState, new: RankState, *, now: datetime, **fields: object) -> bool:
    changes = {"observed": new, "observed_at": now, **fields}
    if not swap(Rank, rank.pk, old={"observed": old}, new=changes):
        return False
    for name, value in changes.items():
        setattr(rank, name, value)
    return True


def _int32(value: int | None) -> int | None:
    """None for a code that no program can end with: the column could not hold it, and the rank would never be over."""
    return value if value is not None and abs(value) < 2**31 else None


def _ran_s(rank: Rank, seen: Observed, started: datetime | None, clock: Clock) -> float | None:
    """How long it ran up to its last proof of life: the node's own word, else what is noted of it, else the last sync. None: it is not
    known to have run."""
    told = told_s(seen.exit, started_at=started, now=clock.now)
    if told is not None or started is None:
        return told
    ran_s = rank.ran_s if rank.ran_s is not None else seen_s(started_at=rank.started_at, began_s=rank.began_s, last=clock.last)
    return until_now_s(ran_s, started_at=started, now=clock.now)


def _running(rank: Rank, old: RankState, seen: Observed, gang: Sequence[Rank], *, clock: Clock) -> None:
    now, began_s = clock.now, rank.began_s
    started = rank.started_at or begin_of(seen, placed_at=rank.attempt.created_at, uptime_s=clock.uptime_s, now=now)
    if rank.started_at is None and clock.uptime_s is not None:
        began_s = seen.began_s
    ran_s = _ran_s(rank, seen, started, clock) if seen.exit is not None else None
    if not _swap(rank, old, RankState.RUNNING, now=now, started_at=started, began_s=began_s, ran_s=ran_s):
        return
    # By the node's uptime the begin is certain; by its wall clock it is not, and nobody pays for what is not.
    slices_activate(rank, at=started if began_s is not None else now)
    attempt = rank.attempt
    if attempt.job.state != JobState.STARTING:
        return
    if any(other.observed != RankState.RUNNING for other in gang):
        return  # a gang runs when all of it runs
    Attempt.objects.filter(pk=attempt.pk).update(started_at=now)
    jobs_move(
        [attempt.job_id],
        to=JobState.RUNNING,
        code="running",
        expect=JobState.STARTING,
        fields={"started_at": started},
        locked=[attempt.job],
        now=now,
    )


def _ended(rank: Rank, old: RankState, seen: Observed, *, clock: Clock) -> _Ended | None:
    info, now, started = seen.exit, clock.now, rank.started_at
    if started is None and seen.started_at is not None:
        started = begin_of(seen, placed_at=rank.attempt.created_at, uptime_s=None, now=now)
    cause = info.cause if info else ""
    if cause == "never_started" and rank.started_at is not None:
        cause = "exit_unknown"  # we saw it run: an agent that lost its store can't unmake that
    state = RankState(seen.state)
    if state is RankState.LAUNCH_FAILED and rank.started_at is not None:
        state, cause = RankState.EXITED, "exit_unknown"  # nor can one say that what ran could not be started: it would run twice
    detail = text_clean(seen.launch_detail or (info.detail if info else None) or "")[:4000]
    ran_unseen = started if rank.started_at is None and seen.state == "EXITED" and cause != "never_started" else None
    ran_s = _ran_s(rank, seen, started, clock)
    swapped = _swap(
        rank,
        old,
        state,
        now=now,
        started_at=started,
        ran_s=ran_s,
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
        return None
    is_clean = seen.state == "EXITED" and cause == "exited" and info is not None and info.code == 0 and not info.signal
    # Charging stops when it was last known to live; the memory returns with the proof.
    leaving = Leaving(rank=rank, at=alive_until(started, ran_s, now=now), released=seen.released, active_since=ran_unseen)
    return _Ended(leaving, is_new=True, is_clean=is_clean)


def _ended_settle(ended: Sequence[_Ended], gangs: dict[int, list[Rank]], *, now: datetime, counters: Counters) -> None:
    # 1. The slices.
    left = slices_leave([one.leaving for one in ended], now=now, counters=counters)
    if left.freed:
        pass_nudge()
    for one in ended:
        if one.leaving.rank.pk in left.quarantined:
            log.error("memory of rank %s is not back after 60 s; its slices are quarantined", one.leaving.rank.key)
    # 2. What is over already may be forgotten now.
    free = {one.leaving.rank.pk for one in ended if one.leaving.released}
    for pk in {one.leaving.rank.attempt_id for one in ended}:
        if gangs[pk][0].attempt.ended_at is not None:
            ranks_forget(gangs[pk], free=free)
    for one in ended:
        if not one.is_new:
            continue
        rank = one.leaving.rank
        attempt, gang = rank.attempt, gangs[rank.attempt_id]
        # 3. Its gang: one that failed takes the others with it.
        if not one.is_clean and any(other.observed not in RANK_FINAL for other in gang):
            attempt_stop(attempt=attempt, reason="gang", grace_s=rank.grace_s or settings.STOP_GRACE_S, params={"rank": rank.index})
            attempt.job.refresh_from_db(fields=("state",))
        # 4. Its attempt and job.
        attempt_finish(attempt, gang, now=now, counters=counters, free=free)


def orders_build(ranks: Sequence[NodeRank]) -> list[Desired]:
    """The complete desired list of one node. One query, if a spec is to be sent; two more, if one of them names secrets."""
    orders: list[Desired] = []
    missing = [rank.pk for rank in ranks if rank.needs_spec]
    specs: dict[int, Any] = dict(_specs(missing)) if missing else {}
    secrets = values_for(specs)
    for rank in ranks:
        epoch = rank.epoch
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
            orders.append(
                Desired(
                    rank=rank.key,
                    epoch=epoch,
                    want="RUN",
                    spec=from_json(RankSpec, specs[rank.pk]) if rank.pk in specs else None,
                    spec_sha256=rank.spec_sha256,
                    lease_s=rank.lease_s,
                    secrets=secrets.get(rank.pk) or None,
                )
            )
    return orders
