"""What would become of a job that were submitted now. Reads a snapshot, plans with the scheduler's own core, writes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from jobs import snapshot
from jobs.history import runtime_predict
from jobs.model_caps import narrow, room_read
from jobs.outlooks import iso
from jobs.refusals import error_text
from jobs.requests import JobRequest
from jobs.scheduler import Job, Placement, Policy, Snapshot, never_reason, plan
from jobs.scheduler.need import foreign_counted_mib
from jobs.scheduler.outlook import ENDS_WITH_A_JOB
from jobs.scheduler.until import Ends
from jobs.services.submit import models_exceeded
from jobs.wording import reason_text
from nodes.models import Gpu
from quotas.models import Quota, User
from quotas.selectors import cards_room
from quotas.services import quota_for, quota_for_project, refusal_of

#: No job has this id: it stands for the one that isn't submitted yet.
NEW = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a card's memory: ``kind`` mine | new | other | ghost | free, ``pct`` of the card."""

    kind: str
    mib: int
    pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card that the job would get, with all that is on it."""

    node: str
    index: int
    model: str
    total_mib: int
    takes_mib: int
    is_whole: bool
    is_simulated: bool
    parts: tuple[Part, ...]

    @property
    def share(self) -> float:
        return 1.0 if self.is_whole else min(1.0, self.takes_mib / max(1, self.total_mib))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """``kind``: starts | waits | held | refused | never."""

    kind: str
    title: str
    text: str = ""
    code: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    position: int | None = None
    cards: tuple[Card, ...] = ()
    max_hours: float | None = None  # of whole cards, if it runs to its time limit
    left_hours: float | None = None  # None = no limit
    fix: dict[str, str] = field(default_factory=dict)

    @property
    def tone(self) -> str:
        return {"starts": "ok", "waits": "", "held": "warn", "refused": "bad", "never": "bad"}[self.kind]

    @property
    def icon(self) -> str:
        return {"starts": "okc", "waits": "hourglass", "held": "pause", "refused": "ban", "never": "octagon"}[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The verdict on a request, and what it was judged by. ``view`` has the job ``NEW`` in its queue; it is None where the
    request would not get into the queue, or not take part in it."""

    forecast: Forecast
    policy: Policy
    name: str
    job: Job | None = None
    view: Snapshot | None = None


def forecast(request: JobRequest, *, owner: User, now: datetime) -> Forecast:
    """About 20 queries and a pass."""
    return ask(request, owner=owner, now=now).forecast


def ask(request: JobRequest, *, owner: User, now: datetime) -> Asked:
    """As ``forecast``."""
    policy = snapshot.policy_current()
    # 1. What the submit itself would refuse.
    view = snapshot.build(now)
    wanted = snapshot.request_of(
        request, snapshot.lacks_of(owner.pk, has_secrets=bool(request.secrets), parts=request.nodes, nodes=view.nodes)
    )

    def out(kind: str, title: str, text: str, code: str, params: Mapping[str, Any] | None = None, **more: Any) -> Asked:
        told = Forecast(kind=kind, title=title, text=text, code=code, params=params or {}, **more)
        return Asked(forecast=told, policy=policy, name=request.name)

    never = never_reason(wanted, view.nodes, policy)
    if never is not None:
        return out("never", _("Never fits"), reason_text(never.code, never.params), never.code, never.params, fix=_fix(never.params))
    quota = quota_for(owner, now=now)
    of_project = quota_for_project(request.project, now=now)
    for row in (quota, of_project):
        error = (refusal_of(row, now=now) or models_exceeded(request, row)) if row is not None else None
        if error is not None:
            return out("refused", _("Would be refused"), error_text(error.code, error.params), error.code, error.params)
    if request.hold:
        return out("held", _("Would be held"), _("It waits until you release it."), "held")
    # 2. A pass over the queue with this job in it.
    job = Job(
        id=NEW,
        request=wanted,
        submitted=now.timestamp(),
        priority=request.priority,
        user=owner.pk,
        project=request.project.pk,
        time_limit_s=request.time_limit_s,
        queue=request.queue,
        qos=request.qos,
        predicted_s=runtime_predict(request, owner=owner.pk, now=now, half_life_s=policy.half_life_s),
        **_hold(owner, request),
    )
    if job.hold is None:
        room = room_read(*(_model_limits(row, key) for row, key in ((quota, "user_id"), (of_project, "project_id"))))
        asked, reason = narrow(wanted, user=owner.pk, project=request.project.pk, room=room, nodes=view.nodes, policy=policy)
        job = replace(job, request=asked)
        if reason is not None:
            job = replace(job, hold=reason.code, hold_params=dict(reason.params))
    view = replace(view, jobs=[*view.jobs, job])
    decided = plan(view, policy)
    cost = _cost(quota.gpu_hours_limit, quota.spent_gpu_s)
    placed = next((placed for placed in decided.placements if placed.job == NEW), None)
    if placed is not None:
        cards = _cards(view, placed, policy, owner=owner.pk)
        hours = sum(card.share for card in cards) * request.time_limit_s / 3600 if request.time_limit_s and cards else None
        title = _("Starts at once on %(place)s") % {"place": place_text(view, placed)}
        starts = Forecast(kind="starts", title=title, cards=cards, max_hours=hours, **cost)
        return Asked(forecast=starts, policy=policy, name=request.name, job=job, view=view)
    refusal = next(item for item in decided.refusals if item.job == NEW)
    params = dict(refusal.reason.params)
    if refusal.reason.code in ENDS_WITH_A_JOB:
        until = Ends(view, policy).room_anywhere_at(wanted)
        params |= {} if until is None or until == math.inf else {"until_at": iso(until)}
    waits = Forecast(
        kind="waits",
        title=_("Waits"),
        text=reason_text(refusal.reason.code, params),
        code=refusal.reason.code,
        params=params,
        position=None if job.hold is not None else refusal.position,
        **cost,
    )
    return Asked(forecast=waits, policy=policy, name=request.name, job=job, view=view)


