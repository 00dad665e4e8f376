"""Jobs that hold cards and do nothing: told first, then stopped; never for a figure that is not told, nor before the full window."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks

from jobs.idle import Rule, Seen, is_idle, queues_read, window_of
from jobs.models import Attempt, Job, JobEvent
from jobs.services.idle import idle_look
from jobs.wording import end_reason_text, event_text
from nodes.models import GpuSample, Level, Node, NodeSample
from quotas.models import Notice
from quotas.notify import words
from tests.jobs.lab import Lab, state

STEP = 30
WINDOW = 1800
RULE = Rule(util_below=5, cores_below=0.5)
FULL = WINDOW // STEP
QUIET = Seen(samples=FULL, told=FULL, most=1.0)
REST = Seen(samples=FULL, told=FULL, most=0.2)


def idle(**more: Any) -> bool:
    return is_idle(**{"ran_s": WINDOW, "window_s": WINDOW, "step_s": STEP, "cards": [QUIET], "machines": [REST], "rule": RULE, **more})


def test_a_card_and_a_machine_at_rest_for_the_whole_window_are_idle() -> None:
    assert idle()
    assert idle(cards=[QUIET, QUIET], machines=[REST, REST])


@pytest.mark.parametrize(
    "why",
    [
        {"ran_s": 30},  # started 30 s ago
        {"ran_s": WINDOW - 1},
        {"cards": [QUIET, Seen(samples=FULL, told=FULL, most=5)]},
        {"cards": [Seen(samples=FULL, told=0, most=None)]},  # a driver that does not tell it
        {"cards": [Seen(samples=FULL, told=FULL - 1, most=0)]},  # once it was not told
        {"cards": [Seen(samples=FULL // 2, told=FULL // 2, most=0)]},  # a gap of samples
        {"cards": []},
        {"machines": [Seen(samples=FULL, told=FULL, most=0.5)]},  # the processor is busy: it prepares data
        {"machines": [Seen(samples=FULL, told=FULL, most=None)]},
        {"machines": []},
    ],
)
def test_anything_else_is_not(why: dict[str, Any]) -> None:
    assert not idle(**why)


def test_the_shortest_window_holds_whoever_set_it(settings: Any) -> None:
    settings.IDLE_AFTER_S, settings.IDLE_QUEUES = 0, ""
    assert window_of(queue="", job_s=None) is None  # off by default
    assert window_of(queue="", job_s=600) == 600
    settings.IDLE_QUEUES = '{"interactive": 1800}'
    assert [window_of(queue=queue, job_s=None) for queue in ("interactive", "batch")] == [1800, None]
    settings.IDLE_AFTER_S = 3600
    assert [window_of(queue=queue, job_s=None) for queue in ("interactive", "batch")] == [1800, 3600]
    assert window_of(queue="interactive", job_s=7200) == 1800  # nobody sets the rule aside for himself


@pytest.mark.parametrize("text", ["{", "[]", '{"x": 5}', '{"x": true}', '{"x": "1800"}', '{"x": 90000}'])
def test_queues_that_can_not_be_read_are_told_at_start(text: str, settings: Any) -> None:
    with pytest.raises(ValueError, match="NEBULA_IDLE_QUEUES"):
        queues_read(text)
    settings.IDLE_QUEUES = text
    assert "nebulagrid.E020" in {found.id for found in run_checks()}


# --- the look -----------------------------------------------------------------------------------------------------------

db = pytest.mark.django_db


def running(lab: Lab, settings: Any, **ask: Any) -> Job:
    settings.IDLE_AFTER_S, settings.IDLE_GRACE_S = ask.pop("after", WINDOW), 600
    lab.node("n1", 24_564, cpu_cores=8)
    job = lab.submit(now=lab.now, **ask)
    lab.schedule(lab.now)
    lab.report(job, "RUNNING")
    return job


def told(lab: Lab, job: Job, seconds: int, *, util: int | None = 0, cpu: int | None = 1) -> None:
    """Samples of the next ``seconds``, and the clock with them. CPU in % of the machine's 8 cores."""
    gpu, node = lab.slices(job)[0].gpu_id, Node.objects.get().pk
    for _ in range(seconds // STEP):
        at = int(lab.later(STEP).timestamp())
        GpuSample.objects.create(gpu_id=gpu, level=Level.RAW, at=at, util_pct=util, used_mib=9000)
        NodeSample.objects.create(node_id=node, level=Level.RAW, at=at, cpu_pct=cpu)


def codes(job: Job) -> list[str]:
    return [code for code in JobEvent.objects.filter(job=job).order_by("pk").values_list("code", flat=True) if code.startswith("idle")]


@db
def test_an_idle_job_is_told_of_and_stopped_when_its_grace_is_over(settings: Any) -> None:
    lab = Lab()
    job = running(lab, settings)
    told(lab, job, 1770)
    assert idle_look(now=lab.now) == []
    assert codes(job) == []  # the window is not full
    told(lab, job, 60)
    assert idle_look(now=lab.now) == []
    assert codes(job) == ["idle"]
    title, text, _kind = words(Notice.objects.get(user=job.owner))
    assert title == f"Job #{job.pk} test does nothing"
    assert "10\u00a0min" in text
    told(lab, job, 570)
    assert idle_look(now=lab.now) == []
    told(lab, job, 30)
    assert idle_look(now=lab.now) == [job.pk]
    assert (state(job), Attempt.objects.get(job=job).stop_reason) == ("STOPPING", "idle")
    assert idle_look(now=lab.now) == []
    lab.exit(job, 0, cause="stopped")
    assert (state(job), job.end_reason) == ("FAILED", "idle")
    assert "30 min" in end_reason_text("idle", job.end_params)
    lab.check()


@db
def test_one_that_works_again_in_time_is_let_alone_and_told_anew_the_next_time(settings: Any) -> None:
    lab = Lab()
    job = running(lab, settings)
    told(lab, job, WINDOW)
    idle_look(now=lab.now)
    told(lab, job, 30, util=80)
    told(lab, job, 900)
    assert idle_look(now=lab.now) == []
    assert codes(job) == ["idle", "idle_over"]
    told(lab, job, WINDOW)
    assert idle_look(now=lab.now) == []
    assert codes(job) == ["idle", "idle_over", "idle"]
    assert state(job) == "RUNNING"
    event = JobEvent.objects.filter(job=job, code="idle").first()
    assert event is not None
    assert "30 min" in event_text(event)


@db
@pytest.mark.parametrize("figures", [{"util": None}, {"cpu": None}, {"util": 60}, {"cpu": 40}])
def test_what_is_not_told_and_a_busy_processor_keep_a_job(settings: Any, figures: dict[str, Any]) -> None:
    lab = Lab()
    job = running(lab, settings)
    told(lab, job, 3 * WINDOW, **figures)
    assert idle_look(now=lab.now) == []
    assert codes(job) == []


@db
def test_a_jobs_own_window_holds_where_nobody_else_set_one(settings: Any) -> None:
    lab = Lab()
    job = running(lab, settings, after=0, idle_after_s=600)
    told(lab, job, 600)
    idle_look(now=lab.now)
    assert codes(job) == ["idle"]


@db
def test_nobody_is_watched_by_default(settings: Any, django_assert_num_queries: Any) -> None:
    lab = Lab()
    job = running(lab, settings, after=0)
    told(lab, job, WINDOW)
    with django_assert_num_queries(1):
        assert idle_look(now=lab.now) == []
    assert codes(job) == []


@db
def test_a_second_lap_begins_its_window_anew(settings: Any) -> None:
    lab = Lab()
    job = running(lab, settings)
    told(lab, job, WINDOW)
    idle_look(now=lab.now)
    lab.exit(job, None, cause="node_rebooted")
    lab.schedule(lab.now)
    lab.report(job, "RUNNING")
    told(lab, job, 900)
    assert idle_look(now=lab.now + timedelta(seconds=1)) == []
    assert state(job) == "RUNNING"
