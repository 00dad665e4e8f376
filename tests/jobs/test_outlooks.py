"""The forecast of the queue: made beside the passes, kept in Redis, told with its age; and what it says comes true."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from jobs import forecaster, outlooks, snapshot
from jobs.forecaster import Last, forecast_refresh, news
from jobs.lately import expecting, lately_forget
from jobs.models import Job
from jobs.outlooks import Told, outlooks_write, reason_dated, told_read
from jobs.scheduler.outlook import outlooks as outlooks_of
from jobs.services.schedule import pass_run
from jobs.waiting_page import start_range
from nodes import live, telemetry
from quotas.models import User
from tests.factories import attempt_make, gpu_make, job_make, node_make, user_make
from tests.rest import Api

pytestmark = pytest.mark.django_db


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example")


@pytest.fixture
def with_redis(redis_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LIVE_REDIS_URL = redis_url
    monkeypatch.setattr(telemetry, "_rest_until", 0.0)  # a test before this one may have found none


@pytest.fixture
def told_jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    topics: list[str] = []
    monkeypatch.setattr(live, "publish", lambda topic, payload: topics.append(topic) if "estimate" in payload else None)
    return topics


def busy_card(*, hours: float, mib: int = 24_564) -> None:
    """node01 with one card; what runs there ends in so many hours at the latest."""
    job = job_make(state="RUNNING", epoch=1, started_at=timezone.now(), time_limit_s=int(3600 * hours))
    attempt_make(job, gpus=(gpu_make(node_make("node01")),), mib=mib, exclusive=mib == 24_564)


def queue_of_two(lin: User) -> tuple[Job, Job]:
    """Two that want the whole card, an hour each; a pass has told them why they wait."""
    busy_card(hours=2)
    first, second = (job_make(lin, gpu_mem_mib=20_480, time_limit_s=3600, predicted_s=3600.0) for _ in range(2))
    pass_run()
    first.refresh_from_db()
    second.refresh_from_db()
    return first, second


@pytest.mark.redis
def test_a_forecast_is_made_once_and_then_confirmed(lin: User, with_redis: None, told_jobs: list[str]) -> None:
    first, second = queue_of_two(lin)
    last = Last()
    assert forecast_refresh(last)
    found = told_read([first.pk, second.pk, 999])
    now = timezone.now().timestamp()
    # The card is free in 2 h, and the first job runs for 1 h.
    assert found[first.pk].p50 == pytest.approx(now + 7200, abs=60)
    assert found[second.pk].p50 == pytest.approx(now + 10_800, abs=60)
    assert [found[job.pk].position for job in (first, second)] == [1, 2]
    assert found[first.pk].place == "node01 gpu0"
    assert set(found) == {first.pk, second.pk}
    assert told_jobs == [f"job.{first.pk}", f"job.{second.pk}"]
    # Nothing changes: the next one only says so.
    made = found[first.pk].at
    assert not forecast_refresh(last)
    assert told_read([first.pk])[first.pk].at > made
    # A job leaves: a new one is made, and who moved up hears of it.
    Job.objects.filter(pk=first.pk).update(state="CANCELLED")
    told_jobs.clear()
    assert forecast_refresh(last)
    assert told_read([second.pk])[second.pk].position == 1
    assert told_jobs == [f"job.{second.pk}"]
    # Nobody waits any more: nothing is left.
    Job.objects.filter(pk=second.pk).update(state="CANCELLED")
    assert not forecast_refresh(last)
    assert told_read([first.pk, second.pk]) == {}


@pytest.mark.redis
def test_the_api_tells_the_forecast_with_its_age(lin: User, with_redis: None, told_jobs: list[str]) -> None:
    first, _second = queue_of_two(lin)
    forecast_refresh(Last())
    why = Api(lin).call("GET", f"/jobs/{first.pk}/why", **{"Time-Zone": "+08:00"}).json()
    estimate = why["estimate"]
    assert (why["position"], why["ahead"], estimate["is_stale"]) == (1, 0, False)
    assert estimate["p50"] == why["params"]["until_at"]  # the card is free when what runs there has ended
    assert "until about" in why["text"]
    assert "UTC" not in why["text"]
    row = Api(lin).get("/jobs/", state="WAITING")[1]["results"][-1]
    assert (row["wait"]["estimate"]["p50"], row["wait"]["position"]) == (estimate["p50"], 1)
    # 20 s later nobody has made a new one.
    outlooks.outlooks_confirm(timezone.now().timestamp() - 20)
    assert Api(lin).get(f"/jobs/{first.pk}/why")[1]["estimate"]["is_stale"]


def test_without_redis_there_is_a_reason_and_a_place_but_no_estimate(lin: User, settings: Settings) -> None:
    settings.LIVE_REDIS_URL = "unix:///nonexistent/redis.sock"
    settings.POLICY_ORDER = "fifo"
    _first, second = queue_of_two(lin)
    assert forecast_refresh(Last())  # it does no harm
    why = Api(lin).get(f"/jobs/{second.pk}/why")[1]
    assert (why["estimate"], why["position"]) == (None, 2)


def test_while_nobody_waits_no_thread_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecaster, "_thread", None)
    monkeypatch.setattr(forecaster, "_waited", False)
    monkeypatch.setattr(forecaster, "outlooks_forget", lambda: pytest.fail("nothing is there"))
    forecaster.forecast_wanted(waiting=0)
    assert forecaster._thread is None


def test_two_snapshots_of_one_queue_have_one_digest(lin: User) -> None:
    queue_of_two(lin)
    policy = snapshot.policy_current()
    one, two = (snapshot.build(timezone.now()) for _ in range(2))
    assert forecaster._digest(one, policy) == forecaster._digest(two, policy)
    assert forecaster._digest(replace(one, jobs=one.jobs[:1]), policy) != forecaster._digest(one, policy)


def test_only_what_a_reader_would_see_is_news(lin: User) -> None:
    first, second = queue_of_two(lin)
    queue = outlooks_of(snapshot.build(timezone.now()), snapshot.policy_current())
    moved = queue.jobs[second.pk]
    by: dict[float, list[int]] = {0.0: [], 59.0: [], 61.0: [second.pk]}
    for seconds, expected in by.items():
        later = replace(moved, p50=(moved.p50 or 0) + seconds)
        assert news(queue, replace(queue, jobs={**queue.jobs, second.pk: later})) == expected
    assert news(None, queue) == [first.pk, second.pk]


@pytest.mark.redis
def test_what_another_version_wrote_is_left_alone(with_redis: None, lin: User) -> None:
    first, _second = queue_of_two(lin)
    queue = outlooks_of(snapshot.build(timezone.now()), snapshot.policy_current())
    outlooks_write(queue, {})
    telemetry.ask(lambda c: c.hset(outlooks.KEY, str(first.pk), "[1, 2]"), None)
    assert first.pk not in told_read([first.pk])


@pytest.mark.parametrize(
    ("told", "code", "params", "expected"),
    [
        ({"code": "gpu_memory", "until": 2_000.0}, "gpu_memory", {}, {"until_at": "1970-01-01T00:33:20Z"}),
        ({"code": "gpu_memory", "until": 900.0}, "gpu_memory", {}, {}),  # it is over
        ({"code": "gpu_memory", "until": 2_000.0}, "gpu_count", {}, {}),  # of another reason
        ({"code": "blocked_by", "until": 2_000.0, "behind": 7}, "blocked_by", {"job": 7}, {"job": 7, "starts_at": "1970-01-01T00:33:20Z"}),
        ({"code": "blocked_by", "until": 2_000.0, "behind": 8}, "blocked_by", {"job": 7}, {"job": 7}),
    ],
)
def test_a_time_goes_with_the_reason_that_it_was_found_for(
    told: dict[str, Any], code: str, params: dict[str, Any], expected: dict[str, Any]
) -> None:
    from datetime import UTC, datetime

    assert reason_dated(code, params, Told(at=990.0, **told), now=datetime.fromtimestamp(1_000.0, tz=UTC)) == expected


def test_the_lanes_show_the_wait_the_start_and_the_run(lin: User) -> None:
    now = timezone.now()
    at = now.timestamp()
    job = job_make(lin, predicted_s=3_600.0)
    shown = start_range(Told(at=at, p50=at + 3_600, p90=at + 5_400), job, now=now)
    assert shown is not None
    # 1 h of waiting, half an hour to the p90, 1 h of running after the p50: 2 h in all.
    assert (shown.begin, shown.width, shown.run_width) == (50.0, 25.0, 50.0)
    assert start_range(Told(at=at, p50=None, after=at + 9), job, now=now) is None
    # The word "now" stands at the left of the axis: at no time of the hour does a tick get into it.
    for minutes in range(0, 60, 7):
        later = now + timedelta(minutes=minutes)
        shown = start_range(Told(at=at, p50=later.timestamp() + 3_600, p90=later.timestamp() + 5_400), job, now=later)
        assert shown is not None
        assert shown.ticks
        assert min(tick.x for tick in shown.ticks) >= 15


def test_what_came_lately_is_expected_to_come_once_a_day_of_it_is_known(lin: User) -> None:
    now = timezone.now()
    policy = snapshot.policy_current()
    ran = {"state": "SUCCEEDED", "epoch": 1, "end_reason": "completed", "exit_code": 0}
    job_make(lin, **ran, submitted_at=now - timedelta(hours=3), started_at=now - timedelta(hours=2), ended_at=now - timedelta(hours=1))
    job_make(lin, state="CANCELLED", end_reason="cancelled", submitted_at=now - timedelta(hours=3), ended_at=now)  # took no card
    assert expecting(snapshot.build(now), policy).recent == ()  # three hours say nothing of days
    lately_forget()
    job_make(lin, submitted_at=now - timedelta(hours=30), predicted_s=600.0)
    found = expecting(snapshot.build(now), policy)
    assert [came.seconds for came in found.recent] == [3600.0, 600.0]
    assert found.recent_s == pytest.approx(30 * 3600)
    assert expecting(snapshot.build(now), replace(policy, order="fifo")).recent == ()  # nobody passes there
    assert expecting(snapshot.build(now), policy).recent is found.recent  # kept for ten minutes


@pytest.mark.redis
def test_the_overview_s_queue_is_in_the_order_of_the_forecast(lin: User, with_redis: None, told_jobs: list[str]) -> None:
    first, second = queue_of_two(lin)
    held = job_make(lin, held=True, name="held")
    queue = outlooks_of(snapshot.build(timezone.now()), snapshot.policy_current())
    places = {first.pk: 2, second.pk: 1}
    turned = {pk: replace(one, position=places.get(pk)) for pk, one in queue.jobs.items()}
    outlooks_write(replace(queue, jobs=turned), {})
    late = job_make(lin, gpu_mem_mib=20_480)  # after the forecast: behind those that it knows
    client = Client()
    client.force_login(lin)
    page = client.get("/").content.decode()
    shown = page[page.index('id="queue"') : page.index('id="mine"')]
    assert re.findall(r'href="/jobs/(\d+)/"', shown) == [str(job.pk) for job in (second, first, late, held)]
    assert shown.count("<b>≈ ") == 2
    assert "in the order in which it is served" in shown
    outlooks.outlooks_forget()
    page = client.get("/").content.decode()
    assert "by time of submit" in page[page.index('id="queue"') :]
