"""Keeps the queue's forecast new, in the background of the worker: a thread that waits for a process of low priority.

Passes say how many wait (``forecast_wanted``); while nobody does, nothing runs. A forecast follows the first change at once and then at
most every ``PERIOD_S``. Where nothing has changed since the last one, and nothing was to end or start meanwhile, that one is confirmed.
Of several workers one does it at a time (a lease in Redis).
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import threading
import time
from dataclasses import dataclass, replace

from django.db import close_old_connections
from django.utils import timezone

from jobs import snapshot
from jobs.forecast import place_text
from jobs.outlooks import outlooks_confirm, outlooks_forget, outlooks_write
from jobs.scheduler import Policy, Snapshot
from jobs.scheduler.outlook import Outlook, QueueOutlook
from jobs.whatif import forecast_of
from nodes import live, telemetry

log = logging.getLogger(__name__)

#: From the begin of a forecast to the begin of the next. With BUDGET_S it bounds both the CPU spent and the age of what is served.
PERIOD_S = 9.0
BUDGET_S = 4.5
#: Usage fades and limits come nearer, though no row changes: then it is made anew all the same.
CONFIRM_S = 60.0
#: Estimates that moved by less are no news to those who look on.
NEWS_S = 60.0
NEWS_MOST = 200
LEASE_KEY = "nebula:forecaster"


@dataclass(slots=True)
class Last:
    """What this process made last."""

    queue: QueueOutlook | None = None
    digest: bytes = b""
    made_at: float = 0.0


_wanted = threading.Event()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_waited = True  # something may be there from before this process


def forecast_wanted(*, waiting: int) -> None:
    """Called after each pass with how many it left waiting. Costs nothing; never raises."""
    global _thread, _waited
    if waiting == 0:
        if _waited:
            _waited = False
            _wanted.clear()
            outlooks_forget()
        return
    _waited = True
    _wanted.set()
    if _thread is None or not _thread.is_alive():
        with _lock:
            if _thread is None or not _thread.is_alive():
                _thread = threading.Thread(target=_run, name="forecaster", daemon=True)
                _thread.start()


def _run() -> None:
    last = Last()
    while True:
        _wanted.wait()
        _wanted.clear()
        began = time.monotonic()
        try:
            if telemetry.ask(lambda c: c.set(LEASE_KEY, "1", nx=True, px=int(PERIOD_S * 900)), None):
                forecast_refresh(last)
        except Exception:  # whatever this one met, the next one may do
            log.exception("no forecast this time")
        finally:
            close_old_connections()
        time.sleep(max(0.5, PERIOD_S - (time.monotonic() - began)))


def forecast_refresh(last: Last) -> bool:
    """Make the forecast, or confirm the last one. True if it was made."""
    now = timezone.now()
    view = snapshot.build(now)
    if not view.jobs:
        outlooks_forget()
        return False
    policy = snapshot.policy_current()
    digest = _digest(view, policy)
    is_good = last.queue is not None and digest == last.digest and view.now < last.queue.good_until
    if is_good and time.monotonic() - last.made_at < CONFIRM_S and outlooks_confirm(view.now):
        return False
    began = time.monotonic()
    queue = forecast_of(view, policy, budget_s=BUDGET_S)
    if queue is None:
        return False
    places = {pk: place_text(view, one.placement) for pk, one in queue.jobs.items() if one.placement is not None}
    outlooks_write(queue, places)
    for pk in news(last.queue, queue):
        live.publish(f"job.{pk}", {"job": pk, "estimate": 1})
    log.info("forecast of %d waiting jobs in %.2f s", len(queue.jobs), time.monotonic() - began)
    last.queue, last.digest, last.made_at = queue, digest, time.monotonic()
    return True


def _digest(view: Snapshot, policy: Policy) -> bytes:
    """Of all that decides: what cards measure now only breaks ties, and the time alone moves nothing. Two digests may differ
    though nothing does (then a forecast too many is made), never the other way round."""
    nodes = [replace(node, gpus=tuple(replace(gpu, temp_c=None, util_pct=None) for gpu in node.gpus)) for node in view.nodes]
    what = pickle.dumps((nodes, list(view.jobs), view.slices, view.running, policy), protocol=pickle.HIGHEST_PROTOCOL)
    return hashlib.blake2b(what, digest_size=16).digest()


def news(before: QueueOutlook | None, after: QueueOutlook) -> list[int]:
    """The jobs whose estimate or place changed so that a reader would see it; at most NEWS_MOST, the soonest first."""
    old = {} if before is None else before.jobs
    changed = [pk for pk, one in after.jobs.items() if _is_news(old.get(pk), one)]
    changed.sort(key=lambda pk: (after.jobs[pk].p50 is None, after.jobs[pk].p50 or 0.0, pk))
    return changed[:NEWS_MOST]


def _is_news(old: Outlook | None, new: Outlook) -> bool:
    if old is None or (old.position, old.code, old.behind) != (new.position, new.code, new.behind):
        return True
    pairs = ((old.p50, new.p50), (old.p90, new.p90), (old.after, new.after), (old.until, new.until))
    return any((a is None) != (b is None) or (a is not None and b is not None and abs(a - b) >= NEWS_S) for a, b in pairs)
