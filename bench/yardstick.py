"""A yardstick for ``bench.passes``: the least that any scheduler in plain Python does with such a queue, timed in the same run.

Jobs in the order of a key, cards found by how many are free, a kind of request that failed once not tried again; first fit. No
reasons, shares, scores, rules or forecasts. The ratio of a pass to this says what those cost, on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.scheduler import Snapshot


@dataclass(slots=True)
class Bare:
    """A snapshot in plain numbers. ``free``: MiB by node and card; ``jobs``: (key, id, cards, MiB of each, 0 = whole)."""

    free: list[list[int]]
    whole_mib: int
    jobs: list[tuple[float, int, int, int]]


def bare_of(snapshot: Snapshot) -> Bare:
    taken: dict[int, int] = {}
    for part in snapshot.slices:
        taken[part.gpu] = taken.get(part.gpu, 0) + part.mib
    free = [[(gpu.total_mib or 0) - taken.get(gpu.id, 0) for gpu in node.gpus] for node in snapshot.nodes]
    whole = max(gpu.total_mib or 0 for node in snapshot.nodes for gpu in node.gpus)
    jobs = []
    for job in snapshot.jobs:
        mib = job.request.gpu_mem_mib or 0
        jobs.append((job.submitted, job.id, job.request.gpu_count, 0 if mib > whole // 2 else mib))
    return Bare(free, whole, jobs)


def place(bare: Bare) -> int:
    """Place what fits, in order; how many that were. The bare snapshot is used up."""
    free, whole = bare.free, bare.whole_mib
    empty = [sum([mib == whole for mib in cards]) for cards in free]
    by_empty: list[set[int]] = [set() for _ in range(max(map(len, free)) + 1)]
    for node, count in enumerate(empty):
        by_empty[count].add(node)
    parts: dict[int, set[tuple[int, int]]] = {}
    for node, cards in enumerate(free):
        for card, mib in enumerate(cards):
            if 0 < mib < whole:
                parts.setdefault(mib, set()).add((node, card))
    failed: set[tuple[int, int]] = set()
    placed = 0
    for _key, _id, count, mib in sorted(bare.jobs):
        if (count, mib) in failed:
            continue
        if mib and (fits := [left for left in parts if left >= mib]):
            left = min(fits)
            where = parts[left].pop()
            if not parts[left]:
                del parts[left]
            _part_left(free, parts, where, left - mib)
            placed += 1
            continue
        at = next((number for number in range(count, len(by_empty)) if by_empty[number]), None)
        if at is None:
            failed.add((count, mib))
            continue
        node = by_empty[at].pop()
        chosen = [card for card, left in enumerate(free[node]) if left == whole][:count]
        for card in chosen:
            if mib:
                _part_left(free, parts, (node, card), whole - mib)
            else:
                free[node][card] = 0
        empty[node] -= count
        by_empty[empty[node]].add(node)
        placed += 1
    return placed


def _part_left(free: Sequence[list[int]], parts: dict[int, set[tuple[int, int]]], where: tuple[int, int], left: int) -> None:
    node, card = where
    free[node][card] = left
    if left:
        parts.setdefault(left, set()).add(where)
