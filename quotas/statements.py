"""Statements: what was used in a local month, by user, project and card model, and what that comes to.

From the ledger alone, so that a statement can be made again at any time. A charge that crosses the month's end, or a change of
prices, counts on each side with its part. What runs still is charged when it ends: the statement of a month that is over may grow
until the last job that ran in it has ended.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db.models import Count, F, FloatField, Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Cast

from quotas import calendar
from quotas.models import LedgerEntry, Membership, PriceRow, StorageEntry, User
from quotas.prices import Cost, Price, PriceFrom, PriceTable, Quantities, cost_of, decimal_of

MONTHS_SHOWN = 12
_MIB_PER_GB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    user: str
    project: str
    gpu_model: str  # "" = storage


@dataclass(slots=True, kw_only=True)
class Line:
    key: Key
    jobs: int = 0
    used: Quantities = field(default_factory=Quantities)
    cost: Cost = field(default_factory=Cost)

    @classmethod
    def empty(cls) -> Line:
        return cls(key=Key(user="", project="", gpu_model=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """``lines`` by user, project and card model. ``has_prices`` False: costs are all 0 because nobody set a price."""

    month: date
    begin: datetime
    end: datetime
    lines: list[Line]
    has_prices: bool
    currency: str

    @property
    def used(self) -> Quantities:
        return sum((line.used for line in self.lines), Quantities())

    @property
    def cost(self) -> Cost:
        return sum((line.cost for line in self.lines), Cost())

    def grouped(self, *by: str) -> list[Line]:
        """The lines summed by ``user``, ``project`` or ``gpu_model``; the greatest use first."""
        found: dict[tuple[str, ...], Line] = {}
        for line in self.lines:
            key = tuple(getattr(line.key, name) for name in by)
            empty = {name: getattr(line.key, name) if name in by else "" for name in ("user", "project", "gpu_model")}
            into = found.setdefault(key, Line(key=Key(**empty)))
            into.jobs, into.used, into.cost = into.jobs + line.jobs, into.used + line.used, into.cost + line.cost
        return sorted(found.values(), key=lambda line: (-line.used.gpu_s, -line.used.gb_h, line.key.user, line.key.project))


def month_parse(text: str) -> date | None:
    """``2026-07``; None if it is no month that the calendar has."""
    try:
        found = date.fromisoformat(f"{text}-01")
    except ValueError:
        return None
    return found if len(text) == 7 and 2000 <= found.year <= 2999 else None


def visible_to(user: User) -> Q:
    """Charges that this person may see: his own, those of projects that he leads, and an admin all."""
    if user.is_staff:
        return Q()
    led = Membership.objects.filter(user=user, role=Membership.Role.LEAD).values("project_id")
    return Q(user=user) | Q(project_id__in=led)


def price_table() -> PriceTable:
    """One query."""
    rows = PriceRow.objects.values_list("gpu_model", "valid_from", "per_gpu_hour", "per_gb_second", "per_gb_hour")
    return PriceTable.of(
        PriceFrom(gpu_model=model, valid_from=at, price=Price(per_gpu_hour=gpu, per_gb_second=memory, per_gb_hour=storage))
        for model, at, gpu, memory, storage in rows
    )


def statement(month: date, *, where: Q | None = None, currency: str = "") -> Statement:
    """``where``: on user and project, such as ``visible_to``. A handful of queries for each period of unchanged prices."""
    begin, end = calendar.month_begin(month), calendar.month_begin(calendar.month_next(month))
    table, where = price_table(), where or Q()
    lines: dict[Key, Line] = {}
    # 1. Cards and their memory, between the changes of prices.
    edges = [begin, *table.changes(begin, end), end]
    for since, until in itertools.pairwise(edges):
        for key, used in _used(LedgerEntry.objects.filter(where), since, until):
            line = lines.setdefault(key, Line(key=key))
            line.used += used
            line.cost += cost_of(used, table.at(since, key.gpu_model))
    _count_jobs(lines, LedgerEntry.objects.filter(where), begin, end)
    # 2. Storage, by days.
    rows = StorageEntry.objects.filter(where, day__gte=month, day__lt=calendar.month_next(month))
    for user, project, day, gb_h in rows.values_list("user__email", "project__name", "day", "gb_hours").order_by("pk"):
        key = Key(user=user, project=project, gpu_model="")
        line = lines.setdefault(key, Line(key=key))
        used = Quantities(gb_h=gb_h)
        line.used += used
        line.cost += cost_of(used, table.at(calendar.day_begin(day), ""))
    ordered = sorted(lines.values(), key=lambda line: (line.key.user, line.key.project, line.key.gpu_model == "", line.key.gpu_model))
    return Statement(month=month, begin=begin, end=end, lines=ordered, has_prices=bool(table.rows), currency=currency)


_COLUMNS = ("user__email", "project__name", "gpu_model")


def _used(entries: QuerySet[LedgerEntry], since: datetime, until: datetime) -> Iterator[tuple[Key, Quantities]]:
    """What was used from ``since`` to ``until``. Two queries: sums of what lies within, and the few that cross an edge one by one."""
    found: dict[Key, Quantities] = defaultdict(Quantities)
    inside = entries.filter(started_at__gte=since, ended_at__gte=since, ended_at__lte=until)
    sums = (
        inside.order_by().values_list(*_COLUMNS).annotate(gpu_s=Sum("gpu_seconds"), mib_s=Sum(Cast(F("mib"), FloatField()) * F("seconds")))
    )
    for user, project, model, gpu_s, mib_s in sums:
        key = Key(user=user, project=project, gpu_model=model)
        found[key] += Quantities(gpu_s=decimal_of(gpu_s), gb_s=decimal_of(decimal_of(mib_s) / _MIB_PER_GB))
    crossing = entries.filter(started_at__lt=until, ended_at__gt=since).exclude(started_at__gte=since, ended_at__lte=until)
    for user, project, model, share, mib, begin, end in crossing.order_by("pk").values_list(
        *_COLUMNS, "share", "mib", "started_at", "ended_at"
    ):
        seconds = _seconds(min(end, until) - max(begin, since))
        key = Key(user=user, project=project, gpu_model=model)
        found[key] += Quantities(gpu_s=decimal_of(seconds * Decimal(repr(share))), gb_s=decimal_of(seconds * mib / _MIB_PER_GB))
    yield from found.items()


def _seconds(span: timedelta) -> Decimal:
    """Exactly, to the microsecond."""
    return Decimal(span.days * 86_400 + span.seconds) + Decimal(span.microseconds) / 1_000_000


def _count_jobs(lines: dict[Key, Line], entries: QuerySet[LedgerEntry], begin: datetime, end: datetime) -> None:
    rows = (
        entries.filter(started_at__lt=end, ended_at__gt=begin).order_by().values_list(*_COLUMNS).annotate(n=Count("job_id", distinct=True))
    )
    for user, project, model, n in rows:
        key = Key(user=user, project=project, gpu_model=model)
        if key in lines:
            lines[key].jobs = n


def months_with_use(where: Q) -> list[date]:
    """Local months from the first charge to the last, the newest first, at most MONTHS_SHOWN. One query."""
    edges = LedgerEntry.objects.filter(where).aggregate(first=Min("started_at"), last=Max("ended_at"))
    if edges["first"] is None:
        return []
    month, last, found = calendar.month_of(edges["first"]), calendar.month_of(edges["last"]), []
    while month <= last:
        found.append(month)
        month = calendar.month_next(month)
    return found[::-1][:MONTHS_SHOWN]


def month_hours(months: list[date], where: Q) -> list[tuple[date, Decimal]]:
    """(month, GPU-hours) of each. Two queries a month."""
    found = []
    for month in months:
        begin, end = calendar.month_begin(month), calendar.month_begin(calendar.month_next(month))
        total = sum((used for _key, used in _used(LedgerEntry.objects.filter(where), begin, end)), Quantities())
        found.append((month, total.gpu_hours))
    return found


CSV_COLUMNS = (
    "month", "user", "project", "gpu_model", "jobs", "gpu_seconds", "gpu_hours", "memory_gb_seconds", "storage_gb_hours",
    "cost_gpu", "cost_memory", "cost_storage", "cost_total", "currency",
)  # fmt: skip


def csv_rows(made: Statement) -> Iterator[tuple[Any, ...]]:
    """Exact figures, without rounding or thousands marks."""
    for line in made.lines:
        used, cost = line.used, line.cost
        figures = (used.gpu_s, used.gpu_hours, used.gb_s, used.gb_h, cost.gpu, cost.memory, cost.storage, cost.total)
        yield (
            f"{made.month:%Y-%m}", line.key.user, line.key.project, line.key.gpu_model or "storage", line.jobs,
            *(plain(figure) for figure in figures), made.currency,
        )  # fmt: skip


def plain(value: Decimal) -> str:
    """Without an exponent and idle zeros: 8.564, 0, 1800."""
    text = f"{value.quantize(Decimal('0.000000001')):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
