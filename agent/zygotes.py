"""The agent's end of the line to its zygote."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agent.protocol import RankId

# -I -S: no site-packages, no user's startup files, no current directory on the path. That halves the start-up time and
# the memory of every shim. utf8: argv and environment of a job are bytes as its user wrote them, whatever our locale.
_FLAGS = ("-I", "-S", "-X", "utf8")
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from agent.zygote import main; main(int(sys.argv[2]))"


@dataclass(frozen=True, slots=True)
class Answer:
    """``shim``: pid and start time of the new shim, None when it could not be forked."""

    rank: RankId
    shim: tuple[int, int] | None
    error: str | None = None


class ZygoteLink:
    """Starts a zygote at once. A fresh interpreter, not a fork of the agent: that has threads, SQLite and NVML."""

    def __init__(self) -> None:
        self._spawn()

    def _spawn(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            root = str(Path(__file__).resolve().parent.parent)
            self._process = subprocess.Popen(
                [sys.executable, *_FLAGS, "-c", _BOOT, root, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the agent's terminal is not for the zygote nor for any shim
            )
        self._line.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._line.fileno()

    def warm(self, place: str) -> None:
        """Soon somebody will enter a cgroup; ``place``: the one that the zygote is in."""
        with contextlib.suppress(OSError):
            self._line.send(json.dumps({"op": "warm", "dir": place}).encode())

    def ask(self, op: str, *, rank: RankId, path: str) -> None:
        """Ask for a shim. An answer comes through ``read``, or the line closes and the caller asks the next zygote."""
        try:
            self._line.settimeout(5.0)  # hundreds of launches at once wait for the zygote here
            self._line.send(json.dumps({"op": op, "rank": rank, "dir": path}).encode())
        except OSError:
            pass
        finally:
            self._line.setblocking(False)

    def read(self) -> list[Answer] | None:
        """The answers that have come; None: the zygote is gone."""
        found: list[Answer] = []
        while True:
            try:
                data = self._line.recv(65536)
            except BlockingIOError:
                return found
            except OSError:
                return found or None
            if not data:
                return found or None
            value = json.loads(data)
            shim = (int(value["pid"]), int(value["start"])) if "pid" in value else None
            found.append(Answer(value["rank"], shim, value.get("error")))

    def restart(self) -> None:
        self.close()
        self._spawn()

    def close(self) -> None:
        """Closing the line ends the zygote."""
        self._line.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
