from __future__ import annotations

import pytest

from agent.gate import SLACK_MIB, Evidence, foreign_mib, gate_open, processes_attribute
from agent.protocol import GpuGrant, GpuProcess, GpuStatus

WHOLE = (GpuGrant(uuid="A", mib=24564, exclusive=True),)
SLICE = (GpuGrant(uuid="A", mib=8192),)


def evidence(
    *,
    tree_gone: bool = True,
    used: int | None = 0,
    error: str | None = None,
    processes: list[GpuProcess] | None = None,
    own: set[int] | None = None,
    baseline: int = 0,
) -> Evidence:
    return Evidence(
        tree_gone=tree_gone,
        status={"A": GpuStatus(uuid="A", used_mib=used, error=error)},
        processes=[] if processes is None else processes,
        own_pids=own or set(),
        baseline_mib={"A": baseline},
    )


def proc(pid: int, mib: int | None = 1000, rank: str | None = None) -> GpuProcess:
    return GpuProcess(uuid="A", pid=pid, used_mib=mib, rank=rank)


@pytest.mark.parametrize(
    ("grants", "found", "is_open"),
    [
        ((), evidence(), True),  # a CPU job needs its tree gone
        ((), evidence(tree_gone=False), False),
        (WHOLE, evidence(), True),
        (WHOLE, evidence(tree_gone=False), False),
        (WHOLE, evidence(used=SLACK_MIB), True),
        (WHOLE, evidence(used=SLACK_MIB + 1), False),
        (WHOLE, evidence(used=None), True),  # the card does not tell: its process list must do
        (WHOLE, evidence(error="lost", used=None), False),
        (WHOLE, evidence(used=1512, processes=[proc(7)]), True),  # 1000 foreign + 512
        (WHOLE, evidence(used=1513, processes=[proc(7)]), False),
        (WHOLE, evidence(used=12512, baseline=12000), True),  # that memory was there before the rank
        (WHOLE, evidence(used=12513, baseline=12000), False),
        (WHOLE, evidence(used=9000, processes=[proc(7, None)]), True),  # a foreign process of unknown size explains it
        (WHOLE, evidence(used=1000, processes=[proc(9)], own={9}), False),  # its own process is still listed
        (SLICE, evidence(used=20000, processes=[proc(7, 20000)]), True),  # a neighbour's memory is its own
        (SLICE, evidence(used=1000, processes=[proc(9)], own={9}), False),
        (SLICE, evidence(error="unresponsive", used=None), False),
    ],
)
def test_the_gate(grants: tuple[GpuGrant, ...], found: Evidence, is_open: bool) -> None:
    assert (gate_open(grants, found) is None) is is_open


def test_a_card_that_is_not_seen_proves_nothing() -> None:
    found = Evidence(tree_gone=True, status={}, processes=[], own_pids=(), baseline_mib={})
    assert "missing" in str(gate_open(SLICE, found))


def test_where_no_processes_are_listed_the_tree_is_enough() -> None:
    found = Evidence(tree_gone=True, status={"A": GpuStatus(uuid="A", used_mib=9000)}, processes=None, own_pids=(), baseline_mib={})
    assert gate_open(WHOLE, found) is None


def test_one_held_card_of_two_keeps_the_gate_shut() -> None:
    found = Evidence(
        tree_gone=True,
        status={"A": GpuStatus(uuid="A", used_mib=0), "B": GpuStatus(uuid="B", used_mib=9000)},
        processes=[],
        own_pids=(),
        baseline_mib={},
    )
    assert "B" in str(gate_open((*WHOLE, GpuGrant(uuid="B", mib=24564, exclusive=True)), found))


@pytest.mark.parametrize(
    ("used", "processes", "has_ranks", "expected"),
    [
        (0, [], False, 0),
        (300, [], False, 0),  # the driver's own crumbs
        (23000, [], False, 23000),  # ghost use: no process explains it
        (12000, [proc(7, 12000)], False, 12000),
        (12300, [proc(7, 12000)], False, 12300),
        (12300, None, False, 12300),
        (None, [], False, None),  # None is not 0
        (8000, [proc(9, 8000, "1.1.0")], True, 0),
        (9000, [proc(9, 8000, "1.1.0")], True, 1000),
        (8400, [proc(9, 8000, "1.1.0")], True, 0),  # a CUDA context's overhead
        (20000, [proc(9, 8000, "1.1.0"), proc(7, 12000)], True, 12000),
        (20000, None, True, None),  # whose it is cannot be told
        (20000, [proc(9, None, "1.1.0"), proc(7, 5000)], True, 5000),
    ],
)
def test_foreign_use(used: int | None, processes: list[GpuProcess] | None, has_ranks: bool, expected: int | None) -> None:
    assert foreign_mib(GpuStatus(uuid="A", used_mib=used), processes, has_ranks=has_ranks) == expected


def test_a_failing_card_has_no_foreign_use() -> None:
    assert foreign_mib(GpuStatus(uuid="A", error="lost"), [], has_ranks=False) is None


def test_processes_are_given_to_their_ranks() -> None:
    ours, foreign = processes_attribute([proc(9), proc(7)], {9: "1.1.0"})
    assert (ours.rank, foreign.rank) == ("1.1.0", None)
