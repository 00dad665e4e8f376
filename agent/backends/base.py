"""What every kind of hardware must answer, and the filters that keep nonsense out of a sync.

None means "the hardware does not tell" and is never turned into 0. One broken card never hides the others: its status
carries `error` and Nones, the rest are complete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from agent.protocol import GpuGrant, GpuHealth, GpuInfo, GpuProcess, GpuStatus, LinkInfo, RankId


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
    backends: tuple[str, ...] = ()  # that these cards come from
    advice: tuple[str, ...] = ()  # about the hardware layer as a whole: driver_mismatch, …


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

    def get_health(self) -> list[GpuHealth]:
        """The slow facts of the cards that answer. Dearer than `get_status`: for every 30 s."""

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

    def get_health(self) -> list[GpuHealth]:
        return []

    def get_process_list(self) -> list[GpuProcess] | None:
        return []

    def events(self) -> list[HardwareEvent]:
        return []

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    def cleanup(self) -> None:
        return


#: Field of GpuStatus → lowest and highest value that a real card can report.
LIMITS: dict[str, tuple[int, int]] = {
    "used_mib": (0, 2**24),
    "reserved_mib": (0, 2**24),
    "util_pct": (0, 100),
    "mem_util_pct": (0, 100),
    "tensor_pct": (0, 100),
    "temp_c": (-20, 150),
    "power_w": (0, 5000),
    "fan_pct": (0, 200),  # some fans are driven above their nominal speed and say so
    "core_mhz": (0, 20000),
    "mem_mhz": (0, 40000),
}
#: The same of GpuHealth. Counters may be large, but -1 and 2**64-1 are what drivers say for "I don't know".
HEALTH_LIMITS: dict[str, tuple[int, int]] = {
    "ecc_corrected": (0, 2**48),
    "ecc_uncorrected": (0, 2**48),
    "ecc_uncorrected_total": (0, 2**48),
    "retired_pages": (0, 100_000),
    "remapped_rows": (0, 100_000),
    "pcie_gen": (1, 10),
    "pcie_width": (1, 32),
    "pcie_replays": (0, 2**32 - 2),
    "nvlinks": (0, 64),
    "nvlinks_up": (0, 64),
    "nvlink_errors": (0, 2**48),
    "power_limit_w": (1, 5000),
    "power_default_w": (1, 5000),
    "core_max_mhz": (1, 20000),
    "mem_max_mhz": (1, 40000),
    "slow_c": (20, 150),
    "bar1_mib": (1, 2**24),
    "energy_j": (0, 2**48),
}
#: Of GpuInfo.
INFO_LIMITS: dict[str, tuple[int, int]] = {
    "total_mib": (1, 2**24),
    "pcie_gen": (1, 10),
    "pcie_width": (1, 32),
    "numa": (0, 4095),
    "pcie_hops": (0, 16),
}


#: All bits set, in 32 and 64 bits, and the largest signed numbers: what drivers say for "I don't know". Where a field is signed they
#: come out as -1, which a sensor that reads degrees could even mean; no card in a lab does.
UNKNOWN = frozenset({-1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1})


class Sanity:
    """Drops values that no card can have (util 200, -1, 2**32-1, a string) and counts them per field and per card."""

    def __init__(self) -> None:
        self.anomalies: dict[str, int] = {}
        self.by_card: dict[str, int] = {}
        self._told: set[tuple[str, str]] = set()
        self._events: list[HardwareEvent] = []

    def value(self, name: str, value: object, *, limits: Mapping[str, tuple[int, int]] = LIMITS, uuid: str = "") -> int | None:
        """``value`` of the field ``name``, or None when it cannot be true."""
        if value is None:
            return None
        low, high = limits[name]
        if not isinstance(value, bool) and isinstance(value, int | float) and low <= value <= high and value not in UNKNOWN:
            return round(value)
        self.anomalies[name] = self.anomalies.get(name, 0) + 1
        self.by_card[uuid] = self.by_card.get(uuid, 0) + 1
        if uuid and (uuid, name) not in self._told:
            self._told.add((uuid, name))
            self._events.append(HardwareEvent(kind="anomaly", gpu=uuid, data={"field": name, "value": str(value)[:40]}, at=time.time()))
        return None

    def sane(self, status: GpuStatus) -> GpuStatus:
        values: dict[str, Any] = {name: self.value(name, getattr(status, name), uuid=status.uuid) for name in LIMITS}
        return replace(status, **values)

    def healthy(self, health: GpuHealth) -> GpuHealth:
        """The slow facts, with how many values of this card were dropped so far."""
        values: dict[str, Any] = {
            name: self.value(name, getattr(health, name), limits=HEALTH_LIMITS, uuid=health.uuid) for name in HEALTH_LIMITS
        }
        return replace(health, **values, anomalies=self.by_card.get(health.uuid, 0))

    def info(self, info: GpuInfo) -> GpuInfo:
        values: dict[str, Any] = {name: self.value(name, getattr(info, name), limits=INFO_LIMITS, uuid=info.uuid) for name in INFO_LIMITS}
        return replace(info, **values)

    def events(self) -> list[HardwareEvent]:
        """An event for each field of a card that told nonsense for the first time; each once."""
        found, self._events = self._events, []
        return found


class Complaints:
    """Logs what should not have happened with its traceback once, and not again at every sample."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._made: set[tuple[str, type[BaseException]]] = set()

    def make(self, what: str, error: Exception) -> None:
        key = (what, type(error))
        if key not in self._made:
            self._made.add(key)
            self._log.error("%s", what, exc_info=error)


def sane(status: GpuStatus, sanity: Sanity | None = None) -> GpuStatus:
    """The status with impossible values turned into None."""
    return (sanity or Sanity()).sane(status)


def bus_key(pci_bus_id: str) -> tuple[int, int, int, int]:
    """``"00000000:3B:00.0"`` → (domain, bus, device, function), which sorts as CUDA_DEVICE_ORDER=PCI_BUS_ID does. Some drivers leave
    out the domain, some the function.

    Raises ValueError when it is no PCI bus id.
    """
    slot, (_, dot, function) = bus_slot(pci_bus_id), pci_bus_id.strip().partition(".")
    if slot is None or not (dot or pci_bus_id.count(":") == 2):  # two numbers alone: nobody knows which
        raise ValueError(f"{pci_bus_id!r} is not a PCI bus id")
    return *slot, int(function, 16) if dot else 0


def bus_slot(text: str | None) -> tuple[int, int, int] | None:
    """(domain, bus, device) of any spelling: ``PCI:0000:3b:00``, ``00000000:3B:00.0``, ``3b:00.0``; None if it is none."""
    parts = (text or "").strip().lower().removeprefix("pci:").split(".")[0].split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    try:
        domain, bus, device = (int(part, 16) for part in parts)
    except ValueError:
        return None
    return domain, bus, device


def host_memory_mib() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) // 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def describe(process: GpuProcess) -> GpuProcess:
    """Add user and program name from /proc. The arguments stay out: they may hold secrets."""
    try:
        import pwd  # not on Windows, which has no /proc either

        base = Path("/proc", str(process.pid))
        uid = base.stat().st_uid
        command = base.joinpath("comm").read_text().strip()
    except (OSError, ImportError):
        return process
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return replace(process, user=user, command=command)
