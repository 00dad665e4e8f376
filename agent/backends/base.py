"""What every kind of hardware must answer, and the filters that keep nonsense out of a sync.

None means "the hardware does not tell" and is never turned into 0. One broken card never hides the others: its status
carries `error` and Nones, the rest are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agent.protocol import GpuGrant, GpuInfo, GpuProcess, GpuStatus, LinkInfo, RankId


class BackendError(RuntimeError):
    """The hardware layer cannot be used at all; the text says why and what to do. ``kind`` names it for events."""

    def __init__(self, text: str, kind: str = "backend_error") -> None:
        super().__init__(text)
        self.kind = kind


class BackendHang(RuntimeError):
    """The hardware would not answer in time (the inline simulation raises this instead of blocking)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The constant facts of all cards that answer now."""

    gpus: tuple[GpuInfo, ...] = ()
    links: tuple[LinkInfo, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareEvent:
    """Something a card did: kind xid, missing, appeared, anomaly …"""

    kind: str
    gpu: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    at: float | None = None  # Unix time


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A rank that holds memory on cards now; only a simulation needs to be told."""

    rank: RankId
    pids: tuple[int, ...]
    gpus: tuple[GpuGrant, ...]


class HardwareBackend(Protocol):
    """Not thread-safe. `initialize` may be called again after an error or when it found no card."""

    name: str

    def initialize(self) -> None:
        """Open the hardware layer. Raises BackendError; no cards is not an error."""

    def inventory(self) -> Cards:
        """The cards that answer now, in index order."""

    def get_status(self) -> list[GpuStatus]:
        """One status a known card; a failing card has `error` set. `foreign_mib` is left 0: the agent works it out."""

    def get_process_list(self) -> list[GpuProcess] | None:
        """Processes on the cards, `rank` unset; None where this hardware or system does not tell."""

    def events(self) -> list[HardwareEvent]:
        """What happened since the last call; never blocks."""

    def placed(self, ranks: Sequence[Placed]) -> None:
        """Tell which ranks hold cards. Real hardware ignores it."""

    def cleanup(self) -> None:
        """Let go of the hardware layer. Safe to call twice."""


class NoBackend:
    """A node without cards: it runs CPU jobs."""

    name = "none"

    def initialize(self) -> None:
        return

    def inventory(self) -> Cards:
        return Cards()

    def get_status(self) -> list[GpuStatus]:
        return []

    def get_process_list(self) -> list[GpuProcess] | None:
        return []

    def events(self) -> list[HardwareEvent]:
        return []

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    def cleanup(self) -> None:
        return


#: field of GpuStatus → lowest and highest value that a real card can report.
LIMITS: dict[str, tuple[int, int]] = {
    "used_mib": (0, 2**24),
    "reserved_mib": (0, 2**24),
    "util_pct": (0, 100),
    "mem_util_pct": (0, 100),
    "temp_c": (-20, 150),
    "power_w": (0, 5000),
    "fan_pct": (0, 200),  # some fans are driven above their nominal speed and say so
    "core_mhz": (0, 20000),
    "mem_mhz": (0, 40000),
}


class Sanity:
    """Drops values that no card can have (util 200, -1, 2**32-1, a string) and counts them per field."""

    def __init__(self) -> None:
        self.anomalies: dict[str, int] = {}

    def value(self, name: str, value: object) -> int | None:
        """``value`` of the GpuStatus field ``name``, or None when it cannot be true."""
        if value is None:
            return None
        low, high = LIMITS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.anomalies[name] = self.anomalies.get(name, 0) + 1
            return None
        return round(value)

    def sane(self, status: GpuStatus) -> GpuStatus:
        values: dict[str, Any] = {name: self.value(name, getattr(status, name)) for name in LIMITS}
        return replace(status, **values)


def sane(status: GpuStatus, sanity: Sanity | None = None) -> GpuStatus:
    """The status with impossible values turned into None."""
    return (sanity or Sanity()).sane(status)


def bus_key(pci_bus_id: str) -> tuple[int, int, int, int]:
    """``"00000000:3B:00.0"`` → (domain, bus, device, function), which sorts as CUDA_DEVICE_ORDER=PCI_BUS_ID does.

    Raises ValueError when it is no PCI bus id.
    """
    parts = pci_bus_id.replace(".", ":").split(":")
    if len(parts) == 3:
        parts.insert(0, "0")
    if len(parts) != 4:
        raise ValueError(f"{pci_bus_id!r} is not a PCI bus id")
    domain, bus, device, function = (int(p, 16) for p in parts)
    return domain, bus, device, function
