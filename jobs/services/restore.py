"""After a return from a backup: find out what ran since, so that nothing runs twice and nothing that runs is lost.

The restored database is behind the world. Agents are not: each knows what it holds and, for ever, the highest epoch of
every job that it started. So every node is asked once, and until it has answered it takes no work and gets no orders:

1. Ranks of the backup that it does not hold ended there (``exit_unknown``), or never began (``never_started``); their
   cards are free again, which the agent had proven before it forgot them.
2. Ranks that it holds and the backup does not know are taken in: attempt, rank and slices are made from the agent's own
   spec. A job that the backup does not know is made anew, in the name of its owner.
3. Jobs of the backup that had not ended start nowhere until all nodes have answered. One that a node started since and
   holds no more ends as ``exit_unknown``: somebody must say that it shall run again.

Names can't meet: job numbers go on above a gap, and jobs of the backup get epochs above a floor (``Job.epoch_floor``).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from django.conf import settings
from django.db import IntegrityError, connection, models, transaction
from django.db.models import F, Max

from agent.protocol import Desired, ExitInfo, Observed, RankSpec, RestoreAnswer, RestoreAsk, rank_parts, spec_sha256
from jobs.alive import alive_until, begin_of, seen_s
from jobs.lifecycle import FINAL, LIVE, NOT_HELD, RANK_FINAL, EndReason, Fence, JobState, OnNodeLoss, RankState, Want
from jobs.models import Attempt, Job, JobEvent, Rank, Restore, Slice
from jobs.notify import jobs_changed, pass_nudge
from jobs.services.finish import attempt_maybe_finish, rank_end_unheard
from jobs.services.moves import event_add, jobs_move
from jobs.services.observe import Applied, Clock, ForeignRank, Report, observed_apply, rank_observe, ranks_observe
from jobs.services.slices import slices_quarantine
from jobs.services.stop import attempt_stop
from nodes.models import AgentCommand, EnrolToken, Gpu, Node, NodeState
from nodes.sync import seen_latest
from nodes.telemetry import Seen
from quotas.models import User
from quotas.services import cards_hold, project_personal, quota_job_admit

log = logging.getLogger(__name__)

#: A job is put back a few times, not a thousand; and agents tell if they know a job number above the gap.
EPOCH_GAP = 1000
JOB_GAP = 1000
COMMAND_GAP = 100_000  # agents remember the numbers of commands and do none twice
#: Set by the control plane for each rank (jobs/engines/agent.py); not the user's.
OUR_ENV = ("NEBULA_", "MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK")


class NotTaken(Exception):
    """A rank that a node holds can't be taken in."""


# --- the restore itself -------------------------------------------------------------------------------------------


def sequence_raise(model: type[models.Model], value: int) -> None:
    """The next row of ``model`` gets a number above ``value`` at least."""
    table = model._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("UPDATE sqlite_sequence SET seq = %s WHERE name = %s AND seq < %s", [value, table, value])
            cursor.execute(
                "INSERT INTO sqlite_sequence (name, seq) SELECT %s, %s WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = %s)",
                [table, value, table],
            )
        else:
            cursor.execute("SELECT pg_get_serial_sequence(%s, 'id')", [table])
            sequence = cursor.fetchone()[0]
            cursor.execute(f"SELECT setval(%s, GREATEST(%s, (SELECT last_value FROM {sequence})))", [sequence, value])  # noqa: S608


