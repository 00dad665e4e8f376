"""A whole control plane with agents of its own, started as a user starts it (`manage.py up`): for benches and tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from client.profile import Profile, profile_read
from client.sdk import NebulaClient
from nebulagrid.embedded import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
#: How long anything that should come true may take, on a machine that others keep busy too.
PATIENCE_S = 120.0
T = TypeVar("T")


class GridError(RuntimeError):
    """The control plane did not do what was waited for."""


def wait_for(condition: Callable[[], T], *, what: str, deadline_s: float = PATIENCE_S, every_s: float = 0.05) -> T:
    """The first truthy answer of ``condition``. Raises GridError after ``deadline_s``."""
    end = time.monotonic() + deadline_s
    while True:
        if found := condition():
            return found
        if time.monotonic() > end:
            raise GridError(f"{what}: not within {deadline_s:g} s")
        time.sleep(every_s)


def port_pick() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scenario_cards(*, count: int, model: str = "Simulated RTX 4090", total_mib: int = 24564) -> dict[str, Any]:
    """A scenario of ``count`` like cards."""
    return {"devices": [{"count": count, "model": model, "total_mib": total_mib, "compute_capability": "8.9"}]}


class Grid:
    """``with Grid(folder).running() as grid: grid.client().job_submit(…)``"""

    def __init__(
        self,
        folder: Path,
        *,
        agents: int = 1,
        scenario: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        up: Sequence[str] | None = None,
        database: Path | None = None,
        as_root: bool = False,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """``up``: arguments of `manage.py up`; None = ``agents`` agents with ``scenario``. ``database``: a closed SQLite file whose copy
        a fresh data folder begins with (a migrated one saves the seconds of migrating); None = the first start makes it. ``as_root``: where
        root starts it, root it is, with accounts of its own for control plane and jobs; ``folder`` must then be where those can get to.
        Else it runs under one plain account, whoever starts it (``bench.live.plain``). ``prepare`` is
        called in its process before it begins."""
        self.folder = folder
        self.data = folder / "data"
        self.port = port or port_pick()
        self.agents = agents
        self.database = database
        plain = os.geteuid() == 0 and not as_root
        self._prepare = prepare
        self.python = [sys.executable, "-m", "bench.live.plain", "--", sys.executable] if plain else [sys.executable]
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = folder / "up.log"
        self.scenario_file = folder / "scenario.json"
        self.scenario_write(scenario or scenario_cards(count=2))
        self.up = list(up) if up is not None else ["--agents", str(agents), "--scenario", str(self.scenario_file)]
        # Nothing of the caller's installation: neither its database nor its settings.
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("NEBULA_", "DJANGO_", "PYTEST_"))}
        # Everybody here is made up, and machines differ in how far they can keep jobs apart: tests of that switch these off.
        self.env |= {"NEBULA_ALLOW_UNISOLATED": "1", "NEBULA_SECRETS_ON_SHARED_NODES": "1"}
        self.env |= {"NEBULA_DATA": str(self.data), "NEBULA_PORT": str(self.port)} | dict(env or {})
        self.process: subprocess.Popen[bytes] | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    def scenario_write(self, scenario: Mapping[str, Any]) -> None:
        """Agents read it again when it changes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.scenario_file.with_suffix(".new")
        aside.write_text(json.dumps(scenario))
        aside.replace(self.scenario_file)

    def start(self, *, deadline_s: float = PATIENCE_S) -> float:
        """Seconds until everything answered. What was started ends with the calling thread at the latest."""
        began = time.monotonic()
        self._database_lay()
        argv = [*self.python, "manage.py", "up", *self.up]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=self._before_exec(),
            )
        process = self.process

        def is_ready() -> bool:
            if process.poll() is not None:
                raise GridError(f"up ended with status {process.returncode}:\n{self.tail()}")
            return (self.data / "run" / "ready").exists() and self._lock_pid() == process.pid

        try:
            wait_for(is_ready, what="the control plane answers", deadline_s=deadline_s)
            if self.agents:
                wait_for(self.nodes_are_ready, what="all nodes are READY", deadline_s=deadline_s)
        except GridError as error:
            raise GridError(f"{error}\n{self.tail()}") from error
        return time.monotonic() - began

    def _before_exec(self) -> Callable[[], None]:
        """A test run that is killed leaves no control plane at work."""
        ask, prepare = die_with_parent(signal.SIGINT), self._prepare

        def both() -> None:
            if prepare is not None:
                prepare()
            ask()

        return both

    def _database_lay(self) -> None:
        """The copy to begin with, where there is no database yet."""
        own = self.data / "nebula.sqlite3"
        if self.database is not None and not own.exists():
            self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
            own.touch(mode=0o600)
            shutil.copyfile(self.database, own)

    def stop(self, *, deadline_s: float = PATIENCE_S) -> int:
        """Ctrl-C; the exit status of ``up``. Jobs go on under their shims."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise GridError(f"up did not stop within {deadline_s:g} s\n{self.tail()}") from None

    @contextlib.contextmanager
    def running(self, *, deadline_s: float = PATIENCE_S) -> Iterator[Grid]:
        """Started, and at the end stopped with all that its jobs left behind."""
        try:
            self.start(deadline_s=deadline_s)
            yield self
        finally:
            with contextlib.suppress(GridError):
                self.stop()
            self.sweep()

    def sweep(self) -> None:
        """Kill what still belongs to this grid's data folder: shims and programs of jobs that nobody ended."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Processes that name our data folder in their command line, environment or working folder; not ``up`` itself."""
        found = []
        mark = os.fsencode(self.data)
        for place in Path("/proc").iterdir():
            if not place.name.isdigit() or int(place.name) in (os.getpid(), self.process.pid if self.process else 0):
                continue
            with contextlib.suppress(OSError):
                said = (place / "cmdline").read_bytes() + (place / "environ").read_bytes() + os.fsencode((place / "cwd").readlink())
                if mark in said:
                    found.append(int(place.name))
        return found

    def commands(self) -> list[bytes]:
        """The command lines of ``processes()``; one that has ended meanwhile has none."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        return found

    def tail(self, lines: int = 40) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _lock_pid(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self.data / "run" / "up.lock").read_text())
        return 0

    # --- processes ------------------------------------------------------------------------------------------------

    def pid(self, name: str) -> int:
        """web, worker, beat, redis, agent, agent-2, …"""
        return int((self.data / "run" / f"{name}.pid").read_text())

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Signal a child; answers with the process id it had."""
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def wait_restarted(self, name: str, old: int, *, deadline_s: float = PATIENCE_S) -> int:
        """The new process id, once ``up`` has started it again."""

        def new() -> int:
            with contextlib.suppress(OSError, ValueError):
                pid = self.pid(name)
                if pid != old and Path(f"/proc/{pid}").exists():
                    return pid
            return 0

        return wait_for(new, what=f"{name} runs again", deadline_s=deadline_s)

    # --- talking to it ---------------------------------------------------------------------------------------------

    @property
    def profile_file(self) -> Path:
        return self.data / "cli.json"

    def profile(self) -> Profile:
        kept = profile_read(self.profile_file)
        return Profile(endpoint=kept["endpoint"], token=kept["token"], ca_file=kept.get("ca_file"))

    def client(self, token: str | None = None) -> NebulaClient:
        """Signed in as the administrator, unless another token is given."""
        profile = self.profile()
        return NebulaClient(profile.endpoint, token or profile.token, ca_file=profile.ca_file, language="en")

    def answers(self) -> bool:
        """Is the web server there?"""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def nodes_are_ready(self) -> bool:
        with self.client() as client:
            nodes = client.node_list()
        return len(nodes) >= self.agents and all(node["state"] == "READY" for node in nodes)

    def manage(self, *args: str, stdin: str = "") -> str:
        """`manage.py ARGS` on this installation; its standard output. Raises GridError when it fails."""
        argv = [*self.python, "manage.py", *args]
        done = subprocess.run(argv, cwd=ROOT, env=self.env, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if done.returncode:
            raise GridError(f"manage.py {' '.join(args)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def ctl(self, *args: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """`nebula-ctl ARGS` as a user would run it."""
        program = Path(sys.executable).with_name("nebula-ctl")
        env = {**self.env, "NEBULA_CONFIG": str(self.profile_file), "LANG": "C.UTF-8"}
        return subprocess.run([str(program), *args], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
