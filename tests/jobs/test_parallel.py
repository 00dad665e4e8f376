"""Several schedulers at once: nothing is oversold, no job starts twice, whoever wins. On SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import random

import pytest
from django.db import close_old_connections

from agent.protocol import ExitInfo, Observed
from jobs.errors import InvalidState
from jobs.lifecycle import JobState
from jobs.models import Attempt, Job, Rank
from jobs.services import job_cancel, schedule, schedule_pass
from jobs.services.observe import observed_apply
from jobs.services.schedule import pass_run
from nodes.models import Node
from quotas.models import Quota
from quotas.services import project_personal
from tests.jobs.lab import Lab
from tests.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)


def pool(lab: Lab, *, jobs: int) -> None:
    for number in range(5):
        lab.node(f"n{number}", *[24564] * 4)
    rng = random.Random(7)
    for _ in range(jobs):
        count = rng.choice([1, 1, 1, 2])
        lab.submit(gpu_count=count, gpu_mem_mib=rng.choice([4096, 8192, 12288, 20480]), nodes=1)


def test_twenty_passes_at_once_never_oversell() -> None:
    lab = Lab()
    pool(lab, jobs=500)
    answers = in_threads(20, lambda _: pass_run())
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    started = [pk for answer in answers for pk in answer.started]  # type: ignore[attr-defined]
    assert started
    assert len(started) == len(set(started)), "a job was started twice"
    assert Attempt.objects.count() == len(started)
    lab.check()


def test_passes_at_once_take_no_more_cards_than_the_owner_and_the_project_may_hold() -> None:
    lab = Lab()
    pool(lab, jobs=0)
    one, two = lab.user("one"), lab.user("two")
    Quota.objects.filter(user=one).update(max_cards=3)
    project = project_personal(two)
    Quota.objects.create(project=project, max_cards=2)
    for _ in range(6):
        lab.submit(owner=one)
        lab.submit(owner=two, project=project)
    in_threads(8, lambda _: pass_run())
    assert dict(Quota.objects.filter(held_cards__gt=0).values_list("user__email", "held_cards")) == {
        "one@lab.example": 3,
        "two@lab.example": 2,
        None: 2,
    }
    assert Attempt.objects.count() == 5
    lab.check()


def test_passes_reports_and_cancels_at_once_keep_every_invariant() -> None:
    lab = Lab()
    pool(lab, jobs=80)
    schedule_pass()

    def turn(number: int) -> object:
        rng = random.Random(number)
        for _ in range(3):
            if number % 3 == 0:
                pass_run()
            elif number % 3 == 1:
                job = rng.choice(list(Job.objects.exclude(state__in=("SUCCEEDED", "FAILED"))))
                with contextlib.suppress(InvalidState):  # it may have ended since it was chosen
                    job_cancel(job=job, by=None)
            else:
                _agent_turn(lab, Node.objects.order_by("pk")[number % 5], rng)
        close_old_connections()
        return None

    answers = in_threads(9, turn)
    assert not [answer for answer in answers if isinstance(answer, BaseException)], answers
    pass_run()
    lab.check()


def _agent_turn(lab: Lab, node: Node, rng: random.Random) -> None:
    """An honest agent's sync: what it was told to start runs or has ended; what it was told to stop has stopped."""
    seen = []
    for rank in Rank.objects.filter(node=node, is_forgotten=False).select_related("attempt").exclude(desired="FORGET"):
        if rank.observed in ("EXITED", "LAUNCH_FAILED"):
            continue
        if rank.desired == "STOP" or rng.random() < 0.5:
            cause = "stopped" if rank.desired == "STOP" else "exited"
            exit_info = ExitInfo(cause=cause, code=0)  # type: ignore[arg-type]
            seen.append(
                Observed(rank=rank.key, epoch=rank.attempt.epoch, state="EXITED", exit=exit_info, released=True, final_log_offset=0)
            )
        else:
            seen.append(Observed(rank=rank.key, epoch=rank.attempt.epoch, state="RUNNING"))
    observed_apply(node=node, observed=seen, now=lab.now, boot_changed=False)


def test_of_two_schedulers_one_waits_for_the_other() -> None:
    lab = Lab()
    lab.node("n1", 24564)
    job = lab.submit()
    answers = in_threads(2, lambda _: schedule_pass())
    started = [pk for answer in answers if answer for pk in answer.started]  # type: ignore[attr-defined]
    assert started == [job.pk]
    assert Job.objects.get(pk=job.pk).state == JobState.STARTING
    lab.check()


def test_a_pass_that_follows_at_once_waits_a_little_and_longer_once_many_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_following", 0)
    assert schedule._gather_s(3.0) == 0  # the first after a rest goes at once
    waits = [schedule._gather_s(0.001) for _ in range(6)]
    assert waits == [pytest.approx(0.019)] * 4 + [pytest.approx(0.049)] * 2
    assert schedule._gather_s(0.03) == 0
    assert schedule._gather_s(0.0) == pytest.approx(0.02)
