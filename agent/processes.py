"""What the agent's loop asks of the code that starts, stops and adopts real processes (`ranks.RankProcesses`).

The loop owns the decisions and the durable store; the processes' side owns forks, shims, cgroups and signals. This
file is the whole contract between the two, so that each can be tested without the other.

Order at a start (docs/agent.md, "How it talks"): the loop commits the row PREPARED and the tombstone, then calls
`start`. At a restart it calls `recover` with every row that is not final and believes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.protocol import ExitCause, ExitInfo, LaunchError, ObservedState, RankId, RankSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank as the processes' side sees it now. EXITED and LAUNCH_FAILED are final: the program has ended.

    EXITED is said when the main program has ended and, as far as the shim could do it, its tree was killed too;
    whether the tree really is gone is asked with `tree_gone`, because a process stuck in the kernel survives a kill.
    """

    rank: RankId
    state: ObservedState
    exit: ExitInfo | None = None  # with EXITED
    launch_error: LaunchError | None = None  # with LAUNCH_FAILED
    launch_detail: str | None = None
    started_at: float | None = None  # Unix time, for display
    began_s: float | None = None  # while it runs: when it began, in CLOCK_BOOTTIME seconds
    checkpoint_seen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoverable:
    """A row of the store that was not final when the agent stopped."""

    rank: RankId
    spec: RankSpec
    boot_id: str  # the boot under which it was prepared


class Processes(Protocol):
    """Every call is quick and none waits for a program; what happens later arrives through `fileno` and `poll`, which
    the loop calls at least once a second while a rank lives."""

    def fileno(self) -> int:
        """A descriptor that turns readable when `poll` has something to say."""

    def poll(self) -> list[RankState]:
        """The ranks whose state changed since the last call. Never blocks; spurious calls are fine."""

    def warm(self) -> None:
        """A start may come within milliseconds. Quick, and harmless if nothing comes."""

    def start(
        self,
        rank: RankId,
        spec: RankSpec,
        env: Mapping[str, str],
        *,
        lease_s: int | None = None,
        secrets: Mapping[str, str] | None = None,
        denied: Sequence[str] = (),
    ) -> None:
        """Start a rank with this environment and the secrets that its spec names; ``denied``: devices that it can't open (see
        devices.py). A failure arrives as LAUNCH_FAILED through `poll`."""

    def stop(self, rank: RankId, *, grace_s: float, cause: ExitCause = "stopped", reason: str | None = None) -> None:
        """The polite stop of lifecycle.md. Again with a shorter grace: the earlier deadline counts."""

    def kill(self, rank: RankId) -> None:
        """Kill the whole tree at once. Also used on what is left of a tree after the exit."""

    def recover(self, rows: Sequence[Recoverable]) -> list[RankState]:
        """Adopt what still runs, report what ended meanwhile. One answer a row, in any order."""

    def pids(self, rank: RankId) -> frozenset[int]:
        """Process ids of the rank's tree right now; empty when it is gone or unknown."""

    def tree_gone(self, rank: RankId) -> bool:
        """True when no process of the rank is left."""

    def forget(self, rank: RankId) -> None:
        """Remove what the processes' side keeps of a final rank, its directory included. Harmless when repeated."""

    def rank_dir(self, rank: RankId) -> Path:
        """The rank's directory, closed to the job: `output.log` in it is the combined output."""

    def job_dir(self, rank: RankId) -> Path:
        """The folder that is the job's own; `tmp/` in it is its $TMPDIR."""

    def artifacts_dir(self, rank: RankId) -> Path:
        """$NEBULA_ARTIFACTS."""

    def lease_set(self, rank: RankId, lease_s: int | None) -> None:
        """Change a rank's lease; the shim counts it, so it holds while no agent runs."""

    def lease_renew(self, sent_at: float) -> None:
        """A sync sent at this CLOCK_BOOTTIME was answered."""

    def strangers(self) -> list[RankId]:
        """Ranks that live here under our name and that `recover` was not told of."""

    def kept(self) -> list[RankId]:
        """Ranks that have a directory here."""

    def close(self) -> None:
        """Let go of descriptors; the programs go on under their shims."""
