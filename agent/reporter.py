"""The agent of a node that only reports (`mode = "metrics"`, and always on Windows): cards, host and faults, no program of anybody's.

One thread. Nothing here needs more of the system than files, sockets, threads and one child process, so it runs where the loop that
launches ranks (runner.py) does not. The control plane shows such a node and never places anything on it.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from agent.backends.base import Cards, HardwareEvent
from agent.cards import HealthDesk, SteadyAdvice, node_facts, power_headroom_pct, status_text
from agent.config import Config
from agent.credential import Credential
from agent.hardware import Hardware
from agent.hostload import HostLoad
from agent.http import HttpClient
from agent.probe import Probe
from agent.protocol import Command, CommandResult, ExitInfo, Inventory, Observed, Orders, RankId, SyncRequest
from agent.store import Store
from agent.syncline import SyncLine, proof_sha256, status_write
from agent.ws import Listener

log = logging.getLogger("nebula-agent")

#: How often it is looked whether the hardware has said something; a fault is told within about this time.
LOOK_S = 0.25
FACTS_S = 300.0
FIRST_SAMPLE_WAIT_S = 3.0
SAMPLE_LEAD_S = 0.3
COALESCE_S = 0.2

EXIT_OK, EXIT_SESSION_REFUSED = 0, 3


class _NoRanks:
    """The processes' side of a node that has none."""

    def pids(self, rank: RankId) -> Collection[int]:
        return ()


