"""Plan → rows: lock, re-check with the core's own fit, compare-and-swap. One transaction; what no longer fits stays WAITING.

INVARIANT: whatever ran since the snapshot (another pass, an ended job, a cordon), nothing is oversubscribed: jobs, cards and
quotas are locked in this order, each by id, and re-checked, each counter moves by a conditional UPDATE, and the database's
constraints stand behind all of it. The number of statements does not depend on the number of jobs.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F

from agent.protocol import rank_id, spec_sha256
from jobs import snapshot
from jobs.engines import agent as engine
from jobs.job_secrets import secret_refs
from jobs.lifecycle import FINAL, JobState, OnNodeLoss
from jobs.model_caps import room_read
from jobs.models import Attempt, Job, Rank, Slice
from jobs.notify import nodes_nudge
from jobs.scheduler import rank_fits
from jobs.scheduler import types as core
from jobs.scheduler.access import ACCOUNT
from jobs.scheduler.reasons import HELD
from jobs.services.moves import CHUNK, jobs_move
from nodes.models import Gpu
from quotas.counters import Counters
from quotas.models import User
from quotas.sql import rows_insert, rows_update
from quotas.unix_accounts import account_of

#: A Unix account: name and number; None = the node knows the number.
Account = tuple[str, int | None]
#: So many placements a transaction: it stays short, and a long plan lets syncs in between.
BATCH = 200


class _Changed(Exception):
    """A card or a job is no longer as it was locked: the whole batch is taken back and the next pass decides anew."""


def plan_apply(plan: core.Plan, *, now: datetime) -> list[int]:
    """Returns the jobs that were started, in plan order."""
    started: list[int] = []
    for start in range(0, len(plan.placements), BATCH):
        batch = plan.placements[start : start + BATCH]
        try:
            with transaction.atomic():
                started += _apply_batch(batch, now=now)
        except _Changed:
            continue
    return started


def _apply_batch(placements: Sequence[core.Placement], *, now: datetime) -> list[int]:
    # 1. Lock the jobs, then their cards, then the quotas, each in id order: every writer takes them so.
    jobs = {
        job.pk: job
        for job in Job.objects.select_for_update(of=("self",))
        .annotate(owner_email=F("owner__email"))
        .filter(pk__in=[placed.job for placed in placements], state=JobState.WAITING, held=False, want_cancel=False, is_restored=False)
        .order_by("pk")
    }
    if not jobs:
        return []
    node_ids = {rank.node for placed in placements for rank in placed.ranks}
    asks = {job.pk: snapshot.request_of(job) for job in jobs.values()}
    with_hosts = any(ask.gpu_count == 0 or ask.cpu_milli or ask.host_mem_mib for ask in asks.values())
    nodes, addresses = snapshot.nodes_lock(node_ids, with_hosts=with_hosts)
    gpus = {gpu.id: gpu for node in nodes.values() for gpu in node.gpus}
    taken: dict[int, list[core.Slice]] = defaultdict(list)
    for part in snapshot.slices_read(gpu_ids=gpus):
        taken[part.gpu].append(part)
    # Who may run where is read behind the locks, too: an account may have been taken away since.
    lacks = snapshot.lacks_read({job.owner_id for job in jobs.values()}, snapshot.demanded_by(nodes.values()))
    asks = {job.pk: replace(asks[job.pk], lacks=lacks(job.owner_id, bool(job.secrets), job.nodes)) for job in jobs.values()}
    policy = snapshot.policy_current()
    counters = Counters(users=[job.owner_id for job in jobs.values()], projects=[job.project_id for job in jobs.values()])
    by_model = room_read(*counters.model_limits)

    # 2. Keep the placements that still hold, each seen after those before it.
    good: list[core.Placement] = []
    for placed in placements:
        job = jobs.get(placed.job)
        if job is None or not _still_fits(asks[job.pk], placed, nodes, taken, policy):
            continue
        models = Counter(gpus[grant.gpu].model for rank in placed.ranks for grant in rank.grants)
        if by_model and not by_model.take(user=job.owner_id, project=job.project_id, models=models):
            continue
        count = sum(len(rank.grants) for rank in placed.ranks)
        if not counters.cards_take(user=job.owner_id, project=job.project_id, n=count):
            continue  # the next pass says so: the quota is read into its snapshot
        _take(asks[job.pk], placed, nodes, taken)
        good.append(placed)
    if not good:
        return []

    accounts = _accounts(good, jobs, nodes)

    # 3. Take the memory and count the cards: a conditional UPDATE each.
    _cards_take(grant for placed in good for rank in placed.ranks for grant in rank.grants)
    if not counters.save():
        raise _Changed

    # 4. Move the jobs and write attempts, ranks and slices in bulk.
    ids = [placed.job for placed in good]
    moved = jobs_move(
        ids,
        to=JobState.STARTING,
        code="placed",
        expect=JobState.WAITING,
        epoch_step=1,
        fields={"wait_code": "", "wait_params": {}, "wait_at": None, "started_at": None},
        per_job={placed.job: {"nodes": [nodes[rank.node].name for rank in placed.ranks]} for placed in good},
        locked=jobs.values(),
        now=now,
    )
    if len(moved) != len(ids):
        raise _Changed
    _rows_insert(good, jobs=jobs, gpus=gpus, addresses=addresses, accounts=accounts, now=now)
    nodes_nudge({rank.node for placed in good for rank in placed.ranks})
    return moved


def _still_fits(
    request: core.Request, placed: core.Placement, nodes: dict[int, core.Node], taken: dict[int, list[core.Slice]], policy: core.Policy
) -> bool:
    for rank in placed.ranks:
        node = nodes.get(rank.node)
        if node is None:
            return False
        here = [part for gpu in node.gpus for part in taken[gpu.id]]
        if rank_fits(request, rank, node, here, policy) is not None:
            return False
    return True


def _take(request: core.Request, placed: core.Placement, nodes: dict[int, core.Node], taken: dict[int, list[core.Slice]]) -> None:
    """What this placement leaves of the cards and hosts for those after it."""
    on_host = request.gpu_count == 0 or request.cpu_milli or request.host_mem_mib
    for rank in placed.ranks:
        for grant in rank.grants:
            taken[grant.gpu].append(core.Slice(gpu=grant.gpu, mib=grant.mib, exclusive=grant.exclusive, job=placed.job))
        if on_host:
            node = nodes[rank.node]
            nodes[rank.node] = replace(
                node,
                live_cpu_ranks=node.live_cpu_ranks + (request.gpu_count == 0),
                cpu_milli_held=node.cpu_milli_held + (request.cpu_milli or 0),
                memory_mib_held=node.memory_mib_held + (request.host_mem_mib or 0),
            )


def _accounts(
    placements: Iterable[core.Placement], jobs: Mapping[int, Job], nodes: Mapping[int, core.Node]
) -> dict[tuple[int, int], Account]:
    """(job, node) → the Unix account that the job runs as there, for nodes that map people to accounts. No query without one.

    Raises _Changed if somebody's account is gone since it was looked at.
    """
    mapped = [(placed.job, rank.node) for placed in placements for rank in placed.ranks if ACCOUNT in nodes[rank.node].demands]
    if not mapped:
        return {}
    owners = User.objects.in_bulk({jobs[job].owner_id for job, _node in mapped})
    found: dict[int, Account | None] = {pk: account_of(owner) for pk, owner in owners.items()}
    named = {(job, node): account for job, node in mapped if (account := found[jobs[job].owner_id]) is not None}
    if len(named) != len(mapped):
        raise _Changed
    return named


#: A whole card must be empty; a slice needs a place and the memory, and nobody who has the card whole.
_STILL_FREE = """
    total_mib >= held_mib + v.column2
    AND CASE WHEN v.column4 THEN live_slices = 0 ELSE NOT is_exclusive AND live_slices + v.column3 <= max_slices END
