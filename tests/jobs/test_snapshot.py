"""What a pass reads: every column and every constraint of a job arrives in the core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs import snapshot
from jobs.apply import plan_apply
from jobs.invariants import hosts_are_not_oversold
from jobs.machines import nodes_lock
from jobs.models import Job
from jobs.scheduler import estimate_start, plan
from jobs.scheduler import types as core
from nodes import telemetry
from nodes.models import Node
from tests.jobs.lab import Lab, state

pytestmark = pytest.mark.django_db

EVERYTHING = {
    "arch": "8.9",
    "model": "RTX 4090|A100",
    "vendor": "nvidia",
    "cuda_min": "12.4",
    "driver_min": "550",
    "labels": {"zone": "b", "rack": "7"},
    "cpu_milli": 1500,
    "host_mem_mib": 2048,
    "exclusive": True,
}


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_all_that_a_job_asks_for_reaches_the_core(lab: Lab) -> None:
    labels = {"zone": "b", "rack": "7", "more": "x"}
    node = lab.node("n1", 24564, cpu_cores=8, memory_mib=64_000, cuda_version="12.8", driver_version="570.1", labels=labels)
    node.gpus.update(compute_capability="8.9")
    job = lab.submit(gpu_mem_mib=4096, constraints=EVERYTHING, queue="interactive", qos="low", time_limit_s=600)
    (seen,) = snapshot.build(lab.now).jobs
    assert seen.request == core.Request(
        gpu_count=1,
        gpu_mem_mib=4096,
        arch="8.9",
        model="RTX 4090|A100",
        vendor="nvidia",
        cuda_min="12.4",
        driver_min="550",
        labels=(("rack", "7"), ("zone", "b")),
        cpu_milli=1500,
        host_mem_mib=2048,
        is_exclusive=True,
    )
    assert (seen.queue, seen.qos, seen.time_limit_s) == ("interactive", "low", 600)
    assert lab.schedule().started == [job.pk]
    assert [part.is_exclusive for part in lab.slices(job)] == [True], "exclusive takes the whole card, however little it asks for"


def test_a_job_without_queue_and_constraints_asks_for_nothing_more(lab: Lab) -> None:
    lab.node("n1", 24564)
    lab.submit(gpu_mem_mib=4096)
    (seen,) = snapshot.build(lab.now).jobs
    assert seen.request == core.Request(gpu_count=1, gpu_mem_mib=4096)
    assert (seen.queue, seen.qos) == ("", "")
    assert seen.predicted_s == pytest.approx(3600), "nothing is known yet"


@pytest.mark.parametrize(
    ("constraints", "code"),
    [
        ({"cuda_min": "12.9"}, "cuda"),
        ({"driver_min": "600"}, "driver"),
        ({"labels": {"zone": "a"}}, "label"),
    ],
)
def test_a_node_that_lacks_what_is_asked_for_gets_no_job(lab: Lab, constraints: dict[str, object], code: str) -> None:
    lab.node("n1", 24564, cuda_version="12.8", driver_version="570.1", labels={"zone": "b"})
    lab.node("n2", 24564, state="UNKNOWN", cuda_version="13.0", driver_version="600.2", labels={"zone": "a"})
    job = lab.submit(gpu_mem_mib=4096, constraints=constraints)
    lab.schedule()
    job.refresh_from_db()
    assert job.state == "WAITING"
    Job.objects.filter(pk=job.pk).update(constraints={})
    assert lab.schedule().started == [job.pk], f"it was the {code} that kept it"


# --- the host ---------------------------------------------------------------------------------------------------------


def test_what_live_ranks_hold_of_the_host_is_not_given_twice(lab: Lab) -> None:
    lab.node("n1", 24564, 24564, cpu_cores=8, memory_mib=64_000)
    first, second = (lab.submit(gpu_mem_mib=4096, constraints={"cpu_milli": 5000, "host_mem_mib": 10_000}) for _ in range(2))
    assert lab.schedule().started == [first.pk]
    assert state(second) == "WAITING"
    assert (second.wait_code, second.wait_params["largest_free_milli"]) == ("host_cpu", 3000)  # 8 cores − 5
    lab.report(first, "RUNNING")
    lab.exit(first, released=None)
    assert lab.schedule().started == [second.pk], "the program has ended: its cores are free, though its card is not yet"
    lab.check()
    Job.objects.filter(pk=second.pk).update(constraints={"cpu_milli": 8001, "host_mem_mib": 64_001})
    assert [text.split(": ")[1] for text in hosts_are_not_oversold(lab.now)] == [
        "8001 thousandths of a core given of 8000",
        "64001 MiB of host memory given of 64000",
    ]


def test_a_plan_that_has_grown_old_never_oversubscribes_a_host(lab: Lab) -> None:
    lab.node("n1", 24564, 24564, cpu_cores=8, memory_mib=64_000)
    lab.node("cpu-only", cpu_cores=8, memory_mib=64_000)
    jobs = [lab.submit(gpu_count=0, constraints={"cpu_milli": 5000}) for _ in range(4)]
    view = snapshot.build(lab.now)
    plans = [plan(replace(view, jobs=[job]), snapshot.policy_current()) for job in view.jobs]  # each thinks that it is alone
    started = [job for decided in plans for job in plan_apply(decided, now=lab.now)]
    assert len(started) == 1, "all four were sent to the node where the first one is"
    both = core.Plan(placements=tuple(placed for decided in plans[1:] for placed in decided.placements), refusals=())
    Job.objects.filter(pk__in=[job.pk for job in jobs[1:]]).update(constraints={"cpu_milli": 3000})
    assert len(plan_apply(both, now=lab.now)) == 1, "8 − 5 cores hold one of 3, not three in one batch"


def test_a_plan_that_has_grown_old_starts_no_more_ranks_without_a_card_than_a_node_has_turns(lab: Lab) -> None:
    lab.node("cpu-only", cpu_cores=2)
    for _ in range(6):
        lab.submit(gpu_count=0)
    view = snapshot.build(lab.now)
    plans = [plan(replace(view, jobs=[job]), snapshot.policy_current()) for job in view.jobs]
    assert sum(len(plan_apply(decided, now=lab.now)) for decided in plans) == 4  # one a core, at least 4


def test_what_an_agent_knows_of_power_and_of_the_way_to_the_processor_reaches_the_core(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    node = lab.node("n1", 24564)
    node.gpus.update(pcie_hops=2)
    told = {node.pk: telemetry.Latest(at=lab.now.timestamp(), gpus={}, host={"power_headroom_pct": 37})}
    monkeypatch.setattr(telemetry, "nodes_latest", lambda ids: told)
    (seen,) = snapshot.build(lab.now).nodes
    assert (seen.power_headroom_pct, seen.gpus[0].pcie_hops) == (37, 2)
    told[node.pk] = telemetry.Latest(at=lab.now.timestamp(), gpus={}, host={"power_headroom_pct": "lots"})
    assert snapshot.build(lab.now).nodes[0].power_headroom_pct is None


def test_a_node_that_only_reports_is_no_place_for_a_job(lab: Lab) -> None:
    """Neither now nor ever: a job that fits nowhere else is told so at once."""
    node = lab.node("n1", 24564)
    Node.objects.filter(pk=node.pk).update(is_metrics_only=True)
    job = lab.submit(gpu_mem_mib=4096)
    assert lab.schedule().started == []
    assert snapshot.nodes_all() == ()
    assert nodes_lock([node.pk], with_hosts=False)[0] == {}
    Node.objects.filter(pk=node.pk).update(is_metrics_only=False)
    assert lab.schedule().started == [job.pk]


def test_a_forecast_gives_back_what_a_job_without_a_card_holds_of_its_host(lab: Lab) -> None:
    node = lab.node("cpu-only", cpu_cores=8, memory_mib=64_000)
    first, second = (lab.submit(gpu_count=0, time_limit_s=600, constraints={"cpu_milli": 5000}) for _ in range(2))
    assert lab.schedule().started == [first.pk]
    lab.report(first, "RUNNING")
    view = snapshot.build(lab.now)
    assert [(run.job, run.nodes) for run in view.running] == [(first.pk, (node.pk,))]
    estimate = estimate_start(view, second.pk, snapshot.policy_current())
    assert estimate.p90 is not None
    assert 0 < estimate.p90 - view.now <= 600, "when the first one's limit is over at the latest"
