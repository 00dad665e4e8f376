"""Quantities × prices = money, exactly: Decimal from the first figure to the last, rounded only where it is shown. Pure.

cost = GPU-seconds × price a GPU-hour ÷ 3600 + GB-seconds of memory × price + GB-hours of storage × price.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

ZERO = Decimal(0)
#: Quantities are kept to a millionth: a microsecond of a card.
EXACT = Decimal("0.000001")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """GPU-seconds of whole cards, GB-seconds of memory, GB-hours of storage (1 GB = 1024 MiB)."""

    gpu_s: Decimal = ZERO
    gb_s: Decimal = ZERO
    gb_h: Decimal = ZERO

    def __add__(self, other: Quantities) -> Quantities:
        return Quantities(gpu_s=self.gpu_s + other.gpu_s, gb_s=self.gb_s + other.gb_s, gb_h=self.gb_h + other.gb_h)

    @property
    def gpu_hours(self) -> Decimal:
        return self.gpu_s / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    per_gpu_hour: Decimal = ZERO
    per_gb_second: Decimal = ZERO
    per_gb_hour: Decimal = ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """In the installation's currency, not rounded."""

    gpu: Decimal = ZERO
    memory: Decimal = ZERO
    storage: Decimal = ZERO

    def __add__(self, other: Cost) -> Cost:
        return Cost(gpu=self.gpu + other.gpu, memory=self.memory + other.memory, storage=self.storage + other.storage)

    @property
    def total(self) -> Decimal:
        return self.gpu + self.memory + self.storage


def decimal_of(value: float | int | Decimal | None) -> Decimal:
    """A quantity to a millionth, whatever a database sums it in."""
    return ZERO if value is None else Decimal(repr(value) if isinstance(value, float) else value).quantize(EXACT)


def cost_of(quantities: Quantities, price: Price) -> Cost:
    """1 card for 1800 s, 24 GB of it and 500 GB of files, at 5.40 a GPU-hour, 0.00002 a GB-second, 0.02 a GB-hour:
    2.70 + 0.864 + 5.00 = 8.564."""
    return Cost(
        gpu=quantities.gpu_s * price.per_gpu_hour / 3600,
        memory=quantities.gb_s * price.per_gb_second,
        storage=quantities.gb_h * price.per_gb_hour,
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def is_of_model(asked: str, have: str) -> bool:
    """Whole words of the card's name, in order, as in a job's request; "" is every card."""
    want, words = _words(asked), _words(have)
    return not want or any(words[at : at + len(want)] == want for at in range(len(words) - len(want) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFrom:
    """A row of the price table."""

    gpu_model: str
    valid_from: datetime
    price: Price


@dataclass(frozen=True, slots=True)
class PriceTable:
    rows: tuple[PriceFrom, ...]

    @classmethod
    def of(cls, rows: Iterable[PriceFrom]) -> PriceTable:
        return cls(tuple(sorted(rows, key=lambda row: (row.valid_from, row.gpu_model))))

    def changes(self, begin: datetime, end: datetime) -> list[datetime]:
        """When prices change after ``begin`` and before ``end``, in order."""
        return sorted({row.valid_from for row in self.rows if begin < row.valid_from < end})

    def at(self, when: datetime, gpu_model: str) -> Price:
        """GPU and memory: the row that names the card most closely, and of it the latest. Storage: the latest row for every card."""
        valid = [row for row in self.rows if row.valid_from <= when]
        fitting = [row for row in valid if is_of_model(row.gpu_model, gpu_model)]
        best = max(fitting, key=lambda row: (len(_words(row.gpu_model)), row.valid_from), default=None)
        general = [row for row in valid if not row.gpu_model]
        return Price(
            per_gpu_hour=best.price.per_gpu_hour if best else ZERO,
            per_gb_second=best.price.per_gb_second if best else ZERO,
            per_gb_hour=general[-1].price.per_gb_hour if general else ZERO,
        )
