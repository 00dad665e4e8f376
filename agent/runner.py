"""The agent's loop: one thread, one selector. It syncs, reconciles, and hears of ranks, cards and results.

Small threads beside it read the WebSocket, ship logs and upload artefacts; they put a word into the inbox and wake the
loop, and touch nothing of its state. A sync is a blocking call of at most SYNC_TIMEOUT_S; the hardware is never waited for.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import selectors
import signal
import time
import uuid
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from agent.artifacts import ArtifactUploader
from agent.backends.base import Cards, HardwareEvent, Placed
from agent.cards import CardView, node_facts
from agent.commands import CommandRunner
from agent.config import Config
from agent.endings import Endings
from agent.http import Answer, HttpClient, Unreachable
from agent.jobenv import SpecError, environment
from agent.logs import LogShipper
from agent.probe import Probe
from agent.processes import Processes, RankState, Recoverable
from agent.procs import boottime, process_stat
from agent.protocol import (
    Desired,
    ExitInfo,
    GpuInfo,
    Inventory,
    LinkInfo,
    Orders,
    ProtocolError,
    RankId,
    RankSpec,
    SyncRequest,
    from_json,
    rank_parts,
    spec_sha256,
)
from agent.reconcile import Forget, Held, Lease, Refuse, Start, Stop, Warn, diff
from agent.store import Store
from agent.ws import Listener

log = logging.getLogger("nebula-agent")

SYNC_TIMEOUT_S = 10.0
COALESCE_S = 0.02
RETRY_S = (1.0, 60.0)
REFUSED_S = (30.0, 60.0)
SAMPLE_S = 5.0
SAMPLE_LEAD_S = 0.3  # the sample is asked for so long before the sync that carries it
PROCESSES_S = 30.0
FIRST_SAMPLE_WAIT_S = 3.0
#: The same event of the same card again within this time is counted, not sent: a program can cause thousands of XIDs.
EVENT_QUIET_S = 1.0

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
        give_up_s: float = 60.0,
        rng: random.Random | None = None,
    ) -> None:
        self._config, self._version, self._boot_id = config, version, boot_id
        self._store, self._processes, self._probe = store, processes, probe
        self._has_cgroups = has_cgroups
        self._rng = rng or random.Random()
        self._session = str(uuid.uuid4())
        self._seq = 0
        self._inbox: deque[tuple[str, RankId, int]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._client = connect()
        self._shipper = LogShipper(connect(), done=lambda rank, offset: self._post("log_done", rank, offset))
        self._uploader = ArtifactUploader(connect, done=lambda rank: self._post("artifacts_done", rank))
        self._listener = listener(lambda: self._post("sync")) if listener is not None else None
        self._view = CardView(start_of=_start_of, remembered=_cards_load(store.meta("cards")))
        self._endings = Endings(
            store=store,
            processes=processes,
            view=self._view,
            probe_ask=lambda: self._probe_request(processes=True),
            artifacts=lambda rank: self._uploader.add(rank, str(processes.rank_dir(rank) / "artifacts")),
            give_up_s=give_up_s,
        )
        self._commands = CommandRunner(backend=config.backend, output_path=self._output_path, status=lambda: self._statuses())
        self._live: dict[RankId, RankState] = {}  # what runs or is being started
        self._pids: dict[RankId, tuple[int, ...]] = {}
        self._stops: dict[RankId, float] = {}  # rank → grace of the stop that was asked
        self._quiet: dict[tuple[str, str | None, str], tuple[float, int]] = {}
        self._inventory_sent: Inventory | None = None
        self._facts: Inventory | None = None  # what was built of the cards below
        self._facts_of: tuple[Cards, str | None] | None = None
        self._processes_sent_at = float("-inf")
        self._was_unresponsive = False
        self._selector = selectors.DefaultSelector()
        self._probe_fd: int | None = None
        self._stopping = False
        self._exit_code = EXIT_OK

        now = time.monotonic()
        self._next_sync = now + FIRST_SAMPLE_WAIT_S
        self._sync_started = now - COALESCE_S
        self._dirty = False
        self._retry_s, self._retry_at = RETRY_S[0], 0.0
        self._next_sample = now
        self._next_processes = now
        self._answered_boot: float | None = None
        self._answered_at: float | None = None  # Unix time, for `status`
        self._trouble: str | None = None

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until the control plane refuses this session. Returns the exit status."""
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._selector.register(self._processes.fileno(), selectors.EVENT_READ)
        self._signals()
        try:
            self._recover()
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
        self._watch_probe()
        with contextlib.suppress(InterruptedError):
            for key, _ in self._selector.select(max(0.0, self._next_at() - time.monotonic())):
                if key.fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
        self._take_inbox()
        for state in self._processes.poll():
            self._take_rank(state)
        now = time.monotonic()
        if now >= self._next_sample:
            self._probe_request(processes=now >= self._next_processes)
            self._next_sample = now + SAMPLE_S
        self._take_probe()
        for result in self._commands.poll() if self._commands.busy else ():
            self._store.command_finish(result.cid, ok=result.ok, text=result.text)
            self._dirty = True
        if self._endings.step(time.monotonic()):
            self._dirty = True
            self._live = {r: s for r, s in self._live.items() if (row := self._store.rank(r)) is not None and not row.is_final}
        self._lease_check()
        now = time.monotonic()
        if now >= self._sync_at():
            self._sync()

    def _sync_at(self) -> float:
        at = self._next_sync
        if self._dirty:
            at = min(at, self._sync_started + COALESCE_S)
        if self._view.cards is None and self._answered_at is None:
            at = max(at, self._next_sync)  # the first sync waits for the first sample, for a moment
        return max(at, self._retry_at)

    def _next_at(self) -> float:
        now = time.monotonic()
        times = [self._sync_at(), self._next_sample]
        ending_at = self._endings.next_at()
        if ending_at is not None:
            times.append(ending_at)
        if self._commands.busy:
            times.append(now + 0.05)
        if self._live:
            times.append(now + 1.0)  # the processes' side looks once a second at what it may have missed
        return min(times)

    def _signals(self) -> None:
        def stop(number: int, frame: FrameType | None) -> None:
            self._stopping = True

        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)

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
        self._probe.close()
        self._client.close()
        self._selector.close()
        signal.set_wakeup_fd(-1)

    # --- at the start -----------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Bring the store and what really runs together, before anything is said to the control plane."""
        number = self._store.session_next()
        self._store.command_abandon()
        now = time.monotonic()
        rows = list(self._store.ranks().values())
        # Ranks that ended and are not proven gone are named too, so that what is left of them can still be killed.
        told = [r for r in rows if r.spec is not None and (not r.is_final or r.released is None)]
        states = self._processes.recover([Recoverable(rank=r.rank, spec=r.spec, boot_id=r.boot_id) for r in told if r.spec is not None])
        states = [s for s in states if not self._store.ranks()[s.rank].is_final]
        states += self._adopt_strangers()
        for state in states:
            row = self._store.ranks()[state.rank]
            self._shipper.track(state.rank, self._output(state.rank), offset=row.log_offset, is_new=False)
            if state.state in ("EXITED", "LAUNCH_FAILED"):
                self._shipper.end(state.rank)
                self._endings.add(state, now=now)
            else:
                self._live[state.rank] = state
        for row in rows:
            if row.is_final:
                if not row.log_done:
                    self._shipper.track(row.rank, self._output(row.rank), offset=row.log_offset, is_new=False)
                    self._shipper.end(row.rank)
                if not row.log_done or row.released is None:
                    self._endings.resume(row, now=now)
                if not row.artifacts_done and not self._uploader.add(row.rank, str(self._processes.rank_dir(row.rank) / "artifacts")):
                    self._post("artifacts_done", row.rank)
        adopted = sum(s.state in ("PREPARING", "RUNNING") for s in states)
        log.info("Start %d on this data directory: %d ranks adopted, %d ended meanwhile.", number, adopted, len(states) - adopted)
        self._place()

    def _adopt_strangers(self) -> list[RankState]:
        """Ranks that run here though the store does not know them (a lost data file): take them in from their own files."""
        found: list[RankState] = []
        for rank in self._processes.strangers():
            if self._store.rank(rank) is not None:
                continue
            try:
                order = json.loads((self._processes.rank_dir(rank) / "spec.json").read_text(encoding="utf-8"))
                spec, boot_id = from_json(RankSpec, order["spec"]), str(order["boot_id"])
            except (OSError, ValueError, KeyError) as error:
                log.error("Something runs here as rank %s, which the store does not know and whose spec is not readable: %s", rank, error)
                continue
            log.warning("Rank %s runs here though the store does not know it; it is taken in.", rank)
            epoch = rank_parts(rank)[1]
            self._store.rank_prepare(
                rank=rank, epoch=epoch, spec=spec, spec_sha256=spec_sha256(spec), boot_id=boot_id, lease_s=order.get("lease_s")
            )
            found += self._processes.recover([Recoverable(rank=rank, spec=spec, boot_id=boot_id)])
        return found

    # --- what comes in ----------------------------------------------------------------------------------------

    def _take_inbox(self) -> None:
        while self._inbox:
            what, rank, number = self._inbox.popleft()
            if what == "sync":
                self._dirty = True
            elif what == "log_done":
                self._endings.log_done(rank, number)
            elif what == "artifacts_done":
                row = self._store.rank(rank)
                if row is not None:
                    self._store.rank_update(rank, artifacts_done=True)
                    if row.forgotten:
                        self._purge(rank)

    def _take_rank(self, state: RankState) -> None:
        self._dirty = True
        if state.state not in ("EXITED", "LAUNCH_FAILED"):
            self._live[state.rank] = state
            if state.state == "RUNNING":
                self._place()
            return
        # The last known pids go first into the view's list of owners, then the list is read: what is left on a card is
        # then known as this rank's, although its processes are gone from every other table.
        now = time.monotonic()
        row = self._store.rank(state.rank)
        self._endings.add(state, now=now)
        self._shipper.end(state.rank)
        self._pids.pop(state.rank, None)
        if row is not None and row.spec is not None and row.spec.gpus:
            self._place()
            self._probe_request(processes=True)

    def _take_probe(self) -> None:
        samples, events = self._probe.poll()
        for sample in samples:
            events = events + self._view.take(sample, holders=self._holders(), pids_of=self._processes.pids)
            if sample.processes_read:
                self._next_processes = time.monotonic() + PROCESSES_S
            self._endings.look_soon()
        unresponsive = self._probe.unresponsive
        if unresponsive and not self._was_unresponsive:
            self._view.stand_in()
            events.append(HardwareEvent(kind="unresponsive"))
        elif self._was_unresponsive and not unresponsive:
            events.append(HardwareEvent(kind="responsive"))
        self._was_unresponsive = unresponsive
        if self._view.cards is not None and self._answered_at is None and not self._dirty:
            self._dirty, self._next_sync = True, time.monotonic()
        for event in events:
            self._event(event)

    def _event(self, event: HardwareEvent) -> None:
        """Keep an event for the next sync, which follows at once; the same one in quick succession is only counted."""
        key = (event.kind, event.gpu, json.dumps(event.data, sort_keys=True))
        now = time.monotonic()
        last, count = self._quiet.get(key, (float("-inf"), 0))
        if now - last < EVENT_QUIET_S:
            self._quiet[key] = (last, count + 1)
            return
        data = {**event.data, **({"unsent_before": count} if count else {})}
        if len(self._quiet) > 1000:
            self._quiet.clear()
        self._quiet[key] = (now, 0)
        log.warning("Hardware event %s %s %s", event.kind, event.gpu or "", data or "")
        self._store.event_add(session=self._session, kind=event.kind, gpu=event.gpu, at=event.at or time.time(), data=data)
        self._dirty = True

    # --- the hardware -----------------------------------------------------------------------------------------

    def _watch_probe(self) -> None:
        fd = self._probe.fileno()
        if fd == self._probe_fd:
            return
        if self._probe_fd is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._probe_fd)
        if fd is not None:
            self._selector.register(fd, selectors.EVENT_READ)
        self._probe_fd = fd

    def _probe_request(self, *, processes: bool) -> None:
        self._probe.request(processes=processes)
        if self._probe.fileno() != self._probe_fd:
            self._watch_probe()

    def _holders(self) -> dict[str, list[RankId]]:
        """Card → ranks of ours that hold it, those that ended and are not released included."""
        found: dict[str, list[RankId]] = {}
        for rank in (*self._live, *self._endings.open):
            row = self._store.rank(rank)
            is_held = self._endings.holds(rank) if rank in self._endings.open else True
            if row is not None and row.spec is not None and is_held:
                for grant in row.spec.gpus:
                    holders = found.setdefault(grant.uuid, [])
                    if rank not in holders:
                        holders.append(rank)
        return found

    def _place(self) -> None:
        """Tell a simulation what runs, so that its cards' memory follows."""
        placed: list[Placed] = []
        for rank, state in self._live.items():
            row = self._store.rank(rank)
            if state.state != "RUNNING" or rank in self._endings.open or row is None or row.spec is None or not row.spec.gpus:
                continue
            if rank not in self._pids and self._probe.fileno() is None:
                self._pids[rank] = tuple(sorted(self._processes.pids(rank)))
            placed.append(Placed(rank=rank, pids=self._pids.get(rank, ()), gpus=row.spec.gpus))
        self._probe.placed(placed)

    def _statuses(self) -> tuple[Any, ...]:
        return self._view.statuses(unresponsive=self._probe.unresponsive)

    # --- sync -------------------------------------------------------------------------------------------------

    def _request(self) -> tuple[SyncRequest, Inventory | None]:
        self._seq += 1
        inventory = self._inventory()
        due = inventory if inventory is not None and inventory != self._inventory_sent else None
        processes = None
        if self._view.processes is not None and self._view.processes_at > self._processes_sent_at:
            processes = self._view.processes
        observed = []
        for row in self._store.ranks().values():
            if row.forgotten:
                continue
            seen = row.observed()
            live = self._live.get(row.rank)
            if live is not None and not row.is_final:
                # Ended, but its last log bytes or its cards are still on their way: until then it is RUNNING.
                seen = from_json(type(seen), {**seen.to_json(), "state": live.state, "started_at": live.started_at})
            observed.append(seen)
        request = SyncRequest(
            session=self._session,
            boot_id=self._boot_id,
            seq=self._seq,
            inventory=due,
            gpus=self._statuses(),
            processes=processes,
            observed=tuple(observed),
            events=self._store.events(),
            results=self._store.results(),
        )
        return request, due

    def _inventory(self) -> Inventory | None:
        cards = self._view.cards
        if cards is None:
            return None
        key = (cards, self._view.error)
        if self._facts is None or key != self._facts_of:
            self._facts_of = key
            self._facts = node_facts(
                cards=cards,
                version=self._version,
                address=self._config.address or _own_address(self._config.endpoint.host, self._config.endpoint.port),
                has_cgroups=self._has_cgroups,
                backend_error=self._view.error,
            )
            if self._view.error is None and not self._probe.unresponsive:
                self._store.meta_set("cards", _cards_dump(cards))
        return self._facts

    def _sync(self, *, final: bool = False) -> None:
        self._dirty = False
        self._sync_started = time.monotonic()
        request, inventory = self._request()
        sent_boot = boottime()
        try:
            answer = self._client.request_json("POST", "/api/agent/v1/sync", request.to_json(), timeout_s=3.0 if final else SYNC_TIMEOUT_S)
        except Unreachable as error:
            self._later(str(error), None)
            return
        if answer.status != 200:
            self._refused(answer)
            return
        try:
            orders = Orders.from_json(answer.json())
        except (ValueError, ProtocolError) as error:
            self._later(f"the answer to a sync is not understood: {error}", None)
            return
        if self._trouble is not None or self._answered_at is None:
            log.info("In touch with %s.", self._config.endpoint.url)
        self._trouble, self._retry_s, self._retry_at = None, RETRY_S[0], 0.0
        self._answered_boot, self._answered_at = sent_boot, time.time()
        now = time.monotonic()
        self._next_sync = now + max(0.05, orders.next_in_s) * self._rng.uniform(0.9, 1.05)
        # The sample that the next sync carries shall be fresh.
        self._next_sample = min(self._next_sample, max(now, self._next_sync - SAMPLE_LEAD_S))
        if inventory is not None:
            self._inventory_sent = inventory
        if request.processes is not None:
            self._processes_sent_at = self._view.processes_at
        self._store.events_ack(set(orders.ack_eids))
        self._store.results_ack(r.cid for r in request.results)
        if orders.want_inventory and inventory is None:
            self._inventory_sent = None
            self._dirty = True
        if len(request.events) == 200:
            self._dirty = True  # more are waiting
        if not final:
            self._apply(orders, sent_boot)
        self._status_write()

    def _refused(self, answer: Answer) -> None:
        text = f"{answer.status} {answer.error_text()}"
        if answer.status == 409:
            self._exit_code, self._stopping = EXIT_SESSION_REFUSED, True
            log.error(
                "The control plane refuses this agent's session, because a newer one speaks for node %d: %s. "
                "Only one agent may run for a node; this one ends and leaves its ranks to their shims.",
                self._config.node_id,
                text,
            )
        elif answer.status in (401, 403):
            self._later(
                f"the control plane does not take this node's credential ({text}); run `nebula-agent enroll` with a new token",
                self._rng.uniform(*REFUSED_S),
            )
        elif answer.status in (400, 413, 422):
            self._later(f"the control plane does not understand this agent ({text}); are the versions too far apart?", None)
        elif answer.status == 404:
            self._later(f"{self._config.endpoint.url} has no agent API ({text}); check `endpoint`", None)
        else:
            self._later(f"the control plane answered {text}", answer.retry_after_s)

    def _later(self, text: str, wait_s: float | None) -> None:
        """Full jitter between 1 s and a bound that doubles to 60 s, or what the server asked for."""
        if text != self._trouble:
            log.warning("No sync: %s.", text.rstrip("."))
        self._trouble = text
        now = time.monotonic()
        self._retry_at = now + (wait_s if wait_s is not None else self._rng.uniform(RETRY_S[0], max(RETRY_S[0], self._retry_s)))
        self._retry_s = min(RETRY_S[1], self._retry_s * 2)
        self._next_sync = self._retry_at
        self._status_write()

    # --- orders -----------------------------------------------------------------------------------------------

    def _held(self) -> dict[RankId, Held]:
        found: dict[RankId, Held] = {}
        for row in self._store.ranks().values():
            state = row.state
            if not row.is_final and row.rank in self._live:
                state = self._live[row.rank].state
            # Ended and not reported yet is final for every order: a STOP then has nothing to do.
            if row.rank in self._endings.open and not row.is_final:
                state = "EXITED"
            found[row.rank] = Held(
                rank=row.rank,
                epoch=row.epoch,
                state=state,
                spec_sha256=row.spec_sha256,
                stop_grace_s=self._stops.get(row.rank),
                lease_s=row.lease_s,
            )
        return found

    def _apply(self, orders: Orders, sent_boot: float) -> None:
        """Carry out the desired list, then the commands. All rows that it takes are durable before the first start."""
        desired: dict[RankId, Desired] = {d.rank: d for d in orders.desired}
        actions = diff(desired, self._held(), tombstones=self._store.tombstones())
        if any(d.lease_s is not None for d in desired.values()) or any(r.lease_s is not None for r in self._store.ranks().values()):
            self._processes.lease_renew(sent_boot)
        starts: list[tuple[Start, dict[str, str]]] = []
        with self._store.batch():
            for action in actions:
                if isinstance(action, Start):
                    env = self._prepare(action)
                    if env is not None:
                        starts.append((action, env))
                elif isinstance(action, Refuse):
                    self._refuse(action)
                elif isinstance(action, Lease):
                    self._store.rank_update(action.rank, lease_s=action.lease_s)
        for action in actions:
            if isinstance(action, Stop):
                log.info("Rank %s is stopped (%s), grace %g s.", action.rank, action.reason or "no reason given", action.grace_s)
                self._stops[action.rank] = action.grace_s
                self._processes.stop(action.rank, grace_s=action.grace_s, reason=action.reason)
            elif isinstance(action, Forget):
                self._forget(action)
            elif isinstance(action, Lease):
                self._processes.lease_set(action.rank, action.lease_s)
            elif isinstance(action, Warn):
                log.warning("Rank %s: %s", action.rank, action.text)
        for start, env in starts:
            self._shipper.track(start.rank, self._output(start.rank))
            self._processes.start(start.rank, start.spec, env, lease_s=start.lease_s)
        self._run_commands(orders)

    def _prepare(self, start: Start) -> dict[str, str] | None:
        """Row and fence of a rank; its environment, or None when it can't be started (which the row then says)."""
        uuids = [g.uuid for g in start.spec.gpus]
        self._store.rank_prepare(
            rank=start.rank,
            epoch=start.epoch,
            spec=start.spec,
            spec_sha256=start.spec_sha256,
            boot_id=self._boot_id,
            lease_s=start.lease_s,
            baseline=self._view.foreign_of(uuids),
        )
        try:
            env = environment(
                rank=start.rank,
                spec=start.spec,
                gpus=self._view.gpus,
                cuda_visible=self._config.cuda_visible,
                artifacts=str(self._processes.rank_dir(start.rank) / "artifacts"),
            )
            if start.spec.unix_user is not None and self._config.identity == "same":
                raise SpecError('The job wants another Unix user, and this agent runs jobs as itself (identity = "same").', "user")
        except SpecError as error:
            log.warning("Rank %s cannot be started: %s", start.rank, error)
            self._store.rank_update(
                start.rank,
                state="LAUNCH_FAILED",
                launch_error=error.kind,
                launch_detail=str(error),
                final_log_offset=0,
                released=True,
                log_done=True,
                artifacts_done=True,
            )
            self._dirty = True
            return None
        self._live[start.rank] = RankState(rank=start.rank, state="PREPARING")
        return env

    def _refuse(self, action: Refuse) -> None:
        log.warning("Rank %s: %s", action.rank, action.detail)
        exit_info = ExitInfo(cause=action.cause, detail=action.detail)
        self._store.rank_refuse(rank=action.rank, epoch=action.epoch, boot_id=self._boot_id, exit=exit_info)
        self._dirty = True

    def _forget(self, action: Forget) -> None:
        row = self._store.rank(action.rank)
        if row is None:
            self._store.tombstone(rank_parts(action.rank)[0], action.epoch)
            return
        if action.rank in self._endings.open and (not row.is_final or self._endings.holds(action.rank)):
            return  # not even reported, or its cards are not proven free: this FORGET comes again
        self._live.pop(action.rank, None)
        self._stops.pop(action.rank, None)
        self._endings.drop(action.rank)
        self._shipper.drop(action.rank)
        with self._store.batch():
            self._store.tombstone(row.job, action.epoch)
            if not row.artifacts_done:
                self._store.rank_update(action.rank, forgotten=True)  # the directory stays until its files are uploaded
        if row.artifacts_done:
            self._purge(action.rank)

    def _purge(self, rank: RankId) -> None:
        # The directory first: a crash between the two leaves a row, whose FORGET is then repeated.
        self._processes.forget(rank)
        self._store.rank_delete(rank)

    def _run_commands(self, orders: Orders) -> None:
        for command in orders.commands:
            if not self._store.command_begin(command.cid, command.kind):
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

    def _lease_check(self) -> None:
        """Self-fence: without an answered sync for the lease, stop. The shims count too, for the time without an agent."""
        if self._answered_boot is None:
            return
        for rank in list(self._live):
            row = self._store.rank(rank)
            if row is None or row.lease_s is None or rank in self._stops or rank in self._endings.open:
                continue
            if boottime() >= self._answered_boot + row.lease_s:
                log.error("No answered sync for %d s: rank %s is stopped by its lease.", row.lease_s, rank)
                grace_s = row.spec.grace_s if row.spec is not None else 30
                self._stops[rank] = grace_s
                self._processes.stop(rank, grace_s=grace_s, cause="lease_expired", reason="The control plane was silent for too long.")

    # --- small things -----------------------------------------------------------------------------------------

    def _output(self, rank: RankId) -> str:
        return str(self._processes.rank_dir(rank) / "output.log")

    def _output_path(self, rank: RankId) -> str | None:
        return self._output(rank) if self._store.rank(rank) is not None else None

    def _status_write(self) -> None:
        """What `nebula-agent status` shows. Not fsynced: it is about now."""
        status = {
            "at": time.time(),
            "pid": os.getpid(),
            "node": self._config.name,
            "node_id": self._config.node_id,
            "endpoint": self._config.endpoint.url,
            "answered_at": self._answered_at,
            "trouble": self._trouble,
            "version": self._version,
            "hardware_error": self._view.error,
            "gpus": [g.to_json() for g in self._view.gpus],
            "status": [s.to_json() for s in self._statuses()],
        }
        path = self._config.data_dir / "status.json"
        temporary = path.with_suffix(".new")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(status), encoding="utf-8")
            temporary.replace(path)


def _start_of(pid: int) -> int | None:
    found = process_stat(pid)
    return found.start if found is not None else None


def _own_address(host: str, port: int) -> str | None:
    """The address that this machine reaches the control plane from. Sends nothing."""
    import socket

    try:
        family, kind, proto, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _cards_dump(cards: Cards) -> str:
    return json.dumps(
        {
            "gpus": [g.to_json() for g in cards.gpus],
            "links": [link.to_json() for link in cards.links],
            "driver": cards.driver_version,
            "cuda": cards.cuda_version,
            "simulated": cards.simulated,
        }
    )


def _cards_load(text: str | None) -> Cards | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
        return Cards(
            gpus=tuple(from_json(GpuInfo, g) for g in found["gpus"]),
            links=tuple(from_json(LinkInfo, link) for link in found["links"]),
            driver_version=found["driver"],
            cuda_version=found["cuda"],
            simulated=found["simulated"],
        )
    except (ValueError, KeyError):
        return None
