"""Keeps the control plane's processes running: Redis, web, worker, beat, agents. Standard library only, so that the
process that watches the others stays small; `manage.py up` prepares everything and then becomes this.

1. Start stage after stage; a child with a readiness probe holds the next stage back until it answers.
2. A child that ends is started again after 0.5, 1, 2 … 15 s; 30 s of health set that back. Redis holds hints only: files that it
   can't start with (torn, or another version's) are put aside.
3. SIGINT, SIGTERM or SIGHUP stop all, last stage first. Children are in process groups of their own, so that Ctrl-C
   reaches them through here only, in this order; were this process killed, the kernel sends them their stop signal.

Jobs are no business of this file: their shims left the agent's session when they started, and live on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from nebulagrid.embedded import die_with_parent, redis_ping
from nebulagrid.rooted.accounts import Account, as_account
from nebulagrid.rooted.errors import RootedError

BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
HEALTHY_AFTER_S = 30.0
START_TIMEOUT_S = 60.0
LOG_BYTES = 4 << 20
#: How often files that a full disk had no room for are tried again.
FILES_AGAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """``probe``: None, ``redis:PATH`` or ``http:HOST:PORT`` (GET /healthz). ``env`` is added to ours; with ``clean`` our own
    NEBULA_* and DJANGO_* variables are left out. ``until_s`` is how long a stop may take before SIGKILL. ``hints``: a folder
    whose content is put aside when the child fails with it twice."""

    name: str
    argv: list[str]
    stage: int
    env: dict[str, str] = field(default_factory=dict)
    clean: bool = False
    probe: str | None = None
    probe_password_file: str | None = None  # of a Redis: what the probe signs in with
    stop_signal: int = signal.SIGTERM
    until_s: float = 4.0
    hints: str | None = None
    account: dict[str, Any] | None = None  # rooted.accounts.Account: who it runs as, where root supervises; None = as we do
    cwd: str | None = None
    is_whole_env: bool = False  # ``env`` is all of it

    def environ(self) -> dict[str, str]:
        if self.is_whole_env:
            return dict(self.env)
        kept = {name: value for name, value in os.environ.items() if not (self.clean and name.startswith(("NEBULA_", "DJANGO_")))}
        return {**kept, **self.env}

    def identity(self) -> dict[str, Any]:
        """Arguments of Popen. It changes the ids before ``preexec_fn`` runs: a change after it would take the death signal away."""
        if self.account is None:
            return {}
        return {"user": self.account["uid"], "group": self.account["gid"], "extra_groups": list(self.account["groups"])}


@dataclass(frozen=True, kw_only=True)
class Plan:
    run_dir: str
    lock_fd: int  # the flock that makes this the only control plane of the data folder; children must not inherit it
    children: list[ChildSpec]
    also_fds: list[int] = field(default_factory=list)  # another one, of the control plane's account
    ready: list[str] = field(default_factory=list)  # lines to print once all stages answered
    ready_file: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value: dict[str, Any] = json.loads(text)
        return cls(**{**value, "children": [ChildSpec(**child) for child in value["children"]]})


# --- processes of an earlier run ------------------------------------------------------------------------------------


def process_start(pid: int) -> str | None:
    """The start time that tells this process from a later one with its number; None when it is gone or a zombie."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    return None


def leftovers_wait(run_dir: Path, *, timeout_s: float = 10.0, say: Callable[[str], None] = print) -> None:
    """Wait for processes of a supervisor that was killed: the kernel told them to stop, but they need a moment.
    Those that still run after ``timeout_s`` are killed; each is identified by number and start time."""
    try:
        known: Mapping[str, list[Any]] = json.loads((run_dir / "children.json").read_text())
    except (OSError, ValueError):
        return
    alive = {name: pid for name, (pid, start) in known.items() if process_start(pid) == start}
    if alive:
        say(f"waiting for {', '.join(alive)} of an earlier run to end")
    deadline = time.monotonic() + timeout_s
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        alive = {name: pid for name, pid in alive.items() if process_start(pid) == known[name][1]}
    for pid in alive.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# --- one child --------------------------------------------------------------------------------------------------