@transaction.atomic
def restore_begin(*, backup_at: datetime, now: datetime) -> Restore:
    """Marks the database as one that came back from a backup. Call once, before anything runs on it."""
    last_job = Job.objects.aggregate(last=Max("pk"))["last"] or 0
    highest = max(Job.objects.aggregate(top=Max("epoch"))["top"] or 0, Job.objects.aggregate(top=Max("epoch_floor"))["top"] or 0)
    next_job = (last_job + JOB_GAP) // 1000 * 1000 + 1000
    Restore.objects.filter(settled_at__isnull=True).update(settled_at=now)  # the backup was made while one was open
    restore = Restore.objects.create(
        id=str(uuid.uuid4()), backup_at=backup_at, at=now, epoch_floor=highest + EPOCH_GAP, last_job=last_job, next_job=next_job + 1
    )
    open_jobs = Job.objects.exclude(state__in=FINAL)
    open_jobs.update(is_restored=True, epoch_floor=restore.epoch_floor)
    open_jobs.filter(state=JobState.WAITING, held=False).update(wait_code="restored", wait_params={}, wait_at=now)
    _lives_freeze(now=now)
    # Nobody was heard yet. The boot id is forgotten: a reboot since the backup proves nothing about what had ended before it.
    Node.objects.exclude(state=NodeState.RETIRED).update(restore=restore.pk, boot_id="", inventory_sha256="")
    Node.objects.exclude(state__in=(NodeState.RETIRED, NodeState.ENROLLING)).update(state=NodeState.UNKNOWN, state_at=now)
    # A token that was used since the backup would be good again.
    EnrolToken.objects.filter(used_at__isnull=True, expires_at__gt=now).update(expires_at=now)
    AgentCommand.objects.filter(state=AgentCommand.State.QUEUED).update(state=AgentCommand.State.EXPIRED, finished_at=now)
    sequence_raise(Job, next_job)
    sequence_raise(AgentCommand, (AgentCommand.objects.aggregate(last=Max("pk"))["last"] or 0) + COMMAND_GAP)
    return restore


def _lives_freeze(*, now: datetime) -> None:
    """What ran when the backup was made is known to have run until then. Redis may have been heard of nodes since: that says nothing of
    ranks that have ended meanwhile. A rank that its node still lists is taken back to life by that."""
    rows = []
    for rank in Rank.objects.filter(started_at__isnull=False, ran_s__isnull=True).exclude(observed__in=RANK_FINAL).select_related("node"):
        rank.ran_s = seen_s(started_at=rank.started_at, began_s=rank.began_s, last=seen_latest(None, rank.node, now=now))
        rows.append(rank)
    Rank.objects.bulk_update(rows, ["ran_s"], batch_size=500)


def restore_open() -> Restore | None:
    return Restore.objects.filter(settled_at__isnull=True).first()


def restore_waits_for(restore: Restore) -> list[str]:
    """Names of the nodes that have not answered."""
    return list(Node.objects.exclude(state=NodeState.RETIRED).filter(restore=restore.pk).order_by("name").values_list("name", flat=True))


@transaction.atomic
def restore_give_up(*, node: Node, now: datetime) -> None:
    """An admin says that this node's word won't come: it is waited for no longer. What it ran since is not known then."""
    restore = Restore.objects.filter(pk=node.restore).first()
    Node.objects.filter(pk=node.pk).update(restore="")
    log.warning("node %s is not asked any more what ran since the backup", node.name)
    if restore is not None:
        _maybe_settle(restore, now=now)


# --- one node's word ----------------------------------------------------------------------------------------------


def restore_sync(
    *,
    node: Node,
    observed: Sequence[Observed],
    answer: RestoreAnswer | None,
    now: datetime,
    last: Seen | None = None,
    uptime_s: float | None = None,
) -> Applied:
    """A sync of a node that has not answered: asks it, or takes its answer and from then on treats it as any other."""
    clock = Clock(now, last, uptime_s)
    restore = Restore.objects.filter(pk=node.restore).first()
    if restore is None or answer is None or answer.id != restore.pk:
        return Applied(ask=_ask(node, observed))
    with transaction.atomic():
        Restore.objects.select_for_update().get(pk=restore.pk)
        ranks = list(Rank.objects.filter(node=node, is_forgotten=False).select_related("attempt__job").order_by("pk"))
        reported = {seen.rank for seen in observed}
        gone = [rank for rank in ranks if rank.key not in reported]
        if gone:
            ranks_observe([_gone(rank, answer) for rank in gone], clock=clock)  # in one go, for the order of locks
            Rank.objects.filter(pk__in=[rank.pk for rank in gone]).update(is_forgotten=True)
        faults = _take_in(node, observed, answer, restore=restore, clock=clock)
        for fault in faults:
            log.error("node %s stays out of the pool: %s", node.name, fault)
        if faults:
            return Applied(ask=_ask(node, observed))
        _ran_note(restore, node, answer)
        if answer.last_job >= restore.next_job:
            sequence_raise(Job, answer.last_job)
        Node.objects.filter(pk=node.pk, restore=restore.pk).update(restore="")
        node.restore = ""
        log.info("node %s has said what ran since the backup", node.name)
        _maybe_settle(restore, now=now)
        refusals = [seen for seen in observed if _is_refusal(seen, answer) and seen.rank not in {rank.key for rank in ranks}]
        rest = [seen for seen in observed if seen not in refusals]
        applied = observed_apply(node=node, observed=rest, now=now, boot_changed=False, last=last, uptime_s=uptime_s)
        applied.extra += [Desired(rank=seen.rank, epoch=seen.epoch, want="FORGET") for seen in refusals]
        return applied


