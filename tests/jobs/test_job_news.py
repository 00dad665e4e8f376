"""Owners hear of starts, ends and failures as they chose, once, and of many at once in one message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from jobs.job_news import news_tick
from jobs.lifecycle import EndReason, JobState, RankState, SliceState
from jobs.models import Job
from jobs.services.upkeep import offers_expire
from quotas.models import Notice, NoticeChannel, NoticeDelivery, User
from quotas.notify import words
from quotas.sealing import seal
from tests.factories import attempt_make, job_make, node_make, user_make

pytestmark = [pytest.mark.django_db, pytest.mark.redis, pytest.mark.usefixtures("live_redis")]
NOW = datetime(2026, 7, 14, 12, tzinfo=UTC)


def hears(user: User, *events: str) -> NoticeChannel:
    return NoticeChannel.objects.create(user=user, kind="webhook", events=list(events), url_sealed=seal("https://hooks.example.org/"))


def ended(owner: User, state: str = JobState.FAILED, *, ago_s: int = 3, **fields: Any) -> Job:
    at = NOW - timedelta(seconds=ago_s)
    reason = {JobState.FAILED: EndReason.NONZERO_EXIT, JobState.SUCCEEDED: EndReason.COMPLETED}.get(state, EndReason.CANCELLED)
    fields = {"end_reason": reason, "exit_code": 3, "end_params": {"exit_code": 3}, "epoch": 1, **fields}
    return job_make(owner, state=state, ended_at=at, started_at=at - timedelta(minutes=2), name="train", **fields)


def tick(after_s: int = 0) -> int:
    return news_tick(now=NOW.timestamp() + after_s)


def test_a_failure_is_told_once_with_its_reason() -> None:
    ada = user_make()
    job = ended(ada)
    assert [tick(0), tick(1), tick(5), tick(10)] == [1, 0, 0, 0]
    notice = Notice.objects.get()
    assert words(notice)[:2] == (f"Failed: train (#{job.pk})", "The program ended with exit code 3. It ran for 2 min.")
    assert (notice.user, notice.path) == (ada, f"/jobs/{job.pk}/")
    with translation.override("zh-hans"):
        assert words(notice)[0] == f"失败：train (#{job.pk})"


def test_starts_and_ends_are_for_those_who_want_them() -> None:
    ada, bob = user_make(), user_make()
    hears(ada, "start", "end")
    for owner in (ada, bob):
        ended(owner, JobState.SUCCEEDED)
        job_make(owner, state=JobState.RUNNING, epoch=1, queued_at=NOW - timedelta(hours=1), started_at=NOW - timedelta(seconds=5))
    assert tick() == 2
    found = {notice.kind: words(notice)[1] for notice in Notice.objects.filter(user=ada)}
    assert found == {"job_start": "It waited for 59 min 55 s.", "job_end": "It ran for 2 min."}
    assert not Notice.objects.filter(user=bob).exists()
    assert NoticeDelivery.objects.count() == 2


def test_a_cancel_and_what_is_long_over_are_no_news() -> None:
    ada = user_make()
    hears(ada, "end", "fail")
    ended(ada, JobState.CANCELLED)
    ended(ada, ago_s=61)
    assert tick() == 0


def test_a_second_attempt_is_news_again() -> None:
    ada = user_make()
    hears(ada, "start")
    job = job_make(ada, state=JobState.RUNNING, epoch=1, started_at=NOW - timedelta(seconds=5))
    assert tick() == 1
    Job.objects.filter(pk=job.pk).update(epoch=2, started_at=NOW + timedelta(seconds=20))
    assert tick(25) == 1


def test_many_at_once_are_one_message() -> None:
    ada, bob = user_make(), user_make()
    jobs = [ended(ada) for _ in range(30)]
    ended(bob)
    assert tick() == 2
    notice = Notice.objects.get(user=ada)
    title, text, _kind = words(notice)
    assert title == "30 jobs failed"
    assert text.startswith(f"#{jobs[0].pk}, #{jobs[1].pk}, ")
    assert text.endswith(" …")
    assert tick(5) == 0


def test_with_an_emptied_redis_no_single_job_is_told_twice(live_redis: redis.Redis) -> None:
    ended(user_make())
    assert tick() == 1
    live_redis.flushdb()
    assert tick(5) == 0


def test_with_redis_away_nothing_is_asked(settings: Any) -> None:
    ended(user_make())
    settings.LIVE_REDIS_URL = "unix:///nonexistent/redis.sock"
    with CaptureQueriesContext(connection) as queries:
        assert tick() == 0
    assert len(queries) == 0


def test_without_news_it_costs_two_queries() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert tick() == 0
    assert len(queries) == 2


def test_who_is_switched_off_hears_nothing() -> None:
    ada = user_make()
    ended(ada)
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert tick() == 0


def test_a_node_that_starts_nothing_is_told_to_staff_once_and_gets_no_new_work() -> None:
    """Known failure 25: a job that was given to a node and never picked up."""
    staff, node = user_make(is_staff=True), node_make("n1", cards=2)
    for gpu in node.gpus.all():
        job = job_make(state=JobState.STARTING, epoch=1)
        attempt_make(job, gpus=(gpu,), observed=RankState.NONE, slices=SliceState.HELD, at=NOW - timedelta(seconds=61))
    assert offers_expire(now=NOW) == 2
    node.refresh_from_db()
    assert node.cordoned
    notice = Notice.objects.get()
    assert (notice.user, notice.path, words(notice)[0]) == (staff, "/nodes/n1/", "n1 takes no new work")
