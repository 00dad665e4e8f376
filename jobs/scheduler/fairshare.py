"""Who holds how much, who should, and what past use weighs (D3, D4): recomputed after each placement of a pass.

An owner is a user or a project. The *fair share* of an owner is max-min fair: cards are dealt out evenly, nobody gets more
than it asks for (held + waiting), and what one leaves is dealt out among the others. Cards of a slice count by memory (D15).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from jobs.scheduler.need import Need
from jobs.scheduler.pool import Pool
from jobs.scheduler.types import Job, Policy, Request, Snapshot

Name = TypeVar("Name", int, str)
NEAR = 1e-6  # of a card: below this two amounts are equal
LEAST_SHARE = 0.25  # of a card: an owner who asks for next to nothing is not over its share for holding that


def max_min(wanted: Mapping[int, float], capacity: float) -> dict[int, float]:
    """Max-min fair shares: Σ ≤ capacity, none above what it wants. In the unit of ``wanted``."""
    shares: dict[int, float] = {}
    left, owners = capacity, len(wanted)
    for owner, want in sorted(wanted.items(), key=lambda item: (item[1], item[0])):
        shares[owner] = min(want, left / owners)
        left -= shares[owner]
        owners -= 1
    return shares


class Usage:
    """Past use as a weight (D4): 1 + 0.1 a finished job + 0.02 a card-hour held, each fading with the half-life. Times only grow."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fade = math.log(2) / policy.half_life_s if policy.half_life_s > 0 else 0.0
        self._state: dict[int, tuple[float, float, float]] = {}  # owner -> (amount, cards held, at)

    def _at(self, owner: int, at: float) -> tuple[float, float]:
        """(amount, cards held) at a time."""
        amount, cards, since = self._state.get(owner, (0.0, 0.0, at))
        span = max(at - since, 0.0)
        gain = self._policy.weight_per_card_hour * cards / 3600
        if self._fade <= 0:
            return amount + gain * span, cards
        kept = math.exp(-self._fade * span)
        return amount * kept + gain * (1 - kept) / self._fade, cards

    def hold(self, owner: int, cards: float, at: float) -> None:
        """The owner holds so many cards more (or less) from now on."""
        amount, held = self._at(owner, at)
        self._state[owner] = (amount, held + cards, at)

    def finish(self, owner: int, at: float) -> None:
        """A job of the owner has finished."""
        amount, held = self._at(owner, at)
        self._state[owner] = (amount + self._policy.weight_per_job, held, at)

    def weights(self, at: float) -> dict[int, float]:
        """Owner -> weight, ≥ 1."""
        return {owner: 1.0 + self._at(owner, at)[0] for owner in sorted(self._state)}


class Standing:
    """What one owner holds and its fair share, in cards."""

    __slots__ = ("held", "share", "waits_for")

    def __init__(self, held: float) -> None:
        self.held = held
        self.share = 0.0
        self.waits_for: set[int] = set()  # kinds of card that its waiting jobs could use

    def is_short(self) -> bool:
        """Whether it holds less than its fair share."""
        return self.held < self.share - NEAR

    def load(self) -> float:
        """Held ÷ fair share: 1 = exactly its share."""
        share = self.share
        return self.held / (share if share > LEAST_SHARE else LEAST_SHARE)


class Owners:
    """The owners of one sort (users, or projects): how each stands, and its weight. ``held``: owner -> cards that it holds."""

    def __init__(self, weights: Mapping[int, float], held: Mapping[int, float]) -> None:
        self.weights = weights
        self.standings = {owner: Standing(cards) for owner, cards in held.items()}
        self.short_on: Counter[int] = Counter()  # kind -> owners below their share that wait for it

    def of(self, owner: int) -> Standing:
        """One that neither holds nor wants anything as well."""
        found = self.standings.get(owner)
        if found is None:
            found = self.standings[owner] = Standing(0.0)
        return found

    def settle(self, waiting: Iterable[tuple[int, Sequence[float], Iterable[frozenset[int]]]], capacity: float) -> None:
        """Deal out the cards. ``waiting``: owners, the cards that waiting jobs of theirs want, and the kinds that could serve these."""
        terms: dict[int, list[float]] = {}
        for owner, cards, kinds in waiting:
            self.of(owner).waits_for.update(*kinds)
            terms.setdefault(owner, []).extend(cards)
        wanted = {owner: math.fsum((standing.held, *terms.get(owner, ()))) for owner, standing in self.standings.items()}
        for owner, share in max_min(wanted, capacity).items():
            self.standings[owner].share = share
        self.short_on = Counter([kind for standing in self.standings.values() if standing.is_short() for kind in standing.waits_for])

    def take(self, owner: int, cards: float) -> None:
        """A job of the owner, one that ``of`` was asked about before, was placed."""
        standing = self.standings[owner]
        before, least = standing.held, standing.share - NEAR
        held = standing.held = before + cards
        # It was below its share, and is not any more.
        if before < least <= held:
            self.short_on.subtract(standing.waits_for)

    def weight(self, owner: int) -> float:
        return max(self.weights.get(owner, 1.0), 1.0)


