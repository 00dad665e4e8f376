"""The first page: what is free for the reader now, all cards, the queue, the reader's jobs. And the pool's live figures."""

from __future__ import annotations

from datetime import datetime, timedelta
from statistics import median
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.db.models import Count, F, Q, QuerySet, Sum
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from jobs import cells, heat, notices
from jobs.holders import holders_read, holders_short, holders_text
from jobs.ladder import MOST, Ladder, ladder_latest
from jobs.lifecycle import FINAL, LIVE, JobState, SliceState
from jobs.models import Job, Slice
from jobs.outlooks import head_read, told_read
from jobs.selectors import is_by_submit, reader_of
from jobs.waiting_page import jobs_waiting, where_text
from jobs.wording import reason_text, why_text
from jobs.wording.resets import reset_text
from nodes.pool import totals_of
from quotas.models import User
from quotas.selectors import QuotaView, cards_room, quota_view, users_over_limit

QUEUE_SHOWN = 8
MINE_SHOWN = 6
RUNG_PX = 72
#: Of so many starts the median wait is taken.
STARTS_SHOWN = 500


@require_safe
@login_required
def overview(request: HttpRequest) -> HttpResponse:
    picture = cells.picture_latest()
    context = _pieces(request) | cards_context(request, picture)
    context["is_first_run"] = not picture.nodes
    return render(request, "overview/page.html", context)


@require_safe
@login_required
def overview_pieces(request: HttpRequest) -> HttpResponse:
    """Ladder, queue, own jobs and notices, to be swapped in place by their ids."""
    return render(request, "overview/_pieces.html", _pieces(request) | {"is_piece": True})


@require_safe
@login_required
def pool_heat(request: HttpRequest) -> HttpResponse:
    """The panel with all cards: for when a card came or went."""
    return render(request, "overview/_cards.html", cards_context(request, cells.picture_latest()))


@require_safe
@login_required
def pool_cells(request: HttpRequest) -> HttpResponse:
    """The frame of this moment, as the socket sends it each second."""
    return JsonResponse(dict(cells.picture_latest().frame), headers={"Cache-Control": "no-store"})


@require_safe
@login_required
def pool_users(request: HttpRequest) -> JsonResponse:
    """Who uses the cards, in the order of the frame whose layout is ``v``: [for the cell, in words], null where nobody is known."""
    picture, who = cells.picture_latest(), users_of_cards(request)
    rows = [[known.short, known.text] if (known := who.get(card.pk)) is not None and known.text else None for card in picture.cards]
    return JsonResponse({"v": picture.version, "who": rows}, headers={"Cache-Control": "no-store"})


def users_of_cards(request: HttpRequest) -> dict[int, heat.Who]:
    """Card id → who uses it, as the reader may know. Two queries."""
    held = holders_read(cast(User, request.user))
    return {gpu: heat.Who(holders_short(holders), holders_text(holders)) for gpu, holders in held.items()}


def _choice(request: HttpRequest, name: str, allowed: Any, default: str) -> str:
    """From the address, else what this device chose last (a cookie that heat.js keeps)."""
    for found in (request.GET.get(name), request.COOKIES.get(name)):
        if found in allowed:
            return str(found)
    return default


def cards_context(request: HttpRequest, picture: cells.Picture) -> dict[str, Any]:
    me = cells.owner_sign(request.user.pk or 0)
    who = users_of_cards(request)
    context = heat.heat_context(picture, metric=_choice(request, "metric", heat.METRICS, "memory"), me=me, who=who)
    context["as_table"] = request.GET.get("cards") == "table"
    if context["as_table"]:
        context["rows"] = heat.table_rows(picture, me=me, who=who)
    return context


def _pieces(request: HttpRequest) -> dict[str, Any]:
    user, now = cast(User, request.user), timezone.now()
    quota = quota_view(user, now=now)
    waiting = Job.objects.filter(state=JobState.WAITING, want_cancel=False)
    ladder = ladder_latest()
    context = {"now": now, "is_first_run": False}
    context |= _free_context(user, quota, ladder, now=now)
    context |= _queue_context(user, waiting)
    context |= _mine_context(user, now=now)
    context["notices"] = notices.notices_read()
    return context


def _free_context(user: User, quota: QuotaView, ladder: Ladder, *, now: datetime) -> dict[str, Any]:
    """The ladder with the reader's own limits taken off: what one may not have is not free for one."""
    over = users_over_limit([user.pk], now=now).get(user.pk)
    room, _projects = cards_room(users=[user.pk], projects=[])
    caps = [0] if over else []
    caps += [room[user.pk]] if user.pk in room else []
    caps += [max(0, quota.max_active_jobs - quota.active_jobs)] if quota.max_active_jobs is not None else []
    cap = min(caps, default=MOST)
    counts = [min(rung.count, cap) for rung in ladder.rungs]
    tallest = max([*counts, 1])
    rungs = [
        {
            "gib": rung.gib,
            "count": count,
            "text": f"{MOST}+" if count >= MOST else str(count),
            "never": rung.never,
            "where": ", ".join(rung.where),
            "px": max(3, round(RUNG_PX * count / tallest)) if count else 8,
        }
        for rung, count in zip(ladder.rungs, counts, strict=True)
    ]
    mine = Slice.objects.filter(
        rank__attempt__job__owner=user, state__in=(SliceState.HELD, SliceState.ACTIVE, SliceState.RELEASING)
    ).aggregate(share=Sum("share"), mib=Sum("mib"), count=Count("pk"))
    return {
        "rungs": rungs,
        "cap": cap if caps and cap < max((rung.count for rung in ladder.rungs), default=0) else None,
        "over_text": reason_text("quota_exceeded", over) if over else "",
        "whole": ladder.whole,
        "pool": totals_of(cells.picture_latest().uses),
        "mine": mine,
        "quota": quota,
        "resets": reset_text(quota.resets_at),
        "hours_left": None if quota.gpu_hours is None else max(0.0, quota.gpu_hours - quota.used_gpu_hours),
    }


