"""The child that asks one kind of driver: it reads requests until the agent is gone (protocol: probe.py)."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from agent.backends.base import BackendError, HardwareBackend
from agent.probe import Reader, Sample, sample_to

log = logging.getLogger("nebula-agent")

#: A driver that does not open, or has no card, is looked at again so often.
REOPEN_S = 30.0
#: The request that a child which started itself anew has still to answer.
PENDING = "NEBULA_PROBE_PENDING"


def child_main(name: str) -> None:
    from agent.backends.choose import backend_make

    # A Ctrl-C in the agent's terminal is the agent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lock = threading.Lock()
    backend = backend_make(name)

    def send(message: dict[str, Any]) -> None:
        with lock:
            try:
                sys.stdout.buffer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
                sys.stdout.buffer.flush()
            except OSError:
                os._exit(0)  # the agent is gone

    def send_events() -> None:
        for event in backend.events():
            send({"event": {"kind": event.kind, "gpu": event.gpu, "data": event.data, "at": event.at}})

    if hasattr(backend, "on_event"):
        backend.on_event = send_events
    for sample in samples_take(backend, requests_read()):
        send_events()
        send({"sample": sample_to(sample)})
    os._exit(0)  # a thread may be stuck in the driver; nobody waits for it


def requests_read() -> Iterator[bool]:
    """For each request whether it wants the process list."""
    pending = os.environ.pop(PENDING, None)
    if pending is not None:
        yield pending == "1"
    for line in sys.stdin.buffer:
        yield bool(json.loads(line).get("processes"))


def samples_take(backend: HardwareBackend, requests: Iterator[bool]) -> Iterator[Sample]:
    """A sample for each request; opens the backend, and now and then again while it does not open or has no card."""
    reader = Reader(backend)
    opened_at: float | None = None
    failure: BackendError | None = None
    for processes in requests:
        now = time.monotonic()
        due = opened_at is not None and now - opened_at >= REOPEN_S
        if failure is not None and due:
            start_anew(processes=processes)
        if opened_at is None or (due and not backend.inventory().gpus):
            opened_at, failure = now, None
            try:
                backend.initialize()
            except BackendError as error:
                failure = error
            except Exception as error:  # a fault of ours must not look like a driver that hangs
                log.exception("The %s backend cannot be opened.", backend.name)
                failure = BackendError(f"The {backend.name} backend cannot be opened: {type(error).__name__}.")
        if failure is not None:
            sample = Sample(at=now, error=str(failure), error_kind=failure.kind)
        else:
            sample = reader.take(processes=processes, at=now)
            if sample.error is not None:
                failure, opened_at = BackendError(sample.error, sample.error_kind or "backend_error"), now
        yield replace(sample, processes_read=processes)


def start_anew(*, processes: bool) -> NoReturn:
    """Become a new child, same process and pipes: a library once loaded stays loaded, so after an upgrade of the driver
    this one would never fit again."""
    if os.name == "nt":
        os._exit(0)  # there, becoming another program means a new process: the agent starts one
    os.environ[PENDING] = "1" if processes else "0"
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very program


if __name__ == "__main__":
    child_main(sys.argv[1] if len(sys.argv) > 1 else "nvml")
