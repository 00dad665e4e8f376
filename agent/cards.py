"""What the agent knows of its cards: the last sample, made ready for a sync. No I/O of its own."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from agent.backends.base import Cards, HardwareEvent
from agent.gate import foreign_mib, processes_attribute
from agent.probe import Sample
from agent.protocol import GpuInfo, GpuProcess, GpuStatus, Inventory, RankId


class CardView:
    """One per agent. ``start_of(pid)`` → a number that tells a process from a later one of the same pid, None = gone."""

    def __init__(self, *, start_of: Callable[[int], int | None], remembered: Cards | None = None) -> None:
        """``remembered``: the cards of an earlier run; they stand in while the hardware does not answer."""
        self._start_of, self._remembered = start_of, remembered or Cards()
        self.cards: Cards | None = None  # None until the hardware answered once, or was given up for now
        self.error: str | None = None
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
            self.error = sample.error
            self.stand_in()
            self.status = {g.uuid: GpuStatus(uuid=g.uuid, error=sample.error_kind or "backend_error") for g in self.gpus}
            return events
        self.error = None
        if self.cards is not None:
            before, now = {g.uuid for g in self.cards.gpus}, {g.uuid for g in sample.cards.gpus}
            events += [HardwareEvent(kind="missing", gpu=uuid) for uuid in sorted(before - now)]
            events += [HardwareEvent(kind="appeared", gpu=uuid) for uuid in sorted(now - before)]
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


def node_facts(*, cards: Cards, version: str, address: str | None, has_cgroups: bool, backend_error: str | None) -> Inventory:
    """The inventory of this node. Reads a few files of /proc and /sys."""
    advice = []
    if os.geteuid() == 0:
        advice.append("running_as_root")
    if not has_cgroups:
        advice.append("no_cgroup")
    if backend_error is not None:
        advice.append("no_hardware_layer")
    return Inventory(
        hostname=socket.gethostname(),
        gpus=cards.gpus,
        links=cards.links,
        address=address,
        os=_os_name(),
        agent_version=version,
        driver_version=cards.driver_version,
        cuda_version=cards.cuda_version,
        cpu_cores=len(os.sched_getaffinity(0)),
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024),
        rdma=_has_rdma(),
        simulated=cards.simulated,
        advice=tuple(advice),
    )


def _os_name() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        name = platform.system()
    return f"{name}, {platform.release()}"


def _has_rdma() -> bool:
    try:
        return any(Path("/sys/class/infiniband").iterdir())
    except OSError:
        return False
