"""What the agent knows of its cards: the last sample, made ready for a sync. No I/O of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from agent import host
from agent.advice import ADVICE_OF_ERROR, cards_advice
from agent.backends.base import Cards, HardwareEvent
from agent.gate import foreign_mib, processes_attribute
from agent.probe import Sample
from agent.protocol import GpuHealth, GpuInfo, GpuProcess, GpuStatus, Inventory, IsolationInfo, RankId


class CardView:
    """One per agent. ``start_of(pid)`` → a number that tells a process from a later one of the same pid, None = gone."""

    def __init__(self, *, start_of: Callable[[int], int | None], remembered: Cards | None = None) -> None:
        """``remembered``: the cards of an earlier run; they stand in while the hardware does not answer."""
        self._start_of, self._remembered = start_of, remembered or Cards()
        self.cards: Cards | None = None  # None until the hardware answered once, or was given up for now
        self.error: str | None = None
        self.error_kind: str | None = None
        self.health: dict[str, GpuHealth] = {}
        self.status: dict[str, GpuStatus] = {}
        self.processes: tuple[GpuProcess, ...] | None = None
        self.processes_at: float = float("-inf")  # when the list was asked for
        self.status_at: float = float("-inf")
        self._foreign: dict[str, int] = {}
        self._owner: dict[int, tuple[int | None, RankId | None]] = {}  # pid → (start, rank)

    @property
    def gpus(self) -> tuple[GpuInfo, ...]:
        return self.cards.gpus if self.cards is not None else ()

    def take(
        self, sample: Sample, *, holders: Mapping[str, Collection[RankId]], pids_of: Callable[[RankId], Collection[int]]
    ) -> list[HardwareEvent]:
        """Take a sample in; what it tells beyond numbers comes back as events.

        ``holders``: card → the ranks of ours that hold it (those that just ended included).
        """
        events: list[HardwareEvent] = []
        if sample.error is not None:
            if sample.error != self.error:
                events.append(HardwareEvent(kind=sample.error_kind or "backend_error", data={"text": sample.error}))
            self.error, self.error_kind = sample.error, sample.error_kind
            self.stand_in()
            self.status = {g.uuid: GpuStatus(uuid=g.uuid, error=sample.error_kind or "backend_error") for g in self.gpus}
            return events
        self.error = self.error_kind = None
        if sample.health is not None:
            # Of a machine with several kinds of cards each kind brings its own; what left the machine leaves here, too.
            known = {g.uuid for g in sample.cards.gpus}
            merged = {**self.health, **{h.uuid: h for h in sample.health}}
            self.health = {uuid: facts for uuid, facts in merged.items() if uuid in known}
        if self.cards is not None:
            before, now = {g.uuid for g in self.cards.gpus}, {g.uuid for g in sample.cards.gpus}
            events += [HardwareEvent(kind="missing", gpu=uuid) for uuid in sorted(before - now)]
            events += [HardwareEvent(kind="appeared", gpu=uuid) for uuid in sorted(now - before)]
        # Fallen off the bus, whether the driver gave it a number or not.
        was = {s.uuid for s in self.status.values() if s.error == "lost"}
        events += [HardwareEvent(kind="lost", gpu=s.uuid) for s in sample.status if s.error == "lost" and s.uuid not in was]
        self.cards, self.status_at = sample.cards, sample.at
        listed: tuple[GpuProcess, ...] | None = None
        if sample.processes_read:
            self.processes_at = sample.at
            listed = self.processes = None if sample.processes is None else self._attribute(sample.processes, holders, pids_of)
        for card in sample.status:
            has_ranks = bool(holders.get(card.uuid))
            found = foreign_mib(card, listed if sample.processes_read else None if has_ranks else self.processes, has_ranks=has_ranks)
            if found is not None:
                self._foreign[card.uuid] = found
        self.status = {s.uuid: replace(s, foreign_mib=0 if s.error else self._foreign.get(s.uuid, 0)) for s in sample.status}
        return events

    def stand_in(self) -> None:
        """No answer yet: go on with the cards of the earlier run, so that they are not taken for gone."""
        if self.cards is None:
            self.cards = self._remembered

    def _attribute(
        self, processes: tuple[GpuProcess, ...], holders: Mapping[str, Collection[RankId]], pids_of: Callable[[RankId], Collection[int]]
    ) -> tuple[GpuProcess, ...]:
        owner: dict[int, tuple[int | None, RankId | None]] = {}
        looked: dict[RankId, Collection[int]] = {}
        for process in processes:
            start = self._start_of(process.pid)
            known = self._owner.get(process.pid)
            if known is not None and (known[0] == start or start is None):
                # A process that has just died may still be listed: it stays its rank's.
                owner[process.pid] = known
                continue
            found: RankId | None = None
            for rank in holders.get(process.uuid, ()):
                if rank not in looked:
                    looked[rank] = pids_of(rank)
                if process.pid in looked[rank]:
                    found = rank
            if process.pid not in owner or found is not None:
                owner[process.pid] = (start, found)
        self._owner = owner
        return processes_attribute(processes, {pid: rank for pid, (_, rank) in owner.items() if rank is not None})

    def left_of(self, rank: RankId) -> frozenset[int]:
        """Pids in the last process list that are the rank's, dead or alive."""
        return frozenset(p.pid for p in self.processes or () if p.rank == rank)

    def foreign_of(self, uuids: Collection[str]) -> dict[str, int]:
        return {uuid: self._foreign[uuid] for uuid in uuids if uuid in self._foreign}

    def statuses(self, *, unresponsive: bool) -> tuple[GpuStatus, ...]:
        if unresponsive:
            return tuple(GpuStatus(uuid=g.uuid, error="unresponsive") for g in self.gpus)
        return tuple(self.status.values())


