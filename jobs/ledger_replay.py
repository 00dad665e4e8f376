"""The ledger made again from what it was made of, and compared: every slice's time and share, and the log of the jobs' moves.

A replay reads ``Slice`` (when it was ACTIVE, its share), ``Rank`` (how long it is known to have run) and ``JobEvent`` (when its attempt
was placed and ended), never the ledger itself, and says what differs. Nothing is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from jobs.alive import alive_until
from jobs.models import JobEvent, Slice
from quotas import calendar
from quotas.models import LedgerEntry, Quota

#: GPU-seconds that two floats of one integral may differ by.
TOLERANCE_S = 0.001
#: An attempt's event is written in the transaction that moves its slices: no more than this is between their times.
EVENT_SLACK = timedelta(seconds=1)
CHUNK = 5000


@dataclass(slots=True)
class Replayed:
    """``owed_s`` and ``charged_s``: GPU-seconds by the slices and by the ledger."""

    slices: int = 0
    owed_s: float = 0.0
    charged_s: float = 0.0
    by_user: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    differences: list[str] = field(default_factory=list)


def _slices() -> Iterator[tuple[int, float, datetime, datetime, int, int, int, int, datetime | None, float | None]]:
    rows = Slice.objects.filter(active_at__isnull=False, releasing_at__isnull=False).order_by("pk")
    columns = (
        "pk", "share", "active_at", "releasing_at", "rank__attempt__epoch", "rank__attempt__job_id", "rank__attempt__job__owner_id",
        "rank__attempt__job__project_id", "rank__started_at", "rank__ran_s",
    )  # fmt: skip
    yield from rows.values_list(*columns).iterator(chunk_size=CHUNK)


def _attempts() -> dict[tuple[int, int], list[datetime]]:
    """(job, epoch) → [when it was placed, when it ended or was last heard of], by the log of moves. Without those in which our clock
    was set back: their times say nothing; and without those that a restored database took over from a node, which ran before."""
    found: dict[tuple[int, int], list[datetime]] = {}
    odd: set[tuple[int, int]] = set()
    rows = (
        JobEvent.objects.exclude(from_state="", to_state="").filter(epoch__gt=0).order_by("pk").values_list("job_id", "epoch", "at", "code")
    )
    for job, epoch, at, code in rows.iterator(chunk_size=CHUNK):
        span = found.setdefault((job, epoch), [at, at])
        if at < span[1] or code == "adopted":
            odd.add((job, epoch))
        span[1] = max(span[1], at)
    return {key: span for key, span in found.items() if key not in odd}


def replay(*, now: datetime) -> Replayed:
    """Every slice once. A handful of queries; memory grows with the number of charges."""
    found = Replayed()
    charged = {
        row[0]: row[1:]
        for row in LedgerEntry.objects.values_list("slice_id", "gpu_seconds", "job_id", "user_id", "project_id", "share").iterator(
            chunk_size=CHUNK
        )
    }
    attempts = _attempts()
    month = calendar.month_of(now)
    of_month: dict[int, float] = defaultdict(float)
    for pk, share, active, releasing, epoch, job, owner, project, started, ran_s in _slices():
        owed = share * max(0.0, (releasing - active).total_seconds())
        found.slices, found.owed_s = found.slices + 1, found.owed_s + owed
        found.by_user[owner] += owed
        of_month[owner] += share * _within(active, releasing, month)
        entry = charged.pop(pk, None)
        if entry is None:
            found.differences.append(f"slice {pk} of job {job}: owes {owed:.3f} GPU-s, not in the ledger")
            continue
        found.charged_s += entry[0]
        if abs(entry[0] - owed) > TOLERANCE_S:
            found.differences.append(f"slice {pk} of job {job}: owes {owed:.3f} GPU-s, the ledger has {entry[0]:.3f}")
        if entry[1:4] != (job, owner, project):
            found.differences.append(f"slice {pk}: of job {job}, user {owner}, project {project}; the ledger has {entry[1:4]}")
        alive = alive_until(started, ran_s, now=active)
        if releasing > max(alive, active) + EVENT_SLACK:
            found.differences.append(f"slice {pk} of job {job}: in use until {releasing}, its program is known to have run until {alive}")
        span = attempts.get((job, epoch))
        if span is not None and (active < span[0] - EVENT_SLACK or releasing > span[1] + EVENT_SLACK):
            found.differences.append(f"slice {pk} of job {job}: in use from {active} to {releasing}, outside of what its events say")
    found.differences += [f"slice {pk}: in the ledger, but no slice was in use" for pk in sorted(charged)]
    found.charged_s += sum(entry[0] for entry in charged.values())
    found.differences += _counters(of_month, month)
    return found


def _within(begin: datetime, end: datetime, month: date) -> float:
    """Seconds of it in the local month."""
    begin, end = max(begin, calendar.month_begin(month)), min(end, calendar.month_begin(calendar.month_next(month)))
    return max(0.0, (end - begin).total_seconds())


def _counters(of_month: dict[int, float], month: date) -> list[str]:
    """The counters of this month that do not say what the slices come to. A corrected counter differs on purpose, and is told."""
    rows = Quota.objects.filter(user__isnull=False, period_start=month).order_by("pk").values_list("user_id", "user__email", "used_gpu_s")
    return [
        f"quota of {email}: counts {used:.3f} GPU-s this month, its slices come to {of_month.get(user, 0.0):.3f}"
        for user, email, used in rows
        if abs(used - of_month.get(user, 0.0)) > max(TOLERANCE_S, 1e-9 * used)
    ]
