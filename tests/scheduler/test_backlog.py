"""A queue that is kept from pass to pass answers as the same jobs in a list would."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import replace

import pytest

from jobs.scheduler import Policy, Request, plan
from jobs.scheduler.backlog import Backlog
from jobs.scheduler.types import Job, Snapshot
from tests.scheduler.test_simulate import ORDERS, crowded


def kept_queue(snapshot: Snapshot, policy: Policy, rng: random.Random) -> Backlog:
    """The snapshot's jobs, come in any order, after others came and went."""
    backlog = Backlog(policy)
    gone = [replace(job, id=job.id + 500, submitted=rng.uniform(0, 900)) for job in snapshot.jobs]
    for job in rng.sample([*snapshot.jobs, *gone], len(snapshot.jobs) + len(gone)):
        backlog.add(job)
    for job in gone:
        assert backlog.remove(job.id) is job
    return backlog


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("explain", [True, False])
def test_a_kept_queue_is_planned_as_a_list_is(order: str, explain: bool) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        snapshot = crowded(rng)
        policy = Policy(order=order, patience_s=rng.choice((400.0, 7 * 86_400.0)))
        jobs = [replace(job, queue=rng.choice(("", "service", "odd")), qos=rng.choice(("", "high"))) for job in snapshot.jobs]
        snapshot = replace(snapshot, jobs=jobs)
        kept = replace(snapshot, jobs=kept_queue(snapshot, policy, rng))
        assert plan(kept, policy, explain=explain).placements == plan(snapshot, policy).placements
        if explain:
            assert plan(kept, policy) == plan(snapshot, policy)


def test_a_kept_queue_is_a_sequence_of_its_jobs() -> None:
    backlog = Backlog(Policy())
    jobs = [Job(id=n, request=Request(gpu_count=n % 2 + 1), submitted=float(-n), time_limit_s=60 * n) for n in range(1, 5)]
    for job in jobs:
        backlog.add(job)
    assert [*backlog] == jobs == backlog[:]
    assert (len(backlog), backlog[1], jobs[2] in backlog) == (4, jobs[1], True)
    assert [job.id for job in backlog.submitted_until(-2.0)] == [4, 3, 2]
    assert backlog.shortest_s(Request(gpu_count=1)) == 120.0
    backlog.remove(2)
    assert backlog.shortest_s(Request(gpu_count=1)) == 240.0
    with pytest.raises(KeyError):
        backlog.remove(2)
    assert jobs[1] not in backlog


def test_a_queue_kept_for_one_policy_serves_another() -> None:
    snapshot = crowded(random.Random(3))
    kept = kept_queue(snapshot, Policy(age_fold_s=1.0), random.Random(3))
    assert plan(replace(snapshot, jobs=kept), Policy()) == plan(snapshot, Policy())


def test_a_copy_of_a_request_is_equal_and_has_a_serial_of_its_own() -> None:
    """One that comes from another process might have the serial of another request here."""
    request = Request(gpu_count=2, gpu_mem_mib=4_096, labels=(("room", "a"),), is_exclusive=True)
    copies = [pickle.loads(pickle.dumps(request)), copy.copy(request), replace(request)]
    assert copies == [request] * 3
    assert len({item.serial for item in (request, *copies)}) == 4
    one, twin = pickle.loads(pickle.dumps((request, request)))
    assert one is twin
