"""Scenarios: loads and replicas, settings of a policy, what ran before, and that a simulation repeats."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from jobs.scheduler import Arrival, Finished, Job, Policy, Request, Running, Slice, Snapshot
from jobs.scheduler.clusters import WorkloadError, cluster_read
from jobs.scheduler.runs import Ran
from jobs.scheduler.scenario import (
    JITTER_S,
    SETTABLE,
    Scenario,
    arrivals_jittered,
    arrivals_scaled,
    impossible_split,
    policy_named,
    policy_placing,
    policy_set,
    scenario_of,
    scenario_run,
)
from jobs.scheduler.workload import workload_read

DATA = Path(__file__).parent / "data"


def small() -> Scenario:
    cluster = cluster_read((DATA / "small.cluster.json").read_text())
    with (DATA / "small.csv").open() as lines:
        return scenario_of(workload_read(lines, cluster), cluster)


def arrival(number: int, submitted: float, *, user: int = 1, seconds: float = 100.0, **request: int) -> Arrival:
    return Arrival(job=Job(id=number, request=Request(**request), submitted=submitted, user=user), seconds=seconds)  # type: ignore[arg-type]


def bare(*cards: int, now: float = 0.0) -> Snapshot:
    return replace(cluster_read(f'{{"nodes": {list(cards)}}}').snapshot, now=now)


# Settings


def test_every_number_of_a_policy_can_be_set() -> None:
    numbers = {item.name for item in fields(Policy) if isinstance(getattr(Policy(), item.name), int | float)}
    assert set(SETTABLE) == numbers


def test_a_setting_keeps_its_kind() -> None:
    found = policy_set(policy_set(policy_set(Policy(), "borrow_s", "0"), "max_slices", "2"), "keeps_for_head", "false")
    assert (found.borrow_s, found.max_slices, found.keeps_for_head) == (0.0, 2, False)
    assert type(found.max_slices) is int


@pytest.mark.parametrize(
    ("field", "text", "code"),
    [
        ("order", "1", "setting_unknown"),
        ("nonsense", "1", "setting_unknown"),
        ("borrow_s", "x", "setting_value"),
        ("borrow_s", "-1", "setting_value"),
        ("borrow_s", "nan", "setting_value"),
        ("borrow_s", "inf", "setting_value"),
        ("max_slices", "1.5", "setting_value"),
        ("max_slices", "0", "setting_value"),
        ("whole_above", "1.1", "setting_value"),
        ("keeps_for_head", "2", "setting_value"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(field: str, text: str, code: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        policy_set(Policy(), field, text)
    assert caught.value.code == code


def test_orders_and_strategies_go_by_name() -> None:
    assert policy_named(Policy(), "fifo").order == "fifo"
    assert policy_placing(Policy(), "best-fit").strategy == "best-fit"
    for refuse in (policy_named, policy_placing):
        with pytest.raises(WorkloadError, match="unknown"):
            refuse(Policy(), "nonsense")


# Loads and replicas


def test_twice_the_load_halves_the_times_between_submits() -> None:
    found = arrivals_scaled([arrival(1, 50.0), arrival(2, 110.0), arrival(3, 200.0)], 2.0, 100.0)
    assert [item.job.submitted for item in found] == [50.0, 105.0, 150.0]  # what came before the period stays
    assert [item.seconds for item in found] == [100.0] * 3


def test_replicas_move_submits_a_little_and_the_same_seed_moves_them_alike() -> None:
    jobs = [arrival(number, number * 1_000.0) for number in range(1, 40)]
    found = [item.job.submitted for item in arrivals_jittered(jobs, 7, 900.0)]
    assert found == [item.job.submitted for item in arrivals_jittered(jobs, 7, 900.0)]
    assert found != [item.job.submitted for item in arrivals_jittered(jobs, 8, 900.0)]
    assert all(abs(at - item.job.submitted) <= JITTER_S and at >= 900.0 for at, item in zip(found, jobs, strict=True))


def test_the_same_scenario_policy_and_seed_give_the_same_numbers() -> None:
    scenario, policy = small(), Policy()
    assert scenario_run(scenario, policy) == scenario_run(scenario, policy)
    twice = scenario_run(scenario, policy, replicas=2, seed=3)
    assert twice != scenario_run(scenario, policy, replicas=2, seed=4)


def test_more_load_asks_for_more_and_waits_longer() -> None:
    low, high = (scenario_run(small(), Policy(), load=load) for load in (0.5, 1.0))
    assert high.offered == pytest.approx(2 * (low.offered or 0))
    assert (high.judged.measures.wait_avg_s or 0) > (low.judged.measures.wait_avg_s or 0)


def test_whoever_watches_is_told_until_all_have_come() -> None:
    told: list[tuple[int, int]] = []
    scenario_run(small(), Policy(order="fifo"), replicas=2, watch=lambda came, total: told.append((came, total)))
    assert told[-1] == (300, 300)
    assert [came for came, _ in told] == sorted(came for came, _ in told)


# What was before


def test_what_runs_at_the_beginning_takes_room_until_it_ends() -> None:
    part = Slice(gpu=0, mib=1_000, exclusive=True, job=9)
    cluster = replace(bare(1, now=1_000.0), slices=(part,), running=(Running(job=9, user=2, slices=(part,), started=0.0),))
    found = scenario_run(Scenario(arrivals=(arrival(1, 1_000.0),), cluster=cluster, ends={9: 1_300.0}, is_exact=True), Policy())
    assert (found.judged.measures.jobs, found.judged.measures.wait_avg_s) == (1, 300.0)
    assert set(found.judged.users) == {1}
    assert found.judged.measures.card_hours_held == pytest.approx((300 + 100) / 3_600)  # from the beginning of the period on


def test_who_used_much_before_comes_later() -> None:
    past = Ran(job=5, user=1, project=0, submitted=0.0, start=0.0, end=50 * 3_600.0, cards=1.0)
    begin = 60 * 3_600.0
    jobs = (arrival(1, begin, user=1), arrival(2, begin, user=2))
    scenario = Scenario(arrivals=jobs, cluster=bare(1, now=begin), earlier=(past,), is_exact=True)
    waits = {user: found.wait_avg_s for user, found in scenario_run(scenario, Policy()).judged.users.items()}
    assert waits == {1: 100.0, 2: 0.0}
    assert scenario_run(replace(scenario, earlier=()), Policy()).judged.users[1].wait_avg_s == 0.0


def test_what_finished_before_teaches_how_long_jobs_run() -> None:
    jobs = (arrival(1, 10.0, user=1), arrival(2, 10.0, user=2))
    known = tuple(Finished(user=user, request=Request(), seconds=seconds) for user, seconds in ((1, 50_000.0), (2, 60.0)) for _ in range(5))
    scenario = Scenario(arrivals=jobs, cluster=bare(1, now=10.0), finished=known, is_exact=True)
    first = scenario_run(scenario, Policy())
    assert {user: found.wait_avg_s for user, found in first.judged.users.items()} == {1: 100.0, 2: 0.0}
    assert scenario_run(scenario, Policy()) == first  # what one run learns must not reach the next


def test_jobs_that_can_never_run_are_told_apart() -> None:
    kept, out = impossible_split(
        Scenario(arrivals=(arrival(1, 0.0), arrival(2, 0.0, gpu_count=5)), cluster=bare(4), is_exact=True), Policy()
    )
    assert [item.job.id for item in kept.arrivals] == [1]
    assert [(job, reason.code) for job, reason in out] == [(2, "never_gpu_count")]
