"""Stopping politely: one routine for a fault, a preemption, a time limit and a cancel (lifecycle.md).

SIGUSR1 to each process that has a handler for it, and to no other: it would kill them. If no process has one, SIGTERM
to all at once. Else nothing until grace - lead, then SIGTERM to all. At the grace the whole group is killed. While a
process lives that handles what it was sent, the end of the main process (a shell around it, say) changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from agent import procs, rankdir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agent.cgroups import CgroupGroup, SessionGroup

#: A checkpoint on a dead file server must not keep a program from being stopped.
_CHECKPOINT_LOOK_S = 0.5
_CHECKPOINT_FILES = 20_000


def stop_order(path: str) -> dict[str, Any] | None:
    """The agent's order: cause, reason, grace_s, at (boot time). None: there is none."""
    return rankdir.file_read(path, rankdir.STOP)


class Stop:
    """A stop under way. ``step`` is called with the time again and again until it says that it is done."""

    def __init__(self, group: CgroupGroup | SessionGroup, order: dict[str, Any], *, lead_s: float, checkpoint: Checkpoint) -> None:
        self.group, self.checkpoint = group, checkpoint
        self.cause: str = order["cause"]
        self.reason: str | None = order.get("reason")
        self._at: float = order["at"]
        self._lead_s = lead_s
        self._grace_set(float(order["grace_s"]))
        self._handlers: set[tuple[int, int]] = set()
        self._termed = False

    def _grace_set(self, grace_s: float) -> None:
        self.deadline = self._at + grace_s
        # A grace shorter than the lead still leaves a handler half of it.
        self._term_at = self.deadline - min(self._lead_s, grace_s / 2)

    @classmethod
    def resume(cls, group: CgroupGroup | SessionGroup, *, lead_s: float, checkpoint: Checkpoint) -> Stop | None:
        """A stop that a dead shim had begun: nothing is sent twice, the deadline stays. None: it had not."""
        begun = rankdir.file_read(".", rankdir.STOPPING)
        if begun is None:
            return None
        stop = cls(group, begun, lead_s=lead_s, checkpoint=checkpoint)
        stop._handlers = {(pid, start) for pid, start in begun["handlers"]}
        stop._termed = begun["termed"]
        checkpoint.newest = begun["newest"]
        return stop

    def begin(self, now: float) -> bool:
        """Send the first signal. False: nobody was left to get it."""
        if now >= self.deadline:
            if not self.group.populated():
                return False
            self._save()
            self.group.kill()
            return True
        self.checkpoint.look()
        members = self.group.members()
        for stat in members:
            if procs.catches(stat.pid, signal.SIGUSR1):
                self._handlers.add((stat.pid, stat.start))
        self._save()
        sent = [h for h in self._handlers if procs.signal_send(*h, signal.SIGUSR1)]
        return bool(sent) or self._term()

    def _term(self) -> bool:
        """SIGTERM to all. False: nobody was left to get it."""
        self._termed = True
        sent: set[tuple[int, int]] = set()
        for _ in range(3):  # what was forked while we looked gets it too
            fresh = {(s.pid, s.start) for s in self.group.members()} - sent
            self._handlers.update(who for who in fresh if procs.catches(who[0], signal.SIGTERM))
            sent |= {who for who in fresh if procs.signal_send(*who, signal.SIGTERM)}
            if not fresh:
                break
        self._save()
        return bool(sent)

    def _save(self) -> None:
        begun = {
            "cause": self.cause,
            "reason": self.reason,
            "at": self._at,
            "grace_s": self.deadline - self._at,
            "handlers": sorted(self._handlers),
            "termed": self._termed,
            "newest": self.checkpoint.newest,
        }
        with contextlib.suppress(OSError):  # a full disk must not save a program from being stopped
            rankdir.file_write(".", rankdir.STOPPING, begun)

    def step(self, now: float, *, main_ended: bool) -> bool:
        """True: nothing is left to wait for (what still lives may be killed)."""
        order = stop_order(".")
        if order is not None and order["at"] + order["grace_s"] < self.deadline:
            self._grace_set(order["at"] + order["grace_s"] - self._at)
        if now >= self.deadline:
            self.group.kill()
            return True
        if now >= self._term_at and not self._termed:
            self._term()
        return main_ended and not any(procs.is_alive(*who) for who in self._handlers)

    def next_look_s(self, now: float) -> float:
        """A handler may be a grandchild whose end nobody signals to us, so a stop looks ten times a second."""
        return max(0.0, min(0.1, self.deadline - now, self.deadline - now if self._termed else self._term_at - now))


class Checkpoint:
    """Whether a file appeared or changed at the job's checkpoint path while it was being stopped."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self.newest: int | None = None  # change time of the newest file before the stop, ns

    def look(self) -> None:
        """Note how things are before the first signal. Takes at most half a second."""
        if self._path is not None:
            found = _newest(self._path)
            self.newest = time.time_ns() if found is None else found

    def changed(self) -> bool:
        if self._path is None or self.newest is None:
            return False
        found = _newest(self._path)
        return found is not None and found > self.newest


def _newest(path: str) -> int | None:
    """Change time (ns) of the newest file at or under ``path``, -1 if there is none, None if the look took too long.

    Done in a child: a file server that does not answer blocks the child, never the shim.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.write(write, str(_newest_under(path)).encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        if select.select([read], [], [], _CHECKPOINT_LOOK_S)[0]:
            text = os.read(read, 64)
            return int(text) if text else None
        os.kill(child, signal.SIGKILL)  # our own child and not yet reaped: the pid is its
        return None
    finally:
        os.close(read)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, os.WNOHANG)  # too early for this one: the shim's reaping gets it


def _newest_under(path: str) -> int:
    newest = -1
    queue = [path]
    left = _CHECKPOINT_FILES
    while queue and left:
        here = queue.pop()
        try:
            stat = os.lstat(here)
            if os.path.isdir(here) and not os.path.islink(here):
                queue.extend(entry.path for entry in os.scandir(here))
            else:
                newest = max(newest, stat.st_ctime_ns)
                left -= 1
        except OSError:
            continue
    return newest
