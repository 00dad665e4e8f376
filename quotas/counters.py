"""All that one transaction counts against quotas: read under their locks, written in one statement, however many owners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime

from django.db.models import F, Q

from quotas import calendar
from quotas.caps import caps_sum
from quotas.models import Quota
from quotas.services import quota_for, quota_roll
from quotas.sql import Select, rows_update

_locked = Select(
    lambda users, projects: (
        Quota.objects.select_for_update()
        .filter(Q(user_id__in=users) | Q(project_id__in=projects))
        .order_by(F("project_id").asc(nulls_first=True), "user_id")
        .values_list(
            "pk", "user_id", "project_id", "period_start", "max_cards", "extra_cards", "held_cards", "model_caps", "extra_model_cards"
        )
    )
)


@dataclass(slots=True)
class _Row:
    pk: int
    month: date | None
    room: int | None  # cards that may still be held; None = no limit
    models: dict[str, int]  # card model → cards of it that may be held
    cards: int = 0  # changes, not yet saved
    jobs: int = 0
    gpu_s: float = 0.0

    @property
    def is_changed(self) -> bool:
        return bool(self.cards or self.jobs or self.gpu_s)


class Counters:
    """Made in a transaction, with the jobs and cards of it locked before (lock order); it takes the quotas' locks, users by id,
    then projects by id. Nothing is written before ``save``; that is the last thing to do.

    What ``take`` answers is still true when ``save`` counts it, because of the locks. The limit is in the condition of that
    UPDATE all the same. Nothing falls below 0: a counter that an admin corrected while jobs ran must not turn the last end
    into an error.
    """

    def __init__(self, *, users: Iterable[int], projects: Iterable[int]) -> None:
        of_users, of_projects = set(users), set(projects)
        missing = of_users - self._read(of_users, of_projects)
        if missing:
            for user in sorted(missing):
                quota_for(user)
            self._read(of_users, of_projects)

    def _read(self, users: set[int], projects: set[int]) -> set[int]:
        self._users: dict[int, _Row] = {}
        self._projects: dict[int, _Row] = {}
        for pk, user, project, month, most, extra, held, caps, more in _locked(sorted(users), sorted(projects)):
            row = _Row(pk, month, None if most is None else most + extra - held, caps_sum(caps, more) if caps else {})
            if user is not None:
                self._users[user] = row
            else:
                self._projects[project] = row
        return set(self._users)

    def _rows(self, user: int, project: int) -> list[_Row]:
        """A project without a row has no limit of its own and is not counted."""
        return [self._users[user]] + ([self._projects[project]] if project in self._projects else [])

    @property
    def model_limits(self) -> tuple[dict[int, dict[str, int]], dict[int, dict[str, int]]]:
        """(user id → card model → cards that may be held, project id → …) of those who have such limits. How many are held of a
        model only the caller can count; what he counts under these locks is still true when he saves."""
        users, projects = ({pk: row.models for pk, row in rows.items() if row.models} for rows in (self._users, self._projects))
        return users, projects

    def cards_take(self, *, user: int, project: int, n: int) -> bool:
        """Whether the user and the project may hold ``n`` more cards, after all that was taken before; counts them if so."""
        rows = self._rows(user, project)
        if any(row.room is not None and row.cards + n > row.room for row in rows):
            return False
        for row in rows:
            row.cards += n
        return True

    def cards_release(self, *, user: int, project: int, n: int) -> None:
        for row in self._rows(user, project):
            row.cards -= n

    def job_done(self, *, user: int, project: int) -> None:
        """One active job less."""
        for row in self._rows(user, project):
            row.jobs -= 1

    def use(self, *, user: int, project: int, share: float, started_at: datetime, ended_at: datetime) -> None:
        """``share`` of a card, in 0–1, from ``started_at`` to ``ended_at``. Only what falls into the month that a counter is for
        is added: a late charge of an old month adds nothing to this one, and one that began last month adds its part since
        local midnight of the first. Causes a statement where a counter still has an older month: it starts anew."""
        month = calendar.month_of(ended_at)
        for row in self._rows(user, project):
            if row.month is None or row.month < month:
                quota_roll(Quota.objects.filter(pk=row.pk), now=ended_at)
                row.month, row.gpu_s = month, 0.0
            begin = max(started_at, calendar.month_begin(row.month))
            end = min(ended_at, calendar.month_begin(calendar.month_next(row.month)))
            row.gpu_s += share * max(0.0, (end - begin).total_seconds())

    def save(self) -> bool:
        """Writes all. False = a row is not as it was locked, or cards were taken beyond a limit: roll the transaction back."""
        changed = [row for row in (*self._users.values(), *self._projects.values()) if row.is_changed]
        return rows_update(
            Quota,
            [(row.pk, row.gpu_s, row.cards, row.jobs) for row in changed],
            assign="""
                used_gpu_s = used_gpu_s + v.column2,
                live_gpu_s = CASE WHEN live_gpu_s > v.column2 THEN live_gpu_s - v.column2 ELSE 0 END,
                held_cards = CASE WHEN held_cards + v.column3 > 0 THEN held_cards + v.column3 ELSE 0 END,
                active_jobs = CASE WHEN active_jobs + v.column4 > 0 THEN active_jobs + v.column4 ELSE 0 END""",
            where="v.column3 <= 0 OR max_cards IS NULL OR held_cards + v.column3 <= max_cards + extra_cards",
        ) == len(changed)