def _is_refusal(seen: Observed, answer: RestoreAnswer) -> bool:
    """An order of before that the node did not carry out and keeps to tell us: there was never a program."""
    return seen.state in ("EXITED", "LAUNCH_FAILED") and seen.rank not in answer.specs


def _ask(node: Node, observed: Sequence[Observed]) -> RestoreAsk:
    keys = [seen.rank for seen in observed]
    known = dict(Rank.objects.filter(key__in=keys).values_list("key", "node_id"))
    for key, owner in known.items():
        if owner != node.pk:
            raise ForeignRank(key)
    jobs = Job.objects.filter(is_restored=True).exclude(state__in=FINAL).order_by("pk").values_list("pk", flat=True)
    return RestoreAsk(id=node.restore, jobs=tuple(jobs), ranks=tuple(key for key in keys if key not in known))


def _gone(rank: Rank, answer: RestoreAnswer) -> Report:
    """A rank that the backup knows and the node does not hold: it is over there, and so is its hold on the cards. Of one that
    was over already only the latter is news."""
    has_run = rank.started_at is not None or answer.ran.get(str(rank.attempt.job_id), 0) >= rank.attempt.epoch
    exit_info = ExitInfo(cause="exit_unknown" if has_run else "never_started", detail=NOT_HELD)
    seen = Observed(rank=rank.key, epoch=rank.attempt.epoch, state="EXITED", exit=exit_info, released=True)
    return Report(rank.pk, rank.attempt_id, rank.attempt.job_id, seen)


def _ran_note(restore: Restore, node: Node, answer: RestoreAnswer) -> None:
    restore.refresh_from_db()
    ran = dict(restore.ran)
    for job, epoch in answer.ran.items():
        if epoch > ran.get(job, [0])[0]:
            ran[job] = [epoch, node.name]
    if ran != restore.ran:
        restore.ran = ran
        restore.save(update_fields=("ran",))


# --- taking in what a node holds ------------------------------------------------------------------------------------


def _take_in(node: Node, observed: Sequence[Observed], answer: RestoreAnswer, *, restore: Restore, clock: Clock) -> list[str]:
    """Every rank that the database does not know. Returns what could not be done, in words for the log."""
    keys = [seen.rank for seen in observed]
    known = dict(Rank.objects.filter(key__in=keys).values_list("key", "node_id"))
    faults: list[str] = []
    # By epoch: should a node hold two laps of a job, the later one supersedes the earlier.
    for seen in sorted(observed, key=lambda seen: (rank_parts(seen.rank), seen.rank)):
        if seen.rank in known:
            if known[seen.rank] != node.pk:
                raise ForeignRank(seen.rank)
            continue
        spec = answer.specs.get(seen.rank)
        if spec is None:
            if not _is_refusal(seen, answer):
                faults.append(f"it runs rank {seen.rank} and did not say what that is")
            continue
        try:
            with transaction.atomic():
                _rank_take(node, seen, spec, restore=restore, clock=clock)
        except (NotTaken, IntegrityError) as error:
            faults.append(f"rank {seen.rank} can't be taken in: {error}")
    return faults


