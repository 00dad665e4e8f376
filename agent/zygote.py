"""The process that all shims are forked from.

A fresh interpreter without site-packages, started once by the agent: it has no threads, no database and no driver
loaded, so a fork of it is safe, quick (about a millisecond) and shares nearly all of its memory. It talks to the agent
over one SEQPACKET socket and ends when the agent does; shims are in sessions of their own and don't notice.

    agent → zygote   {"op": "launch" | "adopt", "rank", "dir"}, {"op": "warm", "dir": the zygote's own cgroup}
    zygote → agent   {"rank", "pid", "start"} of the new shim, or {"rank", "error"}

It is a subreaper: when a shim is killed, its program becomes the zygote's child, whose exit code is then written to
code.json for the shim that adopts the rank.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys

from agent import procs, rankdir, shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Zygote:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._wake_read, self._wake_write = os.pipe()
        self._shims: dict[int, str] = {}  # pid → rank directory; a child's pid is its own until we reap it
        self._orphans: dict[int, str] = {}  # program whose shim died → rank directory

    def run(self) -> NoReturn:
        """Serve until the agent is gone."""
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        gc.collect()
        gc.freeze()
        gc.disable()
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    self._reap()
                else:
                    self._serve()

    def _serve(self) -> None:
        try:
            data = self._line.recv(65536)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        order = json.loads(data)
        if order["op"] == "warm":
            self._warm(order["dir"])
            return
        try:
            pid = os.fork()
        except OSError as error:
            self._answer({"rank": order["rank"], "error": f"The shim could not be forked: {error}"})
            return
        if pid == 0:
            # A shim keeps nothing of ours; its signals must not write into our wake-up pipe either.
            signal.set_wakeup_fd(-1)
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._line.close()
            shim.shim_run(order["dir"], adopt=order["op"] == "adopt")
        self._shims[pid] = order["dir"]
        stat = procs.process_stat(pid)
        self._answer({"rank": order["rank"], "pid": pid, "start": stat.start if stat else 0})

    @staticmethod
    def _warm(place: str) -> None:
        """Let the kernel begin early what the next entry into a cgroup would have to wait for (an RCU grace period, 6 to 16 ms).

        A child that "moves" to the group it is in already does that and nothing else.
        """
        try:
            if os.fork() == 0:
                try:
                    fd = os.open(f"{place}/cgroup.procs", os.O_WRONLY)
                    os.write(fd, b"0")
                finally:
                    os._exit(0)
        except OSError:
            pass  # no process to spare: it was only for speed

    def _answer(self, value: dict[str, Any]) -> None:
        try:
            self._line.send(json.dumps(value).encode())
        except OSError:
            os._exit(0)

    @staticmethod
    def _is_ours(pid: int, ended: list[tuple[int, int]]) -> bool:
        """Whether we are (or just were) the parent of that process: only then its pid means it until we reap it."""
        stat = procs.process_stat(pid)
        return any(pid == p for p, _ in ended) or (stat is not None and stat.ppid == os.getpid())

    def _reap(self) -> None:
        ended: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            ended.append((pid, status))
        # Shims first: only a shim's end tells us that its program is ours now.
        for pid, _ in ended:
            path = self._shims.pop(pid, None)
            if path is not None and not os.path.isfile(f"{path}/{rankdir.EXIT}"):
                started = rankdir.file_read(path, rankdir.STARTED)
                if started is not None and self._is_ours(int(started["pid"]), ended):
                    self._orphans[int(started["pid"])] = path
        at = procs.boottime()
        for pid, status in ended:
            path = self._orphans.pop(pid, None)
            if path is not None:
                # The directory is gone or the disk is full: then the exit stays unknown.
                with contextlib.suppress(OSError):
                    rankdir.file_write(path, rankdir.CODE, {"pid": pid, "status": status, "ended_at": at}, durable=True)


def main(fd: int) -> NoReturn:
    """``fd``: the zygote's end of the socket pair."""
    # What ends the agent must not end this process before it has seen the socket close; SIGUSR2 is the shims' wake-up
    # call and may reach one before it is ready.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    procs.prctl(procs.PR_SET_PDEATHSIG, 0)
    procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 1)
    procs.process_title("nebula-zygote")
    os.set_inheritable(fd, False)
    os.chdir("/")
    Zygote(socket.socket(fileno=fd)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
