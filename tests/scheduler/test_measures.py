"""The measures of a schedule against sums done by hand, and against an independent scorer's figures for a small schedule.

data/small.*: a made workload of 150 jobs on 8 cards, one schedule of it, and what another program (plain Python, written apart
from this one) says about that schedule.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from jobs.scheduler import Arrival, Job, Policy, Request, simulate
from jobs.scheduler.clusters import cluster_read
from jobs.scheduler.compare import compare, wait_verdict
from jobs.scheduler.measures import judge, judged_mean, maxmin_deviation, percentile
from jobs.scheduler.runs import Ran, cards_by_node, offered_load, runs_of, weights_at
from jobs.scheduler.workload import workload_read

DATA = Path(__file__).parent / "data"
HOUR = 3_600.0


def ran(job: int, user: int, submitted: float, start: float | None, end: float | None, *, cards: float = 1.0, **more: object) -> Ran:
    return Ran(job=job, user=user, project=user % 2, submitted=submitted, start=start, end=end, cards=cards, **more)  # type: ignore[arg-type]


# By hand: two cards on two nodes. User 1 takes both for 100 s, user 2 comes at 20 s and runs from 100 s to 200 s on one.
BY_HAND = [
    ran(1, 1, 0.0, 0.0, 100.0, nodes=(1,)),
    ran(2, 1, 0.0, 0.0, 100.0, nodes=(2,)),
    ran(3, 2, 20.0, 100.0, 200.0, nodes=(1,)),
]


def test_waits_slowdown_and_use_of_three_jobs() -> None:
    found = judge(BY_HAND, {1: 1, 2: 1}).measures
    assert (found.jobs, found.never_started) == (3, 0)
    assert found.wait_avg_s == pytest.approx((0 + 0 + 80) / 3)
    assert (found.wait_p50_s, found.wait_max_s) == (0.0, 80.0)
    assert found.slowdown_avg == pytest.approx((1 + 1 + 180 / 100) / 3)
    assert found.makespan_s == 200.0
    assert found.utilisation == pytest.approx(1.0)  # until the last submit at 20 s both cards are held
    assert found.utilisation_makespan == pytest.approx((100 + 100 + 100) / (2 * 200))
    assert found.card_hours_held == pytest.approx(300 / HOUR)
    assert found.card_hours_on == pytest.approx(400 / HOUR)
    assert found.card_hours_on_idle_nodes == pytest.approx(100 / HOUR)  # node 2 from 100 s to 200 s
    assert found.within_2min == 1.0


def test_the_deviation_from_fair_shares_counts_while_more_is_asked_for_than_there_is() -> None:
    # From 20 s to 100 s three cards are wanted and two are there. Fair: one each; held: 2 and 0. ½ (|2 − 1| + |0 − 1|) ÷ 2 = ½.
    assert maxmin_deviation(BY_HAND, 2.0) == (pytest.approx(0.5), 80.0)
    assert maxmin_deviation(BY_HAND, 4.0) == (None, 0.0)  # enough for all: nobody had to share
    assert maxmin_deviation(BY_HAND[:2], 1.0) == (None, 0.0)  # one user


def test_a_job_that_ran_before_takes_room_and_is_not_judged() -> None:
    before = ran(9, 3, -50.0, -50.0, 50.0, is_judged=False)
    alone = judge([before, ran(1, 1, 0.0, 50.0, 60.0), ran(2, 1, 100.0, 100.0, 110.0)], {1: 1}, since=0.0)
    assert alone.measures.wait_avg_s == pytest.approx((50 + 0) / 2)
    assert alone.measures.utilisation == pytest.approx((50 + 10) / 100)  # from 0 s, not from its own start, to the last submit
    assert set(alone.users) == {1}


def test_a_job_that_never_started_is_late_and_counts_in_no_average() -> None:
    found = judge([ran(1, 1, 0.0, 10.0, 20.0), ran(2, 1, 0.0, None, None)], {1: 1}).measures
    assert (found.jobs, found.never_started, found.wait_avg_s, found.within_5min) == (2, 1, 10.0, 0.5)


def test_nothing_known_is_none_and_not_zero() -> None:
    found = judge([ran(1, 1, 0.0, None, None)], {1: 1}).measures
    assert (found.wait_avg_s, found.makespan_s, found.utilisation, found.maxmin_dev, found.jain) == (None,) * 5
    unplaced = judge([ran(1, 1, 0.0, 0.0, 10.0)], {1: 1}).measures
    assert unplaced.card_hours_on_idle_nodes is None  # it isn't known where the job ran


def test_a_percentile_is_the_value_that_so_many_are_below() -> None:
    values = [float(number) for number in range(100)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.9, 0.99, 1.0)] == [0.0, 50.0, 90.0, 99.0, 99.0]
    assert percentile([7.0], 0.99) == 7.0


def test_jains_index_is_one_when_all_users_are_slowed_alike_and_half_when_one_of_two_has_it_all() -> None:
    def jobs(user: int, wait: float) -> list[Ran]:
        return [ran(user * 100 + n, user, 0.0, wait, wait + 100.0) for n in range(20)]

    assert judge([*jobs(1, 50.0), *jobs(2, 50.0)], {1: 40}).measures.jain == pytest.approx(1.0)
    # Slowdowns 1 and 1000: x = 1, 0.001; 1.001² ÷ (2 × 1.000001)
    assert judge([*jobs(1, 0.0), *jobs(2, 99_900.0)], {1: 40}).measures.jain == pytest.approx(1.001**2 / (2 * 1.000001))
    assert judge([*jobs(1, 0.0), *jobs(2, 50.0)[:19]], {1: 40}).measures.jain is None  # 19 jobs say too little


def test_offered_load_is_work_that_comes_by_work_that_can_be_done() -> None:
    runs = [ran(1, 1, 0.0, 0.0, 50.0), ran(2, 1, 100.0, 100.0, 150.0, cards=2.0)]
    assert offered_load(runs, {1: 50.0, 2: 50.0}, 3) == pytest.approx((50 + 2 * 50) / (100 * 3))


def test_the_mean_of_replicas_leaves_out_what_is_unknown() -> None:
    first, second = judge(BY_HAND, {1: 1, 2: 1}), judge([ran(1, 1, 0.0, 30.0, 40.0)], {1: 2})
    mean = judged_mean([first, second])
    assert mean.measures.wait_avg_s == pytest.approx((80 / 3 + 30) / 2)
    assert mean.measures.maxmin_dev == pytest.approx(0.5)  # unknown in the second
    assert mean.users[1].wait_avg_s == pytest.approx((0 + 30) / 2)
    with pytest.raises(ValueError, match="no replica"):
        judged_mean([])


# Against another program's figures


def small_runs() -> tuple[list[Ran], dict[int, int]]:
    cluster = cluster_read((DATA / "small.cluster.json").read_text())
    with (DATA / "small.csv").open() as lines:
        workload = workload_read(lines, cluster)
    with (DATA / "small.schedule.csv").open() as lines:
        starts = {int(row["id"]): float(row["start"]) for row in csv.DictReader(lines)}
    runs = []
    for arrival in workload.arrivals:
        job, start = arrival.job, starts[arrival.job.id]
        cards = job.request.gpu_count if job.request.gpu_mem_mib is None else job.request.gpu_mem_mib / 1000
        end = start + arrival.seconds
        runs.append(Ran(job=job.id, user=job.user, project=0, submitted=job.submitted, start=start, end=end, cards=cards))
    return runs, cards_by_node(cluster.snapshot)


def test_the_figures_are_those_of_an_independent_scorer() -> None:
    runs, cards = small_runs()
    found, said = judge(runs, cards).measures, json.loads((DATA / "small.scores.json").read_text())
    for name, value in {
        "avg_wait_h": found.wait_avg_s,
        "p50_wait_h": found.wait_p50_s,
        "p99_wait_h": found.wait_p99_s,
        "max_wait_h": found.wait_max_s,
        "makespan_h": found.makespan_s,
        "contended_h": found.contended_s,
    }.items():
        assert value is not None
        assert value / HOUR == pytest.approx(said[name]), name
    assert found.slowdown_avg == pytest.approx(said["avg_bsld"])
    assert found.utilisation == pytest.approx(said["util_during_arrivals"])
    assert found.utilisation_makespan == pytest.approx(said["util_makespan"])
    assert found.maxmin_dev == pytest.approx(said["maxmin_dev"])
    assert found.jain == pytest.approx(said["jain_tenant_1_over_bsld"])
    assert found.within_5min == pytest.approx(1 - said["over5min"])


# From a simulation


def test_a_slice_counts_by_the_memory_that_it_takes() -> None:
    cluster = cluster_read('{"nodes": [{"gpus": 2, "model": "card", "total_mib": 24564}]}')
    asks = [Request(gpu_mem_mib=4_096), Request(gpu_mem_mib=16_000), Request(gpu_count=0), Request(gpu_count=3)]
    arrivals = [Arrival(job=Job(id=number, request=request), seconds=10.0) for number, request in enumerate(asks, start=1)]
    policy = Policy()
    runs = runs_of(simulate(arrivals, cluster.snapshot, policy), arrivals, cluster.snapshot, policy)
    # Above half of a card the job has it alone; the last can never start, and asks for three.
    assert [run.cards for run in runs] == pytest.approx([4_096 / 24_564, 1.0, 0.0, 3.0])
    assert [run.start for run in runs] == [0.0, 0.0, 0.0, None]
    assert runs[0].nodes == (0,)


def test_past_use_is_what_the_owners_held_and_how_often_they_finished() -> None:
    policy = Policy(half_life_s=0.0)  # nothing fades: the sums can be done by hand
    runs = [ran(1, 1, 0.0, 0.0, 7_200.0, cards=2.0), ran(2, 1, 0.0, 0.0, 3_600.0), ran(3, 2, 0.0, 3_600.0, 99_999.0)]
    users, projects = weights_at(runs, policy, 7_200.0)
    # User 1: two finished, 2 × 2 h + 1 h; user 2: none finished yet, one card for one hour so far.
    assert users == {1: pytest.approx(1 + 2 * 0.1 + 5 * 0.02), 2: pytest.approx(1 + 1 * 0.02)}
    assert projects == {1: users[1], 0: users[2]}


# Side by side


def test_who_gains_and_who_loses_is_told_by_a_minute_and_five_per_cent() -> None:
    assert [wait_verdict(100.0, after) for after in (39.0, 41.0, 159.0, 161.0)] == ["gains", "same", "same", "loses"]
    assert [wait_verdict(10_000.0, after) for after in (9_400.0, 9_600.0, 10_500.0, 10_600.0)] == ["gains", "same", "same", "loses"]


def test_the_largest_changes_come_first() -> None:
    first = judge([ran(1, 1, 0.0, 0.0, 10.0), ran(2, 2, 0.0, 1_000.0, 1_010.0), ran(3, 3, 0.0, 50.0, 60.0)], {1: 1})
    second = judge([ran(1, 1, 0.0, 500.0, 510.0), ran(2, 2, 0.0, 10.0, 20.0), ran(3, 3, 0.0, 60.0, 70.0)], {1: 1})
    found = compare(first, second)
    assert [(change.owner, change.difference_s, change.verdict) for change in found.users] == [
        (2, -990.0, "gains"),
        (1, 500.0, "loses"),
        (3, 10.0, "same"),
    ]
    assert [(change.owner, change.difference_s) for change in found.projects] == [(0, -990.0), (1, pytest.approx(255.0))]
    assert (found.count("gains"), found.count("loses"), found.count("same")) == (1, 1, 1)
    assert found.waits == "shorter"  # (0 + 1000 + 50) ÷ 3 = 350 s → (500 + 10 + 60) ÷ 3 = 190 s


def test_the_same_schedule_twice_changes_nothing() -> None:
    found = compare(judge(BY_HAND, {1: 1, 2: 1}), judge(BY_HAND, {1: 1, 2: 1}))
    assert (found.waits, found.fairness, found.count("same")) == ("same", "same", 2)
    nothing = judge([ran(1, 1, 0.0, None, None)], {1: 1})
    assert (compare(nothing, nothing).waits, compare(nothing, nothing).fairness) == ("unknown", "unknown")
