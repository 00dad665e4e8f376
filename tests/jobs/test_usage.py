"""What a pass knows of the past: who used how much, how long such jobs run, what kinds come."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from pytest_django.fixtures import Settings

from jobs import history, snapshot
from jobs.history import Past, history_forget
from jobs.models import Job
from jobs.scheduler import Request
from jobs.services import job_cancel, job_hold, job_release, upkeep_run
from jobs.services.predict import predictions_refresh
from quotas.services import project_personal
from quotas.usage import usage_forget
from tests.jobs.lab import Lab, state

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> Lab:
    return Lab()


def run(lab: Lab, seconds: float, *, code: int = 0, **request: object) -> Job:
    """A job that starts at once, runs for so long and ends."""
    job = lab.submit(now=lab.now, **request)
    assert job.pk in lab.schedule(lab.now).started
    lab.report(job, "RUNNING")
    lab.later(seconds)
    lab.exit(job, code)
    return job


# --- usage ------------------------------------------------------------------------------------------------------------


def test_a_finished_job_and_its_card_hours_weigh(lab: Lab) -> None:
    lab.node("n1", 24564)
    anna = lab.user("anna")
    run(lab, 36_000, owner=anna, gpu_mem_mib=None)
    view = snapshot.build(lab.now)
    # 1 + 0.1 for the job + 0.02 × 10 hours, of which the first have faded by up to 4 %
    assert view.usage == {anna.pk: pytest.approx(1.296, abs=0.002)}
    assert view.project_usage == {project_personal(anna).pk: pytest.approx(view.usage[anna.pk])}
    lab.later(7 * 86_400)
    assert snapshot.build(lab.now).usage[anna.pk] == pytest.approx(1 + (view.usage[anna.pk] - 1) / 2)


def test_what_runs_weighs_before_it_is_charged(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit(gpu_mem_mib=None, now=lab.now)
    lab.schedule(lab.now)
    assert snapshot.build(lab.now).usage == {}
    lab.report(job, "RUNNING")
    lab.later(3600)
    before = snapshot.build(lab.now).usage[job.owner_id]
    assert before == pytest.approx(1.02, abs=0.001)
    lab.exit(job)
    assert snapshot.build(lab.now).usage[job.owner_id] == pytest.approx(before + 0.1), "charging changes nothing but the job's own tenth"


def test_a_slice_weighs_by_its_share(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = run(lab, 3600, gpu_mem_mib=6141)
    assert snapshot.build(lab.now).usage[job.owner_id] == pytest.approx(1 + 0.1 + 0.02 / 4, abs=0.0002)


def test_only_what_an_owner_ran_counts_as_finished(lab: Lab) -> None:
    lab.node("n1", 24564, 24564)
    lab.node("n2", 24564)
    anna, ben, chen, dora = (lab.user(name) for name in ("anna", "ben", "chen", "dora"))
    job_cancel(job=lab.submit(owner=anna), by=anna)  # never ran
    run(lab, 5, owner=ben, gpu_count=0)  # took no card from anybody
    run(lab, 5, owner=dora, code=1)  # ran, if not well
    spoilt = lab.submit(owner=chen, requeue=False, now=lab.now)
    lab.schedule(lab.now)
    lab.report(spoilt, "LAUNCH_FAILED", launch_error="io", released=True)  # the machine's fault
    assert state(spoilt) == "FAILED"
    usage = snapshot.build(lab.now).usage
    assert usage == {dora.pk: pytest.approx(1.1, abs=0.001)}


@pytest.mark.parametrize("half_life_s", [7 * 86_400.0, 0.0])
def test_a_process_that_begins_later_knows_the_same(lab: Lab, settings: Settings, half_life_s: float) -> None:
    settings.POLICY_HALF_LIFE_S = half_life_s
    lab.node("n1", 24564)
    rng = random.Random(5)
    for _ in range(12):
        run(lab, rng.random() * 50_000, owner=lab.user(rng.choice("abc")), gpu_mem_mib=rng.choice([None, 4096]))
        seen = snapshot.build(lab.now)
    lab.later(3600)
    seen = snapshot.build(lab.now)
    history_forget()
    usage_forget()
    anew = snapshot.build(lab.now)
    assert len(seen.usage) == 3
    for mine, theirs in ((seen.usage, anew.usage), (seen.project_usage, anew.project_usage)):
        assert {key: pytest.approx(value, rel=1e-6) for key, value in theirs.items()} == mine


def test_who_used_less_comes_first(lab: Lab) -> None:
    lab.node("n1", 24564)
    anna, ben = lab.user("anna"), lab.user("ben")
    run(lab, 20 * 3600, owner=anna, gpu_mem_mib=None)
    filler = lab.submit(owner=lab.user("chen"), gpu_mem_mib=None)
    lab.schedule()
    first, second = lab.submit(owner=anna, gpu_mem_mib=None, time_limit_s=600), lab.submit(owner=ben, gpu_mem_mib=None, time_limit_s=600)
    lab.exit(filler)
    assert lab.schedule().started == [second.pk]
    assert state(first) == "WAITING"


def test_first_come_first_served_is_a_setting(lab: Lab, settings: Settings) -> None:
    settings.POLICY_ORDER = "fifo"
    lab.node("n1", 24564)
    run(lab, 20 * 3600, owner=lab.user("anna"), gpu_mem_mib=None)
    filler = lab.submit(owner=lab.user("chen"), gpu_mem_mib=None)
    lab.schedule()
    first, _second = (lab.submit(owner=lab.user(name), gpu_mem_mib=None, time_limit_s=600) for name in ("anna", "ben"))
    lab.exit(filler)
    assert lab.schedule().started == [first.pk]


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_time_on_hold_is_no_waiting(lab: Lab) -> None:
    job = lab.submit(hold=True)
    Job.objects.filter(pk=job.pk).update(submitted_at=job.submitted_at - timedelta(hours=10))
    job.refresh_from_db()
    job_release(job=job, by=job.owner)
    (seen,) = snapshot.build(lab.now).jobs
    assert seen.submitted == pytest.approx(lab.now.timestamp(), abs=60)
    job_hold(job=job, by=job.owner)
    job.events.filter(code="submitted").update(by=None)
    job_release(job=job, by=job.owner)
    job.refresh_from_db()
    assert job.held_s == pytest.approx(36_000, abs=60), "the second hold was short, and the first counts once"


def test_a_job_that_is_being_started_has_used_nothing_of_its_limit(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit(time_limit_s=600, now=lab.now)
    lab.later(7200)
    lab.schedule(lab.now)
    assert state(job) == "STARTING"
    (running,) = snapshot.build(lab.now).running
    assert running.started == lab.now.timestamp()
    assert (running.project, running.queue, running.request) == (job.project_id, "", Request(gpu_count=1))


# --- runtimes ---------------------------------------------------------------------------------------------------------


def test_runtimes_are_learnt_from_jobs_that_ended_by_themselves(lab: Lab) -> None:
    lab.node("n1", 24564)
    for _ in range(10):
        run(lab, 100, name="train-7")
    stopped = lab.submit(name="train-8")
    lab.schedule()
    lab.report(stopped, "RUNNING")
    lab.later(90_000)
    job_cancel(job=stopped, by=None)
    lab.exit(stopped, 0, cause="stopped")
    assert state(stopped) == "CANCELLED"
    assert 100 < lab.submit(name="train-9").predicted_s < 300, "what was stopped by hand says nothing"
    assert lab.submit(name="other", owner=lab.user("ben"), time_limit_s=60).predicted_s <= 60


def test_what_was_submitted_in_one_go_learns_from_those_of_it_that_ran(lab: Lab) -> None:
    lab.node("n1", 24564)
    waiting = [lab.submit(name=f"sweep-{number}", gpu_mem_mib=None) for number in range(3)]
    running = lab.submit(name="long", gpu_mem_mib=None, priority=1)
    lab.schedule()
    for _ in range(3):
        lab.report(running, "RUNNING")
        lab.later(60)
        lab.exit(running)
        running = lab.submit(name="sweep-9", gpu_mem_mib=None, priority=1)
        lab.schedule()
    before = [job.predicted_s for job in waiting]
    assert predictions_refresh(now=lab.now) == 3
    assert predictions_refresh(now=lab.now) == 0, "nothing has ended since"
    for job, old in zip(waiting, before, strict=True):
        job.refresh_from_db()
        assert job.predicted_s < old / 2
    Job.objects.filter(pk=running.pk).update(predicted_s=1e6)
    predictions_refresh(now=lab.now)
    running.refresh_from_db()
    assert running.predicted_s == 1e6, "one that was started keeps what it was started by"


def test_upkeep_looks_again_when_jobs_have_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.services.predict._last", (float("-inf"), 0))
    lab.node("n1", 24564)
    job = lab.submit(gpu_mem_mib=None, name="a")
    lab.schedule()
    later = lab.submit(gpu_mem_mib=None, name="a")
    lab.report(job, "RUNNING")
    lab.later(1)
    lab.exit(job)
    snapshot.build(lab.now)
    upkeep_run(now=lab.now)
    old, _ = later.predicted_s, later.refresh_from_db()
    assert later.predicted_s < old


def test_what_is_known_does_not_depend_on_when_the_process_began(lab: Lab) -> None:
    lab.node("n1", 24564)
    rng = random.Random(2)
    for number in range(15):
        run(lab, 10 + rng.random() * 5000, name=f"{rng.choice('xyz')}-{number}", owner=lab.user(rng.choice("ab")))
        lab.later(rng.choice([1, 60]))
        predicted = lab.submit(name="x-99", owner=lab.user("a"), hold=True, now=lab.now).predicted_s
    anew = Past(0.0)
    anew.follow(lab.now)
    user, kind = lab.user("a"), Request(gpu_count=1)
    again = anew.history.predict(user=user.pk, project=project_personal(user).pk, name="x-99", request=kind)
    assert again == pytest.approx(predicted)


# --- what comes -------------------------------------------------------------------------------------------------------


def test_the_mix_is_what_came_in_the_last_30_days_and_is_told_anew_now_and_then(lab: Lab) -> None:
    for _ in range(3):
        lab.submit(gpu_mem_mib=4096, now=lab.now)
    lab.submit(gpu_count=2, now=lab.now - timedelta(days=10))
    lab.submit(gpu_count=8, now=lab.now - timedelta(days=31))
    kinds = ((Request(gpu_count=1, gpu_mem_mib=4096), 3.0), (Request(gpu_count=2), 1.0))
    assert snapshot.build(lab.now).mix == kinds
    lab.submit(gpu_count=2, now=lab.now)
    assert snapshot.build(lab.now).mix == kinds
    lab.later(history.MIX_S)
    assert snapshot.build(lab.now).mix[1] == (Request(gpu_count=2), 2.0)


def test_a_snapshot_costs_the_same_whatever_is_in_it(lab: Lab, django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    lab.node("n1", *[24564] * 4)
    snapshot.build(lab.now)
    counts = []
    for jobs in (30, 90):
        for number in range(jobs):
            lab.submit(owner=lab.user(f"user{number % 7}"), gpu_mem_mib=4096, now=lab.now)
        lab.schedule(lab.now)
        for job in Job.objects.filter(state="STARTING")[:2]:
            lab.report(job, "RUNNING")
            lab.exit(job)
        lab.later(1)
        with django_assert_num_queries(15, exact=False) as seen:
            snapshot.build(lab.now)
        counts.append(len(seen.captured_queries))
    assert counts[0] == counts[1]


def test_a_runtime_is_what_the_node_says_not_when_we_were_told(lab: Lab) -> None:
    lab.node("n1", 24564)
    for _ in range(10):
        job = lab.submit(name="train", now=lab.now)
        lab.schedule(lab.now)
        lab.report(job, "RUNNING")
        lab.later(50_000)  # the control plane was away
        lab.exit(job, ran_s=100.0)
    assert lab.submit(name="train", now=lab.now).predicted_s < 300
