"""What the NVIDIA driver writes to the kernel's log: XIDs, and cards that fall off the bus without a number.

NVML tells of XIDs too, but not of a card that it never opened, and not while it is shut.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from agent.backends.base import bus_slot

log = logging.getLogger("nebula-agent")

KMSG = "/dev/kmsg"
XID_OFF_THE_BUS = 79
TEXT_MOST = 300
#: What was written around an XID is told once no more is to be expected: lines of so long before and after it, and so many.
BEFORE_S, AFTER_S = 10.0, 2.0
LINES_MOST = 24

Slot = tuple[int, int, int]  # PCI domain, bus, device
_XID = re.compile(r"NVRM:? (?:\S+ )?Xid \(([0-9A-Za-z:.]+)\): (\d+)")
_CARD = re.compile(r"(?:GPU|PCI:)\s*(?:at )?(?:PCI:)?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)")
#: Of the driver, the bus, and what else takes a card down. The rest of the log is nobody's business here.
_RELEVANT = re.compile(
    r"NVRM|nvidia|nvlink|nvswitch|amdgpu|xid|pcieport|pciehp|AER:|PCIe Bus Error|DPC:|DMAR|iommu|AMD-Vi|EDAC|mce:|thermal|power supply",
    re.I,
)
#: What /dev/kmsg adds behind a message: " DRIVER=nvidia".
_FIELD = re.compile(r" [A-Z_]+=")
_FALLEN = re.compile(r"fallen off the bus", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class XidLine:
    slot: Slot | None
    xid: int
    text: str


class XidParser:
    """Lines in, XIDs out. It keeps the card of a sentence that goes over several lines."""

    def __init__(self) -> None:
        self._card: Slot | None = None
        self._lines_left = 0

    def feed(self, message: str) -> list[XidLine]:
        """``message``: the text of one log record; ``\\x0a`` in it is how /dev/kmsg writes a line break."""
        found: list[XidLine] = []
        for line in message.replace("\\x0a", "\n").splitlines():
            if self._lines_left == 0 and "NVRM" not in line:
                continue
            self._lines_left = max(0, self._lines_left - 1)
            xid = _XID.search(line)
            if xid is not None:
                found.append(XidLine(bus_slot(xid[1]), int(xid[2]), line.strip()[:TEXT_MOST]))
                self._lines_left = 0
                continue
            card = _CARD.search(line)
            if card is not None:
                self._card, self._lines_left = bus_slot(card[1]), 4
            if _FALLEN.search(line):
                found.append(XidLine(self._card if self._lines_left else None, XID_OFF_THE_BUS, line.strip()[:TEXT_MOST]))
                self._lines_left = 0
        return found


class Surroundings:
    """The lines around each XID. Times are of any clock that nobody sets."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=256)
        self._since: dict[Slot, tuple[float, float]] = {}  # card → the first and the last XID that was not told of yet

    def line(self, message: str, *, now: float) -> None:
        for line in message.replace("\\x0a", "\n").splitlines():
            if _RELEVANT.search(line) and not _FIELD.match(line):
                self._lines.append((now, line.strip()[:TEXT_MOST]))

    def fault(self, slot: Slot | None, *, now: float) -> None:
        if slot is not None:
            self._since[slot] = (self._since[slot][0] if slot in self._since else now, now)

    def wait_s(self, *, now: float) -> float | None:
        """Until something is due; None = nothing is."""
        # A storm must not put it off for ever: at most a few times as long.
        due = [min(last + AFTER_S, first + 5 * AFTER_S) for first, last in self._since.values()]
        return max(0.0, min(due) - now) if due else None

    def take(self, *, now: float) -> list[tuple[Slot, tuple[str, ...]]]:
        """Card → the lines around its faults, of which nothing more is to be expected."""
        found = []
        for slot, (first, last) in list(self._since.items()):
            if now >= min(last + AFTER_S, first + 5 * AFTER_S):
                del self._since[slot]
                lines = [text for at, text in self._lines if first - BEFORE_S <= at <= last + AFTER_S]
                if len(lines) > LINES_MOST:  # how it began and how it ended
                    half = LINES_MOST // 2
                    lines = [*lines[:half], f"… {len(lines) - LINES_MOST} …", *lines[-half:]]
                found.append((slot, tuple(lines)))
        return found


class KernelLog:
    """A thread that sleeps until the kernel has written; from now on, not what was before."""

    def __init__(
        self, tell: Callable[[XidLine], None], path: str = KMSG, *, around: Callable[[Slot, tuple[str, ...]], None] | None = None
    ) -> None:
        """``readable`` is False where this user may not read the log (root or CAP_SYSLOG may). ``around`` gets the lines around the
        faults of a card, a little later."""
        self._tell, self._parser = tell, XidParser()
        self._around, self._surroundings = around, Surroundings()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread: threading.Thread | None = None
        try:
            self._fd: int | None = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # a pipe in its place has no end to go to
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            log.debug("The kernel log cannot be read: %s.", error)
            self._fd = None
            return
        self._thread = threading.Thread(target=self._read, name="kernel-log", daemon=True)
        self._thread.start()

    @property
    def readable(self) -> bool:
        return self._fd is not None

    def _read(self) -> None:
        fd = self._fd
        if fd is None:
            return
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        while True:
            wait_s = self._surroundings.wait_s(now=time.monotonic())
            ready = dict(poll.poll(None if wait_s is None else 1000 * wait_s + 1))
            if self._stop_read in ready:
                return
            for slot, lines in self._surroundings.take(now=time.monotonic()):
                if self._around is not None:
                    self._around(slot, lines)
            if fd not in ready:
                continue
            try:
                record = os.read(fd, 8192)  # one record a read
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EAGAIN, errno.EINTR):
                    continue  # EPIPE: records were overwritten before we came; the next read goes on
                log.warning("The kernel log is no longer read: %s.", error)
                return
            if not record:
                return
            head, _, message = record.decode("utf-8", "replace").partition(";")
            text, now = message if "," in head else head, time.monotonic()
            try:
                self._surroundings.line(text, now=now)
                for line in self._parser.feed(text):
                    self._surroundings.fault(line.slot, now=now)
                    self._tell(line)
            except Exception:  # the next line must be read, whatever became of this one
                log.exception("A line of the kernel log could not be told.")

    def stop(self) -> None:
        if self._thread is not None:
            os.write(self._stop_write, b"\0")
            self._thread.join(timeout=2.0)
            if self._thread.is_alive():
                return  # it will end; its descriptors may not become another file's under it
            self._thread = None
        for fd in (self._fd, self._stop_read, self._stop_write):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._fd, self._stop_read, self._stop_write = None, -1, -1
