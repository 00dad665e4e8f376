"""What alert rules see of jobs and passes: real waiting, memory past the request, launches, passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.protocol import GpuProcess
from jobs import alert_figures, counts
from jobs.lifecycle import EndReason, JobState
from jobs.models import Attempt, Job
from nodes import telemetry
from nodes.alert_metrics import METRICS, pool_read
from nodes.alert_words import alert_sentence
from nodes.alerts import alerts_tick
from nodes.models import Alert, AlertRule
from quotas.models import Notice
from tests.factories import alert_rules_ship, attempt_make, job_make, node_make, user_make

pytestmark = [pytest.mark.django_db, pytest.mark.redis, pytest.mark.usefixtures("live_redis")]
NOW = datetime(2026, 7, 14, 12, tzinfo=UTC)


def read(at: datetime = NOW) -> tuple[dict[str, dict[str, float | None]], dict[tuple[str, str], dict[str, Any]]]:
    return alert_figures.figures(pool_read(), at.timestamp())


def processes(node: Any, *listed: GpuProcess, at: datetime = NOW) -> None:
    telemetry.sync_store(node_id=node.pk, session="s", seq=1, at=at.timestamp(), statuses=[], processes=listed)


def test_the_longest_wait_of_each_person_and_no_hold_and_no_limit_counts() -> None:
    ada, bob = user_make("ada@lab.example"), user_make()
    job_make(ada, queued_at=NOW - timedelta(hours=2))
    job_make(ada, queued_at=NOW - timedelta(hours=1))
    job_make(ada, queued_at=NOW - timedelta(hours=9), held=True)
    job_make(ada, queued_at=NOW - timedelta(hours=9), wait_code="quota_exceeded")
    job_make(bob, queued_at=NOW - timedelta(hours=5), held_s=4.5 * 3600)
    job_make(bob, queued_at=NOW - timedelta(minutes=10))
    job_make(user_make(), state=JobState.RUNNING, epoch=1, queued_at=NOW - timedelta(hours=9))
    found, names = read()
    assert found["wait_s"] == {f"owner:{ada.pk}": 7200.0, f"owner:{bob.pk}": 1800.0}
    assert names["wait_s", f"owner:{ada.pk}"] == {"owner": "ada@lab.example", "jobs": 2}


def test_memory_past_the_request_is_of_the_worst_rank_and_unknown_stays_unknown() -> None:
    node = node_make("n1", cards=2)
    first, second = node.gpus.order_by("index")
    over = attempt_make(gpus=(first,), mib=4000)
    unknown = attempt_make(gpus=(first,), mib=4000)
    whole = attempt_make(gpus=(second,), exclusive=True)
    key = {attempt: attempt.ranks.get().key for attempt in (over, unknown, whole)}
    processes(
        node,
        GpuProcess(uuid=first.uuid, pid=1, used_mib=3000, rank=key[over]),
        GpuProcess(uuid=first.uuid, pid=2, used_mib=1400, rank=key[over]),
        GpuProcess(uuid=first.uuid, pid=3, used_mib=3000, rank=key[unknown]),
        GpuProcess(uuid=first.uuid, pid=4, used_mib=None, rank=key[unknown]),
        GpuProcess(uuid=first.uuid, pid=5, used_mib=9000),
        GpuProcess(uuid=second.uuid, pid=6, used_mib=24_000, rank=key[whole]),
    )
    found, names = read()
    assert found["over_request_pct"] == {f"job:{over.job_id}": 110.0, f"job:{unknown.job_id}": None}
    told = names["over_request_pct", f"job:{over.job_id}"]
    assert told == {"job": over.job_id, "place": "n1 gpu0", "node_id": node.pk, "gpu_id": first.pk, "asked_mib": 4000}
    assert alert_sentence("over_request_pct", 110.0, {**told, "limit": 100, "for_s": 60}) == (
        f"Job {over.job_id} uses 110% of the memory that it asked for on n1 gpu0 (limit 100%, for 1\u00a0min)."
    )


def test_an_old_list_of_processes_tells_nothing() -> None:
    node = node_make("n1", cards=1)
    attempt = attempt_make(gpus=(node.gpus.get(),), mib=4000)
    processes(node, at=NOW - timedelta(seconds=61))
    assert read()[0]["over_request_pct"] == {f"job:{attempt.job_id}": None}


def test_a_job_whose_programs_hold_nothing_is_well() -> None:
    node = node_make("n1", cards=1)
    attempt = attempt_make(gpus=(node.gpus.get(),), mib=4000)
    processes(node)
    assert read()[0]["over_request_pct"] == {f"job:{attempt.job_id}": 0.0}


@pytest.mark.parametrize(
    ("failed", "fine", "old", "wanted"), [(0, 0, 0, 0.0), (1, 1, 9, None), (0, 2, 0, 0.0), (1, 3, 0, 25.0), (4, 0, 0, 100.0)]
)
def test_launches_that_fail_are_told_where_there_were_enough(failed: int, fine: int, old: int, wanted: float | None) -> None:
    job = job_make(state=JobState.RUNNING, epoch=1)
    ends = [EndReason.LAUNCH_FAILED] * (failed + old) + [EndReason.COMPLETED] * fine
    for epoch, reason in enumerate(ends):
        age = timedelta(hours=1) if failed <= epoch < failed + old else timedelta(minutes=5)
        Attempt.objects.create(job=job, epoch=epoch + 1, ended_at=NOW - age, end_reason=reason)
    assert read()[0]["launch_failed_pct"] == {"pool": wanted}


def test_passes_that_end_well_are_waited_for() -> None:
    def late(after_s: int) -> float | None:
        return read(NOW + timedelta(seconds=after_s))[0]["pass_late_s"]["pool"]

    assert late(0) == 0.0
    counts.pass_failed()
    assert late(90) == 90.0
    counts.pass_counted(seconds=0.1, parts_ms={}, started=0)
    assert late(95) == 0.0
    assert late(100) == 5.0


def test_every_figure_of_this_room_has_its_words() -> None:
    assert set(read()[0]) <= set(METRICS)


def test_a_long_wait_tells_its_owner_and_staff_once() -> None:
    alert_rules_ship()
    AlertRule.objects.filter(code="nothing-scheduled").update(is_enabled=False)  # there is no pass in this test
    ada, staff = user_make(), user_make(is_staff=True)
    job = job_make(ada, queued_at=NOW - timedelta(minutes=59))
    for minute in range(10):
        alerts_tick(now=(NOW + timedelta(minutes=minute)).timestamp(), more=alert_figures.figures, owners=alert_figures.owners)
    [alert] = Alert.objects.all()
    assert (alert.rule.code, alert.subject) == ("long-wait", f"owner:{ada.pk}")
    assert sorted(Notice.objects.values_list("user", flat=True)) == sorted([ada.pk, staff.pk])
    Job.objects.filter(pk=job.pk).update(state=JobState.CANCELLED, ended_at=NOW)
    alerts_tick(now=(NOW + timedelta(minutes=11)).timestamp(), more=alert_figures.figures, owners=alert_figures.owners)
    alert.refresh_from_db()
    assert alert.resolved_why == "gone"


def test_who_has_to_do_with_it() -> None:
    node = node_make("n1", cards=1)
    gpu = node.gpus.get()
    attempt = attempt_make(gpus=(gpu,), mib=4000)
    owner = attempt.job.owner_id
    assert alert_figures.owners(f"gpu:{gpu.pk}") == [(owner, attempt.job_id)]
    assert alert_figures.owners(f"job:{attempt.job_id}") == [(owner, attempt.job_id)]
    assert alert_figures.owners(f"owner:{owner}") == [(owner, None)]
    assert alert_figures.owners(f"node:{node.pk}") == [(owner, attempt.job_id)]
    assert alert_figures.owners("pool") == alert_figures.owners(f"node:{node_make().pk}") == []
