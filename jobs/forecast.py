"""What would become of a job that were submitted now. Reads a snapshot, plans with the scheduler's own core, writes nothing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import snapshot
from jobs.refusals import error_text
from jobs.requests import JobRequest
from jobs.scheduler import Job, Placement, Plan, Policy, Request, Snapshot, never_reason, plan
from jobs.scheduler.need import foreign_counted_mib
from jobs.wording import reason_text
from nodes import formats
from nodes.models import Gpu
from quotas.models import User
from quotas.selectors import cards_room
from quotas.services import quota_for, quota_for_project, refusal_of

#: No job has this id: it stands for the one that isn't submitted yet.
NEW = 0
#: With a longer queue the tries of what would start sooner are left out: each is a pass of its own.
TRIES_QUEUE_MAX = 500


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
class Try:
    """A change of the request with which it would start now: form fields to set."""

    title: str
    place: str
    fields: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """``kind``: starts | waits | held | refused | never."""

    kind: str
    title: str
    text: str = ""
    code: str = ""
    position: int | None = None
    cards: tuple[Card, ...] = ()
    tries: tuple[Try, ...] = ()
    max_hours: float | None = None  # of whole cards, if it runs to its time limit
    left_hours: float | None = None  # None = no limit
    fix: dict[str, str] = field(default_factory=dict)

    @property
    def tone(self) -> str:
        return {"starts": "ok", "waits": "", "held": "warn", "refused": "bad", "never": "bad"}[self.kind]

    @property
    def icon(self) -> str:
        return {"starts": "okc", "waits": "hourglass", "held": "pause", "refused": "ban", "never": "octagon"}[self.kind]


def forecast(request: JobRequest, *, owner: User, now: datetime) -> Forecast:
    """About 20 queries, a pass, and at most three more passes for what would start sooner."""
    policy = snapshot.policy_current()
    wanted = snapshot.request_of(request)
    # 1. What the submit itself would refuse.
    view = snapshot.build(now)
    never = never_reason(wanted, view.nodes, policy)
    if never is not None:
        fix = _fix(never.params)
        return Forecast(kind="never", title=_("Never fits"), text=reason_text(never.code, never.params), code=never.code, fix=fix)
    quota = quota_for(owner, now=now)
    of_project = quota_for_project(request.project, now=now)
    for row in (quota, of_project):
        error = refusal_of(row, now=now) if row is not None else None
        if error is not None:
            return Forecast(kind="refused", title=_("Would be refused"), text=error_text(error.code, error.params), code=error.code)
    if request.hold:
        return Forecast(kind="held", title=_("Would be held"), text=_("It waits until you release it."), code="held")
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
        **_hold(owner, request),
    )
    decided = plan(replace(view, jobs=[*view.jobs, job]), policy)
    cost = _cost(quota.gpu_hours, quota.used_gpu_s)
    placed = _placed(decided)
    if placed is not None:
        cards = _cards(view, placed, policy, owner=owner.pk)
        hours = sum(card.share for card in cards) * request.time_limit_s / 3600 if request.time_limit_s and cards else None
        return Forecast(
            kind="starts",
            title=_("Starts at once on %(place)s") % {"place": place_text(view, placed)},
            cards=cards,
            max_hours=hours,
            **cost,
        )
    refusal = next(item for item in decided.refusals if item.job == NEW)
    tries = tries_of(view, job, policy) if len(view.jobs) <= TRIES_QUEUE_MAX and job.hold is None else ()
    return Forecast(
        kind="waits",
        title=_("Waits"),
        text=reason_text(refusal.reason.code, refusal.reason.params),
        code=refusal.reason.code,
        position=refusal.position,
        tries=tries,
        **cost,
    )


def tries_of(view: Snapshot, job: Job, policy: Policy) -> tuple[Try, ...]:
    """Smaller requests that would start now, the nearest to what is asked first; at most three."""
    found: list[Try] = []
    for title, fields, request in _smaller(view, job.request):
        if len(found) == 3:
            break
        placed = _placed(plan(replace(view, jobs=[*view.jobs, replace(job, id=NEW, request=request)]), policy))
        if placed is not None:
            found.append(Try(title=title, place=place_text(view, placed), fields=fields))
    return tuple(found)


def _smaller(view: Snapshot, asked: Request) -> list[tuple[str, dict[str, str], Request]]:
    """(words, form fields, request): more nodes, then less memory, then fewer cards."""
    ideas: list[tuple[str, dict[str, str], Request]] = []
    if asked.gpu_count > asked.nodes:
        for nodes in range(asked.nodes + 1, min(asked.gpu_count, len(view.nodes)) + 1):
            if asked.gpu_count % nodes == 0:
                title = ngettext("Spread over %(nodes)d node", "Spread over %(nodes)d nodes", nodes) % {"nodes": nodes}
                ideas.append((title, {"nodes": str(nodes)}, replace(asked, nodes=nodes)))
                break
    if asked.gpu_count:
        sizes = [gib * 1024 for gib in (80, 64, 48, 40, 32, 24, 20, 16, 12, 8, 4)]
        below = [size for size in sizes if asked.gpu_mem_mib is None or size < asked.gpu_mem_mib]
        for size in _startable(view, asked, below):
            title = _("%(size)s a card instead of %(asked)s") % {
                "size": formats.gib(size),
                "asked": _("whole cards") if asked.gpu_mem_mib is None else formats.gib(asked.gpu_mem_mib),
            }
            ideas.append((title, {"gpu_mem": str(size // 1024), "mem_unit": "G"}, replace(asked, gpu_mem_mib=size)))
    for count in (asked.gpu_count // 2, 1):
        if 0 < count < asked.gpu_count and count % asked.nodes == 0:
            title = ngettext("%(count)d card instead of %(asked)d", "%(count)d cards instead of %(asked)d", count)
            ideas.append((title % {"count": count, "asked": asked.gpu_count}, {"gpu_count": str(count)}, replace(asked, gpu_count=count)))
    return ideas


def _startable(view: Snapshot, asked: Request, sizes: list[int]) -> list[int]:
    """The largest of these sizes that some card has free now, if any: one pass instead of one a size."""
    taken: dict[int, int] = defaultdict(int)
    for part in view.slices:
        taken[part.gpu] += 1 << 40 if part.exclusive else part.mib
    free = max(((gpu.total_mib or 0) - taken[gpu.id] for node in view.nodes if node.takes_work for gpu in node.gpus), default=0)
    return [size for size in sizes if size <= free + free // 12][:1]


def _hold(owner: User, request: JobRequest) -> dict[str, Any]:
    room, of_projects = cards_room(users=[owner.pk], projects=[request.project.pk])
    left = min(room.get(owner.pk, request.gpu_count), of_projects.get(request.project.pk, request.gpu_count))
    if left >= request.gpu_count:
        return {}
    return {"hold": "cards_exceeded", "hold_params": {"needed": request.gpu_count, "room": max(0, left)}}


def _cost(limit: int | None, used_s: float) -> dict[str, Any]:
    return {"left_hours": None if limit is None else max(0.0, limit - used_s / 3600)}


def _fix(params: Any) -> dict[str, str]:
    hint = params.get("hint_nodes")
    return {"nodes": str(hint)} if hint else {}


def _placed(decided: Plan) -> Placement | None:
    return next((placed for placed in decided.placements if placed.job == NEW), None)


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
