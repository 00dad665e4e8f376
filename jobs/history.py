"""What ended jobs teach a pass: how long jobs like these run (predict.py), how many jobs each owner has finished (D4), and what kinds come.

The jobs' rows are the only truth; nothing else is stored. Each process reads them once and then follows what ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, Max

from jobs.lifecycle import INFRASTRUCTURE, EndReason
from jobs.models import Job
from jobs.requests import JobRequest, request_make
from jobs.scheduler import Finished, History, Request
from quotas.models import LedgerEntry
from quotas.sql import fade_sql, moment
from quotas.usage import Fading, horizon

#: Ends that say how long such a job runs: it ended by itself, or ran until its limit.
OWN_ENDS = (EndReason.COMPLETED, EndReason.NONZERO_EXIT, EndReason.GPU_MEMORY, EndReason.TIME_LIMIT)
#: Ends that no owner is charged for: the machines', not the job's.
NOT_FINISHED = frozenset({*INFRASTRUCTURE, EndReason.CRASH_LIMIT})
#: So many of the last jobs are learnt from when a process starts; each level of a prediction counts ten.
LEARN_MOST = 5000
CHUNK = 1000
#: An end may be committed so much later than the time it bears.
LATE_S = 10.0
#: What comes: of the last so many days, at most so many jobs, told anew so often.
MIX_DAYS = 30
MIX_JOBS = 20_000
MIX_KINDS = 100
MIX_S = 600.0

_ROW = (
    "pk", "owner_id", "project_id", "name", "gpu_count", "gpu_mem_mib", "nodes", "constraints", "time_limit_s", "started_at", "ended_at",
    "end_reason",
)  # fmt: skip


@dataclass(slots=True)
class Mix:
    """What came lately, by how often, and when that was found out."""

    kinds: tuple[tuple[Request, float], ...]
    at: float


class Past:
    """What one process knows of ended jobs. Not for two threads at once: take the module's lock."""

    def __init__(self, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self.history = History()
        self.users = Fading(half_life_s, 0.0)
        self.projects = Fading(half_life_s, 0.0)
        self.mix: Mix | None = None
        self._since: datetime | None = None  # all that ended until then is in it
        self._seen: dict[int, datetime] = {}  # what ended after that, and is in it too

    def follow(self, now: datetime) -> None:
        """Takes in what has ended since the last call. One query, three when something has; a few more the first time."""
        late = now - timedelta(seconds=LATE_S)
        if self._since is None:
            self._load(now, late)
        rows = (
            Job.objects.filter(ended_at__gt=self._since, started_at__isnull=False).order_by("ended_at", "pk").values_list("pk", flat=True)
        )
        fresh = [pk for pk in rows if pk not in self._seen]
        for fading in (self.users, self.projects):
            fading.move(now.timestamp())
        for start in range(0, len(fresh), CHUNK):
            rows = list(Job.objects.filter(pk__in=fresh[start : start + CHUNK]).order_by("ended_at", "pk").values_list(*_ROW))
            self._learn(rows)
            for row in rows:
                self._seen[row[0]] = row[10]
                self._count(row, now.timestamp())
        self._since = max(self._since or late, late)
        if len(self._seen) > 1000 or fresh:
            self._seen = {pk: ended for pk, ended in self._seen.items() if ended > self._since}

    def _load(self, now: datetime, until: datetime) -> None:
        """All that ended until then: the counts as one aggregate, what is learnt from the last jobs."""
        self._since = until
        rows = Job.objects.filter(ended_at__lte=until, started_at__isnull=False, end_reason__in=OWN_ENDS).order_by("-ended_at", "-pk")
        last = list(reversed(rows.values_list(*_ROW)[:LEARN_MOST]))
        for start in range(0, len(last), CHUNK):
            self._learn(last[start : start + CHUNK])
        for fading in (self.users, self.projects):
            fading.move(now.timestamp())
        for user, project, jobs in _counts(now, until, self.half_life_s):
            self.users.add(user, jobs)
            self.projects.add(project, jobs)

    def _learn(self, rows: Sequence[Sequence[Any]]) -> None:
        """One query: the charges know when a program ended, also where nobody was told at that time."""
        own = [row for row in rows if row[-1] in OWN_ENDS]
        if not own:
            return
        left = dict(LedgerEntry.objects.filter(job_id__in=[row[0] for row in own]).values_list("job_id").annotate(last=Max("ended_at")))
        for pk, owner, project, name, count, mem, nodes, constraints, limit, started, ended, _reason in own:
            request = request_make(count, mem, nodes, constraints)
            at = left.get(pk, ended)
            seconds = (min(at, ended) if at > started else ended) - started
            self.history.add(
                Finished(user=owner, project=project, name=name, request=request, time_limit_s=limit, seconds=seconds.total_seconds())
            )

    def _count(self, row: Sequence[Any], at: float) -> None:
        _pk, owner, project, _name, cards, *_more, ended, reason = row
        if cards and reason not in NOT_FINISHED:
            left = self.users.kept(at - ended.timestamp())
            self.users.add(owner, left)
            self.projects.add(project, left)

    def mix_at(self, now: datetime) -> tuple[tuple[Request, float], ...]:
        """What came in the last days; at most ``MIX_S`` old. Two queries when it is told anew."""
        at = now.timestamp()
        if self.mix is None or not 0 <= at - self.mix.at < MIX_S:
            self.mix = Mix(kinds=mix_read(now), at=at)
        return self.mix.kinds


def _counts(now: datetime, until: datetime, half_life_s: float) -> list[tuple[int, int, float]]:
    """(user, project, finished jobs, each halved for every half-life since) of all that ended until then."""
    reasons = sorted(NOT_FINISHED)
    value, params, since = "COUNT(*)", [], []
    if half_life_s > 0:
        value, params, since = f"SUM({fade_sql('ended_at')})", [moment(now), half_life_s], [moment(horizon(now, half_life_s))]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT owner_id, project_id, {value} FROM jobs_job WHERE ended_at <= %s{' AND ended_at > %s' if since else ''} "  # noqa: S608
            f"AND started_at IS NOT NULL AND gpu_count > 0 AND end_reason NOT IN ({', '.join(['%s'] * len(reasons))}) "
            "GROUP BY owner_id, project_id ORDER BY owner_id, project_id",
            [*params, moment(until), *since, *reasons],
        )
        return [(user, project, float(jobs)) for user, project, jobs in cursor.fetchall()]


