"""How much of its disk a program's output may have: the beginning up to the cap, and the end. What lies between is given back by a
hole in the file: offsets stay what they are, and the program, which writes by itself, neither waits nor fails.

Standard library only: every shim carries this module in its memory.
"""

from __future__ import annotations

import contextlib
import os
import stat

from agent import procs

MIB = 1 << 20
#: Of the end; the agent sends less of it (logs.TAIL_BYTES).
TAIL_KEPT = MIB
#: Holes are made in steps of this, and a file that grows by more between two looks is looked at more often.
STEP = 4 * MIB
HURRY = 16 * MIB


def head_kept(cap_mib: int | None) -> int | None:
    """Bytes at the beginning that no hole is made in; None = nothing is given back."""
    return None if cap_mib is None else cap_mib * MIB


class OutputFile:
    """An output file, held open, so that nothing that is put in its place is ever touched."""

    def __init__(self, fd: int, cap_mib: int | None) -> None:
        self._fd, self._head = fd, head_kept(cap_mib)
        self._given = 0  # up to here there is a hole
        self._size = 0

    @classmethod
    def open(cls, path: str, cap_mib: int | None) -> OutputFile | None:
        """None where it is no plain file with one name any more."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return cls(fd, cap_mib)
        os.close(fd)
        return None

    def trim(self, *, is_end: bool = False) -> bool:
        """Give back what is beyond the cap and not the end. True when the file grows so fast that it should be looked at again soon."""
        size = os.fstat(self._fd).st_size
        grown, self._size = size - self._size, size
        if self._head is None:
            return False
        begin = max(self._given if self._given <= size else 0, self._head)
        end = (size - TAIL_KEPT) // 4096 * 4096
        if end - begin >= (1 if is_end else STEP):
            # Not every file system can; then the output stays as it is.
            with contextlib.suppress(OSError):
                procs.hole_make(self._fd, begin, end - begin)
            self._given = end
        return grown > HURRY
