"""The ranks of this node between the control plane's orders and the processes: adopt, start, stop, report, forget.

Called by the loop's thread only. `changed()` is called whenever there is something new to report, `began()` when that is
only that a rank runs.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from agent import jobdir
from agent.accounts import account_ensure
from agent.artifacts import ArtifactUploader
from agent.devices import devices_denied
from agent.endings import Endings
from agent.hardware import Hardware
from agent.jobenv import SpecError, environment
from agent.logs import LogShipper
from agent.outfile import head_kept
from agent.processes import Processes, RankState, Recoverable
from agent.procs import boottime
from agent.protocol import Desired, ExitInfo, Observed, RankId, RankSpec, RestoreAnswer, RestoreAsk, from_json, rank_parts, spec_sha256
from agent.reconcile import DEFAULT_GRACE_S, Forget, Held, Lease, Refuse, Start, Stop, Warn, diff
from agent.store import RankRow, Store, StoreUnwritable

log = logging.getLogger("nebula-agent")

FINAL = ("EXITED", "LAUNCH_FAILED")
NO_ROOM = "The disk of the agent's data folder is full, so the start could not be written down."


class RankDesk:
    def __init__(
        self,
        *,
        store: Store,
        processes: Processes,
        shipper: LogShipper,
        uploader: ArtifactUploader,
        hardware: Hardware,
        boot_id: str,
        cuda_visible: str,
        identity: str,
        job_account: str | None,
        makes_accounts: bool,
        changed: Callable[[], None],
        began: Callable[[], None],
        give_up_s: float,
    ) -> None:
        self._store, self._processes, self._hardware = store, processes, hardware
        self._shipper, self._uploader = shipper, uploader
        self._boot_id, self._cuda_visible = boot_id, cuda_visible
        self._identity, self._job_account, self._makes_accounts = identity, job_account, makes_accounts
        self._changed, self._began = changed, began
        self.live: dict[RankId, RankState] = {}  # rows that are not final: the last state before the end
        self._stops: dict[RankId, float] = {}  # rank → grace of the stop that was asked
        self._answered_boot: float | None = None
        # Ranks that could not be started because that could not be written down: told, and only remembered.
        self._unwritten: dict[RankId, Observed] = {}
        self.endings = Endings(
            store=store,
            processes=processes,
            view=hardware.view,
            probe_ask=lambda: hardware.request(processes=True),
            artifacts=self._artifacts_add,
            give_up_s=give_up_s,
        )

    # --- at the start -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Bring the store and what really runs together, before anything is said to the control plane."""
        now = time.monotonic()
        rows = list(self._store.ranks().values())
        # Ranks that ended and are not proven gone are named too, so that what is left of them can still be killed.
        told = [r for r in rows if r.spec is not None and (not r.is_final or r.released is None)]
        states = self._processes.recover([Recoverable(rank=r.rank, spec=r.spec, boot_id=r.boot_id) for r in told if r.spec is not None])
        states = [s for s in states if not self._store.ranks()[s.rank].is_final]
        states += self._adopt_strangers()
        for state in states:
            row = self._store.ranks()[state.rank]
            self._shipper.track(state.rank, self.output(state.rank), offset=row.log_offset, is_new=False, head=_head_of(row.spec))
            if state.state in FINAL:
                self._shipper.end(state.rank)
                self.endings.add(state, now=now)
            else:
                self.live[state.rank] = state
        for row in rows:
            if row.is_final:
                self._resume(row, now)
        adopted = len(self.live)
        log.info("%d ranks adopted, %d ended while no agent ran.", adopted, len(states) - adopted)
        self._place()

    def _resume(self, row: RankRow, now: float) -> None:
        """Go on with what an earlier agent left undone of a rank that it had reported."""
        if not row.log_done:
            self._shipper.track(row.rank, self.output(row.rank), offset=row.log_offset, is_new=False, head=_head_of(row.spec))
            self._shipper.end(row.rank)
        if not row.log_done or row.released is None:
            self.endings.resume(row, now=now)
        if not row.artifacts_done and not self._artifacts_add(row.rank):
            self.artifacts_done(row.rank)

    def _adopt_strangers(self) -> list[RankState]:
        """Ranks that are here though the store does not know them (a lost data file): take them in from their own files, those that
        have ended too, or the control plane would have them run once more."""
        found: list[RankState] = []
        for rank in dict.fromkeys((*self._processes.strangers(), *self._processes.kept())):
            if self._store.rank(rank) is not None:
                continue
            try:
                order = json.loads((self._processes.rank_dir(rank) / "spec.json").read_text(encoding="utf-8"))
                spec, boot_id = from_json(RankSpec, order["spec"]), str(order["boot_id"])
            except (OSError, ValueError, KeyError) as error:
                log.error("Something runs here as rank %s, which the store does not know and whose spec is not readable: %s", rank, error)
                continue
            log.warning("Rank %s is here though the store does not know it; it is taken in.", rank)
            self._store.rank_prepare(
                rank=rank,
                epoch=rank_parts(rank)[1],
                spec=spec,
                spec_sha256=spec_sha256(spec),
                boot_id=boot_id,
                lease_s=order.get("lease_s"),
            )
            found += self._processes.recover([Recoverable(rank=rank, spec=spec, boot_id=boot_id)])
        return found

    # --- what happens -----------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in what the processes' side has to tell."""
        for state in self._processes.poll():
            if self._store.rank(state.rank) is None:
                continue
            if state.state in FINAL:
                self._ended(state)  # told once the output and the proof are there: `step`
                continue
            self._began()
            self.live[state.rank] = state
            if state.state == "RUNNING" and self._holds_cards(state.rank):
                self._place()
                self._hardware.processes_soon()

    def _ended(self, state: RankState) -> None:
        if state.exit is not None and state.exit.cause == "lease_expired" and state.rank not in self._stops:
            row = self._store.rank(state.rank)
            lease_s = row.lease_s if row is not None else None
            log.error("No sync was answered for %s s: rank %s was stopped for its lease by its shim.", lease_s, state.rank)
        self.endings.add(state, now=time.monotonic())
        self._shipper.end(state.rank)
        if self._holds_cards(state.rank):
            self._place()
            self._hardware.request(processes=True)

    def step(self) -> None:
        """Move the endings on."""
        if self.endings.step(time.monotonic()):
            self._changed()
            self.live = {r: s for r, s in self.live.items() if (row := self._store.rank(r)) is not None and not row.is_final}

    def log_done(self, rank: RankId, length: int) -> None:
        self.endings.log_done(rank, length)
        row = self._store.rank(rank)
        if row is not None and row.forgotten:
            self._store.rank_update(rank, log_done=True)
            self._purge_if_done(rank)

    def artifacts_done(self, rank: RankId) -> None:
        self.endings.artifacts_done(rank)
        row = self._store.rank(rank)
        if row is not None:
            self._store.rank_update(rank, artifacts_done=True)
            if row.forgotten:
                self._purge_if_done(rank)

    def lease_check(self) -> None:
        """Self-fence: without an answered sync for the lease, stop. The shims count too, for the time without an agent."""
        if self._answered_boot is None:
            return
        for rank in self.live:
            row = self._store.rank(rank)
            if row is None or row.lease_s is None or rank in self._stops or rank in self.endings.open:
                continue
            if boottime() >= self._answered_boot + row.lease_s:
                log.error("No answered sync for %d s: rank %s is stopped by its lease.", row.lease_s, rank)
                grace_s = row.spec.grace_s if row.spec is not None else DEFAULT_GRACE_S
                self._stops[rank] = grace_s
                self._processes.stop(rank, grace_s=grace_s, cause="lease_expired", reason="The control plane was silent for too long.")

    # --- what is told ------------------------------------------------------------------------------------------

    def observed(self) -> tuple[Observed, ...]:
        """Every rank that is not forgotten. One that ended is RUNNING until its report is complete (see endings)."""
        found: list[Observed] = []
        for row in self._store.ranks().values():
            if row.forgotten:
                continue
            seen = row.observed()
            live = self.live.get(row.rank)
            if live is not None and not row.is_final:
                seen = replace(seen, state=live.state, started_at=live.started_at, began_s=live.began_s)
            ending = self.endings.open.get(row.rank)
            if ending is not None and ending.state is not None and not row.is_final:
                seen = replace(seen, exit=ending.state.exit)  # it is over, though the report of its end is not complete
            found.append(seen)
        found += [seen for rank, seen in self._unwritten.items() if self._store.rank(rank) is None]
        return tuple(found)

    def restored_answer(self, ask: RestoreAsk) -> RestoreAnswer:
        """What a control plane that lost its latest days wants to know."""
        tombs, rows = self._store.tombstones(), self._store.ranks()
        return RestoreAnswer(
            id=ask.id,
            ran={str(job): tombs[job].ran_epoch for job in ask.jobs if job in tombs and tombs[job].ran_epoch > 0},
            specs={rank: spec for rank in ask.ranks if rank in rows and (spec := rows[rank].spec) is not None},
            last_job=max([*tombs, *(row.job for row in rows.values())], default=0),
        )

    def send_again(self) -> None:
        """The control plane may have lost what it had of our output and files: offer all of it that is still here."""
        self._shipper.rewind()
        for row in list(self._store.ranks().values()):
            if row.is_final and not row.forgotten and row.spec is not None and row.state == "EXITED" and row.rank not in self.endings.open:
                self._store.rank_update(row.rank, log_done=False, log_offset=0, artifacts_done=False)
                self._resume(self._store.ranks()[row.rank], time.monotonic())

    def holders(self) -> dict[str, list[RankId]]:
        """Card → ranks of ours that hold it, those that ended and are not released included."""
        found: dict[str, list[RankId]] = {}
        for rank in dict.fromkeys((*self.live, *self.endings.open)):
            row = self._store.rank(rank)
            if row is None or row.spec is None or (rank in self.endings.open and not self.endings.holds(rank)):
                continue
            for grant in row.spec.gpus:
                found.setdefault(grant.uuid, []).append(rank)
        return found

    def output(self, rank: RankId) -> str:
        return str(self._processes.rank_dir(rank) / "output.log")

    def output_path(self, rank: RankId) -> str | None:
        """The rank's output file, None when this node does not hold the rank."""
        return self.output(rank) if self._store.rank(rank) is not None else None

    def _holds_cards(self, rank: RankId) -> bool:
        row = self._store.rank(rank)
        return row is not None and row.spec is not None and bool(row.spec.gpus)

    def _place(self) -> None:
        """Tell a simulation what runs, so that its cards' memory follows."""
        running = {}
        for rank, state in self.live.items():
            row = self._store.rank(rank)
            if state.state == "RUNNING" and rank not in self.endings.open and row is not None and row.spec is not None and row.spec.gpus:
                running[rank] = row.spec.gpus
        self._hardware.place(running)

    # --- orders -----------------------------------------------------------------------------------------------

    def _held(self) -> dict[RankId, Held]:
        found: dict[RankId, Held] = {}
        for row in self._store.ranks().values():
            state = row.state
            if not row.is_final and row.rank in self.live:
                state = self.live[row.rank].state
            # Ended and not reported yet is final for every order: a STOP then has nothing to do.
            if not row.is_final and row.rank in self.endings.open:
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

    def apply(self, desired: Mapping[RankId, Desired], *, sent_boot: float) -> None:
        """Carry out the desired list of a sync sent at ``sent_boot`` (CLOCK_BOOTTIME).

        All rows that it takes are durable before the first start.
        """
        self._answered_boot = sent_boot
        self._unwritten = {r: seen for r, seen in self._unwritten.items() if r in desired and desired[r].want == "RUN"}
        desired = {rank: want for rank, want in desired.items() if rank not in self._unwritten}
        actions = diff(desired, self._held(), tombstones=self._store.tombstones())
        if any(d.lease_s is not None for d in desired.values()) or any(r.lease_s is not None for r in self._store.ranks().values()):
            self._processes.lease_renew(sent_boot)
        starts = self._starts_prepare([action for action in actions if isinstance(action, Start)])
        if any(isinstance(action, Refuse | Lease) for action in actions):
            with self._store.batch():
                for action in actions:
                    if isinstance(action, Refuse):
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
            self.live[start.rank] = RankState(rank=start.rank, state="PREPARING")
            self._shipper.track(start.rank, self.output(start.rank), head=_head_of(start.spec))
            denied = devices_denied(self._hardware.view.gpus, (grant.uuid for grant in start.spec.gpus))
            self._processes.start(start.rank, start.spec, env, lease_s=start.lease_s, secrets=start.secrets, denied=denied)

    def _starts_prepare(self, wanted: Sequence[Start]) -> list[tuple[Start, dict[str, str]]]:
        """Rows of all that shall start, durable when this returns, with the environments. Where nothing can be written nothing starts."""
        starts: list[tuple[Start, dict[str, str]]] = []
        if not wanted:
            return starts
        try:
            with self._store.batch(strict=True):
                for action in wanted:
                    env = self._prepare(action)
                    if env is not None:
                        starts.append((action, env))
        except StoreUnwritable as error:
            log.error("%d ranks cannot be started: %s", len(wanted), error)
            for action in wanted:
                self._unwritten[action.rank] = Observed(
                    rank=action.rank,
                    epoch=action.epoch,
                    state="LAUNCH_FAILED",
                    launch_error="internal",
                    launch_detail=NO_ROOM if error.kind == "full" else str(error),
                    final_log_offset=0,
                    released=True,
                )
            self._changed()
            return []
        return starts

    def _prepare(self, start: Start) -> dict[str, str] | None:
        """Row and fence of a rank; its environment, or None when it can't be started (which the row then says)."""
        self._store.rank_prepare(
            rank=start.rank,
            epoch=start.epoch,
            spec=start.spec,
            spec_sha256=start.spec_sha256,
            boot_id=self._boot_id,
            lease_s=start.lease_s,
            baseline=self._hardware.view.foreign_of([g.uuid for g in start.spec.gpus]),
        )
        try:
            missing = [ref.name for ref in start.spec.secrets if ref.name not in start.secrets]
            if missing:
                raise SpecError(f"The secret {missing[0]} is not there any more; set it again, then submit the job again.", "spec")
            if start.spec.unix_user is not None and self._identity != "mapped":
                raise SpecError(
                    f'The job wants a Unix user of its own, and this agent gives it none (identity = "{self._identity}").', "user"
                )
            account_ensure(start.spec, may_make=self._makes_accounts)
            temporary = str(self._processes.job_dir(start.rank) / jobdir.TMP)
            return environment(
                rank=start.rank,
                spec=start.spec,
                gpus=self._hardware.view.gpus,
                cuda_visible=self._cuda_visible,
                artifacts=str(self._processes.artifacts_dir(start.rank)),
                temporary=temporary if len(temporary) <= jobdir.TMP_MOST else None,
                job_account=self._job_account,
            )
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
            self._changed()
            return None

    def _refuse(self, action: Refuse) -> None:
        log.warning("Rank %s: %s", action.rank, action.detail)
        exit_info = ExitInfo(cause=action.cause, detail=action.detail)
        self._store.rank_refuse(rank=action.rank, epoch=action.epoch, boot_id=self._boot_id, exit=exit_info)
        self._changed()

    def _forget(self, action: Forget) -> None:
        row = self._store.rank(action.rank)
        if row is None:
            self._store.tombstone(rank_parts(action.rank)[0], action.epoch)
            return
        if action.rank in self.endings.open and (not row.is_final or self.endings.holds(action.rank)):
            return  # not even reported, or its cards are not proven free: this FORGET comes again
        self._stops.pop(action.rank, None)
        ending = self.endings.open.get(action.rank)
        is_logged = row.log_done or (ending is not None and ending.log_offset is not None)
        self.endings.drop(action.rank)
        with self._store.batch():
            self._store.tombstone(row.job, action.epoch)
            # The directory stays until its output and its files are with the control plane, which may have heard nothing for hours.
            self._store.rank_update(action.rank, forgotten=True, log_done=is_logged)
        self._purge_if_done(action.rank)

    def _purge_if_done(self, rank: RankId) -> None:
        """Remove a forgotten rank of which nothing is on its way any more."""
        row = self._store.rank(rank)
        if row is None or not (row.log_done and row.artifacts_done):
            return
        self._shipper.drop(rank)
        # The directory first: a crash between the two leaves a row, whose FORGET is then repeated.
        self._processes.forget(rank)
        self._store.rank_delete(rank)

    def _artifacts_add(self, rank: RankId) -> bool:
        return self._uploader.add(rank, str(self._processes.artifacts_dir(rank)))


def _head_of(spec: RankSpec | None) -> int | None:
    return head_kept(spec.log_cap_mib) if spec is not None else None
