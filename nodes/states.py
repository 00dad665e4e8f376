"""State → tone, icon, word, outline: the one table behind badges, filters and marks. Pure data.

Tone is one of info, ok, warn, bad, sim, me or empty (grey). A dashed badge says: not decided yet, or not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _l
from django.utils.translation import pgettext_lazy as _p


@dataclass(frozen=True, slots=True)
class Look:
    """How a state is shown. ``word`` is lazy: it is read in the reader's language."""

    tone: str
    icon: str
    word: Any
    is_dashed: bool = False


JOB = {
    "WAITING": Look("", "hourglass", _p("job", "Waiting"), True),
    "HELD": Look("warn", "pause", _p("job", "Held"), True),
    "STARTING": Look("info", "loader", _p("job", "Starting")),
    "RUNNING": Look("info", "play", _p("job", "Running")),
    "STOPPING": Look("warn", "stop", _p("job", "Stopping")),
    "SUCCEEDED": Look("ok", "okc", _p("job", "Succeeded")),
    "FAILED": Look("bad", "badc", _p("job", "Failed")),
    "CANCELLED": Look("", "ban", _p("job", "Cancelled")),
    "REQUEUED": Look("warn", "rotate", _p("job", "Requeued"), True),
}
GPU = {
    "HEALTHY": Look("ok", "check", _p("GPU", "Healthy")),
    "SUSPECT": Look("warn", "warn", _p("GPU", "Suspect")),
    "ISOLATED": Look("bad", "octagon", _p("GPU", "Isolated")),
    "MAINTENANCE": Look("", "wrench", _p("GPU", "Maintenance")),
    "MISSING": Look("bad", "help", _p("GPU", "Missing"), True),
}
NODE = {
    "ENROLLING": Look("info", "plus", _p("node", "Enrolling"), True),
    "RECOVERING": Look("info", "rotate", _p("node", "Recovering")),
    "READY": Look("ok", "check", _p("node", "Ready")),
    "UNKNOWN": Look("warn", "help", _p("node", "Unknown"), True),
    "DOWN": Look("bad", "power", _p("node", "Down")),
    "RETIRED": Look("", "archive", _p("node", "Retired")),
    "CORDONED": Look("warn", "barrier", _p("node", "Cordoned")),
}
SLICE = {
    "HELD": Look("me", "lock", _p("slice", "Held"), True),
    "ACTIVE": Look("info", "play", _p("slice", "Active")),
    "RELEASING": Look("", "loader", _p("slice", "Releasing"), True),
    "RELEASED": Look("", "okc", _p("slice", "Released")),
    "QUARANTINED": Look("bad", "lock", _p("slice", "Quarantined")),
}
COMMAND = {
    "QUEUED": Look("info", "loader", _p("command", "Asked"), True),
    "DONE": Look("ok", "okc", _p("command", "Answered")),
    "FAILED": Look("bad", "badc", _p("command", "Failed")),
    "EXPIRED": Look("warn", "clock", _p("command", "No answer")),
}
MARK = {
    "GHOST": Look("warn", "ghost", _l("Ghost use")),
    "SIMULATED": Look("sim", "flask", _l("Simulated"), True),
    "STALE": Look("warn", "clock", _l("Stale"), True),
    "HOT": Look("warn", "flame", _l("Hot")),
}
TABLES = {"job": JOB, "gpu": GPU, "node": NODE, "slice": SLICE, "command": COMMAND, "mark": MARK}


def look(kind: str, state: str) -> Look:
    """The look of a state; one that a newer version wrote is shown as it is."""
    return TABLES[kind].get(state) or Look("", "help", state, True)
