"""Counters of many quotas in one statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from django.db.models import F, Q

from quotas.models import Quota
from quotas.services import quota_for
from quotas.sql import rows_update


class CardsCount:
    """Cards to hold for several owners in one transaction: three statements, however many ask.

    Made under the rows' locks (it takes them, as ``quotas_lock`` does), so that what ``take`` answers is still true when
    ``save`` counts it. The limit is in the condition of that UPDATE all the same.
    """

    def __init__(self, *, users: Iterable[int], projects: Iterable[int]) -> None:
        of_users, of_projects = set(users), set(projects)
        missing = of_users - self._read(of_users, of_projects)
        if missing:
            for user in sorted(missing):
                quota_for(user)
            self._read(of_users, of_projects)

    def _read(self, users: set[int], projects: set[int]) -> set[int]:
        self._by_user: dict[int, int] = {}
        self._by_project: dict[int, int] = {}
        self._room: dict[int, int | None] = {}
        self._taken: Counter[int] = Counter()
        rows = Quota.objects.select_for_update().filter(Q(user_id__in=users) | Q(project_id__in=projects))
        ordered = rows.order_by(F("project_id").asc(nulls_first=True), "user_id")
        for pk, user, project, most, held in ordered.values_list("pk", "user_id", "project_id", "max_cards", "held_cards"):
            self._room[pk] = None if most is None else most - held
            if user is not None:
                self._by_user[user] = pk
            else:
                self._by_project[project] = pk
        return set(self._by_user)

    def take(self, *, user: int, project: int, n: int) -> bool:
        """Whether the user and the project may hold ``n`` more, after all that was taken before. No query."""
        rows = [self._by_user[user]] + ([self._by_project[project]] if project in self._by_project else [])
        for pk in rows:
            room = self._room[pk]
            if room is not None and self._taken[pk] + n > room:
                return False
        for pk in rows:
            self._taken[pk] += n
        return True

    def save(self) -> bool:
        """Counts what was taken. False = a row is not as it was locked: roll the transaction back."""
        rows = [(pk, n) for pk, n in sorted(self._taken.items()) if n > 0]
        fits = "max_cards IS NULL OR held_cards + v.column2 <= max_cards"
        return rows_update(Quota, rows, assign="held_cards = held_cards + v.column2", where=fits) == len(rows)
