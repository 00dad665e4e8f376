"""Small readings of /proc, and signals that can only reach the process that was meant.

Standard library only and few imports: every shim carries this module in its memory.

INVARIANT: nothing here acts on a bare pid. A process is named by pid *and* start time (clock ticks since boot); on
another boot the whole table of processes is another one, which the boot id tells.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def prctl(option: int, value: int) -> None:
    """Raises OSError when the kernel refuses."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def hole_make(fd: int, offset: int, length: int) -> None:
    """Give these bytes of a file back to its disk: they read as zeros, and the file keeps its length. Raises OSError."""
    if _libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, length) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def process_title(name: str) -> None:
    """The short name that ``ps -o comm`` shows; at most 15 bytes."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _libc.prctl(PR_SET_NAME, ctypes.addressof(buffer), 0, 0, 0)


def boot_id() -> str:
    """This boot's id. ``NEBULA_TEST_BOOT_ID`` replaces it, so that a test can play a reboot."""
    fake = os.environ.get("NEBULA_TEST_BOOT_ID")
    if fake:
        return fake
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def boottime() -> float:
    """Seconds since boot, sleep included: time limits and leases go on while a machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Stat:
    """What /proc/PID/stat says. ``start`` in clock ticks since boot; ``state`` is R, S, D, T, Z, X …"""

    __slots__ = ("pid", "ppid", "sid", "start", "state")

    def __init__(self, pid: int, state: str, ppid: int, sid: int, start: int) -> None:
        self.pid, self.state, self.ppid, self.sid, self.start = pid, state, ppid, sid, start

    @property
    def is_dead(self) -> bool:
        """A zombie holds no memory, no card and no file: it counts as gone."""
        return self.state in "ZX"


def process_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    # The name in brackets may hold spaces and brackets of its own: everything counts from the last one.
    rest = data[data.rfind(b")") + 2 :].split()
    return Stat(pid, rest[0].decode(), int(rest[1]), int(rest[3]), int(rest[19]))


def process_all() -> Iterator[Stat]:
    """Every process that this one can see. Reads one file a process."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process_stat(int(name))
            if found is not None:
                yield found


def is_alive(pid: int, start: int) -> bool:
    """Whether that very process still runs; a zombie does not."""
    found = process_stat(pid)
    return found is not None and found.start == start and not found.is_dead


def catches(pid: int, number: int) -> bool:
    """Whether the process has installed a handler for this signal (SigCgt in /proc/PID/status)."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except OSError:
        pass
    return False


def has_mark(pid: int, mark: str) -> bool:
    """Whether the process was started with ``NAME=value`` in its environment; False where it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return os.fsencode(mark) in file.read().split(b"\0")
    except OSError:
        return False


def descendants(roots: Iterable[int], table: Iterable[Stat]) -> list[Stat]:
    """Every process of the table below one of the roots, the roots themselves left out."""
    below: dict[int, list[Stat]] = {}
    for stat in table:
        below.setdefault(stat.ppid, []).append(stat)
    found: list[Stat] = []
    queue = list(roots)
    while queue:
        children = below.pop(queue.pop(), [])
        found.extend(children)
        queue.extend(c.pid for c in children)
    return found


def pidfd_open(pid: int, start: int) -> int | None:
    """A descriptor of that very process, readable once it has ended.

    None: it is gone. Raises OSError where the kernel has no pidfds (before 5.3).
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # From here on the descriptor means one process for ever; the start time tells whether it is the right one.
    found = process_stat(pid)
    if found is None or found.start != start:
        os.close(fd)
        return None
    return fd


def signal_send(pid: int, start: int, number: int) -> bool:
    """Signal that very process. False when it is gone (or may not be signalled)."""
    try:
        fd = pidfd_open(pid, start)
    except OSError:
        # No pidfds: between this look and the kill the pid could in theory be used anew; nothing better exists.
        if not is_alive(pid, start):
            return False
        try:
            os.kill(pid, number)
        except OSError:
            return False
        return True
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
