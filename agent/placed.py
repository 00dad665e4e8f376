"""Paths of a checkout that jobs' accounts can't reach, and where its code is placed for them (`code_from`, `code_at`).

Few imports: every shim carries this module in its memory.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def placed(path: str, places: Sequence[Sequence[str]]) -> str | None:
    """Where ``path`` is placed; None where it is not below any of ``places``, or nothing is there."""
    path = os.path.normpath(path)
    for old, new in sorted(places, key=lambda place: -len(place[0])):
        if path == old or path.startswith(f"{old.rstrip('/')}/"):
            found = new + path[len(old.rstrip("/")) :]
            return found if os.path.lexists(found) else None
    return None


def note(old: str, new: str) -> bytes:
    """For the top of the output."""
    return f"[nebulagrid] This machine's jobs can't reach {old}; its code is placed in {new}.\n".encode(errors="replace")
