"""Reads of people, projects and quotas that are more than one filter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from quotas import calendar
from quotas.models import Membership, Project, Quota, User
from quotas.services import HOURS_LEFT_S, quota_for, refusal_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """A quota as people read it, with what is granted on top. ``None`` = no limit; hours of whole cards, with what runs now.
    ``zone`` is the installation's, in which the month ends."""

    gpu_hours: int | None
    used_gpu_hours: float
    resets_at: datetime
    max_active_jobs: int | None
    active_jobs: int
    max_cards: int | None
    held_cards: int
    model_cards: dict[str, int]
    zone: str


def quota_view(user: User, *, now: datetime) -> QuotaView:
    return quota_view_of(quota_for(user, now=now), now=now)


def quota_view_of(quota: Quota, *, now: datetime) -> QuotaView:
    """Of a row that has the counter of this month."""
    return QuotaView(
        gpu_hours=quota.gpu_hours_limit,
        used_gpu_hours=round(quota.spent_gpu_s / 3600, 4),
        resets_at=calendar.resets_at(now),
        max_active_jobs=quota.active_jobs_limit,
        active_jobs=quota.active_jobs,
        max_cards=quota.cards_limit,
        held_cards=quota.held_cards,
        model_cards=quota.model_limits,
        zone=calendar.zone().key,
    )


def projects_to_submit(user: User) -> QuerySet[Project]:
    """The active projects that a user may run jobs under: not those where he only looks on."""
    return _confined(
        Project.objects.filter(is_active=True, memberships__user=user, memberships__role__in=(Membership.Role.LEAD, Membership.Role.USER)),
        user,
    )


def projects_visible_to(user: User) -> QuerySet[Project]:
    """Members see their projects, staff all."""
    projects = Project.objects.all()
    return _confined(projects if user.is_staff else projects.filter(memberships__user=user), user)


def projects_led_by(user: User) -> QuerySet[Project]:
    """Whose members the user may change: staff all, others where they are leads. Nobody by a project's token."""
    if user.confined_to is not None:
        return Project.objects.none()
    if user.is_staff:
        return Project.objects.all()
    return Project.objects.filter(memberships__user=user, memberships__role=Membership.Role.LEAD)


def _confined(projects: QuerySet[Project], user: User) -> QuerySet[Project]:
    return projects if user.confined_to is None else projects.filter(pk=user.confined_to)


def memberships_shared(user: User) -> QuerySet[Membership]:
    """The user's places in projects that are not one person's own."""
    return Membership.objects.filter(user=user, project__personal_of__isnull=True)


def users_over_limit(users: Iterable[int], *, now: datetime) -> dict[int, dict[str, Any]]:
    """Who is at the limit of GPU-hours (D15): user id → params of code ``quota_exceeded``. One SELECT however many.

    A row that still has an older month blocks nobody: its counter starts anew with the next submit or charge.
    """
    return _over_limit(Quota.objects.filter(user_id__in=set(users)), key="user_id", now=now)


def projects_over_limit(projects: Iterable[int], *, now: datetime) -> dict[int, dict[str, Any]]:
    """The same for projects: project id → params."""
    return _over_limit(Quota.objects.filter(project_id__in=set(projects)), key="project_id", now=now)


def _over_limit(rows: QuerySet[Quota], *, key: str, now: datetime) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    full = rows.filter(gpu_hours__isnull=False, used_gpu_s__gte=HOURS_LEFT_S, period_start=calendar.month_of(now))
    for quota in full.select_related("user", "project"):
        if error := refusal_of(quota, now=now):
            found[getattr(quota, key)] = error.params
    return found


def cards_room(*, users: Iterable[int], projects: Iterable[int]) -> tuple[dict[int, int], dict[int, int]]:
    """How many more cards may be held: (user id → cards, project id → cards); without an entry = no limit. One SELECT."""
    by_user: dict[int, int] = {}
    by_project: dict[int, int] = {}
    rows = Quota.objects.filter(Q(user_id__in=set(users)) | Q(project_id__in=set(projects)), max_cards__isnull=False)
    columns = ("user_id", "project_id", "max_cards", "extra_cards", "held_cards")
    for user_id, project_id, limit, extra, held in rows.values_list(*columns):
        room = max(0, (limit or 0) + extra - held)
        if user_id is not None:
            by_user[user_id] = room
        else:
            by_project[project_id] = room
    return by_user, by_project


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What quotas say of the owners of waiting jobs. ``over``: params of code ``quota_exceeded``; ``room``: cards that may
    still be held, without an entry = no limit."""

    over_users: dict[int, dict[str, Any]]
    over_projects: dict[int, dict[str, Any]]
    room_users: dict[int, int]
    room_projects: dict[int, int]
    models_users: dict[int, dict[str, int]]  # user → card model → cards of it that may be held
    models_projects: dict[int, dict[str, int]]


def standing_of(*, users: Iterable[int], projects: Iterable[int], now: datetime) -> Standing:
    """``users_over_limit``, ``projects_over_limit`` and ``cards_room`` for a pass, in one SELECT of the rows that limit anything."""
    found = Standing(over_users={}, over_projects={}, room_users={}, room_projects={}, models_users={}, models_projects={})
    spent = Q(gpu_hours__isnull=False, used_gpu_s__gte=HOURS_LEFT_S, period_start=calendar.month_of(now))
    rows = Quota.objects.filter(Q(user_id__in=set(users)) | Q(project_id__in=set(projects))).filter(
        spent | Q(max_cards__isnull=False) | ~Q(model_caps={})
    )
    for quota in rows.select_related("user", "project"):
        is_user = quota.user_id is not None
        key = quota.user_id or quota.project_id or 0
        error = refusal_of(quota, now=now)
        if error is not None and error.params["what"] == "gpu_hours":
            (found.over_users if is_user else found.over_projects)[key] = error.params
        if quota.cards_limit is not None:
            (found.room_users if is_user else found.room_projects)[key] = max(0, quota.cards_limit - quota.held_cards)
        if quota.model_caps:
            (found.models_users if is_user else found.models_projects)[key] = quota.model_limits
    return found
