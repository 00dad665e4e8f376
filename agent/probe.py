"""Reading the hardware without ever waiting for it.

Drivers are asked in one child process that stays (a call stuck in the driver cannot be interrupted, only left alone). The
loop sends a request, at most one is outstanding, and takes the answer when it comes; past the deadline the cards count
as unresponsive. Nothing is spawned for a sample. The simulation needs no child and is read in place. The child's side is
probe_child.py; several kinds of cards on one machine are probe_group.py.

Child protocol, one JSON object a line: in `{"processes": bool}`, out `{"sample": …}` or `{"event": …}`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from agent.backends.base import BackendError, BackendHang, Cards, Complaints, HardwareBackend, HardwareEvent, Placed
from agent.protocol import GpuHealth, GpuInfo, GpuProcess, GpuStatus, LinkInfo, from_json

log = logging.getLogger("nebula-agent")

DEADLINE_S = 10.0
#: After so long the child is killed. One stuck in the driver survives that; it is then left alone, and no second one starts.
KILL_AFTER_S = 60.0
RESTART_S = (1.0, 60.0)
HEALTH_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading. ``processes`` None = not asked for or not told; ``processes_read`` tells which."""

    at: float  # monotonic, when the reading was asked for: what happened before is in it
    cards: Cards = field(default_factory=Cards)
    status: tuple[GpuStatus, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    processes_read: bool = False
    health: tuple[GpuHealth, ...] | None = None  # None = not due this time
    error: str | None = None  # the hardware layer as a whole does not work; the text says why
    error_kind: str | None = None


class Probe(Protocol):
    """How the loop reads the hardware."""

    @property
    def unresponsive(self) -> bool:
        """A request is older than the deadline."""

    def fileno(self) -> int | None:
        """A descriptor that turns readable when `poll` has something; the same one for ever. None: nothing to watch."""

    def request(self, *, processes: bool) -> None:
        """Ask for a sample; does nothing while one is outstanding (a wish for processes is remembered)."""

    def poll(self) -> tuple[list[Sample], list[HardwareEvent]]:
        """Answers and events that came in. Never blocks."""

    def placed(self, ranks: Sequence[Placed]) -> None: ...

    def remember(self, cards: Cards) -> None:
        """The cards of an earlier run, for what does not answer from the start."""

    def rest(self, seconds: float) -> None:
        """Let go of the hardware for so long: a card can't be reset while anybody has it open."""

    def close(self) -> None: ...


@runtime_checkable
class Simulation(Protocol):
    """What a simulated backend can do and no real one."""

    def drill(self, order: Mapping[str, Any]) -> str: ...

    def selftest(self, uuid: str, *, mib: int, heat_s: float) -> dict[str, Any]: ...


class Reader:
    """Takes samples of an open backend; the slow facts with the first and then every HEALTH_S."""

    def __init__(self, backend: HardwareBackend) -> None:
        self._backend, self._complaints = backend, Complaints(log)
        self._health_at = float("-inf")

    def take(self, *, processes: bool, at: float) -> Sample:
        """One reading of everything. Raises BackendHang; other trouble is in the sample."""
        backend = self._backend
        try:
            status = tuple(backend.get_status())
            listed = backend.get_process_list() if processes else None
            health = None
            if at - self._health_at >= HEALTH_S:
                health, self._health_at = self._health(), at
            return Sample(
                at=at,
                cards=backend.inventory(),
                status=status,
                processes=None if listed is None else tuple(listed),
                processes_read=processes,
                health=health,
            )
        except BackendError as error:
            self._health_at = float("-inf")
            return Sample(at=at, error=str(error), error_kind=error.kind)
        except BackendHang:
            raise
        except Exception as error:  # a fault of ours must not look like a driver that hangs
            self._complaints.make(f"The {backend.name} backend failed.", error)
            return Sample(at=at, error=f"The {backend.name} backend failed: {type(error).__name__}.", error_kind="backend_error")

    def _health(self) -> tuple[GpuHealth, ...] | None:
        """The slow facts; where they can't be had, the light status is told without them."""
        try:
            return tuple(self._backend.get_health())
        except (BackendError, BackendHang):
            raise
        except Exception as error:
            self._complaints.make(f"The slow facts of the {self._backend.name} backend cannot be read.", error)
            return None


class InlineProbe:
    """For backends that cannot block."""

    def __init__(self, backend: HardwareBackend, *, deadline_s: float = DEADLINE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend, self._clock, self._deadline_s = backend, clock, deadline_s
        self._reader = Reader(backend)
        self._samples: list[Sample] = []
        self._asked_at: float | None = None  # set while the backend hangs
        self._want_processes = False
        self._open = False

    @property
    def unresponsive(self) -> bool:
        return self._asked_at is not None and self._clock() - self._asked_at >= self._deadline_s

    @property
    def simulation(self) -> Simulation | None:
        """The backend, where faults can be thrown at it."""
        return self._backend if isinstance(self._backend, Simulation) else None

    def fileno(self) -> int | None:
        return None

    def request(self, *, processes: bool) -> None:
        self._want_processes |= processes
        try:
            if not self._open:
                self._backend.initialize()
                self._open = True
            self._samples.append(self._reader.take(processes=self._want_processes, at=self._clock()))
        except BackendHang:
            if self._asked_at is None:
                self._asked_at = self._clock()
            return
        except BackendError as error:
            self._samples.append(Sample(at=self._clock(), error=str(error), error_kind=error.kind))
        self._asked_at, self._want_processes = None, False

    def poll(self) -> tuple[list[Sample], list[HardwareEvent]]:
        samples, self._samples = self._samples, []
        events: list[HardwareEvent] = []
        if self._open:
            with contextlib.suppress(BackendError, BackendHang):
                events = self._backend.events()
        return samples, events

    def placed(self, ranks: Sequence[Placed]) -> None:
        self._backend.placed(ranks)

    def remember(self, cards: Cards) -> None:
        return

    def rest(self, seconds: float) -> None:
        return

    def close(self) -> None:
        self._backend.cleanup()


class ChildProbe:
    """For drivers: `python -m agent.probe_child BACKEND` behind two pipes."""

    def __init__(
        self,
        backend: str = "nvml",
        *,
        deadline_s: float = DEADLINE_S,
        kill_after_s: float = KILL_AFTER_S,
        argv: Sequence[str] | None = None,
    ) -> None:
        self._argv = list(argv or [sys.executable, "-P", "-m", "agent.probe_child", backend])
        self._deadline_s, self._kill_after_s = deadline_s, kill_after_s
        self._child: subprocess.Popen[bytes] | None = None
        self._leaving: list[subprocess.Popen[bytes]] = []  # closed their pipe, not reaped yet
        self._watch()
        self._buffer = b""
        self._asked_at: float | None = None  # since when nothing was answered
        self._sent_at = 0.0  # when the outstanding request was written
        self._want_processes = False
        self._killed = False
        self._restart_at, self._backoff_s = 0.0, RESTART_S[0]

    @property
    def unresponsive(self) -> bool:
        return self._asked_at is not None and time.monotonic() - self._asked_at >= self._deadline_s

    def fileno(self) -> int | None:
        return self._epoll.fileno()

    # --- how the child's end is waited for: another system may do it another way (probe_thread.py) ------------

    def _watch(self) -> None:
        self._epoll = select.epoll()  # outlives the children, whose pipes come and go

    def _unwatch(self) -> None:
        self._epoll.close()

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        if child.stdout is not None:
            self._epoll.register(child.stdout.fileno(), select.EPOLLIN)

    def _read(self, child: subprocess.Popen[bytes]) -> bytes | None:
        """What it has said; None = nothing more now, b"" = it has closed its end."""
        try:
            return os.read(child.stdout.fileno(), 1 << 16) if child.stdout is not None else b""
        except BlockingIOError:
            return None
        except OSError:
            return b""

    @property
    def child_pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def _spawn(self) -> bool:
        self._leaving = [c for c in self._leaving if c.poll() is None]
        if self._leaving or time.monotonic() < self._restart_at:
            return False  # never two children at once
        package_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))}
        try:
            child = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True)
        except OSError as error:
            log.error("The hardware probe cannot be started: %s.", error)
            self._gone()
            return False
        self._listen(child)
        self._child, self._buffer, self._killed = child, b"", False
        return True

    def _gone(self) -> None:
        self._restart_at = time.monotonic() + self._backoff_s
        self._backoff_s = min(RESTART_S[1], self._backoff_s * 2)
        child, self._child = self._child, None
        if child is not None:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            if child.poll() is None and child not in self._leaving:
                self._leaving.append(child)

    def request(self, *, processes: bool) -> None:
        self._want_processes |= processes
        now = time.monotonic()
        if self._asked_at is not None:
            if self._child is not None and now - self._sent_at >= self._kill_after_s and not self._killed:
                log.warning("The hardware probe has not answered for %d s; ending it.", now - self._sent_at)
                self._killed = True
                self._child.kill()
            if self._child is not None and self._child.poll() is None:
                return
            # The child is gone with its answer; _asked_at stays, so that the cards stay unresponsive until one answers.
            if self._child is not None:
                self._gone()
        if self._child is None and not self._spawn():
            self._asked_at = self._asked_at if self._asked_at is not None else now
            return
        if self._child is None or self._child.stdin is None:
            return
        self._sent_at, wanted, self._want_processes = now, self._want_processes, False
        try:
            os.write(self._child.stdin.fileno(), json.dumps({"processes": wanted}).encode() + b"\n")
        except OSError:
            self._gone()
        self._asked_at = self._asked_at if self._asked_at is not None else now

    def poll(self) -> tuple[list[Sample], list[HardwareEvent]]:
        samples: list[Sample] = []
        events: list[HardwareEvent] = []
        child = self._child
        if child is None:
            return samples, events
        while (data := self._read(child)) is not None:
            if not data:
                self._gone()
                break
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
                if "event" in message:
                    events.append(HardwareEvent(**message["event"]))
                else:
                    samples.append(sample_from(message["sample"], at=self._sent_at))
            except (ValueError, KeyError, TypeError) as error:
                log.warning("The hardware probe said something that is not its protocol: %s.", error)
        if samples:
            self._asked_at, self._backoff_s = None, RESTART_S[0]
        return samples, events

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    def remember(self, cards: Cards) -> None:
        return

    def rest(self, seconds: float) -> None:
        if self._child is not None:
            self._child.kill()
            self._gone()
        self._restart_at, self._asked_at = time.monotonic() + seconds, None

    def close(self) -> None:
        if self._child is not None:
            self._leaving.append(self._child)
            self._gone()
        for child in self._leaving:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=2.0)
        self._unwatch()


