"""What is admitted and what is charged: limits under many at once, and charges against an integral made by the test itself."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from jobs import snapshot, tasks
from jobs.errors import QuotaExceeded
from jobs.ledger_replay import replay
from jobs.live_use import live_use_refresh
from jobs.models import Job, JobEvent, Slice
from jobs.requests import JobRequest
from jobs.services import job_submit
from jobs.services.schedule import pass_run
from quotas.models import LedgerEntry, Quota, QuotaRequest, User
from quotas.requests import request_approve, request_make
from quotas.selectors import quota_view
from quotas.services import project_personal, quota_for
from quotas.statements import statement
from tests.jobs.lab import Lab, state
from tests.threads import in_threads

pytestmark = pytest.mark.django_db


def submit(owner: User, **more: Any) -> Job:
    wanted = JobRequest(**{"name": "x", "argv": ("true",), "project": project_personal(owner), "gpu_mem_mib": 4096, **more})
    return job_submit(owner=owner, request=wanted)[0]


# --- admission ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("limit", "threads", "each"), [(10, 10, 10), (1, 20, 1)])
def test_of_many_submits_at_once_exactly_the_limit_is_admitted(limit: int, threads: int, each: int) -> None:
    lab = Lab()
    lab.node("n1", 24564)
    owner = lab.user()
    project_personal(owner)
    Quota.objects.filter(user=owner).update(max_active_jobs=limit)

    refused: list[str] = []

    def some(_number: int) -> int:
        admitted = 0
        for _ in range(each):
            try:
                submit(owner)
                admitted += 1
            except QuotaExceeded as error:
                refused.append(error.params["what"])
        return admitted

    answers = in_threads(threads, some)
    assert [answer for answer in answers if not isinstance(answer, int)] == []
    assert refused == ["active_jobs"] * (threads * each - limit)
    assert sum(answers) == limit == Job.objects.count() == Quota.objects.get(user=owner).active_jobs
    lab.check()


@pytest.mark.django_db(transaction=True)
def test_cards_held_never_pass_the_limit_in_the_log_of_events_also_over_the_months_end(settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    lab = Lab(now=datetime(2026, 3, 31, 15, 40, tzinfo=UTC))  # 23:40 in Shanghai
    for number in range(4):
        lab.node(f"n{number}", *[24564] * 5)
    owner = lab.user()
    Quota.objects.filter(user=owner).update(max_cards=10, period_start=date(2026, 3, 1))
    rng = random.Random(11)
    waiting = [lab.submit(owner=owner, gpu_count=rng.choice((1, 1, 2, 3)), now=lab.now) for _ in range(45)]
    running: list[Job] = []
    for _turn in range(40):  # two minutes each: over midnight and 40 minutes into April
        in_threads(2, lambda _: pass_run(lab.now))
        lab.later(rng.uniform(60, 180))
        running += [job for job in waiting if state(job) == "STARTING"]
        waiting = [job for job in waiting if job.state == "WAITING"]
        for job in running:
            if job.state == "STARTING":
                lab.report(job, "RUNNING")
                job.state = "RUNNING"
        for job in [job for job in running if rng.random() < 0.3]:
            lab.exit(job)
            running.remove(job)
    assert Quota.objects.get(user=owner).period_start == date(2026, 4, 1)
    assert _most_cards_held(owner) == 10  # the limit was reached, and never passed
    lab.check()


def _most_cards_held(owner: User) -> int:
    """By the log alone: a job holds its cards from its ``placed`` to its next move out of a live state."""
    held, most = 0, 0
    cards = dict(Job.objects.filter(owner=owner).values_list("pk", "gpu_count"))
    live = {"STARTING", "RUNNING", "STOPPING"}
    for job, before, after in (
        JobEvent.objects.filter(job__owner=owner).order_by("at", "pk").values_list("job_id", "from_state", "to_state")
    ):
        if after in live and before not in live:
            held += cards[job]
        elif before in live and after not in live:
            held -= cards[job]
        most = max(most, held)
    return most


# --- charges ------------------------------------------------------------------------------------------------------------


def test_a_job_that_dies_early_is_charged_what_it_ran_not_what_it_asked_for() -> None:
    lab = Lab()
    lab.node("n1", 24564)
    job = lab.submit(time_limit_s=4 * 3600, now=lab.now)
    lab.schedule(lab.now)
    lab.report(job, "RUNNING")
    lab.later(600)
    lab.exit(job, 1)
    assert LedgerEntry.objects.get().gpu_seconds == 600


@pytest.mark.usefixtures("mid_month")
def test_a_requeued_job_is_charged_for_both_laps_and_counts_as_one_finished_job() -> None:
    lab = Lab()
    node = lab.node("n1", 24564)
    owner = lab.user()
    job = lab.submit(owner=owner, now=lab.now)
    for lap in range(2):
        lab.schedule(lab.now)
        lab.report(job, "RUNNING")
        lab.later(3600)
        lab.sync(node)
        if lap == 0:
            lab.exit(job, None, cause="node_rebooted")
            assert state(job) == "WAITING"
        else:
            lab.exit(job)
    lab.sync(node)
    assert list(LedgerEntry.objects.values_list("gpu_seconds", flat=True)) == [3600, 3600]
    assert quota_for(owner, now=lab.now).used_gpu_s == 7200
    # 1 + 0.1 for one finished job + 0.02 × 2 card-hours, hardly faded
    assert snapshot.build(lab.now).usage[owner.pk] == pytest.approx(1.14, abs=0.001)
    assert replay(now=lab.now).differences == []


def test_cards_weigh_and_a_job_without_one_does_not() -> None:
    lab = Lab()
    lab.node("n1", *[24564] * 8)
    big, small = lab.user("big"), lab.user("small")
    jobs = [lab.submit(owner=big, gpu_count=8, now=lab.now), lab.submit(owner=small, gpu_count=0, gpu_mem_mib=None, now=lab.now)]
    lab.schedule(lab.now)
    for job in jobs:
        lab.report(job, "RUNNING")
    lab.later(10 * 3600)
    for job in jobs:
        lab.exit(job)
    usage = snapshot.build(lab.now).usage
    assert usage[big.pk] == pytest.approx(1 + 0.1 + 0.02 * 80, rel=0.03)  # the first hours have faded by up to 4 %
    assert usage.get(small.pk, 1.0) == 1.0


def test_a_job_from_2330_to_0030_over_the_months_end_is_split_by_local_month(settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    lab = Lab(now=datetime(2026, 3, 31, 15, 30, tzinfo=UTC))
    lab.node("n1", 24564)
    owner = lab.user()
    Quota.objects.filter(user=owner).update(period_start=date(2026, 3, 1))
    job = lab.submit(owner=owner, now=lab.now)
    lab.schedule(lab.now)
    lab.report(job, "RUNNING")
    lab.later(3600)
    lab.exit(job)
    assert [float(statement(month).used.gpu_s) for month in (date(2026, 3, 1), date(2026, 4, 1))] == [1800, 1800]
    view = quota_view(owner, now=lab.now)
    assert (view.used_gpu_hours, view.resets_at.isoformat(), view.zone) == (0.5, "2026-05-01T00:00:00+08:00", "Asia/Shanghai")


def test_what_runs_counts_before_it_is_charged_and_once(settings: Any) -> None:
    lab = Lab(now=datetime(2026, 3, 15, tzinfo=UTC))
    node = lab.node("n1", 24564, 24564)
    owner = lab.user()
    Quota.objects.filter(user=owner).update(gpu_hours=2, period_start=date(2026, 3, 1))
    job = lab.submit(owner=owner, now=lab.now)
    lab.schedule(lab.now)
    lab.report(job, "RUNNING")
    lab.later(3600 * 1.5)
    lab.hear(node)
    assert live_use_refresh(now=lab.now) == 1
    assert quota_view(owner, now=lab.now).used_gpu_hours == 1.5
    second = lab.submit(owner=owner, now=lab.now)
    lab.later(1800)
    lab.hear(node)
    live_use_refresh(now=lab.now)
    with pytest.raises(QuotaExceeded):  # 2 of 2, though nothing is charged yet
        lab.submit(owner=owner, now=lab.now)
    assert second.pk not in pass_run(lab.now).started
    assert (state(second), second.wait_code, second.wait_params["used"]) == ("WAITING", "quota_exceeded", 2.0)
    lab.exit(job)
    quota = Quota.objects.get(user=owner)
    assert (quota.used_gpu_s, quota.live_gpu_s) == (7200, 0)
    assert live_use_refresh(now=lab.now) == 0


def test_charges_equal_an_independent_integral_through_requeues_dead_agents_and_steps_of_the_clock(settings: Any) -> None:
    """The test keeps true time and its own books; the product sees a clock that is set forth and back, agents that fall silent
    and tell later, nodes that reboot, and gangs. Charges must be what truly ran, to the second, but that none ends later than now: where
    the clock was set back meanwhile that is less."""
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    lab = Lab(now=datetime(2026, 3, 31, 3, tzinfo=UTC))
    nodes = [lab.node(f"n{number}", *[24564] * 4) for number in range(3)]
    owners = [lab.user(name) for name in ("anna", "ben", "chen")]
    rng, true_s = random.Random(5), 0.0
    truth: dict[int, float] = defaultdict(float)  # owner → GPU-seconds
    waiting: list[Job] = []
    running: dict[Job, float] = {}  # since when, true time
    began: dict[int, datetime] = {}  # and by the product's clock

    def owed(job: Job, ran_s: float) -> float:
        return shares[job.pk] * min(ran_s, max(0.0, (lab.now - began[job.pk]).total_seconds() + 1))

    shares: dict[int, float] = {}
    requeued = 0
    for turn in range(70):
        if turn < 45:
            kind = rng.choice(({"gpu_mem_mib": 6141}, {"gpu_mem_mib": None}, {"gpu_count": 2}, {"gpu_mem_mib": 12282}))
            waiting.append(lab.submit(owner=rng.choice(owners), now=lab.now, **kind))
        pass_run(lab.now)
        step = rng.uniform(30, 900)
        true_s += step
        # The clock of the control plane: mostly right, now and then set by up to an hour.
        lab.later(step + (rng.choice((-3600, -1800, 1800, 3600)) if rng.random() < 0.2 else 0))
        for job in list(waiting):
            if state(job) == "STARTING":
                lab.report(job, "RUNNING")
                waiting.remove(job)
                running[job], began[job.pk] = true_s, lab.now
                shares[job.pk] = sum(Slice.objects.filter(rank__attempt__job=job, state="ACTIVE").values_list("share", flat=True))
        for job, since in list(running.items()):
            dice = rng.random()
            if dice < 0.25:
                # It ended a while ago; its agent was dead and tells only now.
                ran = max(0.0, (true_s - since) * rng.uniform(0.3, 1.0))
                lab.exit(job, rng.choice((0, 1)), ran_s=ran)
            elif dice < 0.33:
                ran = true_s - since
                lab.exit(job, None, cause="node_rebooted", ran_s=ran)
                requeued += 1
            else:
                continue
            truth[job.owner_id] += owed(job, ran)
            del running[job]
            if state(job) == "WAITING":
                waiting.append(job)
        for node in nodes:
            lab.sync(node)
    for job, since in list(running.items()):
        lab.exit(job, ran_s=true_s - since)
        truth[job.owner_id] += owed(job, true_s - since)
    assert requeued >= 5
    charged: dict[int, float] = defaultdict(float)
    for user, gpu_s in LedgerEntry.objects.values_list("user_id", "gpu_seconds"):
        charged[user] += gpu_s
    assert dict(charged) == {user: pytest.approx(gpu_s, abs=1.0) for user, gpu_s in truth.items()}
    assert replay(now=lab.now).differences == []
    lab.check()


def test_a_replay_finds_a_charge_that_is_wrong_missing_or_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    lab = Lab()
    lab.node("n1", 24564, 24564)
    jobs = [lab.submit(now=lab.now) for _ in range(2)]
    lab.schedule(lab.now)
    for job in jobs:
        lab.report(job, "RUNNING")
    lab.later(100)
    for job in jobs:
        lab.exit(job)
    call_command("ledger_replay")
    assert "2 slices: 0.056 GPU-hours owed, 0.056 charged." in capsys.readouterr().out
    first, second = Slice.objects.order_by("pk")
    Slice.objects.filter(pk=first.pk).update(releasing_at=first.releasing_at - timedelta(seconds=40))  # type: ignore[operator]
    Slice.objects.filter(pk=second.pk).update(active_at=None)
    found = replay(now=lab.now)
    assert f"slice {first.pk} of job {jobs[0].pk}: owes 60.000 GPU-s, the ledger has 100.000" in found.differences
    assert f"slice {second.pk}: in the ledger, but no slice was in use" in found.differences
    with pytest.raises(CommandError):
        call_command("ledger_replay", "--json")


def test_the_month_that_turns_releases_what_was_held(settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    lab = Lab(now=datetime(2026, 3, 31, 15, 59, tzinfo=UTC))  # 23:59 in Shanghai
    lab.node("n1", 24564)
    owner = lab.user()
    job = lab.submit(owner=owner, now=lab.now)
    Quota.objects.filter(user=owner).update(gpu_hours=5, used_gpu_s=5 * 3600, period_start=date(2026, 3, 1))
    assert pass_run(lab.now).started == []
    assert (state(job), job.wait_code) == ("WAITING", "quota_exceeded")
    assert pass_run(lab.later(61)).started == [job.pk]


def test_the_sweep_alone_takes_back_a_grant_that_is_over() -> None:
    lab = Lab()
    owner, admin = lab.user(), lab.user("admin", is_staff=True)
    Quota.objects.filter(user=owner).update(max_cards=1)
    asked = request_make(by=owner, what="cards", amount=2, why="A test of three cards at once.", now=lab.now)
    request_approve(request=asked, by=admin, now=lab.now)
    assert quota_for(owner, now=lab.now).cards_limit == 3
    Quota.objects.filter(user=owner).update(extras_until=lab.now - timedelta(seconds=1))
    QuotaRequest.objects.update(granted_until=lab.now - timedelta(seconds=1))
    tasks.schedule_sweep()
    assert (Quota.objects.get(user=owner).cards_limit, QuotaRequest.objects.get().state) == (1, "ended")


def test_who_runs_over_the_months_end_begins_the_new_month_with_what_ran_in_it(settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    lab = Lab(now=datetime(2026, 3, 31, 15, 30, tzinfo=UTC))  # 23:30 in Shanghai
    node = lab.node("n1", 24564)
    owner = lab.user()
    Quota.objects.filter(user=owner).update(period_start=date(2026, 3, 1), used_gpu_s=100)
    job = lab.submit(owner=owner, now=lab.now)
    lab.schedule(lab.now)
    lab.report(job, "RUNNING")
    lab.later(1200)
    lab.hear(node)
    live_use_refresh(now=lab.now)
    assert (Quota.objects.get(user=owner).used_gpu_s, Quota.objects.get(user=owner).live_gpu_s) == (100, 1200)
    lab.later(1200)
    lab.hear(node)
    live_use_refresh(now=lab.now)
    quota = Quota.objects.get(user=owner)
    assert (quota.period_start, quota.used_gpu_s, quota.live_gpu_s) == (date(2026, 4, 1), 0, 600)


def test_a_place_is_kept_from_pass_to_pass_until_its_job_starts() -> None:
    lab = Lab()
    lab.node("n1", 24564, 24564)
    first, others = lab.user("first"), lab.user("others")
    short = lab.submit(owner=first, time_limit_s=600, now=lab.now)
    lab.schedule(lab.now)
    lab.report(short, "RUNNING")
    big = lab.submit(owner=others, gpu_count=2, now=lab.now)
    lab.schedule(lab.later(1))
    big.refresh_from_db()
    assert big.place is not None
    assert (len(big.place["gpus"]), big.place["users"], big.place["since"]) == (2, [first.pk], None)
    view = snapshot.build(lab.now)
    assert view.places[big.pk].users == (first.pk,)
    lab.later(60)
    lab.exit(short)
    lab.schedule(lab.now)
    assert state(big) == "STARTING"
    assert big.place is None


def test_a_job_whose_planned_start_was_taken_back_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    lab.node("n1", 24564, 24564)
    first, others = lab.user("first"), lab.user("others")
    short = lab.submit(owner=first, time_limit_s=600, now=lab.now)
    lab.schedule(lab.now)
    lab.report(short, "RUNNING")
    big = lab.submit(owner=others, gpu_count=2, now=lab.now)
    lab.schedule(lab.later(1))
    big.refresh_from_db()
    place = big.place
    assert place is not None
    lab.later(60)
    with monkeypatch.context() as patch:
        # Its card is taken between the plan and its application.
        patch.setattr("jobs.apply._still_fits", lambda *args: False)
        lab.exit(short)
        lab.schedule(lab.now)
    assert state(big) == "WAITING"
    big.refresh_from_db()
    assert big.place == place
    lab.schedule(lab.now)
    assert state(big) == "STARTING"
    big.refresh_from_db()
    assert big.place is None
