"""Whose turn it is: the queue of one pass, in the order in which its jobs are tried.

Named orders (``Policy.order``); in all of them the higher priority comes first (a job's own plus its QOS), and ties end at the
earlier submit, then the lower id:

fifo      the earlier submit
priority  as fifo, but a waiting job gains a level of priority each ``patience_s``
fair      lower effective weight (D3): past use (D4) × present use × predicted runtime, less for waiting
drf       lower dominant share of the user (cards, host cores, host memory) ÷ its queue's guaranteed share
capacity  queues below their guaranteed share first, the most below before the rest; within a queue as fair

In logarithms the effective weight of a job is a sum: a part of its owner, which grows with each placement, and a part of the job,
which does not. So the jobs of one owner are sorted once, and a heap holds each owner's next job.

A place that is kept is not lost twice: while the cards of an owner drain for somebody else's job, that owner's load falls, and by the
order alone it would get them back just when the drain succeeds, again and again. So where that has happened once, those owners don't
come before the job any more, until it starts. Everybody else comes when the order says so. And while nothing happens, no job comes or
ends, nobody at all comes before a job that cards stand free for: weights that fade and loads that a pass has changed undo nothing.

Bound on passing over: a job that has waited ``patience_s``, and as long again as it may run, comes before all others, whatever
its order says; the oldest of these at any time. Three times that, and only limits are trusted until it starts (backfill.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

from jobs.scheduler.backlog import BY_OWNER, Backlog, Item, Owner, Waiting
from jobs.scheduler.fairshare import Shares
from jobs.scheduler.pool import Pool
from jobs.scheduler.predict import likely_s, longest_s
from jobs.scheduler.types import Job, Policy, Snapshot

ORDERS = ("fair", "fifo", "priority", "drf", "capacity")
#: Not at once: without limits, nothing passes a job that is planned for by limits alone, and its cards stand idle.
STRICT_AFTER = 3
#: A loan of cards is missed as long as those below their share have work waiting: up to so many times ``borrow_s`` that is not long.
LITTLE = 3
Key = tuple[float, ...]
#: A job behind its key: (the line's first, the line's part + its own, submit, id, its own, the job, its line). No two have one id.
Entry = tuple[Key, float, float, int, float, Job, "WaitingLine"]


def alive_of(snapshot: Snapshot) -> tuple[int, int]:
    """How many jobs wait and run, and the newest that waits or runs: a start changes neither, whatever else happens to jobs one of them."""
    newest = max((run.job for run in snapshot.running), default=0)
    jobs = snapshot.jobs
    waiting = jobs.newest() if isinstance(jobs, Backlog) else max((job.id for job in jobs), default=0)
    return len(snapshot.jobs) + len(snapshot.running), max(newest, waiting)


class WaitingLine:
    """The waiting jobs of one sort of owner: they differ in nothing but their own part of the key. ``first`` and ``add``: the owner's."""

    __slots__ = ("add", "first", "is_stale", "items", "of_project", "of_user", "past", "project", "queue", "rest", "user")

    def __init__(self, owner: Owner, items: Sequence[Item], first: Key, shares: Shares) -> None:
        _priority, self.user, self.project, self.queue = owner
        self.items = items
        self.rest = iter(items)  # those whose turn has not come
        self.first = first
        self.add = 0.0
        self.past = shares.log_past(self.user, self.project)  # the part of ``add`` that does not change
        self.of_user = shares.users.of(self.user)
        self.of_project = shares.projects.of(self.project) if shares.has_projects else None
        self.is_stale = True


