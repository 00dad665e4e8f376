"""The loop's side of the hardware: when to read it, what to remember of it, what to tell of it. Never waits."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from agent.backends.base import Cards, HardwareEvent, Placed
from agent.cards import CardView
from agent.probe import Probe, cards_from, cards_to
from agent.processes import Processes
from agent.protocol import GpuGrant, GpuStatus, ProtocolError, RankId
from agent.store import Store

log = logging.getLogger("nebula-agent")

SAMPLE_S = 5.0
PROCESSES_S = 30.0
#: The same event of the same card again within this time is counted, not sent: a program can cause thousands of XIDs.
EVENT_QUIET_S = 1.0
#: In the driver's line about an XID: "pid=1234" or "pid='1234'".
_PID = re.compile(r"\bpid='?(\d+)")


class Hardware:
    """``holders()`` → card → ranks of ours on it; ``event`` keeps an event for the next sync."""

    def __init__(self, *, probe: Probe, processes: Processes, store: Store, event: Callable[[HardwareEvent], None]) -> None:
        self.probe, self._processes, self._store, self._event = probe, processes, store, event
        remembered = _cards_load(store.meta("cards"))
        self.view = CardView(start_of=_start_of, remembered=remembered)
        if remembered is not None:
            probe.remember(remembered)
        self.next_sample = time.monotonic()
        self._next_processes = self.next_sample
        self._was_unresponsive = False
        self._remembered: Cards | None = None
        self._pids: dict[RankId, tuple[int, ...]] = {}
        self._quiet: dict[tuple[str, str | None, str], tuple[float, int]] = {}

    def request(self, *, processes: bool) -> None:
        self.probe.request(processes=processes)

    def processes_soon(self) -> None:
        """Something new runs on a card: the next sample lists the processes, so that they are known by name when they end."""
        self._next_processes = 0.0

    def sample_before(self, at: float) -> None:
        """The sync at this time shall carry a fresh sample."""
        self.next_sample = min(self.next_sample, max(time.monotonic(), at))

    def turn(self, holders: Callable[[], Mapping[str, Collection[RankId]]]) -> bool:
        """Ask when it is time, take in what came. True when a sample came in."""
        now = time.monotonic()
        if now >= self.next_sample:
            self.request(processes=now >= self._next_processes)
            self.next_sample = now + SAMPLE_S
        samples, events = self.probe.poll()
        for sample in samples:
            events = [*events, *self.view.take(sample, holders=holders(), pids_of=self._processes.pids)]
            if sample.processes_read:
                self._next_processes = time.monotonic() + PROCESSES_S
            if sample.error is None and self.view.cards != self._remembered:
                self._remembered = self.view.cards
                self._store.meta_set("cards", json.dumps(cards_to(sample.cards)))
        unresponsive = self.probe.unresponsive
        if unresponsive != self._was_unresponsive:
            self._was_unresponsive = unresponsive
            self.view.stand_in()
            events = [*events, HardwareEvent(kind="unresponsive" if unresponsive else "responsive")]
        for event in events:
            self._take_event(self._attribute(event, holders) if event.kind == "xid" else event)
        return bool(samples)

    def _attribute(self, event: HardwareEvent, holders: Callable[[], Mapping[str, Collection[RankId]]]) -> HardwareEvent:
        """Whose program an XID names, where the kernel's line names a process of a rank of ours on that card."""
        named = _PID.search(str(event.data.get("text", "")))
        if named is None or event.gpu is None or "rank" in event.data:
            return event
        pid = int(named[1])
        rank = next((rank for rank in holders().get(event.gpu, ()) if pid in self._processes.pids(rank)), None)
        return event if rank is None else replace(event, data={**event.data, "rank": rank})

    def _take_event(self, event: HardwareEvent) -> None:
        """Pass an event on; the same one in quick succession is only counted."""
        # The kernel's line about an XID differs each time, the event does not.
        same = {"xid": event.data["xid"]} if "xid" in event.data else event.data
        key = (event.kind, event.gpu, json.dumps(same, sort_keys=True))
        now = time.monotonic()
        last, count = self._quiet.get(key, (float("-inf"), 0))
        if now - last < EVENT_QUIET_S:
            self._quiet[key] = (last, count + 1)
            return
        if len(self._quiet) > 1000:
            self._quiet.clear()
        self._quiet[key] = (now, 0)
        data = {**event.data, **({"unsent_before": count} if count else {})}
        log.warning("Hardware event %s %s %s", event.kind, event.gpu or "", data or "")
        self._event(HardwareEvent(kind=event.kind, gpu=event.gpu, data=data, at=event.at or time.time()))

    def statuses(self) -> tuple[GpuStatus, ...]:
        return self.view.statuses(unresponsive=self.probe.unresponsive)

    def place(self, running: Mapping[RankId, tuple[GpuGrant, ...]]) -> None:
        """Tell a simulation which ranks run where; real hardware sees it by itself."""
        if self.probe.fileno() is not None:
            return
        self._pids = {rank: self._pids.get(rank) or tuple(sorted(self._processes.pids(rank))) for rank in running}
        self.probe.placed([Placed(rank=rank, pids=self._pids[rank], gpus=gpus) for rank, gpus in running.items()])


def _start_of(pid: int) -> int | None:
    try:
        from agent.procs import process_stat
    except (ImportError, OSError, AttributeError, TypeError):
        return None  # no /proc, no prctl: a system that only reports
    found = process_stat(pid)
    return found.start if found is not None else None


def _cards_load(text: str | None) -> Cards | None:
    """The cards of an earlier run, without what was advised then: the machine may have been started anew since."""
    try:
        return replace(cards_from(json.loads(text)), advice=()) if text is not None else None
    except (ValueError, KeyError, ProtocolError):
        return None
