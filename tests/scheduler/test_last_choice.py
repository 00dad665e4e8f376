"""Integrated cards, and cards that a stranger uses, come last whatever the strategy."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.scheduler import Gpu, Job, Node, Policy, Request, Snapshot, plan
from jobs.scheduler.score import STRATEGIES

GIB = 1024


def card(number: int, **fields: Any) -> Gpu:
    return Gpu(id=number, uuid=f"GPU-{number}", index=number, **{"model": "RTX 4090", "total_mib": 24_564, **fields})


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("memory_mib", [4 * GIB, None])
@pytest.mark.parametrize(
    "poor",
    [
        {"vendor": "intel", "model": "UHD Graphics 770", "total_mib": 8 * GIB, "is_integrated": True},
        {"foreign_mib": 2 * GIB},
        {"util_pct": 60},
    ],
    ids=["integrated", "a stranger's memory", "a stranger's work"],
)
def test_a_plain_job_takes_the_card_that_is_free_of_all_that(strategy: str, memory_mib: int | None, poor: dict[str, Any]) -> None:
    job = Job(id=1, request=Request(gpu_mem_mib=memory_mib), submitted=0.0)
    for cards in ((card(0, **poor), card(1)), (card(1), card(2, **poor))):
        # One machine, and one machine each.
        for nodes in ((Node(id=1, name="a", gpus=cards),), tuple(Node(id=i, name=f"n{i}", gpus=(gpu,)) for i, gpu in enumerate(cards))):
            placed = plan(Snapshot(now=0.0, nodes=nodes, jobs=(job,)), Policy(strategy=strategy)).placements
            assert [grant.gpu for rank in placed[0].ranks for grant in rank.grants] == [1]


def test_it_is_taken_where_nothing_else_is_left() -> None:
    job = Job(id=1, request=Request(gpu_mem_mib=4 * GIB), submitted=0.0)
    poor = card(0, vendor="intel", total_mib=8 * GIB, is_integrated=True)
    assert len(plan(Snapshot(now=0.0, nodes=(Node(id=1, name="a", gpus=(poor,)),), jobs=(job,)), Policy()).placements) == 1
