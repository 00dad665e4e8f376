"""Which k cards of one node belong together: NVLink before the same PCIe switch before farther ones, same model before mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

from jobs.scheduler.types import Link, Node

#: How near two cards are, [0, 1]. A pair that no link names is as far as the system is wide.
NEARNESS: Final[dict[str, float]] = {"nvlink": 1.0, "pcie_switch": 0.75, "pcie_host": 0.5, "numa": 0.25, "system": 0.0}
EXACT_SETS: Final = 1000  # up to so many sets all are compared; beyond, sets are grown greedily from each card

Nearness = Mapping[tuple[int, int], float]


def pair_nearness(node: Node) -> Nearness | None:
    """(smaller id, larger id) -> [0, 1] for each pair of the node's cards; None if all pairs are alike, so that any set is as good."""
    by_pair: dict[tuple[int, int], float] = {}
    for link in node.links:
        pair = _pair(link)
        by_pair[pair] = max(by_pair.get(pair, 0.0), NEARNESS.get(link.kind, 0.0))
    models = {gpu.id: gpu.model for gpu in node.gpus}
    near: dict[tuple[int, int], float] = {}
    for a, b in combinations(sorted(models), 2):
        # Any pair of one model is nearer than any mixed pair: a mixed gang runs at its slowest card's pace.
        near[a, b] = 0.5 * by_pair.get((a, b), 0.0) + (0.5 if models[a] == models[b] else 0.0)
    return near if len(set(near.values())) > 1 else None


def _pair(link: Link) -> tuple[int, int]:
    return (link.a, link.b) if link.a < link.b else (link.b, link.a)


def set_nearness(gpus: Sequence[int], near: Nearness) -> float:
    """Mean nearness over all pairs, [0, 1]; 1 for a single card."""
    pairs = [(a, b) if a < b else (b, a) for a, b in combinations(gpus, 2)]
    return sum(near[pair] for pair in pairs) / len(pairs) if pairs else 1.0


def choose_set(candidates: Sequence[int], k: int, near: Nearness | None) -> tuple[tuple[int, ...], float | None]:
    """The k nearest of ``candidates`` (card ids, best first) and their nearness; None = all sets are alike.

    Among equally near sets the one with the better cards wins: the order of ``candidates`` breaks ties.
    Raises ValueError if there are fewer than k candidates.
    """
    if len(candidates) < k:
        raise ValueError(f"{k} cards asked for, {len(candidates)} given")
    if near is None or k == 1:
        return tuple(candidates[:k]), None
    if k == len(candidates):
        return tuple(candidates), set_nearness(candidates, near)
    sets = combinations(range(len(candidates)), k) if comb(len(candidates), k) <= EXACT_SETS else _grown_sets(candidates, k, near)
    # Sum of places, then places: the set with the better cards.
    best = min(sets, key=lambda places: (-round(set_nearness([candidates[at] for at in places], near), 9), sum(places), places))
    chosen = tuple(candidates[at] for at in best)
    return chosen, set_nearness(chosen, near)


def _grown_sets(candidates: Sequence[int], k: int, near: Nearness) -> list[tuple[int, ...]]:
    """One set for each start card, grown by the card that is nearest to those already in it."""

    def distance(a: int, b: int) -> float:
        one, two = candidates[a], candidates[b]
        return near[(one, two) if one < two else (two, one)]

    sets: set[tuple[int, ...]] = set()
    for start in range(len(candidates)):
        grown = [start]
        rest = [at for at in range(len(candidates)) if at != start]
        while len(grown) < k:
            nearest = max(rest, key=lambda at: (round(sum(distance(at, other) for other in grown), 9), -at))
            grown.append(nearest)
            rest.remove(nearest)
        sets.add(tuple(sorted(grown)))
    return sorted(sets)