def cards_to(cards: Cards) -> dict[str, Any]:
    """Cards → JSON, for the pipe and for the store."""
    return {
        "gpus": [g.to_json() for g in cards.gpus],
        "links": [link.to_json() for link in cards.links],
        "driver": cards.driver_version,
        "cuda": cards.cuda_version,
        "simulated": cards.simulated,
        "backends": cards.backends,
        "advice": cards.advice,
    }


def cards_from(found: dict[str, Any]) -> Cards:
    """JSON → Cards. Raises KeyError or ProtocolError."""
    return Cards(
        gpus=tuple(from_json(GpuInfo, g) for g in found["gpus"]),
        links=tuple(from_json(LinkInfo, link) for link in found["links"]),
        driver_version=found["driver"],
        cuda_version=found["cuda"],
        simulated=found["simulated"],
        backends=tuple(found.get("backends", ())),
        advice=tuple(found.get("advice", ())),
    )


def sample_to(sample: Sample) -> dict[str, Any]:
    return {
        "cards": cards_to(sample.cards),
        "status": [s.to_json() for s in sample.status],
        "processes": None if sample.processes is None else [p.to_json() for p in sample.processes],
        "processes_read": sample.processes_read,
        "health": None if sample.health is None else [h.to_json() for h in sample.health],
        "error": sample.error,
        "error_kind": sample.error_kind,
    }


def sample_from(found: dict[str, Any], *, at: float) -> Sample:
    return Sample(
        at=at,
        cards=cards_from(found["cards"]),
        status=tuple(from_json(GpuStatus, s) for s in found["status"]),
        processes=None if found["processes"] is None else tuple(from_json(GpuProcess, p) for p in found["processes"]),
        processes_read=found["processes_read"],
        health=None if found["health"] is None else tuple(from_json(GpuHealth, h) for h in found["health"]),
        error=found["error"],
        error_kind=found["error_kind"],
    )
