"""ORM rows → scheduler.Snapshot in a constant number of queries. No model object is made for a waiting job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q

from jobs.admission import demanded_by, lacks_of, lacks_read
from jobs.alive import alive_until, seen_s
from jobs.history import lately_read
from jobs.lifecycle import NOT_HELD, RANK_FINAL, EndReason, JobState, RankState, SliceState
from jobs.machines import hosts_read, nodes_all, nodes_lock, nodes_read
from jobs.model_caps import narrow, room_read
from jobs.models import Job, Rank, Slice
from jobs.policy import policy_current
from jobs.requests import JobRequest, Requests, request_make
from jobs.scheduler import types as core
from jobs.scheduler.access import NOTHING
from jobs.usage import LivePart, weights_read
from nodes.telemetry import Seen
from quotas.selectors import standing_of
from quotas.sql import Select

__all__ = [
    "build",
    "demanded_by",
    "hosts_read",
    "lacks_of",
    "lacks_read",
    "nodes_all",
    "nodes_lock",
    "nodes_read",
    "policy_current",
    "read",
    "request_of",
    "slices_read",
]

_parts_rows = Select(
    lambda: (
        Slice.objects.exclude(state=SliceState.RELEASED)
        .order_by("pk")
        .values_list(
            "gpu_id", "mib", "is_exclusive", "rank__attempt__job_id", "state", "share", "held_at", "active_at",
            "rank__observed", "rank__started_at", "rank__began_s", "rank__ran_s", "rank__node__last_seen_at", "rank__node__last_uptime_s",
        )
    )
)  # fmt: skip
_live_rows = Select(
    lambda: Job.objects.filter(state__in=(JobState.STARTING, JobState.RUNNING, JobState.STOPPING))
    .order_by("pk")
    .values_list(
        "pk", "owner_id", "project_id", "queue", "started_at", "time_limit_s", "predicted_s", "gpu_count", "gpu_mem_mib", "nodes",
        "constraints",
    )
)  # fmt: skip
_waiting_rows = Select(
    lambda: Job.objects.filter(state=JobState.WAITING, want_cancel=False)
    .order_by("-priority", "submitted_at", "pk")
    .values_list(
        "pk", "gpu_count", "gpu_mem_mib", "nodes", "constraints", "submitted_at", "priority", "owner_id", "project_id",
        "time_limit_s", "held", "held_why", "held_by__email", "is_restored", "queue", "qos", "predicted_s",
        "requeues", "wait_code", "wait_params", "wait_at", "held_s", "secrets", "place",
    )
)  # fmt: skip
#: Where the live jobs without a card run; a program that has ended holds nothing of its host any more.
_cardless_rows = Select(
    lambda: (
        Rank.objects.filter(is_forgotten=False, attempt__job__gpu_count=0)
        .exclude(observed__in=RANK_FINAL)
        .order_by("pk")
        .values_list("attempt__job_id", "node_id")
    )
)
#: Orders that look at past use.
BY_USE = ("fair", "capacity")


def request_of(source: JobRequest | Job, lacks: frozenset[str] = NOTHING) -> core.Request:
    """What a job asks for, in the core's words; ``lacks``: what its owner lacks of what nodes demand (jobs/admission.py)."""
    return request_make(source.gpu_count, source.gpu_mem_mib, source.nodes, source.constraints, lacks)


def _slice(gpu: int, mib: int, is_exclusive: bool, job: int, state: str) -> core.Slice:
    return core.Slice(gpu=gpu, mib=mib, exclusive=is_exclusive, job=job, is_quarantined=state == SliceState.QUARANTINED)


def slices_read(*, gpu_ids: Iterable[int]) -> tuple[core.Slice, ...]:
    """The live slices (all but RELEASED) of these cards."""
    query = Slice.objects.exclude(state=SliceState.RELEASED).filter(gpu_id__in=list(gpu_ids))
    rows = query.order_by("pk").values_list("gpu_id", "mib", "is_exclusive", "rank__attempt__job_id", "state")
    return tuple(_slice(*row) for row in rows)