class JobQueue:
    """Iterate over it once; call ``placed`` for each job that was placed, before asking for the next one.

    A queue that the policy does not know counts as its first, a QOS as none. Raises ValueError for an order that does not exist.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, pool: Pool, waiting: Waiting) -> None:
        if policy.order not in ORDERS:
            raise ValueError(f"Policy.order is {policy.order!r}; it can be {', '.join(ORDERS)}.")
        self._snapshot = snapshot
        self._policy = policy
        self._waiting = waiting
        self._qos = dict(policy.qos)
        self._guaranteed = {queue.name: queue for queue in policy.queues}
        self._first_queue = policy.queues[0].name if policy.queues else ""
        self.shares = Shares(snapshot, policy, pool) if policy.order in BY_OWNER else None
        self._lends = self.shares is not None and policy.order != "drf"
        self._has_queues = policy.order == "capacity"
        self._all_lines = [] if self.shares is None else self._lines(self.shares)
        self._by_user: dict[int, list[WaitingLine]] = {}
        for line in self._all_lines:
            self._by_user.setdefault(line.user, []).append(line)
        # Whether a placement changes nothing but what the keys of its user's jobs depend on.
        self._by_user_only = policy.order == "fair" and self.shares is not None and not self.shares.has_projects
        self._first: Job | None = None  # the overdue job whose turn it is
        self._firm: dict[int, frozenset[int]] = {}  # job that keeps its place -> the users that may not come before it
        self._heads: dict[int, Job] = {}  # jobs that nobody comes before, as nothing has happened since cards were kept for them
        self._is_served = False
        self._much: dict[int, bool] = {}  # kind of card -> what ``_much_waits`` says

    # The bound

    def _overdue(self) -> list[Job]:
        """The jobs that have been passed over for too long, oldest first."""
        now, latest = self._snapshot.now, self._snapshot.now - self._policy.patience_s
        jobs = self._snapshot.jobs
        if self._waiting.oldest > latest:
            return []
        old = jobs.submitted_until(latest) if isinstance(jobs, Backlog) else [job for job in jobs if job.submitted <= latest]
        found = [job for job in old if now - job.submitted >= self._patience(job)]
        return sorted(found, key=lambda job: (job.submitted, job.id))

    def _patience(self, job: Job) -> float:
        return self._policy.patience_s + longest_s(job.time_limit_s, job.predicted_s, self._policy, strict=False)

    def is_strict(self, job: Job) -> bool:
        """Whether predictions are not trusted any more: an overdue job has waited STRICT_AFTER times as long as it should."""
        return job is self._first and self._snapshot.now - job.submitted >= STRICT_AFTER * self._patience(job)

    def kept_for(self, job: Job) -> None:
        """Tell that cards are kept for the job."""
        self._is_served |= job is self._first

    # The order

    def _priority(self, job: Job) -> int:
        return job.priority + (self._qos.get(job.qos, 0) if job.qos else 0)

    def queue_of(self, job: Job) -> str:
        return job.queue if job.queue in self._guaranteed else self._first_queue

    def __iter__(self) -> Iterator[Job]:
        rest = self._sorted() if self.shares is None else self._by_shares(self.shares)
        if self._snapshot.places:
            self._read_places()
            if self._firm:
                rest = self._with_firm(self._firm, rest)
            if self._heads:
                rest = self._with_heads(rest)
        overdue = self._overdue()
        return self._with_overdue(overdue, rest) if overdue else rest

    def _read_places(self) -> None:
        """What the pass before has left (``Place``)."""
        snapshot = self._snapshot
        places, jobs, alive = snapshot.places, snapshot.jobs, alive_of(snapshot)
        found = jobs.named(places) if isinstance(jobs, Backlog) else [job for job in jobs if job.id in places]
        for job in sorted([job for job in found if job.hold is None], key=lambda job: (job.submitted, job.id)):
            place = places[job.id]
            if place.since is not None:
                self._firm[job.id] = frozenset(place.users) - {job.user}
            if place.jobs == alive and place.gpus:
                self._heads[job.id] = job

    def _with_heads(self, rest: Iterator[Job]) -> Iterator[Job]:
        yield from self._heads.values()
        for job in rest:
            if job.id not in self._heads:
                yield job

    @staticmethod
    def _with_firm(firm: Mapping[int, frozenset[int]], rest: Iterator[Job]) -> Iterator[Job]:
        """In the order of ``rest``, but who keeps its place comes before the jobs of those whose cards drain for it."""
        firm = dict(firm)
        barred = frozenset[int]().union(*firm.values())
        later: list[Job] = []
        for job in rest:
            if job.user in barred and job.id not in firm:
                later.append(job)
                continue
            yield job
            if firm.pop(job.id, None) is not None:
                barred = frozenset[int]().union(*firm.values())
                # Of those who had to wait, all that nobody keeps its place against any more.
                ready, later = [job for job in later if job.user not in barred], [job for job in later if job.user in barred]
                yield from ready
        yield from later

    def _with_overdue(self, overdue: Sequence[Job], rest: Iterator[Job]) -> Iterator[Job]:
        """One overdue job a pass: where all are overdue, the order still counts. One that nothing can be kept for is in nobody's way."""
        tried: set[int] = set()
        for job in overdue:
            if job.hold is None:
                self._first = job
                tried.add(job.id)
                yield job
                if self._is_served:
                    break
        self._first = None
        for job in rest:
            if job.id not in tried:
                yield job

    def _sorted(self) -> Iterator[Job]:
        if self._policy.order == "fifo":
            yield from sorted(self._snapshot.jobs, key=lambda job: (-self._priority(job), job.submitted, job.id))
            return
        now, level = self._snapshot.now, max(self._policy.patience_s, 1.0)
        yield from sorted(
            self._snapshot.jobs,
            key=lambda job: (-self._priority(job) - int(max(now - job.submitted, 0.0) / level), job.submitted, job.id),
        )

    def _by_shares(self, shares: Shares) -> Iterator[Job]:
        """From line to line, each line's next job by a heap: the owner's part of its key changes with each placement."""
        settle = self._settle_of(shares)
        heap: list[Entry] = []
        for line in self._all_lines:
            settle(line)
            for own, at, job_id, job in line.rest:
                heap.append((line.first, line.add + own, at, job_id, own, job, line))
                break
        heapq.heapify(heap)
        replace = heapq.heapreplace
        while heap:
            entry = heap[0]
            line = entry[6]
            if line.is_stale:
                # Its owner has got something since: keys only grow within a pass.
                settle(line)
                first, value, at, job_id, own, job, _line = entry
                if line.add + own > value or line.first > first:
                    replace(heap, (line.first, line.add + own, at, job_id, own, job, line))
                    continue
            yield entry[5]
            if line.is_stale:
                settle(line)
            for own, at, job_id, job in line.rest:
                replace(heap, (line.first, line.add + own, at, job_id, own, job, line))
                break
            else:
                heapq.heappop(heap)

    def _lines(self, shares: Shares) -> list[WaitingLine]:
        """The waiting jobs by owner, each sorted; settles the shares."""
        groups = self._waiting.groups
        owners = sorted(groups)
        shares.settle([(owner[1], owner[2], groups[owner].requests) for owner in owners])
        firsts = {owner[0]: (-owner[0],) for owner in owners}  # equal ones are one object: keys are compared faster
        return [WaitingLine(owner, groups[owner].items, firsts[owner[0]], shares) for owner in owners]

    def _settle_of(self, shares: Shares) -> Callable[[WaitingLine], None]:
        """What brings a line's part of its jobs' keys up to date."""
        order, power = self._policy.order, self._policy.load_power

        def by_use(line: WaitingLine) -> None:
            present = line.of_user.load()
            if line.of_project is not None:
                present = max(present, line.of_project.load())
            line.add = line.past + power * present
            line.is_stale = False

        def by_queue(line: WaitingLine) -> None:
            by_use(line)
            line.first = (line.first[0], self._queue_load(shares, line.queue))

        def by_dominant_share(line: WaitingLine) -> None:
            line.add = shares.dominant_share(line.user) / self._queue_weight(line.queue)
            line.is_stale = False

        return by_use if order == "fair" else by_queue if order == "capacity" else by_dominant_share

    def _queue_weight(self, name: str) -> float:
        queue = self._guaranteed.get(name)
        return max(queue.guaranteed, 1e-9) if queue is not None else 1.0

    def _queue_load(self, shares: Shares, name: str) -> float:
        """Held ÷ guaranteed."""
        return shares.queues.get(name, 0.0) / (self._queue_weight(name) * max(shares.capacity, 1.0))

    # What the pass asks

    def placed(self, job: Job, cards: float) -> None:
        """``cards``: what ``Shares.cards`` says of its request."""
        if job is self._first:
            self._is_served = True
        shares = self.shares
        if shares is None:
            return
        shares.users.take(job.user, cards)
        # Whose keys have grown.
        for line in self._by_user[job.user]:
            line.is_stale = True
        if self._by_user_only:
            return
        shares.take_rest(job, cards)
        if self._has_queues:
            queue = self.queue_of(job)
            shares.take_queue(queue, cards)
            for line in self._all_lines:
                if line.queue == queue:
                    line.is_stale = True
        if shares.has_projects:
            for line in self._all_lines:
                if line.project == job.project:
                    line.is_stale = True

    def must_leave(self, job: Job, cards: float, kinds: frozenset[int]) -> bool:
        """Whether an owner at its fair share leaves free cards to those below theirs (fair, capacity): a long job can't be taken back.

        ``cards`` and ``kinds``: what ``Shares`` says of the job's request.
        """
        shares = self.shares
        if not self._lends or shares is None or likely_s(job) <= self._policy.borrow_s or job is self._first or job.id in self._heads:
            return False
        if not shares.must_leave(job.user, cards, kinds):
            return False
        return all(self._much_waits(kind, shares) for kind in kinds)

    def _much_waits(self, kind: int, shares: Shares) -> bool:
        """Whether what waits for such cards, of users below their fair share, is more than LITTLE × ``borrow_s`` of work for all of them.

        Told once a pass: from then on it can only become less.
        """
        found = self._much.get(kind)
        if found is None:
            found = self._much[kind] = self._has_work(kind, shares, LITTLE * self._policy.borrow_s * shares.kind_capacity[kind])
        return found

    def _has_work(self, kind: int, shares: Shares, most: float) -> bool:
        """Whether the waiting jobs that could use the kind, and whose users are below their fair share, are more than ``most``
        card-seconds of work by their likely runtimes."""
        left = most
        cards_of = shares.cards_of(kind)
        for line in self._all_lines:
            if not line.of_user.is_short():
                continue
            for _own, _at, _id, job in line.items:
                cards = cards_of.get(job.request.serial)
                if cards and job.hold is None:
                    left -= cards * likely_s(job)
                    if left < 0:
                        return True
        return False

    def held_and_share(self, job: Job) -> tuple[float, float]:
        """What the job's user holds, and its fair share: cards."""
        if self.shares is None:
            return 0.0, 0.0
        standing = self.shares.users.of(job.user)
        return standing.held, standing.share

    def queue_room(self, job: Job) -> tuple[str, float, float] | None:
        """(queue, cards held, cards that it may hold) if the job would take its queue above its most; None = there is room."""
        if self.shares is None or self._policy.order != "capacity":
            return None
        name = self.queue_of(job)
        queue = self._guaranteed.get(name)
        if queue is None or queue.most >= 1.0:
            return None
        held, most = self.shares.queues.get(name, 0.0), queue.most * self.shares.capacity
        return None if held + self.shares.cards(job.request) <= most + 1e-6 else (name, held, most)
