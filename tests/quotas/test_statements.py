"""Quantities, prices, statements: exact to the last digit, and by local months."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from quotas.models import LedgerEntry, Membership, PriceRow, Project, StorageEntry, User
from quotas.prices import Price, PriceFrom, PriceTable, Quantities, cost_of
from quotas.statements import csv_rows, month_hours, month_parse, months_with_use, plain, statement, visible_to
from tests.factories import project_make, user_make

START = datetime(2026, 3, 10, 8, tzinfo=UTC)
MARCH = date(2026, 3, 1)
_slice = iter(range(1, 10_000))


def entry(user: User, project: Project, *, start: datetime = START, seconds: float = 1800, share: float = 1.0, **more: Any) -> LedgerEntry:
    fields = {"gpu_model": "NVIDIA A100-SXM4-80GB", "mib": 24 * 1024, "job_id": 7, **more}
    return LedgerEntry.objects.create(
        slice_id=next(_slice), user=user, project=project, share=share, started_at=start, ended_at=start + timedelta(seconds=seconds),
        seconds=seconds, gpu_seconds=share * seconds, **fields,
    )  # fmt: skip


def prices(**more: Any) -> PriceRow:
    golden = {"per_gpu_hour": Decimal("5.40"), "per_gb_second": Decimal("0.00002"), "per_gb_hour": Decimal("0.02")}
    return PriceRow.objects.create(**{**golden, "valid_from": datetime(2026, 1, 1, tzinfo=UTC), **more})


def test_the_golden_example_is_exact() -> None:
    # 1 × A100 for 30 min, 24 GB, 500 GB: 1800 s × 5.40/h + 43,200 GB·s × 0.00002 + 250 GB·h × 0.02
    used = Quantities(gpu_s=Decimal(1800), gb_s=Decimal(24 * 1800), gb_h=Decimal(500) * Decimal("0.5"))
    price = Price(per_gpu_hour=Decimal("5.40"), per_gb_second=Decimal("0.00002"), per_gb_hour=Decimal("0.02"))
    cost = cost_of(used, price)
    assert (cost.gpu, cost.memory, cost.storage, cost.total) == (Decimal("2.70"), Decimal("0.864"), Decimal("5.00"), Decimal("8.564"))


@pytest.mark.django_db
def test_the_golden_example_comes_out_of_the_ledger() -> None:
    user, project = user_make("lin@lab.example"), project_make("nlp")
    prices()
    entry(user, project)
    StorageEntry.objects.create(day=date(2026, 3, 10), user=user, project=project, gb_hours=Decimal(250))
    made = statement(MARCH, currency="USD")
    assert made.cost.total == Decimal("8.564")
    assert (made.used.gpu_s, made.used.gb_s, made.used.gb_h) == (1800, 43_200, 250)
    assert [plain(line.cost.total) for line in made.lines] == ["3.564", "5"]
    rows = list(csv_rows(made))
    assert rows[0][:8] == ("2026-03", "lin@lab.example", "nlp", "NVIDIA A100-SXM4-80GB", 1, "1800", "0.5", "43200")
    assert rows[0][9:] == ("2.7", "0.864", "0", "3.564", "USD")
    assert rows[1][3] == "storage"


@pytest.mark.django_db
def test_a_job_over_the_end_of_the_month_counts_in_each_with_its_part_in_the_installations_zone(settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    user, project = user_make(), project_make()
    late = datetime(2026, 3, 31, 15, 30, tzinfo=UTC)  # 23:30 in Shanghai, to 00:30 of 1 April
    entry(user, project, start=late, seconds=3600, share=0.5)
    for month in (MARCH, date(2026, 4, 1)):
        made = statement(month)
        assert (made.used.gpu_s, made.used.gb_s) == (900, 24 * 1800)  # 0.5 × 1800 s, 24 GB × 1800 s
        assert made.lines[0].jobs == 1
    assert statement(date(2026, 5, 1)).lines == []
    settings.INSTALLATION_ZONE = "UTC"
    assert statement(MARCH).used.gpu_s == 1800


@pytest.mark.django_db
def test_a_change_of_prices_splits_what_runs_over_it_and_reprices_nothing() -> None:
    user, project = user_make(), project_make()
    prices(per_gb_second=0, per_gb_hour=0)
    prices(per_gb_second=0, per_gb_hour=0, per_gpu_hour=Decimal("7.20"), valid_from=START + timedelta(minutes=10))
    entry(user, project)  # 10 min at 5.40, 20 min at 7.20
    assert statement(MARCH).cost.total == Decimal("0.90") + Decimal("2.40")


def test_the_price_that_names_a_card_most_closely_holds() -> None:
    def row(model: str, day: int, hour: str, storage: str = "0") -> PriceFrom:
        price = Price(per_gpu_hour=Decimal(hour), per_gb_hour=Decimal(storage))
        return PriceFrom(gpu_model=model, valid_from=datetime(2026, 1, day, tzinfo=UTC), price=price)

    table = PriceTable.of(
        [row("", 1, "1", "0.5"), row("A100", 1, "5"), row("A100 80GB", 1, "6"), row("A100", 10, "4"), row("", 20, "2", "0.7")]
    )
    at = lambda day, model: table.at(datetime(2026, 1, day, tzinfo=UTC), model).per_gpu_hour  # noqa: E731
    assert at(5, "NVIDIA A100-SXM4-80GB") == 5  # its words are not next to each other
    assert at(5, "NVIDIA A100 80GB PCIe") == 6
    assert at(15, "NVIDIA A100-SXM4-80GB") == 4
    assert at(15, "NVIDIA A10") == 1
    assert at(25, "NVIDIA A10") == 2
    assert PriceTable.of([]).at(START, "x") == Price()
    assert [table.at(datetime(2026, 1, day, tzinfo=UTC), "A100").per_gb_hour for day in (5, 25)] == [Decimal("0.5"), Decimal("0.7")]


@pytest.mark.django_db
def test_parts_of_a_microsecond_do_not_add_up_to_an_error() -> None:
    user, project = user_make(), project_make()
    for _ in range(300):
        entry(user, project, seconds=0.1, share=0.1, mib=4096)
    made = statement(MARCH)
    assert (made.used.gpu_s, made.used.gb_s) == (Decimal(3), Decimal(120))  # 300 × 0.1 × 0.1; 300 × 0.1 s × 4 GB


@pytest.mark.django_db
def test_one_sees_ones_own_a_lead_the_projects_an_admin_all() -> None:
    lin, lead, boss = user_make("lin@lab.example"), user_make("lead@lab.example"), user_make(is_staff=True)
    mine, other = project_make("nlp", members=(lin,)), project_make("other")
    Membership.objects.create(project=mine, user=lead, role=Membership.Role.LEAD)
    entry(lin, mine)
    entry(lin, other)
    entry(user_make("x@lab.example"), other)
    seen = {who.pk: len(statement(MARCH, where=visible_to(who)).lines) for who in (lin, lead, boss)}
    assert seen == {lin.pk: 2, lead.pk: 1, boss.pk: 3}
    by_project = statement(MARCH).grouped("project")
    assert [(line.key.project, line.used.gpu_s) for line in by_project] == [("other", 3600), ("nlp", 1800)]


@pytest.mark.django_db
def test_a_statement_costs_the_same_whatever_is_in_it(django_assert_max_num_queries: Any) -> None:
    project = project_make()
    for _ in range(5):
        entry(user_make(), project)
    with django_assert_max_num_queries(6):
        statement(MARCH)


@pytest.mark.django_db
def test_months_go_from_the_first_charge_to_the_last() -> None:
    user, project = user_make(), project_make()
    assert months_with_use(visible_to(user)) == []
    entry(user, project)
    entry(user, project, start=datetime(2026, 5, 2, tzinfo=UTC))
    months = months_with_use(visible_to(user))
    assert months == [date(2026, 5, 1), date(2026, 4, 1), MARCH]
    assert [float(hours) for _month, hours in month_hours(months, visible_to(user))] == [0.5, 0, 0.5]


@pytest.mark.parametrize(
    ("text", "month"), [("2026-03", MARCH), ("2026-13", None), ("2026-3", None), ("26-03", None), ("", None), ("2026-03-1", None)]
)
def test_a_month_is_written_as_year_and_month(text: str, month: date | None) -> None:
    assert month_parse(text) == month


@pytest.mark.django_db(transaction=True)
def test_a_storage_charge_is_never_changed_nor_removed() -> None:
    row = StorageEntry.objects.create(day=MARCH, user=user_make(), project=project_make(), gb_hours=Decimal(1))
    for act in (lambda: StorageEntry.objects.update(gb_hours=2), lambda: StorageEntry.objects.filter(pk=row.pk).delete()):
        with pytest.raises(DatabaseError), transaction.atomic():
            act()


def test_money_is_written_without_an_exponent() -> None:
    assert [plain(Decimal(text)) for text in ("8.5640", "0E-12", "1E+3", "0.00000001")] == ["8.564", "0", "1000", "0.00000001"]
