"""Run a command as a plain account, though root started it: a user namespace in which root's own files belong to uid 1000.

    python -m bench.live.plain -- COMMAND …

Most tests stand for an installation under one plain account, on a laptop say, and root is not like that: it may read and become anything,
and no job may run as root at all. In the namespace this process keeps its files and loses every privilege, so nothing has to be copied
to a place that another account can read. Whoever is no root runs the command as it is. Tests that need root carry the marker ``root``
and run outside (`make test-root`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import NoReturn

#: What root is called inside. Never below 1000: jobs don't run as accounts of the system.
UID = 1000
_CLONE_NEWUSER = 0x10000000


def plain_enter() -> None:
    """Become ``UID`` for good; needs a process of one thread. Raises OSError where the kernel has no user namespaces for us."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{UID} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{UID} {group} 1")


def main(argv: list[str]) -> int:
    """The exit status of a refusal; otherwise the command takes this process's place."""
    if argv[:1] != ["--"] or len(argv) < 2:
        print("usage: python -m bench.live.plain -- COMMAND …", file=sys.stderr)
        return 2
    if os.getuid() == 0:
        try:
            plain_enter()
        except OSError as error:
            print(f"Root can't become a plain account here ({error.strerror}): start the tests as another user than root.", file=sys.stderr)
            return 1
    return _become(argv[1:])


def _become(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
