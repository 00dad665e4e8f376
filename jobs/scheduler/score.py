"""How good a card is for a job, in [0, 1]; 1 is best. A value that is not known is neutral (0.5), never 0.

The weighted sum decides among cards that are equally good for what comes later: see ``packing_class``. The weights add up to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, exp
from typing import Any, Final

from jobs.scheduler.types import Gpu, Node

NEUTRAL: Final = 0.5
WEIGHTS: Final[dict[str, float]] = {
    "temperature": 0.28,
    "load": 0.28,
    "fragmentation": 0.15,
    "health": 0.14,
    "pcie": 0.10,
    "power": 0.05,
}
#: Of a set of cards on one node: how much nearness counts beside the cards' own scores.
TOPOLOGY_WEIGHT: Final = 0.30

COOL_C: Final = 40  # at or below: 1
HOT_C: Final = 90  # at or above: 0, where cards throttle
FULL_PCIE_WIDTH: Final = 16
PCIE_WIDTH_SHARE: Final = 0.7  # of the pcie score; the rest is the position
#: A card like this is taken only when no other fits, however well it would pack.
STRAINED_C: Final = 85
STRAINED_HEALTH: Final = 50
STRAINED_LOAD_PCT: Final = 50  # of a card that no job of ours is on: somebody computes there
STRAINED_FOREIGN_MIB: Final = 512  # more of its memory is in the hands of no job of ours: likewise

FRAGMENTATION_AWARE: Final = "fragmentation-aware"
FIRST_FIT: Final = "first-fit"
BEST_FIT: Final = "best-fit"
LOAD_BALANCE: Final = "load-balance"
STRATEGIES: Final = ("default", FRAGMENTATION_AWARE, FIRST_FIT, BEST_FIT, LOAD_BALANCE)


def _unit(value: float) -> float:
    return 0.0 if value < 0.0 else 1.0 if value > 1.0 else value


def temperature_score(temp_c: int | None) -> float:
    """1 at 40 °C or less, 0 at 90 °C or more, linear between."""
    return NEUTRAL if temp_c is None else _unit((HOT_C - temp_c) / (HOT_C - COOL_C))


def load_score(util_pct: int | None) -> float:
    """1 at 0 % load, 0 at 100 %."""
    return NEUTRAL if util_pct is None else _unit(1 - util_pct / 100)


def health_score(health: int) -> float:
    """The card's health 0–100 as 0–1."""
    return _unit(health / 100)


def pcie_score(width: int | None, hops: int | None = None) -> float:
    """Link lanes of 16, and how near the processor the slot is: 1 without a switch between, ½ with one, ⅓ with two.

    The generation is left out: idle cards drop it to save power, so it says nothing about a loaded card.
    """
    lanes = NEUTRAL if width is None else _unit(width / FULL_PCIE_WIDTH)
    position = NEUTRAL if hops is None else 1 / (1 + max(hops, 0))
    return PCIE_WIDTH_SHARE * lanes + (1 - PCIE_WIDTH_SHARE) * position


def power_score(headroom_pct: int | None) -> float:
    """The share of the node's power feed that nobody draws."""
    return NEUTRAL if headroom_pct is None else _unit(headroom_pct / 100)


class _Points(dict[int | None, float]):
    """What each value of a reading adds to a card's score; those that are seen every day are worked out before."""

    def __init__(self, weight: float, score: Callable[[Any], float], most: int) -> None:
        super().__init__({value: weight * score(value) for value in range(most + 1)})
        self._weight = weight
        self._score = score

    def __missing__(self, value: int | None) -> float:
        found = self._weight * self._score(value)
        if value is None:
            self[None] = found
        return found


_TEMPERATURE = _Points(WEIGHTS["temperature"], temperature_score, 120)
_LOAD = _Points(WEIGHTS["load"], load_score, 100)
_HEALTH = _Points(WEIGHTS["health"], health_score, 100)
_PCIE = _Points(WEIGHTS["pcie"], pcie_score, FULL_PCIE_WIDTH)  # the position not known


def card_rated(gpu: Gpu, *, live: int) -> tuple[float, bool]:
    """(``card_score``, ``is_strained``): a pass asks both of each card with room. ``live``: our slices on it."""
    temp, util, width, hops, well = gpu.temp_c, gpu.util_pct, gpu.pcie_width, gpu.pcie_hops, gpu.health
    score = _TEMPERATURE[temp] + _LOAD[util] + _HEALTH[well]
    score += _PCIE[width] if hops is None else WEIGHTS["pcie"] * pcie_score(width, hops)
    is_strained = (
        (temp is not None and temp >= STRAINED_C)
        or well < STRAINED_HEALTH
        or gpu.is_integrated
        or gpu.foreign_mib > STRAINED_FOREIGN_MIB
        or (live == 0 and util is not None and util >= STRAINED_LOAD_PCT)
    )
    return score, is_strained


def card_score(gpu: Gpu) -> float:
    """The part of the score that belongs to the card alone: all but fragmentation and power; [0, 0.8] with the weights above.

    The sum of the four scores above, each with its weight.
    """
    return card_rated(gpu, live=0)[0]


def node_score(node: Node) -> float:
    """The part of the score that all cards of a node share."""
    return WEIGHTS["power"] * power_score(node.power_headroom_pct)


def is_strained(gpu: Gpu, *, live: int) -> bool:
    """Too hot, too unwell, integrated, or at work for somebody else: the last choice, whatever the strategy and whatever speaks for it."""
    return card_rated(gpu, live=live)[1]


def slice_fragmentation(*, total_mib: int, free_mib: int, taken_mib: int) -> float:
    """1 when the slice fills the card, less the more it leaves over: the tightest card comes first."""
    return _unit(1 - (free_mib - taken_mib) / total_mib)


def whole_fragmentation(*, empty: int, cards: int) -> float:
    """For an empty card: the share of its node's cards that are in use, so that used nodes fill up and empty ones stay for large jobs."""
    return _unit(1 - empty / cards)


def packing_class(strategy: str, *, lost: float, fragmentation: float, free_share: float) -> int:
    """What comes before the weighted sum: least is best, and equals are left to temperature, load and the rest.

    ``lost``: memory, in mean cards, that the jobs to come could have used and can't any more, less what this one asks for
    (fragmentation.py). It is rounded to whole points of 100, as in FGD's artifact: finer differences mean nothing, and
    chasing them scatters jobs over the nodes. ``fragmentation`` in [0, 1] as above;
    ``free_share`` in [0, 1]: how empty the card or node is.
    Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
    """
    if strategy == FRAGMENTATION_AWARE:
        return -int(100 / (1 + exp(lost if -50.0 < lost < 50.0 else copysign(50.0, lost))))
    if strategy == BEST_FIT:
        return -round(1000 * fragmentation)
    if strategy == LOAD_BALANCE:
        return -round(100 * free_share)
    return 0