def _queue_context(user: User, waiting: Any) -> dict[str, Any]:
    now = timezone.now()
    rows = _queue_rows(waiting)
    told, reader = told_read(jobs_waiting(rows)), reader_of(user, rows)
    for row in rows:
        row.is_visible = reader.may_see(row)  # type: ignore[attr-defined]
        row.is_mine = row.owner_id == user.pk
        row.start, row.start_title = "", ""
        if row.is_visible:
            row.start, row.start_title, row.reason = where_text(row, told.get(row.pk), now=now)
        else:
            row.reason = _why_for_others(row)
    return {
        "is_in_order": bool(told) or is_by_submit(),
        "queue": rows[:QUEUE_SHOWN],
        "queue_more": len(rows) > QUEUE_SHOWN,
        "queue_count": waiting.count(),
        "median_wait_s": _median_wait(timezone.now()),
    }


def _queue_rows(waiting: QuerySet[Job]) -> list[Job]:
    """One more than is shown. Two queries."""
    # By the latest forecast; who came since stands behind, by time of submit. Held jobs are in nobody's way and come last.
    places = {pk: place for place, pk in enumerate(head_read())}
    jobs = waiting.select_related("owner")
    first = sorted(jobs.filter(pk__in=places, held=False), key=lambda job: places[job.pk])[: QUEUE_SHOWN + 1]
    rest = jobs.exclude(pk__in=[job.pk for job in first]).order_by("held", "-priority", "submitted_at", "pk")
    return [*first, *rest[: QUEUE_SHOWN + 1 - len(first)]]


def _why_for_others(job: Job) -> str:
    """Why a stranger's job waits, without what is his own business: who holds it and why, and how much he used."""
    if job.held or job.wait_code == "held":
        return _("Held.")
    if job.wait_code in ("quota_exceeded", "cards_exceeded", "model_cards_exceeded"):
        return _("Its owner's quota leaves no room for it now.")
    return why_text(job)[2]


def _median_wait(now: datetime) -> float | None:
    """Of the starts of the last day; None if there was none."""
    starts = Job.objects.filter(Q(started_at__gte=now - timedelta(days=1)), Q(started_at__gte=F("queued_at")))
    rows = starts.order_by("-pk").values_list("started_at", "queued_at")[:STARTS_SHOWN]
    waits = [(started - queued).total_seconds() for started, queued in rows]
    return median(waits) if waits else None


def _mine_context(user: User, *, now: datetime) -> dict[str, Any]:
    own = Job.objects.filter(owner=user)
    live = list(own.filter(state__in=LIVE).order_by("-pk")[:MINE_SHOWN])
    waiting = list(own.filter(state=JobState.WAITING).order_by("-pk")[: MINE_SHOWN - len(live)]) if len(live) < MINE_SHOWN else []
    left = MINE_SHOWN - len(live) - len(waiting)
    ended = list(own.filter(state__in=FINAL).order_by("-ended_at", "-pk")[: max(left, 0)]) if left > 0 else []
    jobs = [*live, *waiting, *ended]
    places: dict[int, list[str]] = {}
    rows = (
        Slice.objects.filter(rank__attempt__job__in=[job.pk for job in live], rank__attempt__ended_at__isnull=True)
        .order_by("rank__index", "position")
        .values_list("rank__attempt__job_id", "gpu__node__name", "gpu__index")
    )
    for job_id, node, index in rows:
        places.setdefault(job_id, []).append(f"{node} gpu{index}")
    for job in jobs:
        job.places = places.get(job.pk, [])  # type: ignore[attr-defined]
        job.reason = "" if job.state in LIVE else why_text(job)[2]  # type: ignore[attr-defined]
        job.percent = _percent_of_limit(job, now)  # type: ignore[attr-defined]
        job.ends_at = job.started_at + timedelta(seconds=job.time_limit_s) if job.started_at and job.time_limit_s else None  # type: ignore[attr-defined]
    return {"my_jobs": jobs, "my_count": own.count()}


def _percent_of_limit(job: Job, now: datetime) -> int | None:
    if job.state not in LIVE or job.started_at is None or not job.time_limit_s:
        return None
    return max(0, min(100, round(100 * (now - job.started_at).total_seconds() / job.time_limit_s)))
