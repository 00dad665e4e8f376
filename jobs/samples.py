"""What a job's cards were like while it held them, and the memory of its own processes on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Q

from jobs.models import Job, Rank, Slice
from nodes.models import GpuSample, RankSample
from nodes.series import Curve, Span, curves_read, span_make

FIGURES = ("util_pct", "used_mib", "temp_max_c", "temp_c", "power_w")
#: Points of all cards together that are read for one answer; more cards get longer steps.
POINTS_MOST = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCurves:
    """``curve`` has ``util_pct`` (mean of the cards), ``util_least_pct``, ``util_most_pct``, ``used_mib`` and ``power_w`` (sums),
    ``temp_most_c``, and of its own processes ``own_mib`` (sum) and ``own_util_pct`` (mean of the cards), if ``has_own`` and
    ``has_own_use``; else nobody told them.

    ``is_shared``: parts of cards were held, so that figures of whole cards may be others' too.
    """

    curve: Curve
    span: Span
    cards: int
    granted_mib: int
    is_shared: bool
    has_own: bool
    has_own_use: bool
    began: int  # the first moment of the span at which it held a card


def job_curves(job: Job, *, span: Span, now: int) -> JobCurves | None:
    """None if it held no card within the span. At most 14 queries, whatever the number of cards."""
    # 1. When it held what.
    held = [
        (gpu, int(begin.timestamp()), int(end.timestamp()) if end else now, mib, exclusive, key)
        for gpu, begin, end, mib, exclusive, key in Slice.objects.filter(rank__attempt__job=job)
        .order_by("pk")
        .values_list("gpu_id", "held_at", "released_at", "mib", "is_exclusive", "rank__key")
    ]
    held = [row for row in held if row[1] < span.until and row[2] > span.since]
    if not held:
        return None
    since, until = max(span.since, min(row[1] for row in held)), min(span.until, max(row[2] for row in held) + 1)
    cards = {row[0] for row in held}
    step = None if until - since < span.step_s * 20 else span.step_s
    own = span_make(since=since, until=until, step_s=step, now=now)
    while own.steps * len(cards) > POINTS_MOST:
        own = span_make(since=since, until=until, step_s=own.step_s * 2, now=now)
    # 2. Each card within the times that it was held. A step belongs to the job if it held the card at some time in it.
    where = Q()
    for gpu, begin, end, *_rest in held:
        where |= Q(gpu_id=gpu, at__gte=begin - own.step_s + 1, at__lte=end)
    by_card = curves_read(GpuSample.objects.filter(where), span=own, figures=FIGURES, by=("gpu_id",))
    keys = Rank.objects.filter(attempt__job=job).values_list("key", flat=True)
    own_memory = curves_read(
        RankSample.objects.filter(rank__in=list(keys), gpu_id__in=cards), span=own, figures=("used_mib", "util_pct"), by=("gpu_id",)
    )
    # 3. Together.
    holding = [(begin - own.step_s, end) for _gpu, begin, end, *_rest in held]
    at = sorted({when for curve in (*by_card.values(), *own_memory.values()) for when in curve.at})
    curve = Curve(at=at)
    for name, figure, of in (
        ("util_pct", "util_pct", _mean),
        ("util_least_pct", "util_pct", min),
        ("util_most_pct", "util_pct", max),
        ("used_mib", "used_mib", sum),
        ("temp_most_c", "temp_c", max),
        ("power_w", "power_w", sum),
    ):
        curve.figures[name] = _together(by_card.values(), figure, at, of, holding=holding)
    curve.figures["own_mib"] = _together(own_memory.values(), "used_mib", at, sum, holding=holding)
    curve.figures["own_util_pct"] = _together(own_memory.values(), "util_pct", at, _mean, holding=holding)
    return JobCurves(
        curve=curve,
        span=replace(own, until=until),
        cards=len(cards),
        granted_mib=_granted_most(held),
        is_shared=not all(row[4] for row in held),
        has_own=any(value is not None for value in curve.figures["own_mib"]),
        has_own_use=any(value is not None for value in curve.figures["own_util_pct"]),
        began=since,
    )


def _mean(values: list[int]) -> int:
    return round(sum(values) / len(values))


def _together(
    curves: Iterable[Curve], figure: str, at: list[int], of: Callable[[list[int]], int], *, holding: list[tuple[int, int]]
) -> list[int | None]:
    """Of the cards that told the figure at each time; None where none did, and for a sum where one of those held did not: it
    would look like a dip."""
    told: dict[int, list[int]] = {}
    for curve in curves:
        for when, value in zip(curve.at, curve.figures[figure], strict=True):
            if value is not None:
                told.setdefault(when, []).append(value)
    if of is sum:
        return [sum(told[t]) if t in told and len(told[t]) >= sum(begin < t <= end for begin, end in holding) else None for t in at]
    return [of(told[when]) if when in told else None for when in at]


def _granted_most(held: list[tuple[Any, ...]]) -> int:
    """The most memory that it held at once: of one attempt, as attempts of a job do not overlap."""
    by_attempt: dict[str, int] = {}
    for row in held:
        attempt = row[5].rpartition(".")[0]
        by_attempt[attempt] = by_attempt.get(attempt, 0) + row[3]
    return max(by_attempt.values())
