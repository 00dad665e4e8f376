"""From a program's end to the report of it: last log bytes, release gate, one sync that carries all of it.

The usual end is quick: the tree is gone, the log's last chunk is acknowledged and the cards are free within milliseconds,
and the control plane gets EXITED, the final log offset and `released` in one message. Neither a control plane that takes
no logs nor a card that stays busy may hold the report up for long.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent.cards import CardView
from agent.gate import GIVE_UP_S, Evidence, gate_open
from agent.processes import Processes, RankState
from agent.protocol import RankId
from agent.store import RankRow, Store

log = logging.getLogger("nebula-agent")

#: How long the report waits for the last log bytes, and for the gate.
LOG_WAIT_S = 3.0
GATE_WAIT_S = 0.5
#: How long it waits for the job's files: whoever waits for the job's end finds small ones there; large ones follow.
FILES_WAIT_S = 2.0
LOOK_S = (0.02, 2.0)


@dataclass(slots=True)
class Ending:
    rank: RankId
    ended_at: float  # monotonic
    state: RankState | None  # None: reported before, only the gate or the log is open
    log_offset: int | None = None  # acknowledged in all, once it is
    released: bool | None = None
    reported: bool = False
    uploading: bool = False
    next_look: float = 0.0
    next_try: float = 0.0  # no more often than this are processes killed again and cards asked again
    look_s: float = LOOK_S[0]
    waiting_for: str | None = None


class Endings:
    """Called by the loop only. ``probe_ask()`` asks for a sample with the process list."""

    def __init__(
        self,
        *,
        store: Store,
        processes: Processes,
        view: CardView,
        probe_ask: Callable[[], None],
        artifacts: Callable[[RankId], bool],
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._store, self._processes, self._view = store, processes, view
        self._probe_ask, self._artifacts, self._give_up_s = probe_ask, artifacts, give_up_s
        self.open: dict[RankId, Ending] = {}

    def add(self, state: RankState, *, now: float) -> None:
        if state.rank not in self.open:
            self.open[state.rank] = Ending(state.rank, now, state, uploading=state.state == "EXITED" and self._artifacts(state.rank))

    def resume(self, row: RankRow, *, now: float) -> None:
        """A rank that an earlier agent reported as ended, with its gate or its log still open."""
        ending = Ending(row.rank, now, None, released=row.released, reported=True)
        ending.log_offset = row.final_log_offset if row.log_done else None
        self.open[row.rank] = ending

    def log_done(self, rank: RankId, offset: int) -> None:
        ending = self.open.get(rank)
        if ending is not None:
            ending.log_offset = offset

    def artifacts_done(self, rank: RankId) -> None:
        ending = self.open.get(rank)
        if ending is not None:
            ending.uploading = False

    def drop(self, rank: RankId) -> None:
        self.open.pop(rank, None)

    def holds(self, rank: RankId) -> bool:
        """Whether the rank's release is not decided yet."""
        ending = self.open.get(rank)
        return ending is not None and ending.released is None

    def next_at(self) -> float | None:
        """When `step` has something to do by the clock."""
        times: list[float] = []
        for ending in self.open.values():
            if ending.released is None:
                times.append(ending.next_look)
            if not ending.reported:
                wait_s = LOG_WAIT_S if ending.log_offset is None else FILES_WAIT_S if ending.uploading else GATE_WAIT_S
                times.append(ending.ended_at + wait_s)
        return min(times, default=None)

    def step(self, now: float) -> bool:
        """Look at all that is open; True when something new is to be reported. One transaction at most."""
        changes: dict[RankId, dict[str, Any]] = {}
        for ending in list(self.open.values()):
            row = self._store.rank(ending.rank)
            if row is None:
                self.drop(ending.rank)
                continue
            if ending.released is None and now >= ending.next_look:
                self._look(ending, row, now)
            found = self._changes(ending, row, now)
            if found:
                changes[ending.rank] = found
        if changes:
            # Remembered where nothing can be written: the control plane hears of an end in any case.
            with self._store.batch():
                for rank, values in changes.items():
                    self._store.rank_update(rank, **values)
        for ending in list(self.open.values()):
            if ending.reported and ending.released is not None and ending.log_offset is not None:
                self.drop(ending.rank)
        return bool(changes)

    def _changes(self, ending: Ending, row: RankRow, now: float) -> dict[str, Any]:
        """Columns to write now; empty when there is nothing to tell."""
        age_s = now - ending.ended_at
        log_ready = ending.log_offset is not None or age_s >= LOG_WAIT_S
        gate_ready = ending.released is not None or age_s >= GATE_WAIT_S
        if not ending.reported:
            files_ready = not ending.uploading or age_s >= FILES_WAIT_S
            if not (log_ready and gate_ready and files_ready):
                return {}
            ending.reported = True
            return self._report(ending)
        found: dict[str, Any] = {}
        if row.released != ending.released:
            found["released"] = ending.released
        if ending.log_offset is not None and not row.log_done:
            found.update(log_done=True, final_log_offset=ending.log_offset, log_offset=ending.log_offset)
        return found

    def _report(self, ending: Ending) -> dict[str, Any]:
        state = ending.state
        assert state is not None  # noqa: S101 - `resume` sets reported
        found: dict[str, Any] = {
            "state": state.state,
            "exit": state.exit,
            "launch_error": state.launch_error,
            "launch_detail": state.launch_detail,
            "checkpoint_seen": state.checkpoint_seen,
            "released": ending.released,
            "final_log_offset": ending.log_offset if ending.log_offset is not None else self._size(ending.rank),
            "log_done": ending.log_offset is not None,
            "log_offset": ending.log_offset or 0,
            "artifacts_done": not ending.uploading,
        }
        if state.started_at is not None:
            found["started_at"] = state.started_at
        return found

    def _size(self, rank: RankId) -> int:
        try:
            return os.stat(self._processes.rank_dir(rank) / "output.log").st_size
        except OSError:
            return 0

    def _look(self, ending: Ending, row: RankRow, now: float) -> None:
        """Try the gate once; what is missing is asked for, and the next look waits a little longer."""
        grants = row.spec.gpus if row.spec is not None else ()
        tree_gone = self._processes.tree_gone(ending.rank)
        missing: str | None
        if not tree_gone:
            missing = "processes of the rank are still there"
            if now >= ending.next_try:
                self._processes.kill(ending.rank)
        elif grants and (self._view.processes_at < ending.ended_at or self._view.status_at < ending.ended_at):
            missing = "no reading of its cards since its end"
        else:
            evidence = Evidence(
                tree_gone=tree_gone,
                status=self._view.status,
                processes=self._view.processes,
                own_pids=self._view.left_of(ending.rank),
                baseline_mib=row.baseline or {},
            )
            missing = gate_open(grants, evidence)
        if missing is None:
            ending.released = True
            return
        if now - ending.ended_at >= self._give_up_s:
            ending.released = False
            log.error("No proof within %d s that rank %s let go of its cards: %s.", self._give_up_s, ending.rank, missing)
            return
        if missing != ending.waiting_for:
            log.debug("Rank %s is not released yet: %s.", ending.rank, missing)
            ending.waiting_for = missing
        if now >= ending.next_try:
            if grants and tree_gone:
                self._probe_ask()
            ending.next_try = now + ending.look_s
            ending.look_s = min(LOOK_S[1], ending.look_s * 1.5)
        ending.next_look = ending.next_try

    def look_soon(self) -> None:
        """A new sample came in."""
        for ending in self.open.values():
            ending.next_look = 0.0
