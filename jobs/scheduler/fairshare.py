"""Who holds how much, who should, and what past use weighs (D3, D4): recomputed after each placement of a pass.

An owner is a user or a project. The *fair share* of an owner is max-min fair: cards are dealt out evenly, nobody gets more
than it asks for (held + waiting), and what one leaves is dealt out among the others. Cards of a slice count by memory (D15).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from jobs.scheduler.need import Need
from jobs.scheduler.pool import Pool
from jobs.scheduler.types import Policy, Request, Slice, Snapshot

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


class Owners:
    """The owners of one sort (users, or projects): what each holds and wants in cards, and its weight."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self.weights = weights
        self.held: dict[int, float] = {}
        self.wanted: dict[int, float] = {}
        self.share: dict[int, float] = {}
        self.waiting: dict[int, set[int]] = {}  # owner -> kinds of card that its waiting jobs could use
        self.short_on: Counter[int] = Counter()  # kind -> owners below their share that wait for it

    def settle(self, capacity: float) -> None:
        """Call once, when ``held`` and ``wanted`` (held + waiting) are complete."""
        self.share = max_min(self.wanted, capacity)
        for owner, kinds in self.waiting.items():
            if self.is_short(owner):
                self.short_on.update(kinds)

    def is_short(self, owner: int) -> bool:
        """Whether it holds less than its fair share."""
        return self.held.get(owner, 0.0) < self.share.get(owner, 0.0) - NEAR

    def take(self, owner: int, cards: float) -> None:
        was_short = self.is_short(owner)
        self.held[owner] = self.held.get(owner, 0.0) + cards
        if was_short and not self.is_short(owner):
            self.short_on.subtract(self.waiting.get(owner, ()))

    def load(self, owner: int) -> float:
        """Held ÷ fair share: 1 = exactly its share."""
        return self.held.get(owner, 0.0) / max(self.share.get(owner, 0.0), LEAST_SHARE)

    def weight(self, owner: int) -> float:
        return max(self.weights.get(owner, 1.0), 1.0)


class Shares:
    """What a pass knows of its owners and queues. ``take`` after each placement.

    Sums of what somebody holds and wants are exact (``fsum``): they do not depend on the order of the snapshot.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, pool: Pool) -> None:
        self._policy = policy
        self._pool = pool
        self._cards: dict[int, float] = {}  # by Pool.number
        self._kinds: dict[int, frozenset[int]] = {}  # likewise
        self.users = Owners(snapshot.usage)
        self.projects = Owners(snapshot.project_usage)
        self.queues: dict[str, float] = {}  # name -> cards held
        self.dominant: dict[int, list[float]] = {}  # user -> share of all cards, host cores and host memory
        self.capacity = float(pool.capacity)
        here = [node.node for node in pool.nodes if node.node.takes_work]
        self._cores_milli = sum(node.cpu_cores or 0 for node in here) * 1000
        self._memory_mib = sum(node.memory_mib or 0 for node in here)
        self._begin(snapshot)

    def _begin(self, snapshot: Snapshot) -> None:
        """What runs already."""
        names = [queue.name for queue in self._policy.queues] or [""]
        users: dict[int, list[float]] = {}
        projects: dict[int, list[float]] = {}
        queues: dict[str, list[float]] = {}
        for run in snapshot.running:
            cards = 0.0
            for part in run.slices:
                cards += 1.0 if part.exclusive else self._part(part)
            queue = run.queue if run.queue in names else names[0]
            for sums, owner in ((users, run.user), (projects, run.project)):
                if owner in sums:
                    sums[owner].append(cards)
                else:
                    sums[owner] = [cards]
            if queue in queues:
                queues[queue].append(cards)
            else:
                queues[queue] = [cards]
            if run.request is not None:
                self._dominate(run.user, 0.0, run.request)
        self.users.held = {owner: math.fsum(terms) for owner, terms in users.items()}
        self.projects.held = {owner: math.fsum(terms) for owner, terms in projects.items()}
        self.queues = {name: math.fsum(terms) for name, terms in queues.items()}
        for owner, held in self.users.held.items():
            self._dominate(owner, held, None)

    def _part(self, part: Slice) -> float:
        """A slice's share of its card."""
        card = self._pool.card_of.get(part.gpu)
        total = 0 if card is None else card.gpu.total_mib or 0
        return 1.0 if total <= 0 else min(part.mib / total, 1.0)

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

    def settle(self, waiting: Iterable[tuple[int, int, Request, int]]) -> None:
        """(user, project, request, jobs that wait and may run). Call once, before the first ``take`` of the pass."""
        terms: dict[tuple[int, int], list[float]] = {}
        for owners in (self.users, self.projects):
            owners.wanted = dict(owners.held)
        for user, project, request, times in waiting:
            kinds = self.kinds(request)
            if not kinds or not request.gpu_count:
                continue
            cards = self.cards(request) * times
            for which, owners, owner in ((0, self.users, user), (1, self.projects, project)):
                terms.setdefault((which, owner), [owners.held.get(owner, 0.0)]).append(cards)
                owners.waiting.setdefault(owner, set()).update(kinds)
        for (which, owner), wanted in terms.items():
            (self.projects if which else self.users).wanted[owner] = math.fsum(wanted)
        for owners in (self.users, self.projects):
            owners.settle(self.capacity)

    def take(self, user: int, project: int, queue: str, request: Request) -> None:
        cards = self.cards(request)
        self.users.take(user, cards)
        if len(self.projects.wanted) > 1:
            self.projects.take(project, cards)
        self.queues[queue] = self.queues.get(queue, 0.0) + cards
        if self._policy.order == "drf":
            self._dominate(user, cards, request)

    def _dominate(self, user: int, cards: float, request: Request | None) -> None:
        mine = self.dominant.setdefault(user, [0.0, 0.0, 0.0])
        mine[0] += cards / max(self.capacity, 1.0)
        if request is not None:
            mine[1] += (request.cpu_milli or 0) * request.nodes / max(self._cores_milli, 1)
            mine[2] += (request.host_mem_mib or 0) * request.nodes / max(self._memory_mib, 1)

    def log_weight(self, user: int, project: int) -> float:
        """The logarithm of the effective weight of an owner's next job: past use × present use, of the user and the project."""
        policy, users, projects = self._policy, self.users, self.projects
        past = math.log(users.weight(user))
        load = users.load(user)
        if len(projects.wanted) > 1:
            past += math.log(projects.weight(project))
            load = max(load, projects.load(project))
        return policy.weight_power * past + policy.load_power * load

    def dominant_share(self, user: int) -> float:
        """Dominant resource fairness: the largest of a user's shares of cards, host cores and host memory, [0, 1]."""
        return max(self.dominant.get(user, (0.0,)))

    def must_leave(self, user: int, request: Request) -> bool:
        """Whether the owner is at its fair share while others, below theirs, wait for every kind of card that the request could use."""
        users = self.users
        held = users.held.get(user, 0.0)
        # Half of the job may reach over. Who holds nothing may start anything: else wide jobs could keep each other waiting for ever.
        if held <= NEAR or held + 0.5 * self.cards(request) <= users.share.get(user, 0.0) + NEAR:
            return False
        kinds = self.kinds(request)
        return bool(kinds) and all(users.short_on[kind] > 0 for kind in kinds)
