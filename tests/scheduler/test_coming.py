"""What forecasts expect to come: drawn from what came, at the hours at which it came, and no more than the cluster can do."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from jobs.scheduler import Came, Job, Policy, Request, Snapshot, estimate_start, forecast, plan
from jobs.scheduler.coming import LOAD_MOST, coming, offered_load
from jobs.scheduler.simulate import Arrival
from tests.scheduler.cases import Case
from tests.scheduler.days import DAY, cluster

HOUR = 3_600.0
NOW = 10 * DAY


def lately(*when: float, seconds: float = 60.0, cards: int = 1, days: float = 3) -> Snapshot:
    """Four idle cards, and jobs that came so many seconds ago."""
    jobs = [
        Job(id=n, request=Request(gpu_count=cards), submitted=NOW - ago, user=n % 3, predicted_s=seconds)
        for n, ago in enumerate(when, start=1)
    ]
    recent = tuple(Came(job=job, seconds=seconds) for job in jobs)
    return replace(cluster(4), now=NOW, recent=recent, recent_s=days * DAY)


def drawn(snapshot: Snapshot, seed: int = 1) -> list[Arrival]:
    return coming(snapshot, Policy(), runtime_s=lambda came: came.seconds, seed=seed)


def test_the_same_seed_expects_the_same() -> None:
    snapshot = lately(*[random.Random(n).uniform(1, 3 * DAY) for n in range(200)])
    first = drawn(snapshot)
    assert first == drawn(replace(snapshot, recent=tuple(reversed(snapshot.recent))))
    assert first != drawn(snapshot, seed=2)
    assert all(item.job.id < 0 and NOW <= item.job.submitted < NOW + 3 * DAY for item in first)
    assert len({item.job.id for item in first}) == len(first)
    assert len(first) == pytest.approx(200, abs=60)  # three days are to come, three were


def test_bursts_come_again_at_their_hour() -> None:
    """Each day at the hour that begins five hours from now (19 hours ago) a burst of ten, and nothing else."""
    snapshot = lately(*[day * DAY + 19 * HOUR - 60 * n for day in range(3) for n in range(10)])
    found = drawn(snapshot)
    assert len(found) == 30
    assert {int((item.job.submitted - NOW) % DAY // HOUR) for item in found} == {5}


def test_where_less_than_a_day_is_known_any_hour_may_come_again() -> None:
    found = drawn(lately(*[60.0 * n for n in range(1, 120)], days=2 / 24))
    assert len(found) == pytest.approx(72 * 60, rel=0.1)


def test_no_more_is_expected_than_the_cards_can_do() -> None:
    snapshot = lately(*[600.0 * n for n in range(1, 433)], seconds=4_800.0)
    assert offered_load(snapshot.recent, snapshot.recent_s, snapshot, Policy()) == pytest.approx(432 * 4_800 / (4 * 3 * DAY))  # 2.0
    assert len(drawn(snapshot)) == pytest.approx(432 * LOAD_MOST / 2.0, rel=0.15)


def test_nothing_is_expected_where_nothing_is_known() -> None:
    assert drawn(lately()) == []
    assert drawn(replace(lately(60.0), recent_s=0.0)) == []


def test_short_jobs_that_come_push_a_long_one_back() -> None:
    """All cards are taken for an hour. Every few minutes somebody came with a short job: those will pass the long one that wants all."""
    case = Case().node("a", cards=2).taken("a:0", limit_s=3_600 + 1_000).taken("a:1", limit_s=3_600 + 1_000)
    case.job(cards=2, user=1, time_limit_s=90_000, submitted=900.0)
    blind = case.snapshot()
    short = [Job(id=10 + n, request=Request(), submitted=-400.0 * n, user=2 + n % 5, predicted_s=700.0) for n in range(1, 400)]
    known = replace(blind, recent=tuple(Came(job=job, seconds=700.0) for job in short), recent_s=400 * 400.0)
    assert plan(known, case.policy) == plan(blind, case.policy)
    without, expected = (estimate_start(snapshot, 1, case.policy).p50 for snapshot in (blind, known))
    assert without == 4_600.0
    assert expected is not None
    assert expected > 4_600.0 + 600


def test_a_forecast_that_expects_more_ends_when_all_that_wait_have_started() -> None:
    """Held jobs and those that can never run are not waited for."""
    case = Case().node("a", cards=2).taken("a:0", limit_s=5_000).job(cards=2).job(mib=99_999).job(hold="held").job(cards=1)
    snapshot = case.snapshot()
    came = tuple(Came(job=Job(id=50 + n, request=Request(), submitted=-300.0 * n), seconds=60.0) for n in range(200))
    told = forecast(replace(snapshot, recent=came, recent_s=61_000.0), case.policy, most_passes=500)
    assert set(told) == {1, 2, 3, 4}
    assert [told[job].p50 is None for job in (1, 2, 3, 4)] == [False, True, True, False]
