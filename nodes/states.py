"""State → tone, icon, word, outline: the one table behind badges, filters and marks. Pure data.

Tone is one of info, ok, warn, bad, sim, me or empty (grey). A dashed badge says: not decided yet, or not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy, pgettext_lazy


@dataclass(frozen=True, slots=True)
class Look:
    """How a state is shown. ``word`` is lazy: it is read in the reader's language."""

    tone: str
    icon: str
    word: Any
    is_dashed: bool = False


JOB = {
    "WAITING": Look("", "hourglass", pgettext_lazy("job", "Waiting"), True),
    "HELD": Look("warn", "pause", pgettext_lazy("job", "Held"), True),
    "STARTING": Look("info", "loader", pgettext_lazy("job", "Starting")),
    "RUNNING": Look("info", "play", pgettext_lazy("job", "Running")),
    "STOPPING": Look("warn", "stop", pgettext_lazy("job", "Stopping")),
    "SUCCEEDED": Look("ok", "okc", pgettext_lazy("job", "Succeeded")),
    "FAILED": Look("bad", "badc", pgettext_lazy("job", "Failed")),
    "CANCELLED": Look("", "ban", pgettext_lazy("job", "Cancelled")),
    "REQUEUED": Look("warn", "rotate", pgettext_lazy("job", "Requeued"), True),
}
GPU = {
    "HEALTHY": Look("ok", "check", pgettext_lazy("GPU", "Healthy")),
    "SUSPECT": Look("warn", "warn", pgettext_lazy("GPU", "Suspect")),
    "ISOLATED": Look("bad", "octagon", pgettext_lazy("GPU", "Isolated")),
    "MAINTENANCE": Look("", "wrench", pgettext_lazy("GPU", "Maintenance")),
    "MISSING": Look("bad", "help", pgettext_lazy("GPU", "Missing"), True),
    "RETIRED": Look("", "archive", pgettext_lazy("GPU", "Retired")),
}
NODE = {
    "ENROLLING": Look("info", "plus", pgettext_lazy("node", "Enrolling"), True),
    "RECOVERING": Look("info", "rotate", pgettext_lazy("node", "Recovering")),
    "READY": Look("ok", "check", pgettext_lazy("node", "Ready")),
    "UNKNOWN": Look("warn", "help", pgettext_lazy("node", "Unknown"), True),
    "DOWN": Look("bad", "power", pgettext_lazy("node", "Down")),
    "RETIRED": Look("", "archive", pgettext_lazy("node", "Retired")),
    "CORDONED": Look("warn", "barrier", pgettext_lazy("node", "Cordoned")),
}
SLICE = {
    "HELD": Look("me", "lock", pgettext_lazy("slice", "Held"), True),
    "ACTIVE": Look("info", "play", pgettext_lazy("slice", "Active")),
    "RELEASING": Look("", "loader", pgettext_lazy("slice", "Releasing"), True),
    "RELEASED": Look("", "okc", pgettext_lazy("slice", "Released")),
    "QUARANTINED": Look("bad", "lock", pgettext_lazy("slice", "Quarantined")),
}
COMMAND = {
    "QUEUED": Look("info", "loader", pgettext_lazy("command", "Asked"), True),
    "DONE": Look("ok", "okc", pgettext_lazy("command", "Answered")),
    "FAILED": Look("bad", "badc", pgettext_lazy("command", "Failed")),
    "EXPIRED": Look("warn", "clock", pgettext_lazy("command", "No answer")),
}
INCIDENT = {
    "DETECTED": Look("bad", "warn", pgettext_lazy("incident", "Detected")),
    "DIAGNOSING": Look("warn", "search", pgettext_lazy("incident", "Being diagnosed"), True),
    "RECOVERING": Look("bad", "wrench", pgettext_lazy("incident", "Being recovered")),
    "REVIEW": Look("info", "pencil", pgettext_lazy("incident", "To be reviewed")),
    "CLOSED": Look("ok", "okc", pgettext_lazy("incident", "Closed")),
}
ALERT = {
    "OPEN": Look("bad", "bell", pgettext_lazy("alert", "Open")),
    "ACKNOWLEDGED": Look("info", "eye", pgettext_lazy("alert", "Acknowledged"), True),
    "RESOLVED": Look("ok", "okc", pgettext_lazy("alert", "Resolved")),
}
LEVEL = {
    "warning": Look("warn", "warn", pgettext_lazy("alert", "Warning")),
    "critical": Look("bad", "octagon", pgettext_lazy("alert", "Critical")),
}
MARK = {
    "GHOST": Look("warn", "ghost", gettext_lazy("Ghost use")),
    "SIMULATED": Look("sim", "flask", gettext_lazy("Simulated"), True),
    "STALE": Look("warn", "clock", gettext_lazy("Stale"), True),
    "HOT": Look("warn", "flame", gettext_lazy("Hot")),
}
TABLES = {
    "job": JOB,
    "gpu": GPU,
    "node": NODE,
    "slice": SLICE,
    "command": COMMAND,
    "incident": INCIDENT,
    "alert": ALERT,
    "level": LEVEL,
    "mark": MARK,
}


def look(kind: str, state: str) -> Look:
    """The look of a state; one that a newer version wrote is shown as it is."""
    return TABLES[kind].get(state) or Look("", "help", state, True)
