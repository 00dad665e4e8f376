"""Real ranks in a temporary directory, and the certainty that nothing of them is left afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from agent import procs, rankdir
from agent.processes import RankState, Recoverable
from agent.protocol import RankSpec
from agent.ranks import RankProcesses
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
#: A quick interpreter for programs under test: no site-packages.
PYTHON = (sys.executable, "-I", "-S", "-c")


class Lab:
    """One agent's ranks. ``settings`` go to RankProcesses."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.data = data
        self.agent_id = f"test-{uuid.uuid4().hex[:12]}"
        self.settings = {"term_lead_s": 0.3, "kill_wait_s": 5.0, **settings}
        self._ranks: RankProcesses | None = None
        self.states: dict[str, RankState] = {}
        self.history: list[RankState] = []
        self._agents: list[subprocess.Popen[str]] = []

    @property
    def ranks(self) -> RankProcesses:
        """The ranks as this very process holds them; opened at the first use."""
        if self._ranks is None:
            self._ranks = RankProcesses(self.data, self.agent_id, **self.settings)
        return self._ranks

    # --- in this process --------------------------------------------------------------------------------------

    def start(self, *argv: str, rank: str = "1.1.0", env: dict[str, str] | None = None, lease_s: int | None = None, **fields: Any) -> str:
        spec = RankSpec(job=1, index=0, argv=argv, **fields)
        base = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        self.ranks.start(rank, spec, {**base, **(env or {})}, lease_s=lease_s)
        return rank

    def poll(self) -> None:
        for state in self.ranks.poll():
            self.states[state.rank] = state
            self.history.append(state)

    def wait(self, rank: str, *states: str) -> RankState:
        """Until the rank is in one of ``states``; only wake-ups through ``fileno`` count, with a look each second."""
        end = time.monotonic() + PATIENCE_S
        while True:
            self.poll()
            found = self.states.get(rank)
            if found is not None and found.state in states:
                return found
            assert time.monotonic() < end, f"{rank} is {found}, wanted {states}; shim.log: {self.text(rank, 'shim.log')}"
            select.select([self.ranks.fileno()], [], [], 1.0)

    def end(self, rank: str) -> RankState:
        return self.wait(rank, "EXITED", "LAUNCH_FAILED")

    def running(self, *argv: str, **more: Any) -> str:
        rank = self.start(*argv, **more)
        assert self.wait(rank, "RUNNING", "EXITED", "LAUNCH_FAILED").state == "RUNNING"
        return rank

    def text(self, rank: str, name: str = rankdir.OUTPUT) -> str:
        path = self.data / "ranks" / rank / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def said(self, rank: str, text: str) -> None:
        """Until the program has printed ``text``."""
        wait_until(lambda: text in self.text(rank), f"{text!r} in the output of {rank}")

    def program(self, rank: str) -> tuple[int, int]:
        started = rankdir.file_read(str(self.data / "ranks" / rank), rankdir.STARTED)
        assert started is not None
        return started["pid"], started["start"]

    def shim(self, rank: str) -> tuple[int, int]:
        found = rankdir.claim_owner(str(self.data / "ranks" / rank))
        assert found is not None
        return found

    # --- another agent process, to be killed ------------------------------------------------------------------

    def agent_start(self, *argv: str, rank: str = "1.1.0", **fields: Any) -> subprocess.Popen[str]:
        """An agent in a process of its own that starts the rank, says RUNNING and then only waits."""
        code = f"""
import os, select, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from agent.protocol import RankSpec
from agent.ranks import RankProcesses
from tests.waiting import PATIENCE_S, wait_until
ranks = RankProcesses(Path({str(self.data)!r}), {self.agent_id!r}, **{self.settings!r})
ranks.start({rank!r}, RankSpec(job=1, index=0, argv={argv!r}, **{fields!r}), {{"PATH": os.environ["PATH"]}})
while True:
    select.select([ranks.fileno()], [], [], 1)
    for state in ranks.poll():
        print(state.state, ranks._zygote.pid, flush=True)
"""
        agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self._agents.append(agent)
        assert agent.stdout is not None
        said = agent.stdout.readline().split()
        assert said[:1] == ["RUNNING"], said
        agent.zygote = int(said[1])  # type: ignore[attr-defined]
        return agent

    def agent_kill(self, agent: subprocess.Popen[str], *, zygote: bool = False) -> None:
        """kill -9, and until its zygote is gone too (by itself, unless it is killed as well)."""
        pid = agent.zygote  # type: ignore[attr-defined]
        stat = procs.process_stat(pid)
        assert stat is not None
        if zygote:
            agent.send_signal(signal.SIGSTOP)  # or it would start another one
            procs.signal_send(pid, stat.start, signal.SIGKILL)
        agent.kill()
        agent.wait()
        assert agent.stdout is not None
        agent.stdout.close()
        wait_until(lambda: not procs.is_alive(pid, stat.start), "the zygote's end")

    def recover(self, rank: str = "1.1.0", *, boot_id: str | None = None) -> RankState:
        row = Recoverable(rank=rank, spec=RankSpec(job=1, index=0, argv=("x",)), boot_id=boot_id or self.ranks.boot_id)
        (state,) = self.ranks.recover([row])
        self.states[rank] = state
        return state

    # --- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        for agent in self._agents:
            if agent.poll() is None:
                self.agent_kill(agent)
        ranks = self.ranks
        names = {e.name for e in os.scandir(ranks.root) if e.is_dir() and e.name.count(".") == 2 and not e.name.startswith(".")}
        for name in names | set(ranks.layout.names()):
            ranks.stranger_kill(name)
            owner = rankdir.claim_owner(str(ranks.root / name))
            if owner is not None:
                procs.signal_send(*owner, signal.SIGKILL)
            wait_until(lambda n=name: not ranks._group_of(n, None).populated(), f"the end of {name}")
            ranks.forget(name)
        ranks.close()
        marks = [s.pid for s in procs.process_all() if _is_marked(s.pid, self.agent_id)]
        for pid in marks:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        assert not marks, f"processes {marks} were left behind"


def reachable(data: Path) -> None:
    """Let every account pass through to ``data``: pytest's directories are root's alone."""
    data.mkdir(exist_ok=True)
    for folder in [data, *data.parents]:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)


def _is_marked(pid: int, agent_id: str) -> bool:
    try:
        return f"NEBULA_RANK_MARK={agent_id}:".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
