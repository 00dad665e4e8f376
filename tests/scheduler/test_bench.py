"""The benches' own arithmetic, on inputs small enough for a test; what they measure is judged by `make bench`."""

from __future__ import annotations

import csv
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from bench import packing, replay, run, waits

DATA = Path(__file__).parent / "data"
EXACT = packing.Policy(slicing_rules=False, keeps_for_head=False, order="fifo")


def test_a_replay_gives_each_job_what_it_asked_for_and_no_card_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "schedule.csv"
    replay.main([str(DATA / "small.csv"), str(DATA / "small.cluster.json"), "--out", str(out)])
    assert "150 jobs" in capsys.readouterr().out
    asked = {row["id"]: row for row in csv.DictReader((DATA / "small.csv").read_text().splitlines())}
    given = list(csv.DictReader(out.read_text().splitlines()))
    assert {row["id"] for row in given} == set(asked)
    moves: list[tuple[float, int, str, int]] = []
    for row in given:
        job = asked[row["id"]]
        parts = [part.split(":") for part in row["alloc"].split(";")]
        assert sum(int(milli) for _card, milli in parts) == int(job["num_gpu"]) * int(job["milli"])
        assert float(row["start"]) >= float(job["submit"])
        for card, milli in parts:
            moves += [(float(row["start"]), 1, card, int(milli)), (float(row["start"]) + float(job["duration"]), 0, card, -int(milli))]
    held: Counter[str] = Counter()
    for _at, _is_start, card, milli in sorted(moves):  # an end before a start at the same moment
        held[card] += milli
        assert held[card] <= 1000


def test_made_pods_are_packed_alike_for_the_same_seed() -> None:
    nodes, pods = packing.nodes_made(6, seed=1), packing.pods_made(200, seed=1)
    assert pods == packing.pods_made(200, seed=1) != packing.pods_made(200, seed=2)
    first, again = (packing.trace_measure(nodes, pods, seed=42, policy=EXACT) for _ in range(2))
    assert {name: first[name] for name in first if name != "us_a_pod"} == {name: again[name] for name in again if name != "us_a_pod"}
    assert 80 < first["alloc@100"] <= 100


def test_ratios_are_ours_by_the_anchors_and_unknown_counts_as_the_same() -> None:
    ours = waits.scenario_run(waits.scenario_made("lab", jobs=60, seed=1), waits.Policy()).judged.measures
    assert waits.ratios(ours, ours) == {"avg": 1.0, "p99": 1.0, "dev": 1.0}


def test_every_figure_of_the_waits_has_its_limit() -> None:
    found = waits.measure(seeds=1, jobs=40)
    assert set(found) <= set(tomllib.loads((Path(run.HERE) / "ranges.toml").read_text()))
    assert found == waits.measure(seeds=1, jobs=40)


def test_a_figure_outside_its_range_and_one_that_is_missing_fail() -> None:
    rows = run.judge({"a": 5.0, "b": 1.0, "c": 3.0}, {"a": {"most": 4}, "b": {"least": 1}, "d": {"most": 1}})
    assert [(name, holds) for name, _value, _allowed, holds in rows] == [("a", False), ("b", True), ("c", True), ("d", False)]
