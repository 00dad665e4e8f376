"""What the form says would happen now is what happens when the job is submitted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from jobs import snapshot
from jobs.forecast import Forecast, forecast
from jobs.models import Job, Rank, Slice
from jobs.outlooks import iso
from jobs.requests import JobRequest
from jobs.services import job_submit
from jobs.services.schedule import pass_run
from jobs.wording import about
from quotas.models import User
from quotas.services import project_personal
from tests.factories import attempt_make, gpu_make, job_make, node_make, user_make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_redis(settings: Settings) -> None:
    settings.LIVE_REDIS_URL = "unix:///nonexistent/redis.sock"


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example")


def wanted(owner: User, **fields: Any) -> JobRequest:
    return JobRequest(**{"name": "x", "argv": ("true",), "project": project_personal(owner), **fields})


def told(owner: User, **fields: Any) -> Forecast:
    return forecast(wanted(owner, **fields), owner=owner, now=timezone.now())


def test_it_starts_where_the_pass_puts_it(lin: User) -> None:
    gpu_make(node_make("node01"), mib=81_920)
    node_make("node02")
    found = told(lin, gpu_mem_mib=20_480, time_limit_s=7200)
    assert (found.kind, found.cards[0].takes_mib, found.cards[0].is_whole) == ("starts", 20_480, False)
    assert not Job.objects.exists()  # it only looked
    job, _ = job_submit(owner=lin, request=wanted(lin, gpu_mem_mib=20_480, time_limit_s=7200))
    pass_run()
    part = Slice.objects.get(rank__attempt__job=job)
    assert found.title == f"Starts at once on {part.rank.node.name} gpu{part.gpu.index}"
    assert part.mib == found.cards[0].takes_mib
    assert found.max_hours == pytest.approx(2 * part.share)  # 2 h of 20 GiB of 80


def test_the_card_is_drawn_with_all_that_is_on_it(lin: User) -> None:
    gpu = gpu_make(node_make("node01"), mib=24_576)
    attempt_make(job_make(lin, state="RUNNING", epoch=1), gpus=(gpu,), mib=6144)
    attempt_make(job_make(state="RUNNING", epoch=1), gpus=(gpu,), mib=4096)
    card = told(lin, gpu_mem_mib=8192).cards[0]
    # 6 mine + 4 of another + 8 new + 6 free = 24 GiB
    assert [(part.kind, part.mib) for part in card.parts] == [("mine", 6144), ("other", 4096), ("new", 8192), ("free", 6144)]
    assert sum(part.pct for part in card.parts) == pytest.approx(100, abs=0.1)


def test_what_waits_gets_the_reason_of_the_pass(lin: User) -> None:
    gpu = gpu_make(node_make("node03"))
    attempt_make(job_make(state="RUNNING", epoch=1), gpus=(gpu,), mib=12_000)
    job_make(gpu_mem_mib=16_384)  # before it
    found = told(lin, gpu_mem_mib=16_384)
    assert (found.kind, found.position) == ("waits", 2)
    job, _ = job_submit(owner=lin, request=wanted(lin, gpu_mem_mib=16_384))
    pass_run()
    job.refresh_from_db()
    assert found.code == job.wait_code
    assert "16 GiB" in found.text
    assert "node03" in found.text


def test_what_waits_says_until_when(lin: User) -> None:
    now = timezone.now()
    gpu = gpu_make(node_make("node03"))
    attempt_make(job_make(state="RUNNING", epoch=1, started_at=now, time_limit_s=7200), gpus=(gpu,), mib=12_000)
    found = told(lin, gpu_mem_mib=16_384)
    # The only job there ends in 2 h at the latest.
    assert found.params["until_at"] == iso((now + timedelta(hours=2)).timestamp())
    assert f"until about {about(now + timedelta(hours=2))}" in found.text


def test_what_never_fits_says_so_with_numbers_and_a_way_out(lin: User) -> None:
    for name in ("node01", "node02"):
        node = node_make(name)
        gpu_make(node, index=0)
    found = told(lin, gpu_count=2)
    assert (found.kind, found.code, found.fix) == ("never", "never_gpu_count", {"nodes": "2"})
    assert told(lin, gpu_count=2, nodes=2).kind == "starts"
    assert "96 GiB" in told(lin, gpu_mem_mib=96 * 1024).text


def test_a_quota_is_told_before_the_submit_refuses(lin: User) -> None:
    gpu_make(node_make())
    type(lin.quota).objects.filter(user=lin).update(max_active_jobs=1, active_jobs=1)
    assert (told(lin).kind, told(lin).code) == ("refused", "quota_exceeded")


def test_a_limit_of_cards_makes_it_wait(lin: User) -> None:
    gpu_make(node_make())
    type(lin.quota).objects.filter(user=lin).update(max_cards=1, held_cards=1)
    assert (told(lin).kind, told(lin).code) == ("waits", "cards_exceeded")


def test_a_held_job_and_a_job_without_cards(lin: User) -> None:
    node_make("node01", cpu_cores=8)
    assert told(lin, gpu_count=0, hold=True).kind == "held"
    assert told(lin, gpu_count=0).title == "Starts at once on node01"


def test_without_nodes_it_waits_for_one(lin: User) -> None:
    assert told(lin, gpu_mem_mib=4096).kind in ("waits", "never")


def test_a_forecast_changes_nothing(lin: User) -> None:
    gpu_make(node_make())
    before = snapshot.build(timezone.now())
    told(lin)
    after = snapshot.build(timezone.now())
    assert (before.nodes, before.slices, list(before.jobs)) == (after.nodes, after.slices, list(after.jobs))
    assert not Rank.objects.exists()
