"""The lane of waits and attempts: to scale, readable, in the reader's zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.utils import timezone

from jobs.models import Job, JobEvent
from jobs.timeline import TEXT_PCT, Timeline, timeline

T0 = datetime(2026, 7, 14, 4, 30, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def line(*moves: tuple[float, str, str, int], now: float, **fields: object) -> Timeline:
    """``moves``: (minute, code, state, epoch)."""
    state = moves[-1][2]
    job = Job(pk=1, state=state, submitted_at=T0, queued_at=T0, **fields)
    events = [JobEvent(job=job, at=at(minute), code=code, to_state=to, epoch=epoch) for minute, code, to, epoch in moves]
    return timeline(job, events, now=at(now), places={1: "node04 gpu5", 2: "node03 gpu3"})


SUBMIT = (0, "submitted", "WAITING", 0)


def test_a_job_that_waits_is_one_wait_until_now() -> None:
    found = line(SUBMIT, now=10)
    assert [(bar.kind, bar.x) for bar in found.bars] == [("wait", 0.0)]
    assert "Waiting for 10\N{NO-BREAK SPACE}min" in found.bars[0].text
    assert found.now_x == found.bars[0].w


def test_waits_and_attempts_are_to_scale() -> None:
    moves = [
        SUBMIT,
        (10, "placed", "STARTING", 1),
        (10, "running", "RUNNING", 1),
        (50, "requeued", "WAITING", 1),
        (60, "placed", "STARTING", 2),
        (60, "running", "RUNNING", 2),
        (100, "succeeded", "SUCCEEDED", 2),
    ]
    found = line(*moves, now=500)
    # 10 + 40 + 10 + 40 of 100 minutes
    assert [(bar.kind, bar.x, bar.w) for bar in found.bars] == [("wait", 0, 10), ("run", 10, 40), ("wait", 50, 10), ("run", 60, 40)]
    assert found.bars[1].text.startswith("Attempt 1, node04 gpu5")
    assert [pin.icon for pin in found.pins] == ["rotate", "okc"]
    assert found.now_x is None


def test_a_stop_is_seen() -> None:
    found = line(SUBMIT, (1, "placed", "STARTING", 1), (1, "running", "RUNNING", 1), (9, "stopping", "STOPPING", 1), now=10)
    assert [bar.kind for bar in found.bars] == ["wait", "run", "stop"]


def test_a_far_limit_leaves_the_past_readable() -> None:
    fields = {"time_limit_s": 86_400, "started_at": at(1)}
    found = line(SUBMIT, (1, "placed", "STARTING", 1), (1, "running", "RUNNING", 1), now=11, **fields)
    past = sum(bar.w for bar in found.bars if bar.kind != "plan")
    plan = next(bar for bar in found.bars if bar.kind == "plan")
    assert past > 30
    assert round(past + plan.w) == 100


def test_a_narrow_bar_has_no_words_but_a_tooltip() -> None:
    found = line(SUBMIT, (1, "placed", "STARTING", 1), (1, "running", "RUNNING", 1), (200, "failed", "FAILED", 1), now=300)
    assert found.bars[0].w < TEXT_PCT
    assert found.bars[0].text == ""
    assert "Waited 1\N{NO-BREAK SPACE}min" in found.bars[0].title


def test_the_ticks_are_round_in_the_readers_zone() -> None:
    moves = [SUBMIT, (1, "placed", "STARTING", 1), (1, "running", "RUNNING", 1), (200, "succeeded", "SUCCEEDED", 1)]
    with timezone.override(ZoneInfo("Asia/Shanghai")):
        ticks = line(*moves, now=300).ticks
    assert [tick.text for tick in ticks] == ["13:00", "14:00", "15:00"]  # from 12:30 to 15:50 there
    assert all(0 <= tick.x <= 100 for tick in ticks)


def test_a_job_that_was_cancelled_at_once_has_a_line() -> None:
    found = line(SUBMIT, (0, "cancelled", "CANCELLED", 0), now=5)
    assert len(found.bars) == 1
    assert all(0 <= bar.x <= 100 for bar in found.bars)


def test_a_plan_that_the_axis_cuts_says_that_it_goes_on() -> None:
    moves = [SUBMIT, (1, "placed", "STARTING", 1), (1, "running", "RUNNING", 1)]
    cut = line(*moves, now=10, started_at=at(1), time_limit_s=86_400).bars[-1]
    assert (cut.kind, cut.x + cut.w) == ("plan", 100.0)
    assert "goes on beyond this axis" in cut.text
    whole = line(*moves, now=10, started_at=at(1), time_limit_s=12 * 60).bars[-1]
    assert whole.text.startswith("until its time limit")
    assert "beyond" not in whole.text


def test_an_attempt_is_as_long_in_its_bar_as_in_the_facts() -> None:
    moves = [SUBMIT, (0, "placed", "STARTING", 1), (0.01, "running", "RUNNING", 1), (0.05, "succeeded", "SUCCEEDED", 1)]
    job = Job(pk=1, state="SUCCEEDED", submitted_at=T0, queued_at=T0)
    events = [JobEvent(job=job, at=at(minute), code=code, to_state=to, epoch=epoch) for minute, code, to, epoch in moves]
    found = timeline(job, events, now=at(9), places={1: "node04 gpu5"}, ran={1: 2.4})
    assert [bar.title for bar in found.bars if bar.kind == "run"] == ["Attempt 1, node04 gpu5, 2\N{NO-BREAK SPACE}s"]