class Shares:
    """What a pass knows of its owners and queues. After each placement ``users.take``, then ``take_rest``.

    Sums of what somebody holds and wants are exact (``fsum``): they do not depend on the order of the snapshot.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, pool: Pool) -> None:
        self._policy = policy
        self._pool = pool
        self._cards: dict[int, float] = {}  # by Pool.number
        self._kinds: dict[int, frozenset[int]] = {}  # likewise
        self.has_projects = False  # more than one: else every owner's project says the same
        self.queues: dict[str, float] = {}  # name -> cards held, where the order looks at queues
        self.dominant: dict[int, list[float]] = {}  # user -> share of all cards, host cores and host memory
        self.capacity = float(pool.capacity)
        self.kind_capacity = pool.kind_capacity  # of this, cards of each kind
        self._is_drf = policy.order == "drf"
        here = [node.node for node in pool.nodes if node.node.takes_work] if self._is_drf else []
        self._cores_milli = sum(node.cpu_cores or 0 for node in here) * 1000
        self._memory_mib = sum(node.memory_mib or 0 for node in here)
        by_user, by_project = self._held(snapshot)
        self.users = Owners(snapshot.usage, by_user)
        self.projects = Owners(snapshot.project_usage, by_project)

    def _held(self, snapshot: Snapshot) -> tuple[dict[int, float], dict[int, float]]:
        """What runs already: ({user: cards}, {project: cards}). Fills ``queues`` and ``dominant``."""
        queues = [queue.name for queue in self._policy.queues] or [""]
        is_by_queue = self._policy.order == "capacity"
        shared = self._pool.shared_mib
        of_user: dict[int, list[float]] = {}
        of_project: dict[int, list[float]] = {}
        of_queue: dict[str, list[float]] = {}
        project, here = 0, of_project.setdefault(0, [])  # mostly the next one is of the same
        for run in snapshot.running:
            cards = 0.0
            for part in run.slices:
                if part.exclusive:
                    cards += 1.0
                else:
                    total = shared.get(part.gpu)
                    cards += min(part.mib / total, 1.0) if total else 1.0
            try:
                of_user[run.user].append(cards)
            except KeyError:
                of_user[run.user] = [cards]
            if run.project != project:
                project = run.project
                here = of_project.setdefault(project, [])
            here.append(cards)
            if is_by_queue:
                of_queue.setdefault(run.queue if run.queue in queues else queues[0], []).append(cards)
        by_user = _sums(of_user)
        if self._is_drf:
            for run in snapshot.running:
                if run.request is not None:
                    self._dominate(run.user, 0.0, run.request)
            for user, cards in by_user.items():
                self._dominate(user, cards, None)
        self.queues = _sums(of_queue)
        return by_user, _sums(of_project)

    def cards(self, request: Request) -> float:
        """What the request takes, in cards; by the first kind that could serve it."""
        number = self._pool.number(request)
        found = self._cards.get(number)
        if found is None:
            each = 1.0
            for kind, need in enumerate(self._pool.needs(request)):
                if isinstance(need, Need):
                    each = 1.0 if need.exclusive else min(need.mib / (self._pool.kinds[kind].total_mib or 1), 1.0)
                    break
            found = self._cards[number] = each * request.gpu_count
        return found

    def kinds(self, request: Request) -> frozenset[int]:
        """The kinds of card that could serve it."""
        number = self._pool.number(request)
        found = self._kinds.get(number)
        if found is None:
            found = frozenset(kind for kind, need in enumerate(self._pool.needs(request)) if isinstance(need, Need))
            self._kinds[number] = found
        return found

    def cards_of(self, kind: int) -> dict[int, float]:
        """Serial of a request of the snapshot -> what it takes, of those that a card of the kind could serve."""
        requests = self._pool.by_serial
        return {key: self.cards(request) for key, request in requests.items() if kind in self.kinds(request)}

    def settle(self, waiting: Iterable[tuple[int, int, Mapping[int, int]]]) -> None:
        """(user, project, {serial of a request of the snapshot: jobs that wait and may run}). Call once, before the first ``take``."""
        # 1. By serial of a request: its cards, and the kinds that could serve it; only of those that want cards that are here.
        cards_of: dict[int, float] = {}
        kinds_of: dict[int, frozenset[int]] = {}
        for key, request in self._pool.by_serial.items():
            cards, kinds = self.cards(request), self.kinds(request)
            cards_of[key] = cards if kinds else 0.0
            if cards_of[key] > 0:
                kinds_of[key] = kinds
        all_kinds = {*kinds_of.values()}
        # 2. What each owner wants.
        wants: list[tuple[int, int, list[float], set[frozenset[int]]]] = []
        for user, project, requests in waiting:
            mine = [cards_of[key] * times for key, times in requests.items()]
            if any(mine):
                kinds_here = all_kinds if len(all_kinds) == 1 else {kinds_of[key] for key in requests if key in kinds_of}
                wants.append((user, project, mine, kinds_here))
        self.users.settle([(user, mine, kinds) for user, _project, mine, kinds in wants], self.capacity)
        self.has_projects = len({*self.projects.standings, *[project for _user, project, _mine, _kinds in wants]}) > 1
        if self.has_projects:
            self.projects.settle([(project, mine, kinds) for _user, project, mine, kinds in wants], self.capacity)

    def take_rest(self, job: Job, cards: float) -> None:
        """The job was placed, and ``users`` know; ``cards``: what ``cards`` says of its request."""
        if self.has_projects:
            self.projects.take(job.project, cards)
        if self._is_drf:
            self._dominate(job.user, cards, job.request)

    def take_queue(self, queue: str, cards: float) -> None:
        """A job of the queue was placed."""
        self.queues[queue] = self.queues.get(queue, 0.0) + cards

    def _dominate(self, user: int, cards: float, request: Request | None) -> None:
        mine = self.dominant.setdefault(user, [0.0, 0.0, 0.0])
        mine[0] += cards / max(self.capacity, 1.0)
        if request is not None:
            mine[1] += (request.cpu_milli or 0) * request.nodes / max(self._cores_milli, 1)
            mine[2] += (request.host_mem_mib or 0) * request.nodes / max(self._memory_mib, 1)

    def log_past(self, user: int, project: int) -> float:
        """What past use adds to the logarithm of the effective weight of an owner's jobs; placements do not change it."""
        past = math.log(self.users.weight(user))
        if self.has_projects:
            past += math.log(self.projects.weight(project))
        return self._policy.weight_power * past

    def dominant_share(self, user: int) -> float:
        """Dominant resource fairness: the largest of a user's shares of cards, host cores and host memory, [0, 1]."""
        return max(self.dominant.get(user, (0.0,)))

    def must_leave(self, user: int, cards: float, kinds: frozenset[int]) -> bool:
        """Whether the owner is at its fair share while others, below theirs, wait for every kind of card that its job could use.

        ``cards`` and ``kinds``: of the job's request, as the methods of these names say.
        """
        standing = self.users.standings[user]
        held = standing.held
        # Half of the job may reach over. Who holds nothing may start anything: else wide jobs could keep each other waiting for ever.
        if held <= NEAR or held + 0.5 * cards <= standing.share + NEAR:
            return False
        short_on = self.users.short_on
        for kind in kinds:
            if short_on[kind] <= 0:
                return False
        return bool(kinds)


def _sums(terms: Mapping[Name, Sequence[float]]) -> dict[Name, float]:
    """The sum of each owner's amounts. Exact: whatever their order."""
    return {owner: math.fsum(amounts) for owner, amounts in terms.items() if amounts}
