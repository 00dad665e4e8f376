"""The name that this agent has in places which all programs of a machine share: cgroups, memory folders, marks in environments.

Two control planes both have a node 2, so a node's number is no name. An installation's name is the control plane's own random
half, which enrolment tells, and a random half of this agent: the copy of a control plane meets nobody either.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

log = logging.getLogger("nebula-agent")

#: In the data folder of an agent that was enrolled before control planes told their half.
FILE = "installation"
_HALF = 12


def name_make(control_plane: str | None, old: str | None = None) -> str:
    """What enrolment writes. An agent that is enrolled again by the same control plane keeps its name ``old``."""
    half = control_plane if control_plane and name_is_plain(control_plane) else secrets.token_hex(_HALF // 2)
    if old is not None and old.startswith(f"{half}-"):
        return old
    return f"{half}-{secrets.token_hex(4)}"


def name_is_plain(name: str) -> bool:
    return 0 < len(name) <= 40 and all(c.isascii() and (c.isalnum() or c in "-_") for c in name) and name[0] not in "-_"


def name_of(data_dir: Path) -> str:
    """The name of an agent whose configuration has none: made once, kept in its data folder."""
    path = data_dir / FILE
    try:
        found = path.read_text(encoding="ascii").strip()
        if name_is_plain(found):
            return found
    except (OSError, UnicodeDecodeError):
        pass
    made = name_make(None)
    try:
        aside = path.with_suffix(".new")
        aside.write_text(f"{made}\n", encoding="ascii")
        aside.replace(path)
    except OSError as error:
        # Each rank's own files name its group, so another name after the next start loses nothing.
        log.warning("%s cannot be written (%s); this agent has another name after its next start.", path, error.strerror)
    return made