class Child:
    def __init__(self, spec: ChildSpec, owner: Supervisor) -> None:
        self.spec, self.owner = spec, owner
        self.process: subprocess.Popen[bytes] | None = None
        self.ended = asyncio.Event()
        self.failures = 0
        self._log = owner.run_dir / f"{spec.name}.log"
        self._part = b""

    def start(self) -> None:
        self.ended.clear()
        self.process = subprocess.Popen(
            self.spec.argv,
            env=self.spec.environ(),
            cwd=self.spec.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=die_with_parent(self.spec.stop_signal),
            **self.spec.identity(),
        )
        try:
            self._watch(self.process)
        except BaseException:
            # A process that nobody watches would run beside the next one that is started in its place.
            self.process.kill()
            self.process.wait()
            self._output_close(self.process)
            self.process = None
            raise
        self.owner.files_write()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        loop, output = asyncio.get_running_loop(), _output(process)
        watch = os.pidfd_open(process.pid)
        os.set_blocking(output, False)
        loop.add_reader(output, self._read, process)
        loop.add_reader(watch, self._exited, process, watch)

    def _read(self, process: subprocess.Popen[bytes]) -> bool:
        """Pass on what it said; False when there is nothing to read now."""
        output = _output(process)
        try:
            data = os.read(output, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._output_close(process)
            return False
        *lines, self._part = (self._part + data).split(b"\n")
        if len(self._part) > 1 << 16:
            lines, self._part = [*lines, self._part], b""
        for line in lines:
            self.owner.say(line.decode(errors="replace"), name=self.spec.name)
        with contextlib.suppress(OSError):  # a full disk must not stop the supervision
            if self._log.exists() and self._log.stat().st_size > LOG_BYTES:
                self._log.replace(self._log.with_suffix(".log.1"))
            with self._log.open("ab") as file:
                file.write(data)
        return True

    def _exited(self, process: subprocess.Popen[bytes], watch: int) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(watch)
        os.close(watch)
        process.wait()
        # What it said last is in the pipe. A grandchild may hold the other end open for ever, so don't wait for EOF.
        while self._is_open(process) and self._read(process):
            pass
        if self._is_open(process):
            self._output_close(process)
        self.ended.set()

    @staticmethod
    def _is_open(process: subprocess.Popen[bytes]) -> bool:
        return process.stdout is not None and not process.stdout.closed

    @staticmethod
    def _output_close(process: subprocess.Popen[bytes]) -> None:
        asyncio.get_running_loop().remove_reader(_output(process))
        if process.stdout is not None:
            process.stdout.close()

    async def answers(self) -> bool:
        """Does it do its work? Children without a probe answer as soon as they run."""
        kind, _, rest = (self.spec.probe or "").partition(":")
        if kind == "redis":
            return redis_ping(Path(rest), password=self._probe_password(), timeout_s=0.5)
        if kind in ("http", "https"):
            host, _, port = rest.rpartition(":")
            return await _healthz(host, int(port), tls=kind == "https")
        return self.process is not None and not self.ended.is_set()

    def _probe_password(self) -> str | None:
        if self.spec.probe_password_file is None:
            return None
        with contextlib.suppress(OSError), open_own(Path(self.spec.probe_password_file), self.spec.account) as file:
            return file.read(1024).decode().strip()
        return None

    def signal(self, number: int) -> None:
        if self.process is not None and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def keep(self) -> None:
        """Start it, and start it again whenever it ends, until the supervisor stops."""
        while not self.owner.stopping.is_set():
            began = time.monotonic()
            try:
                self.start()
            except OSError as error:
                self.owner.say(f"{self.spec.name} cannot be started: {error.strerror} ({self.spec.argv[0]})")
                self.ended.set()
            await self.ended.wait()
            if self.owner.stopping.is_set():
                return
            self.failures = 0 if time.monotonic() - began >= HEALTHY_AFTER_S else self.failures + 1
            if self.failures == 2 and self.spec.hints is not None:
                self._hints_aside(Path(self.spec.hints))
            pause = BACKOFF_S[min(max(self.failures - 1, 0), len(BACKOFF_S) - 1)]
            status = self.process.returncode if self.process else "?"
            self.owner.say(f"{self.spec.name} ended with status {status}; starting it again in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.owner.stopping.wait(), pause)

    def _hints_aside(self, folder: Path) -> None:
        aside = folder.with_name(f"{folder.name}.aside")

        def move() -> bytes:
            if not any(folder.iterdir()):
                return b""
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            folder.mkdir(mode=0o700)
            return b"moved"

        with contextlib.suppress(OSError, RootedError):
            # In a folder of another account root does nothing itself: that one may have put anything in the place of its files.
            moved = move() if self.spec.account is None else as_account(Account.from_json(self.spec.account), move)
            if moved:
                self.owner.say(f"{self.spec.name} fails with its files; it starts without them (they were hints only), they are in {aside}")


def open_own(path: Path, account: Mapping[str, Any] | None) -> IO[bytes]:
    """To read. Of another account only its own plain file, so that no link makes root read another one. Raises OSError."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    found = os.fstat(file.fileno())
    if account is not None and (found.st_uid != account["uid"] or not stat.S_ISREG(found.st_mode)):
        file.close()
        raise PermissionError(1, "it is not the account's own file")
    return file


def _file_write(path: Path, text: str) -> None:
    """Replace it in one step, and leave nothing half written where there is no room."""
    aside = path.with_name(f"{path.name}.new")
    try:
        aside.write_text(text)
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def _output(process: subprocess.Popen[bytes]) -> int:
    if process.stdout is None:
        raise RuntimeError("started without a pipe")
    return process.stdout.fileno()


async def _healthz(host: str, port: int, *, tls: bool) -> bool:
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError, IndexError):
        async with asyncio.timeout(5):
            context = None
            if tls:
                import ssl

                # Only "does my own child answer": whoever talks to it in earnest verifies its name.
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                # 507: its disk is full. It serves what can be read, and nothing gets better by keeping the others from starting.
                return (await reader.readline()).split()[1] in (b"200", b"507")
            finally:
                writer.close()
    return False


# --- all of them ------------------------------------------------------------------------------------------------


class Supervisor:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.run_dir = Path(plan.run_dir)
        self.stopping = asyncio.Event()
        self.children = [Child(spec, self) for spec in plan.children]
        self._width = max((len(spec.name) for spec in plan.children), default=0)
        self._is_owing = False  # files that tell what runs could not be written

    def say(self, text: str, *, name: str = "up") -> None:
        if not text.startswith("{"):  # a line of JSON says itself whose it is (NEBULA_LOG_FORMAT)
            text = f"{name:<{self._width}} | {text}"
        with contextlib.suppress(OSError):  # the terminal went away
            print(text, flush=True)  # noqa: T201

    def files_write(self) -> None:
        """Number and start time of each child, for `leftovers_wait` of the next run, and a file with the number of each.

        A full disk keeps no child from being watched: the files are written once there is room.
        """
        running = {child.spec.name: child.process.pid for child in self.children if child.process and not child.ended.is_set()}
        try:
            known = {name: [pid, process_start(pid)] for name, pid in running.items()}
            _file_write(self.run_dir / "children.json", json.dumps(known))
            for name, pid in running.items():
                _file_write(self.run_dir / f"{name}.pid", f"{pid}\n")
        except OSError as error:
            if not self._is_owing:
                self.say(f"{self.run_dir} takes no files ({error.strerror}); all children are watched, and their numbers follow")
            self._is_owing = True
        else:
            self._is_owing = False

    async def _files_again(self) -> None:
        while not self.stopping.is_set():
            if self._is_owing:
                self.files_write()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), FILES_AGAIN_S)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop_wanted)
        keepers: list[asyncio.Task[None]] = [asyncio.create_task(self._files_again())]
        stages = sorted({child.spec.stage for child in self.children})
        code = 0
        for stage in stages:
            members = [child for child in self.children if child.spec.stage == stage]
            keepers += [asyncio.create_task(child.keep()) for child in members]
            missing = await self._stage_wait(members)
            if self.stopping.is_set():
                break
            if missing:
                self.say(f"{missing} did not answer within {START_TIMEOUT_S:.0f} s; see {self.run_dir / (missing + '.log')}")
                code = 1
                self.stopping.set()
                break
        if not self.stopping.is_set():
            with contextlib.suppress(OSError):  # no terminal, or no room: the children run all the same
                print("\n".join(self.plan.ready), flush=True)  # noqa: T201
            if self.plan.ready_file:
                with contextlib.suppress(OSError):
                    Path(self.plan.ready_file).touch()
        await self.stopping.wait()
        await self._stop_all(stages)
        await asyncio.gather(*keepers)
        with contextlib.suppress(OSError):
            (self.run_dir / "children.json").unlink()
        self.say("stopped")
        return code

    async def _stage_wait(self, members: list[Child]) -> str | None:
        """None once each answers, else the name of one that does not."""
        deadline = time.monotonic() + START_TIMEOUT_S
        waiting = list(members)
        await asyncio.sleep(0)  # let the keepers start
        while waiting and not self.stopping.is_set():
            if await waiting[0].answers():
                waiting.pop(0)
            elif time.monotonic() > deadline:
                return waiting[0].spec.name
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stopping.wait(), 0.05)
        return None

    def _stop_wanted(self) -> None:
        if not self.stopping.is_set():
            self.say("stopping; running jobs go on under their shims")
            self.stopping.set()

    async def _stop_all(self, stages: list[int]) -> None:
        for stage in reversed(stages):
            members = [c for c in self.children if c.spec.stage == stage and c.process and not c.ended.is_set()]
            for child in members:
                child.signal(child.spec.stop_signal)
            for child in members:
                try:
                    await asyncio.wait_for(child.ended.wait(), child.spec.until_s)
                except TimeoutError:
                    self.say(f"{child.spec.name} did not stop within {child.spec.until_s:g} s; killing it")
                    child.signal(signal.SIGKILL)
                    await child.ended.wait()


def port_free(host: str, port: int) -> bool:
    """Can we listen there? (A socket in TIME_WAIT is no obstacle, as it is none for the server.)"""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def main() -> int:
    plan = Plan.from_json(Path(sys.argv[1]).read_text())
    for fd in (plan.lock_fd, *plan.also_fds):
        os.set_inheritable(fd, False)

    async def run() -> int:
        return await Supervisor(plan).run()

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