def _rank_take(node: Node, seen: Observed, spec: RankSpec, *, restore: Restore, clock: Clock) -> None:
    now = clock.now
    job_id, epoch, index = rank_parts(seen.rank)
    if spec.job != job_id or spec.index != index:
        raise NotTaken(f"its spec is of job {spec.job}, part {spec.index}")
    # Jobs first, then cards: the order in which every writer locks.
    job = Job.objects.select_for_update().filter(pk=job_id).first() or _job_recover(job_id, spec, node=node, now=now)
    gpus = {gpu.uuid: gpu for gpu in Gpu.objects.select_for_update().filter(node=node, uuid__in=[g.uuid for g in spec.gpus]).order_by("pk")}
    if job.is_final or epoch < job.epoch:
        return  # stale: observed_apply gives the order that ends it
    if epoch > job.epoch:
        if job.state in LIVE:
            _supersede(job, by_epoch=epoch, now=now)
        fields = {"wait_code": "", "wait_params": {}, "wait_at": None, "started_at": None}
        params = {"node": node.name}
        if not jobs_move(
            [job_id], to=JobState.STARTING, code="adopted", params=params, expect=JobState.WAITING, epoch_to=epoch, fields=fields
        ):
            raise NotTaken(f"job {job_id} is {job.state}")
        job.refresh_from_db()
        # It was placed after the backup, and ran from then on: that is charged, too.
        placed_at = begin_of(seen, placed_at=min(restore.backup_at, now), uptime_s=clock.uptime_s, now=now)
        Attempt.objects.create(job=job, epoch=epoch, created_at=placed_at)
    attempt = Attempt.objects.filter(job=job, epoch=epoch, ended_at__isnull=True).first()
    if attempt is None:
        raise NotTaken(f"job {job_id} has no open attempt {epoch}")
    attempt.job = job
    rank = Rank.objects.create(
        attempt=attempt,
        node=node,
        index=index,
        key=seen.rank,
        spec=spec.to_json(),
        spec_sha256=spec_sha256(spec),
        grace_s=job.grace_s or settings.STOP_GRACE_S,
        lease_s=settings.LEASE_S if job.on_node_loss == OnNodeLoss.REQUEUE else None,
    )
    rank.attempt = attempt
    _slices_take(rank, spec, gpus, now=now)
    rank_observe(rank=rank, seen=seen, clock=clock)
    if job.want_cancel and seen.state in ("PREPARING", "RUNNING"):
        attempt_stop(attempt=attempt, reason=EndReason.CANCELLED, grace_s=rank.grace_s)
    log.info("rank %s was taken in from %s", seen.rank, node.name)


def _slices_take(rank: Rank, spec: RankSpec, gpus: Mapping[str, Gpu], *, now: datetime) -> None:
    for position, grant in enumerate(spec.gpus):
        gpu = gpus.get(grant.uuid)
        if gpu is None:
            raise NotTaken(f"its card {grant.uuid} is not known on this node")
        # The constraints on Gpu refuse what does not fit: IntegrityError, and the node stays out.
        Gpu.objects.filter(pk=gpu.pk).update(
            held_mib=F("held_mib") + grant.mib, live_slices=F("live_slices") + 1, is_exclusive=grant.exclusive
        )
        share = 1.0 if grant.exclusive else min(1.0, grant.mib / (gpu.total_mib or grant.mib))
        Slice.objects.create(rank=rank, gpu=gpu, position=position, mib=grant.mib, is_exclusive=grant.exclusive, share=share, held_at=now)
    job = rank.attempt.job
    cards_hold(user=job.owner_id, project=job.project_id, n=len(spec.gpus), now=now)


def _job_recover(job_id: int, spec: RankSpec, *, node: Node, now: datetime) -> Job:
    """A job that was submitted after the backup, from what its node knows. Its owner is the one that its environment
    names, else the first administrator."""
    email = spec.env.get("NEBULA_JOB_OWNER", "")
    owner = User.objects.filter(email=email).first() or User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if owner is None:
        raise NotTaken("there is nobody whom its job could belong to")
    project = project_personal(owner)
    quota_job_admit(user=owner.pk, project=project.pk, now=now, is_forced=True)
    has_whole = any(grant.exclusive for grant in spec.gpus)
    job = Job.objects.create(
        pk=job_id,
        owner=owner,
        project=project,
        name=spec.name or f"job {job_id}",
        argv=list(spec.argv),
        env={name: value for name, value in spec.env.items() if not name.startswith(OUR_ENV)},
        workdir=spec.workdir or "",
        checkpoint=spec.checkpoint or "",
        gpu_count=_number(spec.env.get("NEBULA_GPU_COUNT"), len(spec.gpus)),
        gpu_mem_mib=None if has_whole or not spec.gpus else max(grant.mib for grant in spec.gpus),
        nodes=max(1, _number(spec.env.get("NEBULA_NNODES"), 1)),
        time_limit_s=spec.time_limit_s,
        grace_s=spec.grace_s,
        wait_code="restored",
        wait_at=now,
        is_restored=True,
        submitted_at=now,
        queued_at=now,
    )
    JobEvent.objects.create(job=job, at=now, code="recovered", params={"node": node.name}, to_state=JobState.WAITING)
    sequence_raise(Job, job_id)
    jobs_changed([job_id])
    return job


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 7 else default


