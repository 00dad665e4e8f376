"""Nodes and cards to look at: the list, a node, a card. Who is signed in may look; what staff may do is in nodes/views.py."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from jobs import cells, heat
from jobs.lifecycle import SliceState
from jobs.models import Job, Slice
from jobs.selectors import Reader, reader_of
from nodes import telemetry
from nodes.claims import claim_id, claim_now
from nodes.event_words import event_kind_text, event_look, link_text
from nodes.fact_words import health_facts, ports_text
from nodes.foreign import foreign_rows
from nodes.formats import model_name, models_text
from nodes.health_views import card_health
from nodes.inspection_words import finding_row, summary
from nodes.inventory import UNCONFIRMED
from nodes.isolation import is_ready, isolates_people
from nodes.isolation_words import isolation_view, unisolated_text
from nodes.models import AgentCommand, Gpu, GpuLink, GpuState, HealthEvent, Inspection, Node, NodeState
from nodes.pool import gpu_use, totals_of
from nodes.serializers import uuid_short
from nodes.topology import topology
from nodes.wording import advice_text, node_advice
from quotas.models import User

PAGE = 50
EVENTS_SHOWN = 12
COMMANDS_SHOWN = 5
RECENT_JOBS = 20


@require_safe
@login_required
def node_list(request: HttpRequest) -> HttpResponse:
    """All nodes that have not left the pool. ``?q=`` looks in names and models."""
    picture = cells.picture_latest()
    text = request.GET.get("q", "").strip()[:80]
    query = Node.objects.exclude(state=NodeState.RETIRED).order_by("name")
    if text:
        query = query.filter(Q(name__icontains=text) | Q(hostname__icontains=text) | Q(gpus__model__icontains=text)).distinct()
    page = Paginator(query, PAGE).get_page(request.GET.get("page"))
    by_id = {node.pk: (at, node) for at, node in enumerate(picture.nodes)}
    rows = [_node_row(node, by_id.get(node.pk), picture) for node in page.object_list]
    context = {"rows": rows, "page": page, "text": text, "unisolated": _unisolated(), **_live_context(request, picture)}
    # A piece is fetched at the page's own address: query and page stay what they are.
    return render(request, "nodes/_list.html" if _is_piece(request) else "nodes/list.html", context)


def _node_row(node: Node, found: tuple[int, cells.NodeRow] | None, picture: cells.Picture) -> dict[str, Any]:
    frame, uses = picture.frame, picture.uses
    cards = found[1].cards if found else ()
    told = [frame["u"][card.at] for card in cards if frame["u"][card.at] is not None]
    found_uses = [uses[card.at] for card in cards]
    totals = totals_of(found_uses)
    held = sum((use.total_mib or 0) - use.free_mib for use in found_uses if use.free_mib is not None)
    return {
        "node": node,
        "cards": cards,
        "models": [card.model for card in cards],
        "what": models_text([card.model for card in cards]),
        "held_pct": round(100 * held / totals.total_mib) if totals.total_mib else 0,
        "load": round(sum(told) / len(told)) if told else None,
        "free_mib": totals.free_mib,
        "total_mib": totals.total_mib,
        "seen_s": _silent_s(found, frame),
        "isolation": isolation_view(node.isolation) if not node.is_metrics_only else None,
    }


def _unisolated() -> str:
    """The banner about nodes that don't keep people's jobs apart. One query."""
    nodes = Node.objects.exclude(state__in=(NodeState.RETIRED, NodeState.ENROLLING)).filter(is_metrics_only=False).order_by("name")
    told = nodes.filter(isolation__isnull=False).values_list("name", "isolation")
    return unisolated_text(name for name, isolation in told if is_ready(isolation) and not isolates_people(isolation))


def _silent_s(found: tuple[int, cells.NodeRow] | None, frame: Any) -> float | None:
    at = frame["z"][found[0]] if found else None
    return None if at is None else max(0.0, time.time() - at)


def _is_piece(request: HttpRequest) -> bool:
    return bool(request.headers.get("HX-Request") == "true" and request.headers.get("HX-History-Restore-Request") != "true")


def _live_context(request: HttpRequest, picture: cells.Picture) -> dict[str, Any]:
    """What a piece with live figures needs on its element (static/js/cells.js)."""
    return {"layout": picture.version, "me": cells.owner_sign(request.user.pk or 0), "words_json": heat.words_json()}


@require_safe
@login_required
def node_detail(request: HttpRequest, name: str) -> HttpResponse:
    """Its cards with who is on them, facts, advice, events; for staff the last commands. htmx gets the live part alone."""
    node = get_object_or_404(Node.objects.select_related("cordoned_by"), name=name)
    picture = cells.picture_latest()
    gpus = list(node.gpus.exclude(state=GpuState.RETIRED).order_by("index", "pk"))
    user = cast(User, request.user)
    rows = cards_rows(gpus, picture, user=user)
    claim = claim_now(node, now=timezone.now()) if user.is_staff else None
    context = {
        "node": node,
        "rows": rows,
        "counts": totals_of(row["pool_use"] for row in rows),
        "power_w": _sum_told(row["power"] for row in rows),
        "load": _mean_told(row["use"] for row in rows),
        "claim": claim,
        "claim_id": claim_id(claim) if claim else None,
        "unconfirmed": sum(user.is_staff and (gpu.state, gpu.state_reason) == (GpuState.MAINTENANCE, UNCONFIRMED) for gpu in gpus),
        "silent_s": _silent_s(next(((at, n) for at, n in enumerate(picture.nodes) if n.pk == node.pk), None), picture.frame),
        "what": models_text([gpu.model for gpu in gpus]),
        **_live_context(request, picture),
    }
    if _is_piece(request):
        return render(request, "nodes/_live.html", context)
    table = topology(gpus, GpuLink.objects.filter(a__node=node))
    commands = commands_latest(node) if user.is_staff else []
    events = HealthEvent.objects.filter(node=node).select_related("gpu").order_by("-at", "-pk")[:EVENTS_SHOWN]
    context |= {
        "ghosts": foreign_rows(gpus),
        **inspection_context(node),
        "advice": [advice_text(code) for code in node_advice(node.advice, telemetry.nodes_latest([node.pk]).get(node.pk))],
        "ports": ports_text(node.rdma_ports),
        "isolation": isolation_view(node.isolation),
        "topology": table,
        "links": _links(GpuLink.objects.filter(a__node=node)) if table is None else [],
        "events": [_event_row(event) for event in events],
        "commands": commands,
        "pending": any(command.state == AgentCommand.State.QUEUED for command in commands),
    }
    return render(request, "nodes/detail.html", context)


def inspection_context(node: Node) -> dict[str, Any]:
    """The last look at the node. One query."""
    found = Inspection.objects.filter(node=node).first()
    rows = [finding_row(finding) for finding in found.findings] if found is not None else []
    return {
        "inspection": found,
        "findings": [row for row in rows if row["level"] != "pass"],
        "found_right": [row for row in rows if row["level"] == "pass"],
        "inspection_summary": summary(found.findings) if found is not None else "",
    }


@require_safe
@login_required
def gpu_detail(request: HttpRequest, name: str, index: int) -> HttpResponse:
    """One card: what is on it now, its curves, who was on it, facts."""
    gpu = gpu_find(name, index)
    picture = cells.picture_latest()
    user = cast(User, request.user)
    row = cards_rows([gpu], picture, user=user)[0]
    context = {"node": gpu.node, "gpu": gpu, "row": row, "short": uuid_short(gpu.uuid), **_live_context(request, picture)}
    if _is_piece(request):
        return render(request, "nodes/_gpu_live.html", context)
    recent = list(Slice.objects.filter(gpu=gpu).select_related("rank__attempt__job__owner").order_by("-pk")[:RECENT_JOBS])
    eyes = reader_of(user, [part.rank.attempt.job for part in recent])
    events = HealthEvent.objects.filter(gpu=gpu).select_related("gpu").order_by("-at", "-pk")[:EVENTS_SHOWN]
    context |= {
        "health": card_health(gpu),
        "parent": Gpu.objects.filter(node=gpu.node, uuid=gpu.parent).first() if gpu.parent else None,
        "parts": list(Gpu.objects.filter(node=gpu.node, parent=gpu.uuid).order_by("index")),
        "slow": health_facts(gpu, telemetry.gpus_health([gpu]).get(gpu.pk)),
        "ghosts": foreign_rows([gpu]),
        "recent": [_slice_row(part, eyes) for part in recent],
        "links": _links(GpuLink.objects.filter(Q(a=gpu) | Q(b=gpu)), seen_from=gpu),
        "events": [_event_row(event) for event in events],
    }
    return render(request, "nodes/gpu.html", context)


def gpu_find(name: str, index: int) -> Gpu:
    """Two cards of a node may have had one index in turn; the one that is there counts. One query. Raises Http404."""
    candidates = list(Gpu.objects.select_related("node").filter(node__name=name, index=index).order_by("-pk"))
    gpu = next((found for found in candidates if found.state != "MISSING"), candidates[0] if candidates else None)
    if gpu is None:
        raise Http404
    return gpu


# --- rows -------------------------------------------------------------------------------------------------------


def cards_rows(gpus: list[Gpu], picture: cells.Picture, *, user: User) -> list[dict[str, Any]]:
    """The cards of one node, each with it, and their slices. Two queries; a slice of someone else shows no name, but to mates and staff."""
    parts: dict[int, list[Slice]] = defaultdict(list)
    live = Slice.objects.exclude(state=SliceState.RELEASED).filter(gpu__in=gpus)
    for part in live.select_related("rank__attempt__job__owner").order_by("pk"):
        parts[part.gpu_id].append(part)
    places = {card.pk: card for card in picture.cards}
    eyes = reader_of(user, [part.rank.attempt.job for found in parts.values() for part in found])
    rows = []
    for gpu in gpus:
        card = places.get(gpu.pk)
        at = card.at if card else None
        frame = picture.frame
        pool_use = gpu_use(gpu, None) if at is None else picture.uses[at]
        figures = {name: None if at is None else frame[key][at] for name, key in
                   (("memory", "m"), ("use", "u"), ("temp", "t"), ("power", "w"), ("free_mib", "r"))}  # fmt: skip
        marks = frame["k"][at] if at is not None else "T"
        ghost = [p for p in heat.strip_parts(frame["s"][at], "") if p.kind == "ghost"] if at is not None else []
        rows.append(
            {
                "gpu": gpu,
                "model": model_name(gpu.model),
                "at": at,
                "short": uuid_short(gpu.uuid),
                "marks": [cells.MARKS[letter] for letter in marks if letter in "THG"],
                "is_stale": "T" in marks,
                "slices": [_slice_row(part, eyes, total=gpu.total_mib) for part in parts[gpu.pk]],
                "ghost_pct": ghost[0].permille / 10 if ghost else None,
                "free_pct": 100 * figures["free_mib"] / gpu.total_mib if gpu.total_mib and figures["free_mib"] else 0,
                "pool_use": pool_use,
                "is_in_service": pool_use.takes_work,
                **figures,
            }
        )
    return rows


def _slice_row(part: Slice, eyes: Reader, *, total: int | None = None) -> dict[str, Any]:
    job: Job = part.rank.attempt.job
    is_mine = job.owner_id == eyes.user
    is_visible = eyes.may_see(job)
    is_named = is_visible or settings.SHOW_CARD_USERS  # who uses a card may be known where the job's page is closed
    return {
        "slice": part,
        "job": job,
        "kind": "quar" if part.state == SliceState.QUARANTINED else "mine" if is_mine else "",
        "is_visible": is_visible,
        "name": job.name if is_named else f"#{job.pk}",
        "owner": job.owner.email if is_named else _("someone else"),
        "person": job.owner.email.partition("@")[0] if is_named else "",
        "pct": min(100, 100 * part.mib / total) if total else 0,
    }


def _sum_told(values: Iterable[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _mean_told(values: Iterable[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return round(sum(told) / len(told)) if told else None


def _links(query: Any, *, seen_from: Gpu | None = None) -> list[dict[str, Any]]:
    """Pairs of cards by nearness, the nearest first; for a card, the others as it sees them."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for a, b, kind, via in query.order_by("a__index", "b__index").values_list("a__index", "b__index", "kind", "via"):
        other = b if seen_from is not None and a == seen_from.index else a
        found[kind, via].append(f"gpu{other}" if seen_from is not None else f"gpu{a}–gpu{b}")
    order = ("nvlink", "pcie_switch", "pcie_host", "numa", "system")
    kinds = sorted(found, key=lambda way: (order.index(way[0]) if way[0] in order else len(order), way[1]))
    return [{"kind": kind, "text": link_text(kind, via), "pairs": found[kind, via]} for kind, via in kinds]


def _event_row(event: HealthEvent) -> dict[str, Any]:
    tone, icon = event_look(event.kind)
    text = event_kind_text(event.kind, event.data)
    return {"event": event, "text": text, "tone": tone, "icon": icon, "place": f"gpu{event.gpu.index}" if event.gpu else ""}


def commands_latest(node: Node) -> list[AgentCommand]:
    return list(AgentCommand.objects.filter(node=node).select_related("created_by").order_by("-pk")[:COMMANDS_SHOWN])
