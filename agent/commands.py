"""AgentCommands: small questions and jobs that the control plane sends with a sync, each done at most once.

A verb that starts a program runs it in the background with a deadline; the loop asks `poll` for the outcome. Nothing
here goes through a shell.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from agent.logs import output_tail
from agent.protocol import Command, CommandResult, GpuStatus, ProtocolError, rank_parts

MAX_RUNNING = 4
MAX_TEXT = 60_000
DIAGNOSE_S = 30.0
DIAGNOSE_ARGV = ("nvidia-smi", "-q", "-d", "MEMORY,UTILIZATION,TEMPERATURE,POWER")


@dataclass(slots=True)
class _Running:
    command: Command
    child: subprocess.Popen[bytes]
    output: IO[bytes]
    ends_at: float


class CommandRunner:
    """``output_path(rank)`` → the rank's output file or None; ``status()`` → what the cards said last."""

    def __init__(self, *, backend: str, output_path: Callable[[str], str | None], status: Callable[[], tuple[GpuStatus, ...]]) -> None:
        self._backend, self._output_path, self._status = backend, output_path, status
        self._running: list[_Running] = []

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def run(self, command: Command) -> CommandResult | None:
        """Do a command, or begin it (None: the result comes from `poll`). The caller has recorded its cid before."""
        if command.expires_in_s <= 0:
            return CommandResult(cid=command.cid, ok=False, text="The command expired before it reached the node.")
        if command.kind == "ping":
            return CommandResult(cid=command.cid, ok=True, text="pong")
        if command.kind == "tail":
            return self._tail(command)
        if command.kind == "diagnose":
            return self._diagnose(command)
        if command.kind in ("selftest", "reset"):
            text = f"{command.kind} is not supported by the {self._backend} backend yet."
        else:
            text = f"This agent does not know the command {command.kind[:40]!r}; upgrade the agent."
        return CommandResult(cid=command.cid, ok=False, text=text)

    def _tail(self, command: Command) -> CommandResult:
        rank, lines = command.args.get("rank"), command.args.get("lines", 100)
        try:
            rank_parts(rank if isinstance(rank, str) else "")
        except ProtocolError:
            return CommandResult(cid=command.cid, ok=False, text=f"tail needs a rank such as 42.1.0, got {str(rank)[:60]!r}.")
        if not isinstance(lines, int) or isinstance(lines, bool) or not 1 <= lines <= 10_000:
            return CommandResult(cid=command.cid, ok=False, text=f"tail takes 1 to 10000 lines, got {str(lines)[:60]!r}.")
        path = self._output_path(str(rank))
        if path is None:
            return CommandResult(cid=command.cid, ok=False, text=f"This node does not hold rank {rank}.")
        return CommandResult(cid=command.cid, ok=True, text=output_tail(path, lines, max_bytes=MAX_TEXT))

    def _diagnose(self, command: Command) -> CommandResult | None:
        if "nvml" not in self._backend.split("+"):
            lines = [f"{self._backend} backend, {len(self._status())} cards"]
            for card in self._status():
                told = {k: v for k, v in card.to_json().items() if k != "uuid"}
                lines.append(f"{card.uuid}: " + (", ".join(f"{k} {v}" for k, v in told.items()) or "no values"))
            return CommandResult(cid=command.cid, ok=True, text="\n".join(lines)[:MAX_TEXT])
        if len(self._running) >= MAX_RUNNING:
            return CommandResult(cid=command.cid, ok=False, text=f"{MAX_RUNNING} commands run on this node already; try again later.")
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in poll
        try:
            child = subprocess.Popen(
                DIAGNOSE_ARGV, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            output.close()
            return CommandResult(cid=command.cid, ok=False, text=f"nvidia-smi cannot be started: {error}.")
        self._running.append(_Running(command, child, output, time.monotonic() + min(DIAGNOSE_S, command.expires_in_s)))
        return None

    def poll(self) -> list[CommandResult]:
        """The results of what has ended or run out of time since the last call."""
        results: list[CommandResult] = []
        for item in list(self._running):
            code = item.child.poll()
            if code is None and time.monotonic() < item.ends_at:
                continue
            item.output.seek(0)
            text = item.output.read(MAX_TEXT).decode("utf-8", "replace")
            item.output.close()
            self._running.remove(item)
            if code is None:
                with contextlib.suppress(OSError):
                    os.killpg(item.child.pid, 9)
                # nvidia-smi may be stuck in the driver (state D): its end is not waited for.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    item.child.wait(timeout=0.2)
                text += "\nIt did not end in time and was killed."
            results.append(CommandResult(cid=item.command.cid, ok=code == 0, text=text.strip()))
        return results
