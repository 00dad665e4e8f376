"""AgentCommands: small questions and jobs that the control plane sends with a sync, each done at most once.

A verb that starts a program runs it in the background with a deadline; the loop asks `poll` for the outcome. Nothing
here goes through a shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agent.cards import status_text
from agent.logs import output_tail
from agent.probe import Simulation
from agent.protocol import Command, CommandResult, GpuStatus, ProtocolError, rank_parts

MAX_RUNNING = 4
MAX_TEXT = 60_000
DIAGNOSE_S = 30.0
DOCTOR_S = 60.0
SELFTEST_S = 600.0
RESET_S = 90.0
#: For so long the agent itself keeps its hands off the cards while one is reset.
RESET_REST_S = 20.0
#: What may stand as a card's name on a command line.
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,76}")
DIAGNOSE_ARGV = ("nvidia-smi", "-q", "-d", "MEMORY,UTILIZATION,TEMPERATURE,POWER")


@dataclass(slots=True)
class _Running:
    command: Command
    child: subprocess.Popen[bytes]
    output: IO[bytes]
    ends_at: float


class CommandRunner:
    """``output_path(rank)`` → the rank's output file or None; ``status()`` → what the cards said last; ``users(uuid)`` → how many
    ranks and processes are on a card; ``rest(seconds)`` lets go of the hardware; ``simulation``: where cards are simulated;
    ``config``: the agent's own configuration file, for its doctor."""

    def __init__(
        self,
        *,
        backend: str,
        output_path: Callable[[str], str | None],
        status: Callable[[], tuple[GpuStatus, ...]],
        users: Callable[[str], int] = lambda uuid: 0,
        rest: Callable[[float], None] = lambda seconds: None,
        simulation: Simulation | None = None,
        config: Path | None = None,
    ) -> None:
        self._backend, self._output_path, self._status = backend, output_path, status
        self._users, self._rest, self._simulation = users, rest, simulation
        self._config = config
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
        if command.kind == "doctor":
            named = ("--config", str(self._config)) if self._config is not None else ()
            return self._start(command, (sys.executable, "-P", "-m", "agent.main", "doctor", "--json", *named), DOCTOR_S)
        if command.kind == "selftest":
            return self._selftest(command)
        if command.kind == "reset":
            return self._reset(command)
        if command.kind == "drill":
            return self._drill(command)
        text = f"This agent does not know the command {command.kind[:40]!r}; upgrade the agent."
        return CommandResult(cid=command.cid, ok=False, text=text)

    def _drill(self, command: Command) -> CommandResult:
        if self._simulation is None:
            return CommandResult(cid=command.cid, ok=False, text="This node's cards are real: no drill here.")
        try:
            return CommandResult(cid=command.cid, ok=True, text=self._simulation.drill(command.args))
        except ValueError as error:
            return CommandResult(cid=command.cid, ok=False, text=str(error))

    def _selftest(self, command: Command) -> CommandResult | None:
        """The answer is the JSON report of agent/selftest.py; ``ok`` = passed."""
        uuid, mib, heat_s = command.args.get("gpu"), command.args.get("mib", 0), command.args.get("heat_s", 0)
        if not isinstance(uuid, str) or not _is_number(mib) or not _is_number(heat_s) or not 0 <= heat_s <= 300:
            return CommandResult(cid=command.cid, ok=False, text="selftest needs a card's UUID as gpu, mib, and heat_s from 0 to 300.")
        if self._simulation is not None:
            report = self._simulation.selftest(uuid, mib=int(mib), heat_s=float(heat_s))
            return CommandResult(cid=command.cid, ok=report["result"] == "passed", text=json.dumps(report))
        argv = (sys.executable, "-P", "-m", "agent.selftest", "--gpu", uuid, "--mib", str(int(mib)), "--heat-s", str(heat_s))
        return self._start(command, argv, SELFTEST_S)

    def _reset(self, command: Command) -> CommandResult | None:
        uuid = command.args.get("gpu")
        if not isinstance(uuid, str):
            return CommandResult(cid=command.cid, ok=False, text="reset needs a card's UUID as gpu.")
        if users := self._users(uuid):
            # The control plane asks only for idle cards; this is the last look, by who is really there.
            return CommandResult(cid=command.cid, ok=False, text=f"{users} jobs or processes are on the card; it is not reset.")
        if self._simulation is not None:
            return CommandResult(cid=command.cid, ok=True, text="The simulated card was reset.")
        if "nvml" not in self._backend.split("+"):
            return CommandResult(cid=command.cid, ok=False, text=f"The {self._backend} backend can't reset a card.")
        self._rest(RESET_REST_S)
        return self._start(command, ("nvidia-smi", "--gpu-reset", "-i", uuid), RESET_S)

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
        """Of all cards, or of those that ``gpus`` names."""
        wanted = command.args.get("gpus")
        if wanted is not None and not (
            isinstance(wanted, list) and 0 < len(wanted) <= 64 and all(isinstance(uuid, str) and _UUID.fullmatch(uuid) for uuid in wanted)
        ):
            return CommandResult(cid=command.cid, ok=False, text="diagnose takes gpus as a list of cards' UUIDs.")
        if "nvml" not in self._backend.split("+"):
            shown = tuple(card for card in self._status() if wanted is None or card.uuid in wanted)
            return CommandResult(cid=command.cid, ok=True, text=status_text(self._backend, shown)[:MAX_TEXT])
        only = () if wanted is None else ("-i", ",".join(wanted))
        return self._start(command, (*DIAGNOSE_ARGV, *only), DIAGNOSE_S)

    def _start(self, command: Command, argv: Sequence[str], limit_s: float) -> CommandResult | None:
        if len(self._running) >= MAX_RUNNING:
            return CommandResult(cid=command.cid, ok=False, text=f"{MAX_RUNNING} commands run on this node already; try again later.")
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in poll
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            output.close()
            return CommandResult(cid=command.cid, ok=False, text=f"{Path(argv[0]).name} cannot be started: {error}.")
        self._running.append(_Running(command, child, output, time.monotonic() + min(limit_s, command.expires_in_s)))
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
