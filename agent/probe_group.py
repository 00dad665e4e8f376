"""Several kinds of cards in one machine: one child each, so that a driver that hangs or breaks hides no other's cards."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agent.backends.base import Cards, HardwareEvent, Placed
from agent.backends.choose import BACKEND_OF
from agent.probe import Probe, Sample
from agent.protocol import GpuHealth, GpuProcess, GpuStatus


@dataclass(slots=True)
class _Member:
    name: str
    probe: Probe
    cards: Cards = field(default_factory=Cards)  # of the last good sample, or of an earlier run
    status: tuple[GpuStatus, ...] = ()
    health: tuple[GpuHealth, ...] | None = None  # not passed on yet
    processes: tuple[GpuProcess, ...] | None = None
    processes_at: float = float("-inf")
    at: float | None = None  # of the last sample; None = never answered
    error: str | None = None
    error_kind: str | None = None

    @property
    def is_silent(self) -> bool:
        return self.probe.unresponsive

    @property
    def is_well(self) -> bool:
        return self.at is not None and self.error is None and not self.is_silent


class ProbeGroup:
    """A Probe over one probe a backend. A sample is told when any of them answered, with the last word of the others."""

    def __init__(self, members: Sequence[tuple[str, Probe]]) -> None:
        self._members = [_Member(name, probe) for name, probe in members]
        self._epoll = select.epoll()
        for member in self._members:
            fd = member.probe.fileno()
            if fd is not None:
                self._epoll.register(fd, select.EPOLLIN)
        self._silent: set[str] = set()
        self._processes_told = float("-inf")

    @property
    def unresponsive(self) -> bool:
        return all(m.is_silent for m in self._members)

    def fileno(self) -> int | None:
        return self._epoll.fileno()

    def request(self, *, processes: bool) -> None:
        for member in self._members:
            member.probe.request(processes=processes)

    def poll(self) -> tuple[list[Sample], list[HardwareEvent]]:
        events: list[HardwareEvent] = []
        news = False
        for member in self._members:
            samples, told = member.probe.poll()
            events += told
            for sample in samples:
                self._take(member, sample)
                news = True
        silent = {m.name for m in self._members if m.is_silent}
        for name in sorted(silent ^ self._silent):
            if len(silent) < len(self._members) and len(self._silent) < len(self._members):  # else the whole is told of
                kind = "unresponsive" if name in silent else "responsive"
                events.append(HardwareEvent(kind=kind, data={"backend": name}))
            news = True
        self._silent = silent
        first = all(m.at is not None or m.is_silent for m in self._members)
        return ([self._merged()] if news and first and not self.unresponsive else []), events

    def _take(self, member: _Member, sample: Sample) -> None:
        member.at, member.error, member.error_kind = sample.at, sample.error, sample.error_kind
        if sample.error is not None:
            return
        member.cards, member.status = sample.cards, sample.status
        if sample.health is not None:
            member.health = sample.health
        if sample.processes_read:
            member.processes, member.processes_at = sample.processes, sample.at

    def _merged(self) -> Sample:
        well = [m for m in self._members if m.is_well]
        broken = [m for m in self._members if m.error is not None and not m.is_silent]
        if not well and broken:
            texts = " ".join(m.error or "" for m in broken)
            return Sample(at=min(m.at or 0.0 for m in broken), error=texts, error_kind=broken[0].error_kind)
        at = min(m.at or 0.0 for m in well)
        processes_at = min((m.processes_at for m in well), default=float("-inf"))
        read = processes_at > self._processes_told
        if read:
            self._processes_told = processes_at
            at = min(at, processes_at)  # an earlier time claims less
        lists = [m.processes for m in well]
        listed = None if all(found is None for found in lists) else tuple(p for found in lists for p in found or ())
        health = [h for m in well for h in m.health or ()] if any(m.health is not None for m in well) else None
        for member in well:
            member.health = None
        return Sample(
            at=at,
            cards=self._cards(),
            status=tuple(s for m in self._members for s in self._status(m)),
            processes=listed if read else None,
            processes_read=read,
            health=None if health is None else tuple(health),
        )

    @staticmethod
    def _status(member: _Member) -> Sequence[GpuStatus]:
        if member.is_well:
            return member.status
        error = "unresponsive" if member.is_silent else member.error_kind or "backend_error"
        return [GpuStatus(uuid=g.uuid, error=error) for g in member.cards.gpus]

    def _cards(self) -> Cards:
        """All cards, numbered through."""
        gpus = [g for m in self._members for g in m.cards.gpus]
        nvidia = next((m.cards for m in self._members if m.name == "nvml"), Cards())
        drivers = [(m.name, m.cards.driver_version) for m in self._members if m.cards.driver_version]
        return Cards(
            gpus=tuple(replace(g, index=i) for i, g in enumerate(gpus)),
            links=tuple(link for m in self._members for link in m.cards.links),
            # The column is for the driver that CUDA depends on; without an NVIDIA card for whichever there is.
            driver_version=nvidia.driver_version or (drivers[0][1] if drivers else None),
            cuda_version=nvidia.cuda_version,
            backends=tuple(m.name for m in self._members),
            advice=tuple(
                dict.fromkeys(
                    [code for m in self._members for code in m.cards.advice]
                    + [m.error_kind for m in self._members if m.error_kind is not None and not m.is_silent]
                )
            ),
        )

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    def remember(self, cards: Cards) -> None:
        for member in self._members:
            mine = tuple(g for g in cards.gpus if BACKEND_OF.get(g.vendor) == member.name)
            if member.at is None and mine:
                names = {g.uuid for g in mine}
                links = tuple(link for link in cards.links if link.a in names and link.b in names)
                member.cards = Cards(gpus=mine, links=links)

    def rest(self, seconds: float) -> None:
        for member in self._members:
            member.probe.rest(seconds)

    def close(self) -> None:
        for member in self._members:
            member.probe.close()
        with contextlib.suppress(OSError):
            self._epoll.close()