def _supersede(job: Job, *, by_epoch: int, now: datetime) -> None:
    """A later attempt is only ever made once the earlier one is over: that it exists is the proof, whatever the backup says."""
    attempt = Attempt.objects.select_for_update().get(job=job, ended_at__isnull=True)
    attempt.job = job
    for rank in Rank.objects.select_for_update().filter(attempt=attempt).select_related("node"):
        rank.attempt = attempt
        rank_end_unheard(rank, now=now, observed=RankState.EXITED, exit_cause="exit_unknown", desired=Want.STOP)
        # Until its own node says that the memory is back.
        slices_quarantine(rank, at=alive_until(rank.started_at, rank.ran_s, now=now), now=now)
    Attempt.objects.filter(pk=attempt.pk).update(
        ended_at=now,
        end_reason=EndReason.EXIT_UNKNOWN,
        end_params={"after_backup": True},
        fence=Fence.AGENT_ACK_STOPPED,
        fence_params={"later_epoch": by_epoch},
    )
    fields = {"wait_code": "restored", "wait_params": {}, "wait_at": now, "queued_at": now, "started_at": None}
    jobs_move(
        [job.pk], to=JobState.WAITING, code="requeued", params={"reason": EndReason.EXIT_UNKNOWN, "after_backup": True}, fields=fields
    )
    job.refresh_from_db()


def stale_order(*, job: Job, seen: Observed) -> Desired | None:
    """What becomes of a rank that no row names although its job is known: a lap that is over here must not run on."""
    epoch = rank_parts(seen.rank)[1]
    if not job.is_final and epoch >= job.epoch:
        return None
    if seen.state in ("EXITED", "LAUNCH_FAILED"):
        return Desired(rank=seen.rank, epoch=seen.epoch, want="FORGET")
    return Desired(rank=seen.rank, epoch=seen.epoch, want="STOP", grace_s=job.grace_s or settings.STOP_GRACE_S, stop_reason="fenced")


# --- when all have spoken -------------------------------------------------------------------------------------------


def _maybe_settle(restore: Restore, *, now: datetime) -> bool:
    """Call in a transaction that holds the restore's row. True if this call settled it."""
    if restore_waits_for(restore) or not Restore.objects.filter(pk=restore.pk, settled_at__isnull=True).update(settled_at=now):
        return False
    restore.refresh_from_db()
    for job in Job.objects.select_for_update().filter(is_restored=True).exclude(state__in=FINAL).order_by("pk"):
        epoch, name = restore.ran.get(str(job.pk), (0, ""))
        if epoch > job.epoch:
            _end_unknown(job, node=name, epoch=epoch, now=now)
    ids = list(Job.objects.filter(is_restored=True).values_list("pk", flat=True))
    Job.objects.filter(is_restored=True).update(is_restored=False)
    for attempt in Attempt.objects.filter(job_id__in=ids, ended_at__isnull=True):
        attempt_maybe_finish(attempt, now=now)
    log.info("the restore of %s is settled: all nodes have answered", restore.at)
    jobs_changed(ids)
    pass_nudge()
    return True


def _end_unknown(job: Job, *, node: str, epoch: int, now: datetime) -> None:
    """Some node started this job after the backup and holds nothing of it any more."""
    if job.state in LIVE:
        _supersede(job, by_epoch=epoch, now=now)
    params = {"after_backup": True, "node": node}
    fields = {"end_reason": EndReason.EXIT_UNKNOWN, "end_params": params, "wait_code": "", "wait_params": {}}
    jobs_move([job.pk], to=JobState.FAILED, code="failed", params={"reason": EndReason.EXIT_UNKNOWN, **params}, fields=fields)
    event_add(job.pk, code="exit_unknown", params=params, epoch=epoch)