def _live_read(now: datetime, requests: Requests) -> tuple[tuple[core.Slice, ...], tuple[core.Running, ...], list[LivePart]]:
    """The live slices, the live jobs, and the slices that are in use now. Two queries, a third where jobs without a card run."""
    parts, live = _parts_rows(), _live_rows()
    places: dict[int, list[int]] = defaultdict(list)
    if any(row[7] == 0 for row in live):
        for job, node in _cardless_rows():
            places[job].append(node)
    slices: list[core.Slice] = []
    by_job: dict[int, list[core.Slice]] = defaultdict(list)
    placed_at: dict[int, float] = {}
    for gpu, mib, whole, job, state, _share, held_at, *_life in parts:
        part = _slice(gpu, mib, whole, job, state)
        slices.append(part)
        by_job[job].append(part)
        placed_at[job] = held_at.timestamp()
    running = tuple(
        core.Running(
            job=pk,
            user=owner,
            project=project,
            queue=queue,
            slices=tuple(by_job.get(pk, ())),
            # Until its program runs, a job counts from its placement: not from its submit, or its limit might seem to be over.
            started=started.timestamp() if started is not None else placed_at.get(pk, now.timestamp()),
            time_limit_s=limit,
            predicted_s=predicted,
            request=requests(count, mem, nodes, constraints),
            nodes=tuple(places.get(pk, ())),
        )
        for pk, owner, project, queue, started, limit, predicted, count, mem, nodes, constraints in live
    )
    owners = {run.job: (run.user, run.project) for run in running}
    used = [
        LivePart(user=owners[job][0], project=owners[job][1], share=share, since=active_at.timestamp(), until=_alive_until(*life, now=now))
        for _gpu, _mib, _whole, job, state, share, _held_at, active_at, *life in parts
        if state == SliceState.ACTIVE and active_at is not None and job in owners
    ]
    return tuple(slices), running, used


def _alive_until(
    observed: str,
    started_at: datetime | None,
    began_s: float | None,
    ran_s: float | None,
    heard_at: datetime | None,
    uptime_s: float | None,
    *,
    now: datetime,
) -> float:
    """Until when a part counts as used: now, or the last proof of life where the node is silent or knows no more of it."""
    if ran_s is None:
        if observed != RankState.UNKNOWN:
            return now.timestamp()
        ran_s = seen_s(started_at=started_at, began_s=began_s, last=Seen(heard_at.timestamp(), uptime_s=uptime_s) if heard_at else None)
    return min(now, alive_until(started_at, ran_s, now=now)).timestamp()


#: How long a job waits after its first, second, third … launch that a node spoilt, in seconds.
BACKOFF_S = (5, 30, 120, 300)


@dataclass(slots=True)
class Spoilt:
    """The launches of a waiting job that failed by no fault of its own: where, how many, and when the last of them ended."""

    nodes: set[int] = field(default_factory=set)
    attempts: set[int] = field(default_factory=set)
    last: datetime | None = None

    @property
    def pause_s(self) -> int:
        return BACKOFF_S[min(len(self.attempts), len(BACKOFF_S)) - 1]

    def backs_off(self, now: datetime) -> bool:
        return self.last is not None and now < self.last + timedelta(seconds=self.pause_s)


def _spoilt_launches() -> dict[int, Spoilt]:
    """Waiting job → what became of its launches. One query. A node whose agent died at the launch says that nothing was started."""
    found: dict[int, Spoilt] = defaultdict(Spoilt)
    failed = Rank.objects.filter(
        Q(observed=RankState.LAUNCH_FAILED) | Q(exit_cause="never_started"),
        attempt__job__state=JobState.WAITING,
        attempt__job__requeues__gt=0,
        attempt__end_reason=EndReason.LAUNCH_FAILED,
    ).exclude(detail=NOT_HELD)
    for job, node, attempt, ended in failed.order_by().values_list("attempt__job_id", "node_id", "attempt_id", "attempt__ended_at"):
        spoilt = found[job]
        spoilt.nodes.add(node)
        spoilt.attempts.add(attempt)
        spoilt.last = max(filter(None, (spoilt.last, ended)), default=None)
    return found


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason that a waiting job's row has."""

    code: str
    params: Mapping[str, Any]
    at: datetime | None
    is_held: bool


