"""Workload and cluster files: what is read, what is refused with its line, and that writing and reading come back to the same."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from jobs.scheduler import Arrival, Job, Request, never_reason
from jobs.scheduler.clusters import WorkloadError, cluster_preset, cluster_read, cluster_write
from jobs.scheduler.measures import judge
from jobs.scheduler.runs import Ran, cards_by_node, offered_load
from jobs.scheduler.synthetic import workload_make
from jobs.scheduler.workload import Workload, names_hidden, workload_read, workload_write

SHORT = "id,tenant,submit,duration,est,num_gpu,milli\n"
REAL = cluster_read('{"nodes": [{"gpus": 4, "model": "NVIDIA A100-SXM4-40GB", "total_mib": 40960, "count": 2}]}')


def code_of(text: str, cluster: str = '{"nodes": [4, 4]}') -> tuple[str, dict[str, object]]:
    with pytest.raises(WorkloadError) as caught:
        workload_read(io.StringIO(text), cluster_read(cluster))
    return caught.value.code, caught.value.params


def test_the_short_layout_says_cards_or_thousandths_of_one() -> None:
    text = SHORT + "1,bo,10,60,900,1,470\n2,anna,5.5,60,,4,1000\n3,bo,6,60,,8,1000\n4,bo,6,60,,0,0\n"
    found = workload_read(io.StringIO(text), cluster_read('{"nodes": [4, 4]}'))
    assert [arrival.job.request for arrival in found.arrivals] == [
        Request(gpu_mem_mib=470),
        Request(gpu_count=4),
        Request(gpu_count=8, nodes=2),  # no node is large enough: spread evenly over two
        Request(gpu_count=0),
    ]
    assert [(arrival.job.submitted, arrival.seconds, arrival.job.time_limit_s) for arrival in found.arrivals[:2]] == [
        (10.0, 60.0, 900),
        (5.5, 60.0, None),
    ]
    # Numbered by name, whoever comes first in the file.
    assert (found.users, [arrival.job.user for arrival in found.arrivals]) == ({1: "anna", 2: "bo"}, [2, 1, 2, 2])


def test_thousandths_become_memory_on_cards_that_have_some() -> None:
    found = workload_read(io.StringIO(SHORT + "1,bo,10,60,900,1,500\n"), REAL)
    assert found.arrivals[0].job.request == Request(gpu_mem_mib=20_480)


def test_limits_can_be_left_out() -> None:
    found = workload_read(io.StringIO(SHORT + "1,bo,10,60,900,1,500\n"), REAL, limits=False)
    assert found.arrivals[0].job.time_limit_s is None


def test_what_is_written_is_read_again() -> None:
    full = Request(
        gpu_count=2,
        gpu_mem_mib=9_000,
        nodes=2,
        arch="sm_80",
        model="A100|H100",
        vendor="nvidia",
        cuda_min="12.1",
        driver_min="535",
        labels=(("room", "b"), ("disk", "fast")),
        cpu_milli=1_500,
        host_mem_mib=2_048,
        is_exclusive=True,
    )
    arrivals = (
        Arrival(
            job=Job(id=7, request=full, submitted=1_010.25, priority=-3, user=2, project=1, time_limit_s=60, queue="batch", qos="high"),
            seconds=12.5,
            name='naïve, "quoted" 名字',
        ),
        Arrival(job=Job(id=9, request=Request(), submitted=1_020.0, user=1), seconds=3.0),
    )
    rows = io.StringIO()
    csv.writer(rows).writerows(workload_write(Workload(arrivals=arrivals, users={1: "a", 2: "b"}, projects={1: "p"}), since=1_000.0))
    again = workload_read(io.StringIO(rows.getvalue()), REAL)
    labels = tuple(sorted(full.labels))
    first = replace(arrivals[0], job=replace(arrivals[0].job, submitted=10.25, request=replace(full, labels=labels)))
    assert again.arrivals == (first, replace(arrivals[1], job=replace(arrivals[1].job, submitted=20.0)))
    assert (again.users, again.projects) == ({1: "a", 2: "b"}, {1: "p"})


def test_names_are_hidden_by_numbers() -> None:
    assert names_hidden({5, 2}, "user") == {2: "user-1", 5: "user-2"}


@pytest.mark.parametrize(
    ("text", "code", "numbers"),
    [
        ("a,b\n1,2\n", "columns", {"have": "a, b"}),
        ("", "columns", {"have": ""}),
        (SHORT, "empty", {}),
        (SHORT + "1,bo,x,60,,1,1000\n", "row_number", {"line": 2, "column": "submit", "value": "x"}),
        (SHORT + "1,bo,nan,60,,1,1000\n", "row_number", {"line": 2, "column": "submit", "value": "nan"}),
        (SHORT + "1,bo,0,-1,,1,1000\n", "row_number", {"line": 2, "column": "duration", "value": "-1", "least": 0}),
        (SHORT + "1,bo,0,1e308,,1,1000\n", "row_number", {"line": 2, "column": "duration", "value": "1e308", "least": 0}),
        (SHORT + "1,bo,0,1,,1.5,1000\n", "row_number", {"line": 2, "column": "num_gpu", "value": "1.5"}),
        (SHORT + "1,bo,0,1,,1,1001\n", "row_number", {"line": 2, "column": "milli", "value": "1001"}),
        (SHORT + "1,bo,0\n", "row_number", {"line": 2, "column": "num_gpu", "value": ""}),
        (SHORT + "1,bo,0,1,,1,1000\n1,bo,0,1,,1,1000\n", "row_twice", {"line": 3, "id": 1}),
        ("id,user,submitted_s,runtime_s,gpu_count,nodes\n1,bo,0,1,3,2\n", "row_request", {"line": 2, "reason": "uneven_nodes"}),
        ("id,user,submitted_s,runtime_s,gpu_count,labels\n1,bo,0,1,3,room\n", "row_labels", {"line": 2, "value": "room"}),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str, code: str, numbers: dict[str, object]) -> None:
    found, params = code_of(text)
    assert found == code
    assert params == params | numbers


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "cluster_json"),
        ("[]", "cluster_json"),
        ('{"nodes": []}', "cluster_json"),
        ('{"nodes": [-1]}', "cluster_number"),
        ('{"nodes": [true]}', "cluster_number"),
        ('{"nodes": ["a"]}', "cluster_node"),
        ('{"nodes": [{"gpus": 2}]}', "cluster_number"),
        ('{"nodes": [{"gpus": [4]}]}', "cluster_node"),
        ('{"nodes": [{"gpus": 1, "total_mib": 4096, "count": 0}]}', "cluster_number"),
        ('{"nodes": [{"gpus": 1, "total_mib": 4096, "labels": [1]}]}', "cluster_node"),
    ],
)
def test_a_cluster_that_cannot_be_read_is_refused(text: str, code: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        cluster_read(text)
    assert caught.value.code == code


def test_a_cluster_is_written_as_it_was_read() -> None:
    text = """{"nodes": [{"name": "a", "count": 2, "gpus": 2, "model": "T4", "total_mib": 15360, "cpu_cores": 8, "labels": {"room": "b"}},
        {"gpus": [{"model": "A100", "total_mib": 40960, "compute_capability": "8.0"}], "cuda_version": "12.4"}, {"gpus": 0}]}"""
    first = cluster_read(text)
    assert [node.name for node in first.snapshot.nodes] == ["a", "a-2", "n2", "n3"]
    assert first.snapshot.nodes[0].gpus[0].nominal_mib == 16 * 1024
    assert cluster_read(cluster_write(first.snapshot)).snapshot == first.snapshot
    assert not first.is_exact
    assert cluster_read('{"nodes": [1]}').is_exact


@pytest.mark.parametrize(("nodes", "cards"), [(10, (4 * 8, 3 * 4, 3 * 8)), (3, (8, 4, 8)), (7, (8 * 3, 4 * 2, 8 * 2))])
def test_the_preset_has_its_classes_by_their_shares(nodes: int, cards: tuple[int, ...]) -> None:
    found = cluster_preset("abc", nodes).snapshot.nodes
    assert len(found) == nodes
    by_model = [sum(len(node.gpus) for node in found if name in node.gpus[0].model) for name in ("A100", "V100", "T4")]
    assert tuple(by_model) == cards
    assert {node.memory_mib for node in found} == {256 * 1024, 128 * 1024, 64 * 1024}


def test_an_unknown_preset_and_too_few_nodes_are_refused() -> None:
    for name, nodes in (("xyz", 10), ("abc", 2)):
        with pytest.raises(WorkloadError):
            cluster_preset(name, nodes)


# Made workloads


def test_a_made_workload_asks_for_the_load_that_was_named() -> None:
    arrivals = workload_make(jobs=400, cards=20, per_node=4, seed=3, load=0.8, parts=0.3)
    seconds = {arrival.job.id: arrival.seconds for arrival in arrivals}
    cards = {arrival.job.id: (arrival.job.request.gpu_mem_mib or 1_000) / 1_000 * arrival.job.request.gpu_count for arrival in arrivals}
    runs = [
        Ran(job=arrival.job.id, user=1, project=1, submitted=arrival.job.submitted, start=None, end=None, cards=cards[arrival.job.id])
        for arrival in arrivals
    ]
    assert offered_load(runs, seconds, 20) == pytest.approx(0.8, rel=1e-3)
    assert judge(runs, {0: 20}).measures.never_started == 400
    assert [arrival.job.id for arrival in arrivals] == list(range(1, 401))


def test_the_same_seed_makes_the_same_jobs_and_another_one_others() -> None:
    def made(seed: int) -> list[Arrival]:
        return workload_make(jobs=50, cards=8, per_node=4, seed=seed)

    assert made(1) == made(1) != made(2)


def test_a_made_workload_is_of_all_lengths_and_fits_the_cluster() -> None:
    arrivals = workload_make(jobs=1_000, cards=20, per_node=4, seed=1)
    seconds = sorted(arrival.seconds for arrival in arrivals)
    assert seconds[100] < 300 < 3_600 < seconds[900]
    assert all(arrival.job.time_limit_s is not None and arrival.seconds <= arrival.job.time_limit_s for arrival in arrivals)
    cluster = cluster_read('{"nodes": [4, 4, 4, 4, 4]}')
    assert all(never_reason(arrival.job.request, cluster.snapshot.nodes) is None for arrival in arrivals)
    assert sum(cards_by_node(cluster.snapshot).values()) == 20
