"""`Processes` without processes, for tests of the agent's loop."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.processes import RankState, Recoverable
from agent.procs import boottime
from agent.protocol import ExitCause, ExitInfo, RankId, RankSpec


class FakeProcesses:
    """`Processes` without processes: a test says what happens with `running`, `exit` and `fail`.

    ``tree`` holds the pids of each rank; a rank counts as gone when its set is empty.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: dict[RankId, dict[str, str]] = {}
        self.starts: list[RankId] = []
        self.stops: list[tuple[RankId, float, str, str | None]] = []
        self.killed: list[RankId] = []
        self.forgotten: list[RankId] = []
        self.recovered: list[Recoverable] = []
        self.recover_as: dict[RankId, RankState] = {}
        self.leases: dict[RankId, int | None] = {}
        self.renewed: list[float] = []
        self.denied: dict[RankId, tuple[str, ...]] = {}
        self.tree: dict[RankId, set[int]] = {}
        self.unknown: list[RankId] = []
        self._changes: list[RankState] = []
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def _tell(self, state: RankState) -> None:
        self._changes.append(state)
        os.write(self._write, b"\0")

    def running(self, rank: RankId, *pids: int) -> None:
        self.tree[rank] = set(pids)
        self._tell(RankState(rank=rank, state="RUNNING", started_at=time.time(), began_s=boottime()))

    def prints(self, rank: RankId, data: bytes) -> None:
        with open(self.rank_dir(rank) / "output.log", "ab") as file:
            file.write(data)

    def exit(self, rank: RankId, code: int = 0, *, cause: ExitCause = "exited", left: Sequence[int] = ()) -> None:
        self.tree[rank] = set(left)
        self._tell(RankState(rank=rank, state="EXITED", exit=ExitInfo(cause=cause, code=code)))

    def fail(self, rank: RankId, detail: str) -> None:
        self.tree[rank] = set()
        self._tell(RankState(rank=rank, state="LAUNCH_FAILED", launch_error="exec", launch_detail=detail))

    # --- Processes ----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._read

    def poll(self) -> list[RankState]:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        found, self._changes = self._changes, []
        return found

    def warm(self) -> None:
        pass

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
        self.rank_dir(rank).mkdir(parents=True, exist_ok=True)
        self.artifacts_dir(rank).mkdir(parents=True, exist_ok=True)
        self.starts.append(rank)
        self.started[rank] = dict(env)
        self.leases[rank] = lease_s
        self.denied[rank] = tuple(denied)

    def stop(self, rank: RankId, *, grace_s: float, cause: ExitCause = "stopped", reason: str | None = None) -> None:
        self.stops.append((rank, grace_s, cause, reason))

    def kill(self, rank: RankId) -> None:
        self.killed.append(rank)

    def recover(self, rows: Sequence[Recoverable]) -> list[RankState]:
        self.recovered += rows
        unknown = ExitInfo(cause="never_started")
        return [self.recover_as.get(r.rank, RankState(rank=r.rank, state="EXITED", exit=unknown)) for r in rows]

    def pids(self, rank: RankId) -> frozenset[int]:
        return frozenset(self.tree.get(rank, ()))

    def tree_gone(self, rank: RankId) -> bool:
        return not self.tree.get(rank)

    def forget(self, rank: RankId) -> None:
        self.forgotten.append(rank)

    def rank_dir(self, rank: RankId) -> Path:
        return self.root / rank

    def job_dir(self, rank: RankId) -> Path:
        return self.root.with_name(f"{self.root.name}-jobs") / rank

    def artifacts_dir(self, rank: RankId) -> Path:
        return self.job_dir(rank) / "artifacts"

    def lease_set(self, rank: RankId, lease_s: int | None) -> None:
        self.leases[rank] = lease_s

    def lease_renew(self, sent_at: float) -> None:
        self.renewed.append(sent_at)

    def strangers(self) -> list[RankId]:
        return self.unknown

    def kept(self) -> list[RankId]:
        return []

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