def _hold(owner: User, request: JobRequest) -> dict[str, Any]:
    room, of_projects = cards_room(users=[owner.pk], projects=[request.project.pk])
    left = min(room.get(owner.pk, request.gpu_count), of_projects.get(request.project.pk, request.gpu_count))
    if left >= request.gpu_count:
        return {}
    return {"hold": "cards_exceeded", "hold_params": {"needed": request.gpu_count, "room": max(0, left)}}


def _model_limits(quota: Quota | None, key: str) -> dict[int, dict[str, int]]:
    return {getattr(quota, key): quota.model_limits} if quota is not None and quota.model_caps else {}


def _cost(limit: int | None, used_s: float) -> dict[str, Any]:
    return {"left_hours": None if limit is None else max(0.0, limit - used_s / 3600)}


def _fix(params: Any) -> dict[str, str]:
    hint = params.get("hint_nodes")
    return {"nodes": str(hint)} if hint else {}


def place_text(view: Snapshot, placed: Placement) -> str:
    """``node03 gpu1``, ``node03 gpu0–gpu3`` in words, nodes joined."""
    nodes = {node.id: node for node in view.nodes}
    places = []
    for rank in placed.ranks:
        node = nodes[rank.node]
        indexes = {gpu.id: gpu.index for gpu in node.gpus}
        cards = ", ".join(f"gpu{index}" for index in sorted(indexes[grant.gpu] for grant in rank.grants))
        places.append(f"{node.name} {cards}".strip())
    return "; ".join(places)


def _cards(view: Snapshot, placed: Placement, policy: Policy, *, owner: int) -> tuple[Card, ...]:
    gpus = {gpu.id: (node, gpu) for node in view.nodes for gpu in node.gpus}
    mine = {running.job for running in view.running if running.user == owner}
    grants = [grant for rank in placed.ranks for grant in rank.grants]
    simulated = set(Gpu.objects.filter(pk__in=[grant.gpu for grant in grants], is_simulated=True).values_list("pk", flat=True))
    found = []
    for grant in grants:
        node, gpu = gpus[grant.gpu]
        total = gpu.total_mib or grant.mib
        here = [("mine" if part.job in mine else "other", part.mib) for part in view.slices if part.gpu == gpu.id]
        here.append(("new", grant.mib))
        if ghost := foreign_counted_mib(gpu, policy):
            here.append(("ghost", min(ghost, total)))
        free = total - sum(mib for _kind, mib in here)
        if free > 0:
            here.append(("free", free))
        parts = tuple(Part(kind=kind, mib=mib, pct=round(100 * mib / total, 2)) for kind, mib in here)
        found.append(
            Card(
                node=node.name,
                index=gpu.index,
                model=gpu.model,
                total_mib=total,
                takes_mib=grant.mib,
                is_whole=grant.exclusive,
                is_simulated=gpu.id in simulated,
                parts=parts,
            )
        )
    return tuple(found)