class Reporter:
    """``extra_advice()`` → codes beyond what the cards give, such as Windows' own; asked for now and then."""

    def __init__(
        self,
        *,
        config: Config,
        version: str,
        store: Store,
        probe: Probe,
        client: HttpClient,
        listener: Callable[[Callable[[], None]], Listener] | None = None,
        credential: Credential | None = None,
        extra_advice: Callable[[], tuple[str, ...]] = tuple,
        rng: random.Random | None = None,
    ) -> None:
        self._config, self._version, self._store = config, version, store
        self._extra_advice = extra_advice
        self._session = str(uuid.uuid4())
        self._seq = 0
        self._proof, self._proofs_before = store.proofs_begin()
        no_ranks: Any = _NoRanks()
        self._hardware = Hardware(probe=probe, processes=no_ranks, store=store, event=self._event)
        self._load = HostLoad(config.data_dir)
        self._health, self._advice = HealthDesk(), SteadyAdvice()
        self._inventory_sent: Inventory | None = None
        self._facts: Inventory | None = None
        self._facts_of: tuple[Cards, str | None, tuple[str, ...], int] | None = None
        self._observed: dict[RankId, Observed] = {}
        self._wake = threading.Event()
        self._woken_at = float("-inf")
        self._dirty = False
        self._stopping = False
        self._exit_code = EXIT_OK
        now = time.monotonic()
        self._line = SyncLine(
            config=config, client=client, rng=rng or random.Random(), first_at=now + FIRST_SAMPLE_WAIT_S, credential=credential
        )
        self._synced_at = now - COALESCE_S
        self._listener = listener(self._nudge) if listener is not None else None

    def _nudge(self) -> None:
        """From any thread."""
        self._dirty = True
        self._wake.set()

    def stop(self) -> None:
        """End after the present turn, with a last sync. From any thread."""
        self._stopping = True
        self._wake.set()

    def run(self, *, signals: bool = True) -> int:
        """Until SIGTERM, SIGINT (``signals``: main thread only) or `stop`, or until another agent speaks for this node."""
        if signals:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: self.stop())
        try:
            self._store.session_next()
            self._store.command_abandon()
            if self._listener is not None:
                self._listener.start()
            while not self._stopping:
                self._turn()
            if self._exit_code == EXIT_OK:
                self._sync(final=True)
        finally:
            if self._listener is not None:
                self._listener.stop()
            self._hardware.probe.close()
            self._line.close()
        return self._exit_code

    def _turn(self) -> None:
        # A wait is never long: on Windows a signal is only seen between two of them.
        self._wake.wait(max(0.0, min(LOOK_S, self._sync_at() - time.monotonic())))
        self._wake.clear()
        self._hardware.turn(dict)
        if self._hardware.view.cards is not None and self._line.answered_at is None:
            self._dirty = True
        if time.monotonic() >= self._sync_at():
            self._sync()

    def _sync_at(self) -> float:
        at = self._line.next_at
        if self._dirty and (self._hardware.view.cards is not None or self._line.answered_at is not None):
            at = min(at, self._synced_at + COALESCE_S)
        return max(at, self._line.retry_at)

    def _event(self, event: HardwareEvent) -> None:
        self._store.event_add(session=self._session, kind=event.kind, gpu=event.gpu, at=event.at or time.time(), data=event.data)
        self._dirty = True

    # --- sync -------------------------------------------------------------------------------------------------

    def _inventory(self) -> Inventory | None:
        view = self._hardware.view
        if view.cards is None:
            return None
        key = (view.cards, view.error, self._advice.take(view.cards, view.health), int(time.monotonic() / FACTS_S))
        if self._facts is None or key != self._facts_of:
            self._facts_of = key
            self._facts = node_facts(
                cards=view.cards,
                version=self._version,
                address=self._config.address,
                has_cgroups=True,
                backend_error=view.error,
                backend_error_kind=view.error_kind,
                advice=(*key[2], *self._extra_advice()),
                metrics_only=True,
            )
        return self._facts

    def _request(self) -> tuple[SyncRequest, Inventory | None]:
        self._seq += 1
        view = self._hardware.view
        inventory = self._inventory()
        due = inventory if inventory is not None and inventory != self._inventory_sent else None
        headroom = power_headroom_pct(view.gpus, view.status, view.health, feed_w=self._config.power_feed_w)
        request = SyncRequest(
            session=self._session,
            boot_id=self._session,  # nothing ever runs here that a restart of the machine could end
            seq=self._seq,
            inventory=due,
            # Whatever is on these cards is their owner's business: nothing on them is foreign.
            gpus=tuple(replace(status, foreign_mib=0) for status in self._hardware.statuses()),
            health=self._health.due(view.health, time.monotonic()),
            host=replace(self._load.read(), power_headroom_pct=headroom),
            observed=tuple(self._observed.values()),
            events=self._store.events(self._line.events.most),
            results=self._store.results(),
            sent_at=time.time(),
            proofs=() if self._line.is_known else self._proofs_before,
            proof_sha256=None if self._line.is_known else proof_sha256(self._proof),
        )
        return request, due

    def _sync(self, *, final: bool = False) -> None:
        self._dirty = False
        self._synced_at = time.monotonic()
        request, inventory = self._request()
        orders = self._line.send(request, final=final)
        if orders is not None:
            self._take(request, inventory, orders)
        elif self._line.is_superseded:
            self._exit_code, self._stopping = EXIT_SESSION_REFUSED, True
        self._status_write()

    def _take(self, request: SyncRequest, inventory: Inventory | None, orders: Orders) -> None:
        self._hardware.sample_before(self._line.next_at - SAMPLE_LEAD_S)
        if inventory is not None:
            self._inventory_sent = inventory
        if orders.want_inventory and inventory is None:
            self._inventory_sent, self._dirty = None, True
        self._health.taken(request.health, time.monotonic())
        self._store.proof_accepted(self._proof)
        self._store.events_ack({*orders.ack_eids, *self._line.events.taken(request)})
        if orders.credential_due and not self._stopping:
            self._line.credential_exchange(self._session)
        self._store.results_ack(result.cid for result in request.results)
        self._dirty |= bool(orders.ack_eids) and bool(self._store.events(1))  # more are waiting
        for wish in orders.desired:
            if wish.want == "FORGET":
                self._observed.pop(wish.rank, None)
            elif wish.rank not in self._observed:
                # Nothing was ever launched here (the start makes sure of that), so this is the truth about any rank.
                gone = ExitInfo(cause="never_started", detail="This node only reports.")
                self._observed[wish.rank] = Observed(
                    rank=wish.rank, epoch=wish.epoch, state="EXITED", exit=gone, final_log_offset=0, released=True
                )
                self._dirty = True
        for command in orders.commands:
            if self._store.command_begin(command.cid, command.kind):
                result = self._command(command)
                self._store.command_finish(result.cid, ok=result.ok, text=result.text)
                self._dirty = True

    def _command(self, command: Command) -> CommandResult:
        if command.kind == "ping":
            return CommandResult(cid=command.cid, ok=True, text="pong")
        if command.kind == "diagnose":
            return CommandResult(cid=command.cid, ok=True, text=status_text(self._config.backend, self._hardware.statuses()))
        return CommandResult(cid=command.cid, ok=False, text=f"This node only reports: {command.kind[:40]!r} is not done here.")

    def _status_write(self) -> None:
        view = self._hardware.view
        status = {
            "at": time.time(),
            "pid": os.getpid(),
            "node": self._config.name,
            "node_id": self._config.node_id,
            **self._line.status(),
            "version": self._version,
            "metrics_only": True,
            "hardware_error": view.error,
            "gpus": [gpu.to_json() for gpu in view.gpus],
            "status": [status.to_json() for status in self._hardware.statuses()],
        }
        status_write(self._config.data_dir, status)
