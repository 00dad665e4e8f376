"""How long waiting jobs will probably run, told anew as more jobs end: what was submitted in one go learns from those of it that ran."""

from __future__ import annotations

from datetime import datetime

from jobs.history import history_version, runtimes_predict
from jobs.lifecycle import JobState
from jobs.models import Job
from jobs.policy import policy_current
from quotas.sql import rows_update

#: A change by less than this moves no job enough to be worth a write.
CHANGED = 0.1
#: More waiting jobs than this are left as they are: the next ones in line are told first.
MOST = 20_000
CHUNK = 1000
#: So often at most, and only when jobs have ended since.
EVERY_S = 120.0
_last: tuple[float, int] = (float("-inf"), 0)  # when it was done last in this process (seconds since the epoch), and what was known then


def predictions_are_old(*, now: datetime) -> bool:
    """Whether it is time to look again. No query."""
    return not 0 <= now.timestamp() - _last[0] < EVERY_S and history_version() != _last[1]


def predictions_refresh(*, now: datetime) -> int:
    """Predicts the runtimes of waiting jobs anew; returns how many have changed by a tenth or more.

    Two queries for a thousand of them, and one. Running jobs keep theirs: by it their cards were counted as free again.
    """
    rows = (
        Job.objects.filter(state=JobState.WAITING)
        .order_by("-priority", "submitted_at", "pk")
        .values_list(
            "pk", "predicted_s", "owner_id", "project_id", "name", "gpu_count", "gpu_mem_mib", "nodes", "constraints", "time_limit_s"
        )[:MOST]
    )  # fmt: skip
    before = {row[0]: (row[1], row[2:]) for row in rows}
    if not before:
        return 0
    wanted, found, half_life_s = list(before.items()), {}, policy_current().half_life_s
    for start in range(0, len(wanted), CHUNK):  # submits and passes of this process wait for no more than one of these
        found |= runtimes_predict({pk: what for pk, (_old, what) in wanted[start : start + CHUNK]}, now=now, half_life_s=half_life_s)
    global _last
    _last = (now.timestamp(), history_version())
    changed = []
    for pk, seconds in sorted(found.items()):
        old = before[pk][0]
        if old is None or abs(seconds - old) >= CHANGED * old:
            changed.append((pk, seconds))
    # A job that was started meanwhile keeps what it was started by.
    return rows_update(Job, changed, assign="predicted_s = v.column2", where="jobs_job.state = 'WAITING'")
