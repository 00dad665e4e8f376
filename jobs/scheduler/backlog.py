"""The waiting jobs by owner, each owner's in their order: what a pass sorts its queue into, and what a simulation keeps from pass to pass.

The part of a job's key that is its own (order.py) does not change while it waits, so a queue that is kept need not be sorted again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from jobs.scheduler.predict import likely_s, longest_s
from jobs.scheduler.types import Job, Policy, Request

Item = tuple[float, float, int, Job]  # (own part of the key, submit, id, job): sorted, least first
Owner = tuple[int, int, int, str]  # (priority, user, project, queue); the queue only where the order looks at it
BY_OWNER = ("fair", "drf", "capacity")  # the orders in which it matters whose a job is


class Group:
    """The waiting jobs of one owner and priority: they differ in nothing but their own part of the key. INVARIANT: ``items`` is sorted."""

    __slots__ = ("items", "requests")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.requests: dict[int, int] = {}  # serial of a request -> jobs that ask for it and are not held


class Waiting:
    """What waits in one pass: by owner, and what is asked for. ``groups`` is empty for an order that does not look at owners."""

    def __init__(self) -> None:
        self.groups: dict[Owner, Group] = {}
        self.by_serial: dict[int, Request] = {}
        self.times: dict[int, int] = {}  # serial of a request -> jobs that ask for it
        self.oldest = math.inf  # the earliest submit


def waiting_of(jobs: Sequence[Job], policy: Policy) -> Waiting:
    """Sort the jobs in. A queue that the policy does not know counts as its first, a QOS as none."""
    if isinstance(jobs, Backlog) and jobs.policy == policy:
        return jobs.waiting()
    found = Waiting()
    if policy.order in BY_OWNER:
        _sort_in(found, jobs, policy)
    else:
        for job in jobs:
            key = job.request.serial
            found.by_serial[key] = job.request
            found.times[key] = found.times.get(key, 0) + 1
            found.oldest = min(found.oldest, job.submitted)
    return found


def _sort_in(waiting: Waiting, jobs: Iterable[Job], policy: Policy) -> None:
    """Fill it in, for an order by owner."""
    fold, floor = max(policy.age_fold_s, 1.0), max(policy.short_floor_s, 1.0)
    is_short_first = policy.order != "drf"
    if not is_short_first:
        fold = math.inf  # no job has a part of its own
    has_queues = policy.order in ("drf", "capacity")
    queue = ""
    lengths: dict[int | None, float] = {}  # limit -> logarithm of the likely runtime, where nothing is predicted
    log = math.log
    qos = dict(policy.qos)
    queues = [queue.name for queue in policy.queues] or [""]
    by_user: dict[int, Group] = {}
    by_rest: dict[tuple[int, int, str], dict[int, Group]] = {}  # all of an owner but the user -> the groups of each user
    # Whose groups ``by_user`` are: mostly the next job is of the same.
    level: int | None = None
    project, queue_before = 0, ""
    by_serial, times, oldest = waiting.by_serial, waiting.times, math.inf
    for job in jobs:
        priority = job.priority + qos.get(job.qos, 0) if job.qos else job.priority
        if has_queues:
            queue = job.queue if job.queue in queues else queues[0]
            level = level if queue == queue_before else None
        if priority != level or job.project != project:
            level, project, queue_before = priority, job.project, queue
            by_user = by_rest.setdefault((priority, project, queue), {})
        try:
            group = by_user[job.user]
        except KeyError:
            group = by_user[job.user] = Group()
        at = job.submitted
        if at < oldest:
            oldest = at
        if job.predicted_s is None:
            try:
                own = lengths[job.time_limit_s] + at / fold
            except KeyError:
                lengths[job.time_limit_s] = length = log(max(likely_s(job), floor)) if is_short_first else 0.0
                own = length + at / fold
        else:
            own = (log(max(likely_s(job), floor)) if is_short_first else 0.0) + at / fold
        group.items.append((own, at, job.id, job))
        key, requests = job.request.serial, group.requests
        if job.hold is not None:
            by_serial[key] = job.request
            times[key] = times.get(key, 0) + 1
        elif key in requests:
            requests[key] += 1
        else:
            by_serial[key] = job.request
            requests[key] = 1
    for (priority, project, queue), users in by_rest.items():
        for user, group in users.items():
            group.items.sort()  # no two have one id
            waiting.groups[priority, user, project, queue] = group
            for key, count in group.requests.items():
                times[key] = times.get(key, 0) + count
    waiting.oldest = oldest


class Backlog(Sequence[Job]):
    """Waiting jobs that are kept from pass to pass, as ``Snapshot.jobs``. For one policy; none of the jobs is held.

    A pass answers as it would for the same jobs in a list.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._waiting = Waiting()
        self._jobs: dict[int, Job] = {}
        self._where: dict[int, tuple[Owner, Item]] = {}
        self._by_age: list[tuple[float, int]] = []
        self._longest: dict[Request, list[float]] = {}  # the longest runtimes of a request's jobs, sorted

    def add(self, job: Job) -> None:
        one = Waiting()
        _sort_in(one, (job,), self.policy)
        [(owner, alone)] = one.groups.items()
        [item] = alone.items
        key, here = job.request.serial, self._waiting
        group = here.groups.setdefault(owner, Group())
        insort(group.items, item)
        group.requests[key] = group.requests.get(key, 0) + 1
        here.by_serial[key] = job.request
        here.times[key] = here.times.get(key, 0) + 1
        self._jobs[job.id] = job
        self._where[job.id] = (owner, item)
        insort(self._by_age, (job.submitted, job.id))
        insort(self._longest.setdefault(job.request, []), self._longest_s(job))

    def remove(self, job_id: int) -> Job:
        """Raises KeyError for a job that is not here."""
        job = self._jobs.pop(job_id)
        owner, item = self._where.pop(job_id)
        key, here = job.request.serial, self._waiting
        group = here.groups[owner]
        del group.items[bisect_left(group.items, item)]
        group.requests[key] -= 1
        if not group.requests[key]:
            del group.requests[key]
        if not group.items:
            del here.groups[owner]
        del self._by_age[bisect_left(self._by_age, (job.submitted, job_id))]
        longest = self._longest[job.request]
        del longest[bisect_left(longest, self._longest_s(job))]
        here.times[key] -= 1
        if not here.times[key]:
            del here.times[key], here.by_serial[key]
        return job

    def waiting(self) -> Waiting:
        """What waits now; not to be changed, and good until a job is added or removed."""
        self._waiting.oldest = self._by_age[0][0] if self._by_age else math.inf
        return self._waiting

    def requests(self) -> Iterable[Request]:
        """What is asked for; equal ones may come more than once."""
        return self._waiting.by_serial.values()

    def _longest_s(self, job: Job) -> float:
        return longest_s(job.time_limit_s, job.predicted_s, self.policy, strict=False)

    def shortest_s(self, request: Request) -> float:
        """The least time after which a job of this request counts as ended; inf = none asks for it."""
        found = self._longest.get(request)
        return found[0] if found else math.inf

    def newest(self) -> int:
        """The highest number."""
        return max(self._jobs, default=0)

    def named(self, ids: Iterable[int]) -> list[Job]:
        """Those of these that wait."""
        return [self._jobs[job_id] for job_id in ids if job_id in self._jobs]

    def submitted_until(self, at: float) -> Iterator[Job]:
        """The jobs that were submitted until then, the oldest first."""
        for submitted, job_id in self._by_age:
            if submitted > at:
                return
            yield self._jobs[job_id]

    def __contains__(self, job: object) -> bool:
        return isinstance(job, Job) and self._jobs.get(job.id) is job

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, at: int) -> Job: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Job]: ...
    def __getitem__(self, at: int | slice) -> Job | Sequence[Job]:
        return list(self._jobs.values())[at]