def mix_read(now: datetime) -> tuple[tuple[Request, float], ...]:
    """(request, how many jobs asked for that) of the last days, the most frequent first. Two queries."""
    top = Job.objects.aggregate(top=Max("pk"))["top"] or 0
    lately = Job.objects.filter(pk__gt=top - MIX_JOBS, submitted_at__gt=now - timedelta(days=MIX_DAYS))
    rows = lately.values_list("gpu_count", "gpu_mem_mib", "nodes", "constraints").annotate(times=Count("pk")).order_by("-times")
    found: dict[Request, float] = {}
    for count, mem, nodes, constraints, times in rows[:MIX_KINDS]:
        request = request_make(count, mem, nodes, constraints)
        found[request] = found.get(request, 0.0) + times
    return tuple(sorted(found.items(), key=lambda item: (-item[1], repr(item[0]))))


_lock = threading.Lock()
_past: Past | None = None


def _past_of(half_life_s: float, now: datetime) -> Past:
    """Call only while holding the lock."""
    global _past
    if _past is None or _past.half_life_s != half_life_s:
        _past = Past(half_life_s)
    past = _past
    try:
        past.follow(now)
    except Exception:
        _past = None  # half of what ended is in it
        raise
    return past


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately:
    """``users``, ``projects``: finished jobs with cards of each, halved for every half-life since. ``mix``: what kinds of jobs
    came in the last 30 days, by how often; at most ten minutes old."""

    users: Mapping[int, float]
    projects: Mapping[int, float]
    mix: tuple[tuple[Request, float], ...]


def lately_read(*, now: datetime, half_life_s: float) -> Lately:
    """One query, three when jobs have ended since the last call; two more every ten minutes."""
    with _lock:
        past = _past_of(half_life_s, now)
        return Lately(users=past.users.amounts(), projects=past.projects.amounts(), mix=past.mix_at(now))


def runtime_predict(request: JobRequest, *, owner: int, now: datetime, half_life_s: float) -> float:
    """How long such a job will probably run, in seconds, never above its limit; an hour (0.3 of the limit) if nothing is known."""
    wanted = request_make(request.gpu_count, request.gpu_mem_mib, request.nodes, request.constraints)
    with _lock:
        history = _past_of(half_life_s, now).history
        return history.predict(user=owner, project=request.project.pk, name=request.name, request=wanted, time_limit_s=request.time_limit_s)


def runtimes_of_requests(
    requests: Iterable[Request], *, owner: int, project: int, name: str, time_limit_s: int | None, now: datetime, half_life_s: float
) -> dict[Request, float]:
    """The same of one owner's jobs of one name that would ask for this or that."""
    with _lock:
        history = _past_of(half_life_s, now).history
        return {
            wanted: history.predict(user=owner, project=project, name=name, request=wanted, time_limit_s=time_limit_s)
            for wanted in requests
        }


def runtimes_predict(jobs: Mapping[int, tuple[Any, ...]], *, now: datetime, half_life_s: float) -> dict[int, float]:
    """Job → seconds for many waiting jobs at once: (owner, project, name, cards, memory, nodes, constraints, limit) of each."""
    with _lock:
        history = _past_of(half_life_s, now).history
        return {
            pk: history.predict(
                user=owner, project=project, name=name, request=request_make(count, mem, nodes, constraints), time_limit_s=limit
            )
            for pk, (owner, project, name, count, mem, nodes, constraints, limit) in jobs.items()
        }


def history_version() -> int:
    """Grows with each job that was learnt from; 0 = nothing was read yet in this process."""
    return _past.history.version if _past is not None else 0


def history_forget() -> None:
    """Read it all anew at the next call: for tests, whose rows vanish."""
    global _past
    with _lock:
        _past = None
