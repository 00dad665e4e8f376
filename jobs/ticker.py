"""Once a second, while somebody looks on: one frame of all cards to the watchers of the topic ``pool``.

It runs in the web process, beside the sockets it feeds, so that no queue and no beat is in between: a report that came
with a sync is on the pages within a second. Of several web processes one sends (a lease in Redis).
"""

from __future__ import annotations

import logging
import threading
import time

from django.db import close_old_connections

from jobs.cells import Picture, picture_read
from nodes import consumers, live, telemetry

log = logging.getLogger(__name__)

TICK_S = 1.0
#: Without a change a frame is sent so often, so that a viewer knows that the figures are still true.
QUIET_S = 5.0
LEASE_KEY = "nebula:cells"
_thread: threading.Thread | None = None


def start() -> None:
    """Start the thread of this process; once."""
    global _thread
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_run, name="cells-ticker", daemon=True)
        _thread.start()


def _run() -> None:
    last = _Last()
    while True:
        began = time.monotonic()
        if consumers.watchers("pool"):
            try:
                tick(last)
            except Exception:  # whatever one tick met, the next one may do
                log.exception("no frame of the cards this second")
            finally:
                close_old_connections()
        time.sleep(max(0.05, TICK_S - (time.monotonic() - began)))


class _Last:
    """What this process sent last."""

    def __init__(self) -> None:
        self.picture: Picture | None = None
        self.at = 0.0


def tick(last: _Last) -> bool:
    """Send a frame if it is ours to send and there is news. True if one was sent."""
    if not telemetry.ask(lambda c: c.set(LEASE_KEY, "1", nx=True, px=int(TICK_S * 900)), None):
        return False
    picture = picture_read()
    is_quiet = last.picture is not None and {**picture.frame, "at": 0} == {**last.picture.frame, "at": 0}
    if is_quiet and time.monotonic() - last.at < QUIET_S:
        return False
    live.publish("pool", {"cells": picture.frame})
    last.picture, last.at = picture, time.monotonic()
    return True
