"""One scheduling pass: lock, snapshot, plan, apply, store the reasons. One at a time; two at once would still be safe."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import connection
from django.utils import timezone

from jobs import snapshot
from jobs.apply import places_store, plan_apply, reasons_store
from jobs.counts import PARTS, pass_counted, pass_failed
from jobs.notify import pass_begun
from jobs.scheduler import plan

#: A pass that follows another at once first lets so much time go by, for what else will have changed; and more, once several
#: have followed each other so: then jobs come and go by the dozen, and a pass for each would cost more than it brings.
GATHER_S = 0.02
GATHER_BUSY_S = 0.05
BUSY_AFTER = 4
_passed_at = float("-inf")
_following = 0  # passes that followed at once, in a row
PASS_LOCK = 0x6E65_6275_6C61  # "nebula"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What a pass did; times in milliseconds for the log and the bench."""

    started: list[int]
    waiting: int
    snapshot_ms: float
    plan_ms: float
    apply_ms: float
    reasons_ms: float


@contextlib.contextmanager
def pass_lock(*, wait_s: float) -> Iterator[bool]:
    """Yields whether the lock is ours: an advisory lock on PostgreSQL, a file lock beside SQLite.

    Both vanish with their holder, so that a killed worker never leaves the pool unscheduled.
    """
    deadline = time.monotonic() + wait_s
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            while True:
                cursor.execute("SELECT pg_try_advisory_lock(%s)", [PASS_LOCK])
                got = bool(cursor.fetchone()[0])
                if got or time.monotonic() >= deadline:
                    break
                time.sleep(0.01)
            try:
                yield got
            finally:
                if got:
                    cursor.execute("SELECT pg_advisory_unlock(%s)", [PASS_LOCK])
        return
    settings.RUN_DIR.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(settings.RUN_DIR / "pass.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                got = True
            except BlockingIOError:
                got = False
            if got or time.monotonic() >= deadline:
                break
            time.sleep(0.005)
        yield got
    finally:
        os.close(descriptor)


def _gather_s(since_s: float) -> float:
    """How long this pass waits for what else will have changed; ``since_s`` seconds after the last one. Call holding the pass lock."""
    global _following
    _following = _following + 1 if since_s < GATHER_S else 0
    return max(0.0, (GATHER_BUSY_S if _following > BUSY_AFTER else GATHER_S) - since_s) if _following else 0.0


def schedule_pass(*, wait_s: float = 10.0, now: datetime | None = None) -> PassResult | None:
    """Runs a pass, or returns None when another one holds the lock for longer than ``wait_s``. ``now``: None = the clock, once the
    lock is ours."""
    with pass_lock(wait_s=wait_s) as got:
        if not got:
            return None
        global _passed_at
        if now is None:
            time.sleep(_gather_s(time.monotonic() - _passed_at))
        pass_begun()
        began = time.monotonic()
        try:
            result = pass_run(now)
        except Exception:
            pass_failed()
            raise
        finally:
            _passed_at = time.monotonic()
        parts = {part: getattr(result, f"{part}_ms") for part in PARTS}
        pass_counted(seconds=_passed_at - began, parts_ms=parts, started=len(result.started))
        return result


def pass_run(now: datetime | None = None) -> PassResult:
    """A pass without the lock: what two schedulers at once would do. Safe by re-check and constraints. ``now``: None = the clock."""
    now = now or timezone.now()
    t0 = time.perf_counter()
    view, waits = snapshot.read(now)
    t1 = time.perf_counter()
    decided = plan(view, snapshot.policy_current())
    t2 = time.perf_counter()
    started = plan_apply(decided, now=now)
    t3 = time.perf_counter()
    places_store(decided, view.places, started=started)
    reasons_store(decided, waits, now=now)
    t4 = time.perf_counter()
    return PassResult(
        started=started,
        waiting=len(decided.refusals),
        snapshot_ms=1e3 * (t1 - t0),
        plan_ms=1e3 * (t2 - t1),
        apply_ms=1e3 * (t3 - t2),
        reasons_ms=1e3 * (t4 - t3),
    )
