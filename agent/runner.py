"""The agent's loop: one thread, one selector. It syncs, reconciles, and hears of ranks, cards and results.

Small threads beside it read the WebSocket, ship logs and upload artefacts; they put a word into the inbox and wake the
loop, and touch nothing of its state. A sync is a blocking call of at most syncline.SYNC_TIMEOUT_S; the hardware is never waited for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import selectors
import signal
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

from agent.addresses import own_address
from agent.artifacts import ArtifactUploader
from agent.backends.base import Cards, HardwareEvent
from agent.cards import HealthDesk, SteadyAdvice, node_facts, power_headroom_pct
from agent.commands import CommandRunner
from agent.config import Config
from agent.credential import Credential
from agent.desk import RankDesk
from agent.hardware import Hardware
from agent.hostload import HostLoad
from agent.http import HttpClient
from agent.logs import LogShipper
from agent.probe import Probe
from agent.processes import Processes
from agent.procs import boottime
from agent.protocol import Inventory, IsolationInfo, Orders, RankId, RestoreAsk, SyncRequest
from agent.room import Room
from agent.store import Store, StoreUnwritable
from agent.syncline import SyncLine, proof_sha256, status_write
from agent.ws import Listener

log = logging.getLogger("nebula-agent")

#: A sync follows a change at once; more changes within this time go together.
COALESCE_S = 0.02
BEGAN_S = 0.04  # "it runs" waits for so long
SAMPLE_LEAD_S = 0.3  # the sample is asked for so long before the sync that carries it
FIRST_SAMPLE_WAIT_S = 3.0
FACTS_S = 300.0

EXIT_OK, EXIT_SESSION_REFUSED = 0, 3


class Runner:
    def __init__(
        self,
        *,
        config: Config,
        version: str,
        boot_id: str,
        store: Store,
        processes: Processes,
        probe: Probe,
        connect: Callable[[], HttpClient],
        listener: Callable[[Callable[[], None]], Listener] | None,
        has_cgroups: bool = True,
        credential: Credential | None = None,
        isolation: IsolationInfo | None = None,
        give_up_s: float = 60.0,
        rng: random.Random | None = None,
    ) -> None:
        self._config, self._version, self._boot_id = config, version, boot_id
        self._store, self._processes = store, processes
        self._has_cgroups, self._isolation = has_cgroups, isolation
        self._rng = rng or random.Random()
        self._session = str(uuid.uuid4())
        self._seq = 0
        self._proof, self._proofs_before = store.proofs_begin()
        self._inbox: deque[tuple[str, RankId, int]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._shipper = LogShipper(connect(), done=lambda rank, length: self._post("log_done", rank, length))
        self._uploader = ArtifactUploader(connect, done=lambda rank: self._post("artifacts_done", rank))
        self._listener = listener(lambda: self._post("sync")) if listener is not None else None
        self._hardware = Hardware(probe=probe, processes=processes, store=store, event=self._event)
        self._desk = RankDesk(
            store=store,
            processes=processes,
            shipper=self._shipper,
            uploader=self._uploader,
            hardware=self._hardware,
            boot_id=boot_id,
            cuda_visible=config.cuda_visible,
            identity=config.identity,
            job_account=config.job_account if config.identity == "shared" else None,
            makes_accounts=config.make_accounts == "yes" and config.identity == "mapped",
            changed=self._changed,
            began=self._began,
            give_up_s=give_up_s,
        )
        self._commands = CommandRunner(
            backend=config.backend,
            output_path=self._desk.output_path,
            status=self._hardware.statuses,
            users=self._users_of,
            rest=probe.rest,
            simulation=getattr(probe, "simulation", None),
            config=config.path,
        )
        self._load = HostLoad(config.data_dir)
        self._ask: RestoreAsk | None = None  # a restored control plane's question; the next sync answers it
        self._inventory_sent: Inventory | None = None
        self._facts: Inventory | None = None  # what was made of the cards below
        self._facts_of: tuple[Cards, str | None, tuple[str, ...], int] | None = None
        self._health, self._advice = HealthDesk(), SteadyAdvice()
        self._room = Room(config.data_dir, store)
        self._processes_sent_at = float("-inf")
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._exit_code = EXIT_OK

        now = time.monotonic()
        self._line = SyncLine(config=config, client=connect(), rng=self._rng, first_at=now + FIRST_SAMPLE_WAIT_S, credential=credential)
        self._sync_started = now - COALESCE_S
        self._dirty = False
        self._began_at = float("inf")

    def _changed(self) -> None:
        self._dirty = True

    def _began(self) -> None:
        """A program that runs is told of in a moment: many a short one has ended by then, and one sync tells both."""
        self._began_at = min(self._began_at, time.monotonic())

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self, *, signals: bool = True) -> int:
        """Run until SIGTERM or SIGINT (``signals``: main thread only), `stop`, or until the control plane refuses this
        session. Returns the exit status."""
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._selector.register(self._processes.fileno(), selectors.EVENT_READ)
        probe_fd = self._hardware.probe.fileno()
        if probe_fd is not None:
            self._selector.register(probe_fd, selectors.EVENT_READ)
        if signals:
            self._signals()
        try:
            log.info("Start %d on this data directory.", self._store.session_next())
            self._store.command_abandon()
            self._desk.recover()
            self._shipper.start()
            if self._listener is not None:
                self._listener.start()
            while not self._stopping:
                self._turn()
            if self._exit_code == EXIT_OK:
                self._sync(final=True)
        finally:
            self._close()
        return self._exit_code

    def _turn(self) -> None:
        # 1. Sleep until something happens or is due.
        for key, _ in self._selector.select(max(0.0, self._next_at() - time.monotonic())):
            if key.fd == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
        # 2. Take in what the threads, the ranks, the cards and the commands have to tell.
        self._take_inbox()
        self._desk.poll()
        if self._hardware.turn(self._desk.holders):
            self._desk.endings.look_soon()
        if self._hardware.view.cards is not None and self._line.answered_at is None:
            self._dirty = True  # the first sync waited for the first sample
        for result in self._commands.poll() if self._commands.busy else ():
            self._store.command_finish(result.cid, ok=result.ok, text=result.text)
            self._dirty = True
        changed = self._room.look()
        if changed is not None:
            self._event(HardwareEvent(kind=changed.pop("kind"), data=changed))
        # 3. Move on what has ended, mind the leases, and tell.
        self._desk.step()
        self._desk.lease_check()
        if time.monotonic() >= self._sync_at():
            self._sync()

    def _sync_at(self) -> float:
        at = self._line.next_at
        if self._dirty and (self._hardware.view.cards is not None or self._line.answered_at is not None):
            at = min(at, self._sync_started + COALESCE_S)
        at = min(at, self._began_at + BEGAN_S)
        return max(at, self._line.retry_at)

    def _next_at(self) -> float:
        now = time.monotonic()
        times = [self._sync_at(), self._hardware.next_sample]
        ending_at = self._desk.endings.next_at()
        if ending_at is not None:
            times.append(ending_at)
        if self._commands.busy:
            times.append(now + 0.05)
        if self._desk.live:
            times.append(now + 1.0)  # the processes' side looks once a second at what it may have missed
        return min(times)

    def _signals(self) -> None:
        def stop(number: int, frame: FrameType | None) -> None:
            self._stopping = True

        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)

    def stop(self) -> None:
        """End after the present turn, with a last sync. From any thread."""
        self._stopping = True
        self._post("stop")

    def _post(self, what: str, rank: RankId = "", number: int = 0) -> None:
        """From any thread."""
        self._inbox.append((what, rank, number))
        with contextlib.suppress(OSError):  # a full pipe wakes as well; a closed one has nobody to wake
            os.write(self._wake_write, b"\0")

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        self._uploader.stop()
        self._shipper.stop()
        offsets = self._shipper.offsets()
        with contextlib.suppress(Exception), self._store.batch():
            for rank, offset in offsets.items():
                if self._store.rank(rank) is not None:
                    self._store.rank_update(rank, log_offset=offset)
        self._hardware.probe.close()
        self._line.close()
        self._selector.close()

    def _users_of(self, uuid: str) -> int:
        """How many ranks of ours hold a card, and how many processes the driver lists there."""
        listed = [p for p in self._hardware.view.processes or () if p.uuid == uuid]
        return len(self._desk.holders().get(uuid, ())) + len(listed)

    # --- what comes in ----------------------------------------------------------------------------------------

    def _take_inbox(self) -> None:
        while self._inbox:
            what, rank, number = self._inbox.popleft()
            if what == "sync":
                self._processes.warm()
                self._dirty = True
            elif what == "log_done":
                self._desk.log_done(rank, number)
            elif what == "artifacts_done":
                self._desk.artifacts_done(rank)

    def _event(self, event: HardwareEvent) -> None:
        self._store.event_add(session=self._session, kind=event.kind, gpu=event.gpu, at=event.at or time.time(), data=event.data)
        self._dirty = True

    # --- sync -------------------------------------------------------------------------------------------------

    def _request(self) -> tuple[SyncRequest, Inventory | None]:
        self._seq += 1
        inventory = self._inventory()
        due = inventory if inventory is not None and inventory != self._inventory_sent else None
        processes = None
        view = self._hardware.view
        if view.processes is not None and view.processes_at > self._processes_sent_at:
            processes = view.processes
        request = SyncRequest(
            session=self._session,
            boot_id=self._boot_id,
            seq=self._seq,
            inventory=due,
            gpus=self._hardware.statuses(),
            health=self._health.due(view.health, time.monotonic()),
            host=replace(self._load.read(), power_headroom_pct=self._headroom()),
            processes=processes,
            observed=self._desk.observed(),
            events=self._store.events(self._line.events.most),
            results=self._store.results(),
            sent_at=time.time(),
            proofs=() if self._line.is_known else self._proofs_before,
            proof_sha256=None if self._line.is_known else proof_sha256(self._proof),
            answer=self._desk.restored_answer(self._ask) if self._ask is not None else None,
            uptime_s=round(boottime(), 3),
        )
        return request, due

    def _headroom(self) -> int | None:
        view = self._hardware.view
        return power_headroom_pct(view.gpus, view.status, view.health, feed_w=self._config.power_feed_w)

    def _inventory(self) -> Inventory | None:
        view = self._hardware.view
        cards = view.cards
        if cards is None:
            return None
        # The host's own facts, such as the state of RDMA ports, are read anew now and then.
        advice = (*self._room.advice, *self._advice.take(cards, view.health))
        key = (cards, view.error, advice, int(time.monotonic() / FACTS_S))
        if self._facts is None or key != self._facts_of:
            self._facts_of = key
            self._facts = node_facts(
                cards=cards,
                version=self._version,
                address=self._config.address or own_address(self._config.endpoint.host, self._config.endpoint.port),
                has_cgroups=self._has_cgroups,
                backend_error=view.error,
                backend_error_kind=view.error_kind,
                advice=key[2],
                isolation=self._isolation,
            )
        return self._facts

    def _sync(self, *, final: bool = False) -> None:
        self._dirty, self._began_at = False, float("inf")
        self._sync_started = time.monotonic()
        request, inventory = self._request()
        sent_boot = boottime()
        orders = self._line.send(request, final=final)
        if orders is None:
            if self._line.is_superseded:
                self._exit_code, self._stopping = EXIT_SESSION_REFUSED, True
            self._status_write()
            return
        now = time.monotonic()
        self._hardware.sample_before(self._line.next_at - SAMPLE_LEAD_S)
        if inventory is not None:
            self._inventory_sent = inventory
        if request.processes is not None:
            self._processes_sent_at = self._hardware.view.processes_at
        self._health.taken(request.health, now)
        self._store.proof_accepted(self._proof)
        self._store.events_ack({*orders.ack_eids, *self._line.events.taken(request)})
        self._store.results_ack(r.cid for r in request.results)
        if request.answer is not None:
            # After the answer was taken: until then the server may not know a rank whose output comes again.
            self._desk.send_again()
        if orders.ask is not None:
            # Without a pause the first time; a server that asks again could not take the answer, and that may take time.
            self._dirty |= self._ask is None
        self._ask = orders.ask
        if orders.want_inventory and inventory is None:
            self._inventory_sent = None
            self._dirty = True
        self._dirty |= bool(orders.ack_eids) and bool(self._store.events(1))  # more are waiting
        if orders.credential_due and not final:
            self._line.credential_exchange(self._session)
        if not final:
            self._desk.apply({d.rank: d for d in orders.desired}, sent_boot=sent_boot)
            self._run_commands(orders)
        self._status_write()

    def _run_commands(self, orders: Orders) -> None:
        for command in orders.commands:
            try:
                if not self._store.command_begin(command.cid, command.kind):
                    continue
            except StoreUnwritable as error:
                log.error("Command %d (%s) waits: %s", command.cid, command.kind, error)
                continue
            try:
                result = self._commands.run(command)
            except Exception as error:
                log.exception("Command %d (%s) failed.", command.cid, command.kind)
                self._store.command_finish(command.cid, ok=False, text=f"The agent failed on this command: {type(error).__name__}.")
            else:
                if result is None:
                    continue
                self._store.command_finish(result.cid, ok=result.ok, text=result.text)
            self._dirty = True

    # --- small things -----------------------------------------------------------------------------------------

    def _status_write(self) -> None:
        status = {
            "at": time.time(),
            "pid": os.getpid(),
            "node": self._config.name,
            "node_id": self._config.node_id,
            **self._line.status(),
            "version": self._version,
            "hardware_error": self._hardware.view.error,
            "gpus": [g.to_json() for g in self._hardware.view.gpus],
            "status": [s.to_json() for s in self._hardware.statuses()],
            "isolation": self._isolation.to_json() if self._isolation is not None else None,
        }
        status_write(self._config.data_dir, status)