"""


def _cards_take(grants: Iterable[core.Grant]) -> None:
    """Raises _Changed unless every card still has what is granted on it. The card rows are locked."""
    parts: dict[int, list[core.Grant]] = defaultdict(list)
    for grant in grants:
        parts[grant.gpu].append(grant)
    if any(mine[0].exclusive and len(mine) != 1 for mine in parts.values()):
        raise _Changed
    rows = [(gpu, sum(grant.mib for grant in mine), len(mine), mine[0].exclusive) for gpu, mine in sorted(parts.items())]
    assign = "held_mib = held_mib + v.column2, live_slices = live_slices + v.column3, is_exclusive = v.column4"
    if rows_update(Gpu, rows, assign=assign, where=_STILL_FREE) != len(rows):
        raise _Changed


def _rows_insert(
    placements: Sequence[core.Placement],
    *,
    jobs: dict[int, Job],
    gpus: dict[int, core.Gpu],
    addresses: dict[int, str],
    accounts: Mapping[tuple[int, int], Account],
    now: datetime,
) -> None:
    epochs = [jobs[placed.job].epoch for placed in placements]  # jobs_move has raised them
    attempts = rows_insert(
        Attempt, [{"job_id": placed.job, "epoch": epoch, "created_at": now} for placed, epoch in zip(placements, epochs, strict=True)]
    )
    uuids = {pk: gpu.uuid for pk, gpu in gpus.items()}
    ranks: list[dict[str, Any]] = []
    grants: list[tuple[core.Grant, ...]] = []
    for placed, epoch, attempt in zip(placements, epochs, attempts, strict=True):
        job = jobs[placed.job]
        specs = engine.rank_specs(
            job=job,
            epoch=epoch,
            attempt_id=attempt,
            ranks=placed.ranks,
            uuids=uuids,
            addresses={rank.node: addresses.get(rank.node, "127.0.0.1") for rank in placed.ranks},
            log_cap_mib=settings.LOG_CAP_MIB,
            grace_s=settings.STOP_GRACE_S,
            owner=getattr(job, "owner_email", ""),
            secrets=secret_refs(job) if job.secrets else (),
            accounts={rank.node: accounts[job.pk, rank.node] for rank in placed.ranks if (job.pk, rank.node) in accounts},
        )
        for rank, spec in zip(placed.ranks, specs, strict=True):
            body = spec.to_json()
            ranks.append(
                {
                    "attempt_id": attempt,
                    "node_id": rank.node,
                    "index": rank.index,
                    "key": rank_id(job.pk, epoch, rank.index),
                    "spec": body,
                    "spec_sha256": spec_sha256(body),
                    "grace_s": job.grace_s or settings.STOP_GRACE_S,
                    "lease_s": settings.LEASE_S if job.on_node_loss == OnNodeLoss.REQUEUE else None,
                }
            )
            grants.append(rank.grants)
    made = rows_insert(Rank, ranks)
    rows_insert(
        Slice,
        [
            {
                "rank_id": rank_pk,
                "gpu_id": grant.gpu,
                "position": position,
                "mib": grant.mib,
                "is_exclusive": grant.exclusive,
                "share": 1.0 if grant.exclusive else min(1.0, grant.mib / (gpus[grant.gpu].total_mib or grant.mib)),
                "held_at": now,
            }
            for rank_pk, mine in zip(made, grants, strict=True)
            for position, grant in enumerate(mine)
        ],
    )


def places_store(plan: core.Plan, before: Mapping[int, core.Place], *, started: Collection[int]) -> int:
    """Keeps for the next pass what cards are kept for whom (``core.Place``). A statement for each job where that changed: of a few, as
    one job in each pool has cards kept. Returns how many.

    The plan takes for started what it placed. ``started`` is what did start: the others keep the place that they had, since they still
    wait for the same cards.
    """
    still_waiting = {placed.job for placed in plan.placements} - set(started)
    jobs = {*before, *plan.places} - still_waiting
    changed = {job: plan.places.get(job) for job in jobs if before.get(job) != plan.places.get(job)}
    for job, place in sorted(changed.items()):
        kept = None if place is None else {"gpus": place.gpus, "users": place.users, "since": place.since, "jobs": place.jobs}
        Job.objects.filter(pk=job).exclude(state__in=FINAL).update(place=kept)
    return len(changed)


def reasons_store(plan: core.Plan, waits: Mapping[int, snapshot.Wait], *, now: datetime, refresh_s: float = 45.0) -> int:
    """Writes why each refused job waits: what changed, plus a fresh time for what is getting old (two minutes at most).

    ``waits`` is what the plan's snapshot read of the rows. Returns how many rows were written. One statement for each different
    reason, not for each job: a backlog of 10,000 jobs has a handful of them. The place in the queue is not stored, since every
    start would change all of them.
    """
    groups: dict[str, tuple[core.Reason, list[int]]] = {}
    stale: list[int] = []
    for refusal in plan.refusals:
        old = waits[refusal.job]
        reason = refusal.reason
        params = dict(reason.params)
        if (old.code, old.params) != (reason.code, params):
            key = f"{reason.code} {json.dumps(params, sort_keys=True)}"
            groups.setdefault(key, (reason, []))[1].append(refusal.job)
        elif old.at is None or (now - old.at).total_seconds() >= refresh_s:
            stale.append(refusal.job)
    if not groups and not stale:
        return 0
    written = 0
    with transaction.atomic():
        if connection.features.has_select_for_update:
            # All at once and in id order, or two passes at once would meet crosswise. Who holds a row writes its reason himself.
            wanted = sorted([*stale, *(pk for _reason, ids in groups.values() for pk in ids)])
            free = (
                Job.objects.select_for_update(skip_locked=True).filter(state=JobState.WAITING).order_by("pk").values_list("pk", flat=True)
            )
            mine = {pk for start in range(0, len(wanted), CHUNK) for pk in free.filter(pk__in=wanted[start : start + CHUNK])}
            stale = [pk for pk in stale if pk in mine]
            groups = {key: (reason, [pk for pk in ids if pk in mine]) for key, (reason, ids) in groups.items()}
        for reason, ids in groups.values():
            for start in range(0, len(ids), CHUNK):
                # The state and the hold are in the condition: a job that was started, cancelled, held or released
                # meanwhile must not get a reason from this pass; whoever did that wrote it.
                written += Job.objects.filter(pk__in=ids[start : start + CHUNK], state=JobState.WAITING, held=reason.code == HELD).update(
                    wait_code=reason.code, wait_params=dict(reason.params), wait_at=now
                )
        for start in range(0, len(stale), CHUNK):
            written += Job.objects.filter(pk__in=stale[start : start + CHUNK], state=JobState.WAITING).update(wait_at=now)
    return written