def node_facts(
    *,
    cards: Cards,
    version: str,
    address: str | None,
    has_cgroups: bool,
    backend_error: str | None = None,
    backend_error_kind: str | None = None,
    advice: tuple[str, ...] = (),
    metrics_only: bool = False,
    isolation: IsolationInfo | None = None,
) -> Inventory:
    """The inventory of this node, with the ``advice`` that its cards give. Reads a few files of /proc and /sys.

    ``metrics_only``: this agent launches nothing, so what would be wrong for jobs is not.
    """
    codes: list[str] = []
    if not metrics_only and os.geteuid() == 0 and (isolation is None or isolation.problem == "root_same"):
        codes.append("running_as_root")
    if not has_cgroups and not metrics_only:
        codes.append("no_cgroup")
    codes += [ADVICE_OF_ERROR.get(code, code) for code in cards.advice]
    if backend_error is not None:
        codes.append(ADVICE_OF_ERROR.get(backend_error_kind or "", "no_hardware_layer"))
    codes += advice
    if not cards.simulated and not cards.links and sum(gpu.vendor == "nvidia" and gpu.parent is None for gpu in cards.gpus) > 1:
        codes.append("topology_unknown")
    return Inventory(
        hostname=socket.gethostname(),
        gpus=cards.gpus if cards.simulated else tuple(_placed(gpu) for gpu in cards.gpus),
        links=cards.links,
        address=address,
        os=host.os_name(),
        agent_version=version,
        driver_version=cards.driver_version,
        cuda_version=cards.cuda_version,
        cpu_cores=host.cpu_cores(),
        memory_mib=host.memory_mib(),
        rdma=host.has_rdma(),
        simulated=cards.simulated,
        advice=tuple(dict.fromkeys(codes)),
        backends=cards.backends,
        rdma_ports=host.rdma_ports(),
        numa_nodes=host.numa_nodes(),
        metrics_only=metrics_only,
        isolation=isolation,
    )


def _placed(gpu: GpuInfo) -> GpuInfo:
    """With its way to the processor, where the backend did not tell it."""
    return gpu if gpu.pcie_hops is not None else replace(gpu, pcie_hops=host.pcie_hops(gpu.pci_bus_id))


def status_text(backend: str, status: Collection[GpuStatus]) -> str:
    """What the cards said last, a line each."""
    lines = [f"{backend} backend, {len(status)} cards"]
    for card in status:
        told = {k: v for k, v in card.to_json().items() if k != "uuid"}
        lines.append(f"{card.uuid}: " + (", ".join(f"{k} {v}" for k, v in told.items()) or "no values"))
    return "\n".join(lines)


def power_headroom_pct(
    gpus: Collection[GpuInfo], status: Mapping[str, GpuStatus], health: Mapping[str, GpuHealth], *, feed_w: int | None = None
) -> int | None:
    """Of the power that the cards may draw together, the share that they don't draw now, 0–100.

    ``feed_w``: what the machine's supplies give its cards; None = the sum of their own limits. None where a card does not tell what
    it draws, or, without ``feed_w``, what it may.
    """
    whole = [gpu.uuid for gpu in gpus if gpu.parent is None]  # a MIG part's power is its card's
    drawn = [status[uuid].power_w if uuid in status else None for uuid in whole]
    limits = [health[uuid].power_limit_w if uuid in health else None for uuid in whole]
    if not whole or None in drawn or (feed_w is None and None in limits):
        return None
    most = feed_w or sum(limit or 0 for limit in limits)
    return max(0, min(100, round(100 * (1 - sum(watt or 0 for watt in drawn) / most)))) if most else None


class HealthDesk:
    """Which slow facts are due in the next sync: those that changed, and each at least every REPEAT_S."""

    REPEAT_S = 300.0

    def __init__(self) -> None:
        self._sent: dict[str, tuple[GpuHealth, float]] = {}

    def due(self, health: Mapping[str, GpuHealth], now: float) -> tuple[GpuHealth, ...]:
        found = []
        for uuid, facts in health.items():
            sent = self._sent.get(uuid)
            if sent is None or sent[0] != facts or (now - sent[1] >= self.REPEAT_S and sent[0] is not facts):
                found.append(facts)
        return tuple(found)

    def taken(self, health: Collection[GpuHealth], now: float) -> None:
        """The control plane has these."""
        for facts in health:
            self._sent[facts.uuid] = (facts, now)


class SteadyAdvice:
    """Advice that the cards give, steadied: a code counts once two readings in a row gave it, and ends likewise."""

    def __init__(self) -> None:
        self._last: tuple[str, ...] = ()
        self._of: dict[str, GpuHealth] | None = None
        self.codes: tuple[str, ...] = ()

    def take(self, cards: Cards, health: dict[str, GpuHealth]) -> tuple[str, ...]:
        """The codes after this reading; the same ``health`` again is no new reading."""
        if health is not self._of:
            now = cards_advice(cards.gpus, health)
            first = self._of is None or not self._of
            self.codes = (
                now
                if first
                else tuple(c for c in now if c in self.codes or c in self._last)
                + tuple(c for c in self.codes if c not in now and c in self._last)
            )
            self._last, self._of = now, health
        return self.codes
