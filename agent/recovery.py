"""What became of a rank while no agent was looking: the table of lifecycle.md, read from the rank's directory and group."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

from agent import rankdir
from agent.cgroups import CgroupGroup, SessionGroup
from agent.processes import RankState
from agent.protocol import ExitCause, ExitInfo, LaunchError, ProtocolError, RankId, from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``shim``: the living shim to watch. ``needs_shim``: the program runs and nobody minds it."""

    state: RankState
    shim: tuple[int, int] | None = None
    needs_shim: bool = False


def final_read(rank: RankId, path: str) -> RankState | None:
    """The end of a rank as it was written down; None: it was not."""
    ended = rankdir.file_read(path, rankdir.EXIT)
    if ended is not None:
        started = rankdir.file_read(path, rankdir.STARTED)
        with contextlib.suppress(ProtocolError):  # no shim wrote this
            return RankState(
                rank=rank,
                state="EXITED",
                exit=from_json(ExitInfo, ended["exit"]),
                started_at=started["started_at"] if started else None,
                checkpoint_seen=bool(ended.get("checkpoint_seen")),
            )
    failed = rankdir.file_read(path, rankdir.LAUNCH)
    return launch_failed(rank, failed["kind"], failed["text"]) if failed is not None else None


def running_state(rank: RankId, started: dict[str, Any]) -> RankState:
    """``started``: the rank's started.json."""
    return RankState(rank=rank, state="RUNNING", started_at=started["started_at"], began_s=started.get("began_at"))


def ran_s(started: dict[str, Any], code: dict[str, Any]) -> float | None:
    """How long a program ran whose end the zygote saw; None: it did not say when."""
    began, ended = started.get("began_at"), code.get("ended_at")
    return None if began is None or ended is None else round(max(0.0, ended - began), 3)


def launch_failed(rank: RankId, kind: LaunchError, text: str) -> RankState:
    return RankState(rank=rank, state="LAUNCH_FAILED", launch_error=kind, launch_detail=text)


def rank_examine(rank: RankId, path: str, group: CgroupGroup | SessionGroup, *, row_boot_id: str, boot_id: str) -> Found:
    """Where a rank stands that the store calls not final. Ends that are found here are written down, so that they stay.

    Side effect: a rank that was never claimed is blocked, so that a shim which is still on its way can't start it.
    """
    # 1. It ended and was written down, by the shim or by an earlier agent.
    final = final_read(rank, path)
    if final is not None:
        return Found(state=final)
    started = rankdir.file_read(path, rankdir.STARTED)
    # 2. Another boot: nothing of it can live, and what has its pids now is something else.
    if row_boot_id != boot_id:
        cause: ExitCause = "node_rebooted" if started else "never_started"
        return _ended(rank, path, cause, f"This boot is {boot_id}, that one was {row_boot_id}.")
    # 3. No shim ever claimed it.
    if not os.path.isdir(path) or rankdir.claim_block(path):
        return _ended(rank, path, "never_started", "The agent ended before the program was started.")
    # 4. Its shim lives. (Without started.json it is about to start the program.)
    if started is None:
        running = RankState(rank=rank, state="PREPARING")
    else:
        running = running_state(rank, started)
    if rankdir.claim_held(path):
        return Found(state=running, shim=rankdir.claim_owner(path))
    # 5. Its shim is dead; it may have written its last word between the first look and this one.
    final = final_read(rank, path)
    if final is not None:
        return Found(state=final)
    if started is None and not os.path.exists(f"{path}/{rankdir.STARTED}"):
        group.kill()
        group.remove()
        return _ended(rank, path, "never_started", "The shim died before the program was started.")
    if started is None or group.populated():
        return Found(state=running, needs_shim=True)
    code = rankdir.file_read(path, rankdir.CODE)
    if code is None or code["pid"] != started["pid"]:
        return _ended(rank, path, "exit_unknown", "The program ended while nobody could see how.")
    return _ended(rank, path, "exited", None, status=code["status"], ran_s=ran_s(started, code))


def _ended(
    rank: RankId, path: str, cause: ExitCause, detail: str | None, *, status: int | None = None, ran_s: float | None = None
) -> Found:
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    code = os.WEXITSTATUS(status) if status is not None and number is None else None
    with contextlib.suppress(OSError):  # no directory: the next agent comes to the same end
        rankdir.exit_write(path, cause=cause, code=code, signal=number, detail=detail, ran_s=ran_s)
    info = ExitInfo(cause=cause, code=code, signal=number, detail=detail, ran_s=ran_s)
    return Found(state=RankState(rank=rank, state="EXITED", exit=info))
