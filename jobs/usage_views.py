"""The page of what was used: a month's statement, the months before it, and the file of exact figures."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from jobs.efficiency import waste, wasteful_jobs
from jobs.storage_api import storage_bars
from jobs.views import reader
from nodes import formats
from quotas import calendar
from quotas.statement_api import csv_answer, where_of
from quotas.statements import Line, Statement, month_hours, month_parse, months_with_use, statement

PAGE = 50
MONTHS_DRAWN = 6
#: What the table may be summed by: name → keys.
GROUPS: dict[str, tuple[str, ...]] = {
    "all": ("user", "project", "gpu_model"),
    "project": ("project",),
    "user": ("user",),
    "model": ("gpu_model",),
}
BAR_PX = 150


def money(value: Decimal, currency: str) -> str:
    """Two decimals, more below one: ``8.56 USD``, ``0.00412 USD``. The file has the exact figure."""
    text = f"{value:,.2f}" if value == 0 or abs(value) >= 1 else f"{value:.3g}"
    return f"{text}\u00a0{currency}"


def month_name(month: date) -> str:
    """``July 2026``, ``2026 年 7 月``."""
    return f"{month.year} 年 {month.month} 月" if formats.is_chinese() else f"{month:%B %Y}"


def _row(line: Line, currency: str) -> dict[str, Any]:
    used, cost = line.used, line.cost
    return {
        "user": line.key.user,
        "project": line.key.project,
        "model": formats.model_name(line.key.gpu_model) if line.key.gpu_model else "",
        "is_storage": bool(used.gb_h) and not used.gpu_s,
        "jobs": line.jobs,
        "gpu_hours": float(used.gpu_hours),
        "memory_gb_hours": float(used.gb_s / 3600),
        "storage_gb_hours": float(used.gb_h),
        "cost": money(cost.total, currency),
    }


def _bars(months: list[date], chosen: date, where: Any) -> list[dict[str, Any]]:
    hours = month_hours(months[:MONTHS_DRAWN], where)[::-1]
    tallest = max([value for _month, value in hours] + [Decimal(1)])  # of next to nothing no bar is tall, be it the tallest
    return [
        {
            "month": f"{month:%Y-%m}",
            "name": month_name(month),
            "hours": float(value),
            "px": round(BAR_PX * value / tallest) if value else 0,
            "is_chosen": month == chosen,
        }
        for month, value in hours
    ]


@login_required
@require_safe
def usage_page(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    this = calendar.month_of(timezone.now())
    month = month_parse(request.GET.get("month", "")) or this  # an old link must not end in an error
    where = where_of(request, request.GET)
    made = statement(month, where=where, currency=settings.CURRENCY)
    by = request.GET.get("by", "all")
    lines = made.grouped(*GROUPS.get(by, GROUPS["all"]))
    page = Paginator([_row(line, made.currency) for line in lines], PAGE).get_page(request.GET.get("page"))
    months = months_with_use(where)
    total = (made.grouped() or [Line.empty()])[0]
    context = {
        "month": f"{month:%Y-%m}",
        "month_name": month_name(month),
        "is_running": month == this,
        "months": [(f"{one:%Y-%m}", month_name(one)) for one in sorted({*months, this, month}, reverse=True)],
        "page": page,
        "by": by if by in GROUPS else "all",
        "groups": list(GROUPS),
        "total": _row(total, made.currency),
        "has_prices": made.has_prices,
        "bars": _bars(months, month, where),
        "zone": calendar.zone().key,
        "sees_others": user.is_staff,
        "parts": _parts(made),
        "storage": storage_bars(user),
        "waste_people": waste(where, begin=made.begin, end=made.end, by="user"),
        "waste_projects": waste(where, begin=made.begin, end=made.end, by="project"),
        "waste_jobs": wasteful_jobs(where, begin=made.begin, end=made.end),
    }
    return render(request, "quota/usage.html", context)


def _parts(made: Statement) -> list[tuple[str, str]]:
    """What the costs are made of."""
    cost = made.cost
    return [(name, money(value, made.currency)) for name, value in (("gpu", cost.gpu), ("memory", cost.memory), ("storage", cost.storage))]


@login_required
@require_safe
def usage_csv(request: HttpRequest) -> HttpResponse:
    month = month_parse(request.GET.get("month", "")) or calendar.month_of(timezone.now())
    return csv_answer(statement(month, where=where_of(request, request.GET), currency=settings.CURRENCY))
