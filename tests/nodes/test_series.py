"""Curves: the level that answers, no point twice, none lost at the edge between levels, and ranges that are refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nodes import samples
from nodes.models import GpuSample, Level
from nodes.series import POINTS_MOST, BadRange, Span, curves_read, level_for, span_make, span_parse
from tests.factories import gpu_make, node_make

NOON = 1_773_576_000
NOW = datetime.fromtimestamp(NOON, UTC)
DAY = 86_400


def read(gpu, *, since, until, step, now=None, figures=("util_pct",)):
    span = span_make(since=since, until=until, step_s=step, now=now or until)
    found = curves_read(GpuSample.objects.filter(gpu=gpu), span=span, figures=figures)
    return found[()] if found else None


# --- which level, which step ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span_s", "step"), [(3600, 30), (DAY, 60), (7 * DAY, 600), (30 * DAY, 1800), (365 * DAY, 21_600)], ids=lambda value: str(value)
)
def test_a_range_without_a_step_gets_a_fair_number_of_points(span_s, step):
    span = span_make(since=NOON - span_s, until=NOON, now=NOON)
    assert span.step_s == (3600 if span_s == 30 * DAY else step)  # minutes are kept for 8 days: the month is read from hours
    assert span.steps <= POINTS_MOST


def test_an_hour_has_120_points_of_30_s():
    assert span_make(since=NOON - 3600, until=NOON, now=NOON).steps == 120


def test_what_a_level_no_longer_keeps_the_next_one_answers():
    assert level_for(30, since=NOON - 3600, now=NOON) == Level.RAW
    assert level_for(30, since=NOON - 3 * DAY, now=NOON) == Level.MINUTE
    assert level_for(30, since=NOON - 30 * DAY, now=NOON) == Level.HOUR
    assert span_make(since=NOON - 3 * DAY, until=NOON - 3 * DAY + 3600, step_s=30, now=NOON).step_s == 60


def test_a_step_is_rounded_up_to_what_its_level_has():
    assert span_make(since=NOON - 3600, until=NOON, step_s=45, now=NOON).step_s == 60
    assert span_make(since=NOON - 3600, until=NOON, step_s=1, now=NOON).step_s == 30
    assert span_make(since=NOON - 3500, until=NOON, step_s=600, now=NOON).since % 600 == 0


@pytest.mark.parametrize(
    ("query", "field", "code"),
    [
        ({"from": "yesterday"}, "from", "time"),
        ({"to": "2026-13-40"}, "to", "time"),
        ({"to": "9" * 12}, "to", "time"),
        ({"to": "0001-01-01T00:30:00"}, "to", "time"),
        ({"to": "0001-01-01T00:00:00+14:00"}, "to", "time"),
        ({"to": "9999-12-31T23:59:59-14:00"}, "to", "time"),
        ({"from": "1969-12-31T23:59:59Z"}, "from", "time"),
        ({"from": "2026-03-15T12:00", "to": "2026-03-15T12:00"}, "from", "order"),
        ({"from": "0"}, "from", "long"),
        ({"step": "0"}, "step", "step"),
        ({"step": "fast"}, "step", "step"),
        ({"step": "99999"}, "step", "step"),
        ({"from": str(NOON - DAY // 2), "step": "1"}, None, None),
        ({"from": str(NOON - DAY + 60), "step": "30"}, "step", "many"),
    ],
)
def test_a_range_that_can_not_be_answered_is_refused(query, field, code):
    if code is None:
        assert span_parse(query, now=NOW).steps == 1440
        return
    with pytest.raises(BadRange) as refused:
        span_parse(query, now=NOW)
    assert (refused.value.field, refused.value.code) == (field, code)


def test_times_are_iso_or_unix():
    wanted = Span(since=NOON - 7200, until=NOON, step_s=30)
    for since in ("2026-03-15T10:00:00Z", "2026-03-15T10:00", "2026-03-15T18:00:00+08:00", "2026-03-15T18:00:00 08:00", str(NOON - 7200)):
        assert span_parse({"from": since, "to": "2026-03-15T12:00:00Z"}, now=NOW) == wanted


# --- points ---------------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.django_db


def test_a_gap_stays_a_gap_and_none_stays_none():
    gpu = gpu_make()
    for at, util in ((0, 5), (30, None), (120, 7)):
        GpuSample.objects.create(gpu=gpu, at=NOON + at, util_pct=util)
    curve = read(gpu, since=NOON, until=NOON + 180, step=30)
    assert curve.to_json() == {"at": [NOON, NOON + 30, NOON + 120], "util_pct": [5, None, 7]}


def test_no_samples_no_curve():
    assert read(gpu_make(), since=NOON, until=NOON + 180, step=30) is None


def test_the_newest_part_comes_from_finer_levels_and_nothing_counts_twice():
    gpu = gpu_make()
    for step in range(2 * 3600 // 30 + 3):  # two hours and a minute and a half
        GpuSample.objects.create(gpu=gpu, at=NOON + 30 * step, util_pct=50 if step < 240 else 80)
    now = NOON + 2 * 3600 + 90
    samples.samples_roll(now=now)
    whole = read(gpu, since=NOON, until=now, step=30)
    assert len(whole.at) == 243
    minutes = read(gpu, since=NOON, until=now, step=60)
    assert (len(minutes.at), minutes.figures["util_pct"][-2:]) == (122, [80, 80])  # 121 rolled up, one from what was taken
    hours = read(gpu, since=NOON, until=now, step=3600)
    assert hours.to_json() == {"at": [NOON, NOON + 3600, NOON + 7200], "util_pct": [50, 50, 80]}
    # 600 s: the last step is put together from minutes and from what was taken: 2 × 80 of the minute and 1 × 80.
    assert read(gpu, since=NOON, until=now, step=600).figures["util_pct"][-1] == 80


def test_the_parts_of_a_step_weigh_by_their_samples():
    gpu = gpu_make()
    for at, util in ((0, 0), (30, 0), (60, 90)):
        GpuSample.objects.create(gpu=gpu, at=NOON + at, util_pct=util)
    samples.samples_roll(now=NOON + 60)
    curve = read(gpu, since=NOON, until=NOON + 90, step=600, figures=("util_pct", "util_max_pct", "util_min_pct"))
    assert curve.figures == {"util_pct": [30], "util_max_pct": [90], "util_min_pct": [0]}  # (2 × 0 + 90) / 3


def test_many_cards_cost_as_many_queries_as_one(django_assert_max_num_queries):
    node = node_make(cards=4)
    for gpu in node.gpus.all():
        GpuSample.objects.create(gpu=gpu, at=NOON, util_pct=gpu.index)
    span = span_make(since=NOON, until=NOON + 7200, step_s=3600, now=NOON + 7200)
    with django_assert_max_num_queries(6):
        found = curves_read(GpuSample.objects.filter(gpu__node=node), span=span, figures=("util_pct",), by=("gpu__index",))
    assert {key: curve.figures["util_pct"] for key, curve in found.items()} == {(index,): [index] for index in range(4)}
