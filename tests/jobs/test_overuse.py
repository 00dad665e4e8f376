"""Programs that hold more of a shared card than they asked for (D25): told first, stopped by policy, and never their neighbours."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.utils import timezone

from agent.protocol import GpuProcess
from jobs.lifecycle import JobState
from jobs.models import Attempt, Job, JobEvent, Rank
from jobs.services.overuse import overuse_look
from jobs.wording import end_reason_text, event_text
from nodes import telemetry
from nodes.models import Gpu
from tests.factories import attempt_make, job_make, node_make

pytestmark = [pytest.mark.django_db, pytest.mark.redis]
BEGAN = 1_800_000_000.0
MIB = 4096


@pytest.fixture
def gpu(live_redis: object) -> Gpu:
    return node_make("n1", cards=1).gpus.get()


def run_on(gpu: Gpu, **fields: object) -> Rank:
    job = job_make(state=JobState.RUNNING, epoch=1, started_at=timezone.now() - timedelta(minutes=5), **fields.pop("job", {}))
    attempt_make(job, gpus=(gpu,), mib=MIB, **fields)
    return Rank.objects.get(attempt__job=job)


def look(gpu: Gpu, turn: int, *held: tuple[Rank, int | None]) -> list[int]:
    """What the driver's list says at the 30 s step ``turn``, and the look of that step."""
    now = BEGAN + 30 * turn
    processes = [GpuProcess(uuid=gpu.uuid, pid=100 + n, used_mib=mib, rank=rank.key) for n, (rank, mib) in enumerate(held)]
    telemetry.sync_store(node_id=gpu.node_id, session="s", seq=turn, at=now, statuses=[], processes=processes)
    stopped = overuse_look(now=now)
    assert overuse_look(now=now + 5) == []  # a second call within the step does nothing
    return stopped


def codes(rank: Rank) -> list[str]:
    """What was said of its memory."""
    events = JobEvent.objects.filter(job=rank.attempt.job_id, code__startswith="slice_")
    return list(events.order_by("pk").values_list("code", flat=True))


def test_a_context_of_300_mib_and_what_a_driver_rounds_are_nobodys_business(gpu: Gpu) -> None:
    rank = run_on(gpu)
    for turn in range(10):
        assert look(gpu, turn, (rank, MIB + 300), (rank, 500)) == []
    assert codes(rank) == []


def test_what_stays_above_is_told_first_and_stopped_after_a_minute_and_its_neighbour_runs_on(gpu: Gpu) -> None:
    greedy, neighbour = run_on(gpu), run_on(gpu)
    assert look(gpu, 0, (greedy, 9000), (neighbour, MIB)) == []
    assert codes(greedy) == ["slice_over_stop"]
    assert look(gpu, 1, (greedy, 9000), (neighbour, MIB)) == []
    assert look(gpu, 2, (greedy, 9000), (neighbour, MIB)) == [greedy.attempt.job_id]
    job = Job.objects.get(pk=greedy.attempt.job_id)
    attempt = Attempt.objects.get(job=job)
    assert (job.state, attempt.stop_reason) == (JobState.STOPPING, "slice_exceeded")
    assert attempt.stop_params == {"node": "n1", "gpu": 0, "used_mib": 9000, "asked_mib": MIB}
    assert "8.8" in end_reason_text("slice_exceeded", attempt.stop_params)
    assert Job.objects.get(pk=neighbour.attempt.job_id).state == JobState.RUNNING
    assert codes(neighbour) == []
    assert look(gpu, 3, (greedy, 9000), (neighbour, MIB)) == []  # stopped once


def test_a_peak_that_ends_in_time_is_forgiven_and_a_later_one_begins_anew(gpu: Gpu) -> None:
    rank = run_on(gpu)
    look(gpu, 0, (rank, 9000))
    look(gpu, 1, (rank, MIB))
    look(gpu, 2, (rank, 9000))
    assert look(gpu, 3, (rank, 9000)) == []
    assert look(gpu, 4, (rank, 9000)) == [rank.attempt.job_id]


def test_warn_stops_nobody(gpu: Gpu, settings: LazySettings) -> None:
    settings.SLICE_EXCEEDED = "warn"
    rank = run_on(gpu)
    for turn in range(10):
        assert look(gpu, turn, (rank, 20_000)) == []
    assert codes(rank) == ["slice_over"]
    assert "n1 gpu0" in event_text(JobEvent.objects.get(code="slice_over"))


@pytest.mark.parametrize("mib", [None, -1])
def test_a_figure_that_is_not_told_accuses_nobody(gpu: Gpu, mib: int | None) -> None:
    rank = run_on(gpu)
    for turn in range(5):
        assert look(gpu, turn, (rank, 20_000), (rank, mib)) == []
    assert codes(rank) == []


def test_a_silent_node_ends_no_jobs(gpu: Gpu) -> None:
    rank = run_on(gpu)
    look(gpu, 0, (rank, 9000))
    for turn in range(1, 20):
        assert overuse_look(now=BEGAN + 30 * turn) == []
    assert codes(rank) == ["slice_over_stop"]


def test_who_has_the_card_whole_may_use_all_of_it(gpu: Gpu) -> None:
    rank = run_on(gpu, exclusive=True)
    for turn in range(5):
        assert look(gpu, turn, (rank, 24_000)) == []
    assert codes(rank) == []
