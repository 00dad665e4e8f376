"""Many rows in one statement: what arrives is what the ORM would have written, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from nodes.models import Node
from quotas.models import LedgerEntry, Project, Quota
from quotas.sql import Select, rows_insert, rows_update, swap
from tests.factories import node_make, project_make, user_make

pytestmark = pytest.mark.django_db
AT = datetime(2026, 3, 15, 12, 30, 1, 123457, tzinfo=UTC)


def entries(count: int) -> list[dict[str, object]]:
    user, project = user_make(), project_make()
    common = {"user_id": user.pk, "project_id": project.pk, "share": 1 / 3, "mib": 4096, "started_at": AT, "ended_at": AT}
    return [
        {**common, "slice_id": 10 - n, "job_id": n, "gpu_model": f'№{n} "\\{{}},\n', "seconds": 0.1 + 0.2, "gpu_seconds": 1e-9}
        for n in range(count)
    ]


def test_inserted_rows_keep_every_value_and_their_order():
    keys = rows_insert(LedgerEntry, entries(3))
    rows = LedgerEntry.objects.in_bulk(keys)
    assert [rows[key].job_id for key in keys] == [0, 1, 2]
    last = rows[keys[2]]
    assert (last.gpu_model, last.slice_id, last.share, last.seconds, last.gpu_seconds) == ('№2 "\\{},\n', 8, 1 / 3, 0.1 + 0.2, 1e-9)
    assert last.started_at == AT
    assert last.created_at.tzinfo is not None  # left out: the model's default


def test_a_row_that_breaks_a_constraint_takes_all_back():
    rows = entries(2)
    rows[1]["share"] = 1.5
    with pytest.raises(IntegrityError), transaction.atomic():
        rows_insert(LedgerEntry, rows)
    assert LedgerEntry.objects.count() == 0


def test_each_row_gets_its_own_change_and_only_those_that_meet_the_condition_count():
    one, two = (Quota.objects.get(user=user_make(quota={"held_cards": n, "max_cards": 5})) for n in (1, 4))
    changed = rows_update(
        Quota,
        [(one.pk, 3), (two.pk, 2), (one.pk + two.pk + 1, 1)],
        assign="held_cards = held_cards + v.column2",
        where="held_cards + v.column2 <= max_cards",
    )
    assert changed == 1
    assert [Quota.objects.get(pk=row.pk).held_cards for row in (one, two)] == [4, 4]


def test_more_rows_than_one_statement_holds_are_all_changed(monkeypatch):
    monkeypatch.setattr("quotas.sql.PARAMETERS", 4)
    projects = [project_make() for _ in range(5)]
    assert rows_update(Project, [(p.pk, f"title {p.pk}") for p in projects], assign="title = v.column2") == 5
    assert {p.title for p in Project.objects.filter(pk__in=[p.pk for p in projects])} == {f"title {p.pk}" for p in projects}


def test_a_swap_changes_a_row_only_if_it_is_as_expected():
    quota = Quota.objects.get(user=user_make(quota={"held_cards": 1, "period_start": None}))
    assert not swap(Quota, quota.pk, old={"held_cards": 2}, new={"held_cards": 3})
    assert not swap(Quota, quota.pk + 1, old={}, new={"held_cards": 3})
    new = {"held_cards": 3, "period_start": AT.date(), "updated_at": AT, "max_cards": None}
    assert swap(Quota, quota.pk, old={"held_cards": 1, "period_start": None}, new=new)
    assert not swap(Quota, quota.pk, old={"held_cards": 3, "period_start": None}, new={"held_cards": 4})
    quota.refresh_from_db()
    assert (quota.held_cards, quota.period_start, quota.updated_at, quota.max_cards) == (3, AT.date(), AT, None)


def test_a_row_that_is_known_already_is_left_out_and_the_others_are_named():
    rows = entries(3)
    assert rows_insert(LedgerEntry, rows[:2], once="slice_id") == [10, 9]
    assert rows_insert(LedgerEntry, rows, once="slice_id") == [8]
    assert LedgerEntry.objects.count() == 3


def test_no_rows_are_no_statement(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert rows_insert(LedgerEntry, []) == []
        assert rows_update(Quota, [], assign="held_cards = v.column2") == 0


def test_a_compiled_query_gives_what_the_query_gives_whatever_its_arguments():
    users = [user_make(quota={"held_cards": n, "period_start": AT.date()}) for n in range(3)]

    def build(least: int, ids: list[int]) -> Any:
        rows = Quota.objects.filter(pk__gt=least, user_id__in=ids, used_gpu_s=0).order_by("-pk")
        return rows.values_list("user__email", "period_start", "updated_at", "held_cards")

    select = Select(build)
    first = Quota.objects.get(user=users[0]).pk
    for least, chosen in [(0, users), (first, users), (0, users[:1]), (0, users[1:]), (first, users[:1]), (0, [])]:
        ids = [user.pk for user in chosen]
        for _ in range(2):
            assert select(least, ids) == list(build(least, ids))


def test_a_compiled_query_costs_one_statement_and_converts_json(django_assert_num_queries):
    node = node_make("n1", labels={"rack": ["a", {"b": None}]})
    select = Select(lambda pk: Node.objects.filter(pk=pk).values_list("labels", "name"))
    select(node.pk)
    with django_assert_num_queries(1):
        assert select(node.pk) == [({"rack": ["a", {"b": None}]}, "n1")]


def test_an_argument_that_the_query_does_not_compare_as_it_is_is_refused():
    with pytest.raises(TypeError, match="whole numbers"):
        Select(lambda pk: Project.objects.filter(name=str(pk)).values_list("pk"))(1)