def build(now: datetime) -> core.Snapshot:
    """Everything a pass may know. A dozen queries at most and one Redis round trip, whatever the size."""
    return read(now)[0]


def read(now: datetime) -> tuple[core.Snapshot, dict[int, Wait]]:
    """``build``, and of each waiting job the reason that is stored."""
    policy = policy_current()
    nodes = nodes_read(with_latest=True)
    requests = Requests()
    slices, running, used = _live_read(now, requests)
    lately = lately_read(now=now, half_life_s=policy.half_life_s)
    usage, project_usage = weights_read(used, lately=lately, now=now, policy=policy) if policy.order in BY_USE else ({}, {})
    waiting = _waiting_rows()
    owners, projects = {row[7] for row in waiting}, {row[8] for row in waiting}
    quota = standing_of(users=owners, projects=projects, now=now)
    failed_on = _spoilt_launches() if any(row[17] for row in waiting) else {}
    by_model = room_read(quota.models_users, quota.models_projects)
    lacks = lacks_read(owners, demanded_by(nodes))
    nowhere: frozenset[int] = frozenset()
    waits: dict[int, Wait] = {}
    places: dict[int, core.Place] = {}
    jobs: list[core.Job] = []
    for (
        pk, count, mem, nodes_n, limits, submitted, priority, owner, project, limit, held, why, by, restored, queue, qos, predicted,
        _requeues, code, code_params, code_at, held_s, secrets, place,
    ) in waiting:  # fmt: skip
        waits[pk] = Wait(code, code_params, code_at, held)
        if place is not None:
            places[pk] = core.Place(gpus=tuple(place["gpus"]), users=tuple(place["users"]), since=place["since"], jobs=tuple(place["jobs"]))
        hold, params = (None, {})
        if held:
            hold, params = "held", {"by": by or "", "why": why}
        elif restored:
            hold = "restored"
        elif pk in failed_on and failed_on[pk].backs_off(now):
            hold, params = "backing_off", {"times": len(failed_on[pk].attempts), "pause_s": failed_on[pk].pause_s}
        elif owner in quota.over_users:
            hold, params = "quota_exceeded", quota.over_users[owner]
        elif project in quota.over_projects:
            hold, params = "quota_exceeded", quota.over_projects[project]
        elif (left := min(quota.room_users.get(owner, count), quota.room_projects.get(project, count))) < count:
            hold, params = "cards_exceeded", {"needed": count, "room": max(0, left)}
        request = requests(count, mem, nodes_n, limits, lacks(owner, bool(secrets), nodes_n))
        if by_model and hold is None:
            request, reason = narrow(request, user=owner, project=project, room=by_model, nodes=nodes, policy=policy)
            hold, params = (reason.code, dict(reason.params)) if reason is not None else (None, {})
        jobs.append(
            core.Job(
                id=pk,
                request=request,
                predicted_s=predicted,
                queue=queue,
                qos=qos,
                submitted=submitted.timestamp() + held_s,  # time on hold is no waiting: nobody saves up a turn with it
                priority=priority,
                user=owner,
                project=project,
                time_limit_s=limit,
                hold=hold,
                hold_params=params,
                avoid_nodes=frozenset(failed_on[pk].nodes) if pk in failed_on else nowhere,
            )
        )
    view = core.Snapshot(
        now=now.timestamp(),
        nodes=nodes,
        jobs=jobs,
        slices=slices,
        running=running,
        usage=usage,
        project_usage=project_usage,
        mix=lately.mix,
        places=places,
    )
    return view, waits
