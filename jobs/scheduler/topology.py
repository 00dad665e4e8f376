"""Which k cards of one node belong together: NVLink before the same PCIe switch before farther ones, same model before mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

from jobs.scheduler.score import NEUTRAL
from jobs.scheduler.types import Link, Node

#: How near two cards are, [0, 1]. Where links are known, a pair that none names is as far as the system is wide.
NEARNESS: Final[dict[str, float]] = {"nvlink": 1.0, "pcie_switch": 0.75, "pcie_host": 0.5, "numa": 0.25, "system": 0.0}
SAME_MODEL_SHARE: Final = 0.55  # above one half: see _nearness
EXACT_SETS: Final = 1000  # up to so many sets all are compared; beyond, sets are grown greedily from each card

SCALE: Final = 1e9  # digits that count: beyond them sums differ only by the order of their terms

Nearness = Mapping[tuple[int, int], float]


#: Of the cards of a node that knows of no links and has one model only, see ``pair_nearness``.
ALIKE: Final = (None, SAME_MODEL_SHARE + (1 - SAME_MODEL_SHARE) * NEUTRAL)


def pair_nearness(node: Node) -> tuple[Nearness | None, float]:
    """(smaller id, larger id) -> [0, 1] for each pair of the node's cards, and their least.

    The mapping is None if all pairs are alike: any set is as good, and the number says how near it is.
    """
    models = {gpu.id: gpu.model for gpu in node.gpus}
    is_mixed = len(set(models.values())) > 1
    if not node.links and not is_mixed:
        return ALIKE
    by_pair: dict[tuple[int, int], float] = {}
    for link in node.links:
        pair = _pair(link)
        by_pair[pair] = max(by_pair.get(pair, 0.0), NEARNESS.get(link.kind, 0.0))
    missing = NEARNESS["system"] if node.links else NEUTRAL
    near = {(a, b): _nearness(by_pair.get((a, b), missing), same_model=models[a] == models[b]) for a, b in combinations(sorted(models), 2)}
    least = min(near.values(), default=1.0)
    return (near if max(near.values(), default=1.0) > least else None), least


def _nearness(link: float, *, same_model: bool) -> float:
    """Any pair of one model is nearer than any mixed pair: a mixed gang runs at its slowest card's pace."""
    return SAME_MODEL_SHARE * same_model + (1 - SAME_MODEL_SHARE) * link


def _pair(link: Link) -> tuple[int, int]:
    return (link.a, link.b) if link.a < link.b else (link.b, link.a)


def set_nearness(gpus: Sequence[int], near: Nearness) -> float:
    """Mean nearness over all pairs, [0, 1]; 1 for a single card."""
    pairs = [(a, b) if a < b else (b, a) for a, b in combinations(gpus, 2)]
    return sum(near[pair] for pair in pairs) / len(pairs) if pairs else 1.0


def choose_set(candidates: Sequence[int], scores: Sequence[float], k: int, near: Nearness) -> tuple[tuple[int, ...], float]:
    """The k nearest of ``candidates`` (card ids, best first), and their nearness in [0, 1].

    Among equally near sets the one with the greatest sum of ``scores`` (one for each candidate) wins, then the first.
    Raises ValueError if there are fewer than k candidates.
    """
    if len(candidates) < k:
        raise ValueError(f"{k} cards asked for, {len(candidates)} given")
    sets = combinations(range(len(candidates)), k) if comb(len(candidates), k) <= EXACT_SETS else _grown_sets(candidates, k, near)

    def rank(places: tuple[int, ...]) -> tuple[float, float, tuple[int, ...]]:
        nearness = set_nearness([candidates[at] for at in places], near)
        return (-round(nearness * SCALE), -round(sum(scores[at] for at in places) * SCALE), places)

    chosen = tuple(candidates[at] for at in min(sets, key=rank))
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
