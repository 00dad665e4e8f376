"""How good a card is for a job, in [0, 1]; 1 is best. A value that is not known is neutral (0.5), never 0.

Two rules come before the score: a node where the job just failed to launch comes last, and a slice goes to a partly used card
before it breaks a whole one. Among those, the weighted sum decides. The weights add up to 1.
"""

from __future__ import annotations

from typing import Final

from jobs.scheduler.types import Gpu

NEUTRAL: Final = 0.5
WEIGHTS: Final[dict[str, float]] = {
    "temperature": 0.28,
    "load": 0.28,
    "fragmentation": 0.20,
    "health": 0.14,
    "pcie": 0.10,
}
#: Of a set of cards on one node: how much nearness counts beside the cards' own scores.
TOPOLOGY_WEIGHT: Final = 0.30

COOL_C: Final = 40  # at or below: 1
HOT_C: Final = 90  # at or above: 0, where cards throttle
FULL_PCIE_WIDTH: Final = 16


def _unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def temperature_score(temp_c: int | None) -> float:
    """1 at 40 °C or less, 0 at 90 °C or more, linear between."""
    return NEUTRAL if temp_c is None else _unit((HOT_C - temp_c) / (HOT_C - COOL_C))


def load_score(util_pct: int | None) -> float:
    """1 at 0 % load, 0 at 100 %."""
    return NEUTRAL if util_pct is None else _unit(1 - util_pct / 100)


def health_score(health: int) -> float:
    """The card's health 0–100 as 0–1."""
    return _unit(health / 100)


def pcie_score(width: int | None) -> float:
    """Link lanes of 16. The generation is left out: idle cards drop it to save power, so it says nothing about a loaded card."""
    return NEUTRAL if width is None else _unit(width / FULL_PCIE_WIDTH)


def card_score(gpu: Gpu) -> float:
    """The part of the score that no placement changes: all but fragmentation; [0, 0.8] with the weights above."""
    return (
        WEIGHTS["temperature"] * temperature_score(gpu.temp_c)
        + WEIGHTS["load"] * load_score(gpu.util_pct)
        + WEIGHTS["health"] * health_score(gpu.health)
        + WEIGHTS["pcie"] * pcie_score(gpu.pcie_width)
    )


def slice_fragmentation(*, total_mib: int, free_mib: int, taken_mib: int) -> float:
    """1 when the slice fills the card, less the more it leaves over: the tightest card comes first."""
    return _unit(1 - (free_mib - taken_mib) / total_mib)


def whole_fragmentation(*, total_mib: int, needed_mib: int, empty: int, taken: int, cards: int) -> float:
    """Half: how much of the card the job asked for. Half: how few empty cards the node keeps, so that full nodes stay for large jobs.

    ``empty`` cards of the node's ``cards`` are empty before the job takes ``taken`` of them.
    """
    return 0.5 * _unit(needed_mib / total_mib) + 0.5 * _unit(1 - (empty - taken) / cards)
