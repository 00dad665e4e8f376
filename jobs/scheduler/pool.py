"""The cards and nodes of one pass, as they fill up.

Nothing is freed within a pass. So a request that failed once fails again, and cards only ever fill.

INVARIANT: each change of a card or of a node's host is in ``Pool.log``, each change of a card that was empty in ``Pool.log_empties``
as well; a node's ``version`` and ``version_empties`` grow with them. ``Pool.moved`` has the cards that have changed and have room left.
At first ``moved`` and ``log_empties`` have what there is to be found: the cards with room that are not empty, the nodes with empty ones.

Nothing here points back to what holds it, so that all is gone with the pass and the garbage collector has nothing to look for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from jobs.scheduler.backlog import Waiting
from jobs.scheduler.fragmentation import Mix, State, mix_of
from jobs.scheduler.need import Need, cpu_ranks_max, foreign_counted_mib, host_free, need_on, node_mismatch
from jobs.scheduler.never import Inventory, NodeTraits
from jobs.scheduler.score import STRATEGIES, card_rated, node_score
from jobs.scheduler.topology import ALIKE, Nearness, pair_nearness
from jobs.scheduler.types import Gpu, Grant, Node, Placement, Policy, RankPlacement, Reason, Request, Slice, Snapshot, new

if TYPE_CHECKING:
    from jobs.scheduler.shapes import Candidate, Shape

#: No cost: those are 0 at most.
UNRATED = 1.0
_gpu_key = attrgetter("index", "id")


def _by_index(gpus: Sequence[Gpu]) -> Sequence[Gpu]:
    """By index and id. Mostly they are already."""
    before = -1
    for gpu in gpus:
        if gpu.index <= before:
            return sorted(gpus, key=_gpu_key)
        before = gpu.index
    return gpus


class PoolCard:
    """A card as it fills up within the pass. ``free_mib`` is what is really free: slices and counted foreign use taken off.
    ``at``: the place of its node in ``Pool.nodes``; ``number``: its own among all cards, by node, index and id;
    ``is_plain``: it is in service, nothing foreign is on it, and it is kept for nobody;
    ``bucket``: the number of the bucket that it is in (buckets.py), -1 = in none.
    ``cost``: minus the part of its score that no placement changes; ``is_strained``: as the pass began, as what it places itself strains
    nothing yet. Both are known of cards that had room then: see ``Pool.cost_of``."""

    __slots__ = (
        "added", "aside_for", "at", "bucket", "cost", "foreign_mib", "free_mib", "gpu", "is_open", "is_plain", "is_strained", "kind",
        "live", "number", "slices_before",
    )  # fmt: skip
    # No __init__: calling one for each card would take a tenth of what it takes to build the pool.
    gpu: Gpu
    number: int
    at: int
    kind: int
    live: int
    free_mib: int
    foreign_mib: int
    is_open: bool
    is_plain: bool
    aside_for: int | None
    bucket: int
    cost: float
    is_strained: bool
    slices_before: Sequence[Slice]
    added: list[tuple[int, int, bool]] | None

    def state(self) -> State:
        return (self.kind, self.free_mib, self.live)

    def is_empty(self) -> bool:
        """Whether a job that wants a whole card could have it now."""
        return self.live == 0 and self.is_plain

    @property
    def slices(self) -> Sequence[Slice]:
        """All that lives on the card now, what this pass has placed included."""
        if self.added is None:
            return self.slices_before
        gpu = self.gpu.id
        return [*self.slices_before, *(Slice(gpu=gpu, mib=mib, exclusive=whole, job=job) for job, mib, whole in self.added)]


class PoolNode:
    """A node and its cards, in index order. ``empty`` = cards that could go to a whole-card job now.

    ``cpu_milli`` and ``memory_mib``: what the host has free; None = unknown.
    """

    __slots__ = (
        "_near", "at", "cards", "cpu_milli", "cpu_ranks", "empty", "gpus", "host", "is_uniform", "kept", "memory_mib", "node", "ranked",
        "ranked_at", "version", "version_empties",
    )  # fmt: skip

    def __init__(self, node: Node, at: int) -> None:
        self.node = node
        self.at = at
        self.gpus = _by_index(node.gpus)
        self.cards: list[PoolCard] = []  # of these
        self.empty = 0
        self.version = 0
        self.version_empties = 0
        self.cpu_ranks = node.live_cpu_ranks
        self.cpu_milli, self.memory_mib = host_free(node)
        self.host: int | None = None  # the mix's class of it; None = to be asked for again
        self.is_uniform = True  # cards of one kind
        self.kept = 0  # cards that are kept for a waiting job
        self.ranked: list[tuple[bool, float, int, PoolCard]] = []  # what ``empties`` said …
        self.ranked_at = 0  # … at this version
        self._near: tuple[Nearness | None, float] | None = None

    @property
    def has_cpu_room(self) -> bool:
        return self.cpu_ranks < cpu_ranks_max(self.node)

    def empty_of(self, kind: int) -> int:
        """Empty cards of one kind."""
        return self.empty if self.is_uniform else sum(card.kind == kind and card.is_empty() for card in self.cards)

    def empties(self) -> list[tuple[bool, float, int, PoolCard]]:
        """Its empty cards, those that are kept included, the best first: (strained, -score, number, card)."""
        if self.ranked_at != self.version_empties:
            self.ranked = [item for item in self.ranked if not item[3].live]
            self.ranked_at = self.version_empties
        return self.ranked

    def near(self) -> tuple[Nearness | None, float]:
        if self._near is None:
            self._near = ALIKE if self.is_uniform and not self.node.links else pair_nearness(self.node)
        return self._near


class Pool:
    """Everything that one pass fills up. Built from a snapshot; the order of its nodes, cards and slices does not matter.

    Raises ValueError for a ``policy.strategy`` that does not exist.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, waiting: Waiting) -> None:
        if policy.strategy not in STRATEGIES:
            raise ValueError(f"Policy.strategy is {policy.strategy!r}; it can be {', '.join(STRATEGIES)}.")
        self.policy = policy
        self.nodes: list[PoolNode] = []
        self.shared_mib: dict[int, int] = {}  # id of a card that holds a part of itself -> all of its memory; 0 = unknown
        self.all_take_work = True
        self.capacity = 0  # cards that are in service on nodes that take work
        self.free_cards = 0  # of these, cards with any memory free
        self.kinds: list[Gpu] = []  # one sample of each kind …
        self.kind_counts: list[int] = []  # … how many cards there are of it, how many of these are counted in ``capacity`` …
        self.kind_capacity: list[int] = []
        self.kind_nodes: list[Node] = []  # … and of the node it is on
        self.kept_kinds: set[int] = set()  # kinds of which some card is kept for a waiting job
        self.log: list[PoolNode] = []
        self.log_empties: list[PoolNode] = []
        self.moved: list[PoolCard] = []
        self._needs: dict[int, list[Need | Reason]] = {}
        self.requests: Counter[Request] = Counter()
        self._numbers: dict[int, int] = {}  # by the serial of the request
        self._number_of: dict[Request, int] = {}
        self.by_serial = waiting.by_serial
        for key, request in self.by_serial.items():
            self.requests[request] += waiting.times[key]
            self._numbers[key] = self._number_of.setdefault(request, len(self._number_of))
        self._traits = NodeTraits(self.requests)
        self._build(snapshot)
        #: What comes, as packing sees it.
        self.mix = Mix(mix_of(snapshot.mix or self.requests.items()), self.kinds, self.needs, is_sliced=policy.slicing_rules)
        if not self.mix.has_hosts:
            for item in self.nodes:
                item.host = self.mix.all_hosts

    def _build(self, snapshot: Snapshot) -> None:
        policy, shared_mib = self.policy, self.shared_mib
        taken = _by_gpu(snapshot.slices)
        nothing: Sequence[Slice] = ()
        kinds_at: dict[tuple[object, ...], dict[object, int]] = {}
        kind_at: dict[object, int] = {}
        last_key: object = None
        kind, total = -1, 0  # those of ``last_key``
        number = free_cards = 0
        for at, node in enumerate(sorted(snapshot.nodes, key=attrgetter("id"))):
            item = PoolNode(node, at)
            self.nodes.append(item)
            takes_work = node.takes_work
            self.all_take_work &= takes_work
            points = node_score(node)
            kinds_here = kinds_at.setdefault(self._traits.of(node), {})
            if kinds_here is not kind_at:
                kind_at, last_key = kinds_here, None
            first_kind = -1
            closed_cards = 0
            cards, ranked = item.cards, item.ranked
            for gpu in item.gpus:
                # As ``never.kind_of`` says.
                key = (gpu.total_mib, gpu.model, gpu.max_slices, gpu.compute_capability, gpu.nominal_mib, gpu.vendor)
                if key != last_key:
                    last_key = key
                    total = gpu.total_mib or 0
                    if key in kind_at:
                        kind = kind_at[key]
                    else:
                        kind = kind_at[key] = len(self.kinds)
                        self.kinds.append(gpu)
                        self.kind_counts.append(0)
                        self.kind_capacity.append(0)
                        self.kind_nodes.append(node)
                if kind != first_kind:
                    if first_kind < 0:
                        first_kind = kind
                    else:
                        item.is_uniform = False
                free = total
                foreign = 0
                if gpu.foreign_mib:
                    foreign = foreign_counted_mib(gpu, policy)
                    free -= foreign
                slices = taken.get(gpu.id, nothing)
                live = 0
                for part in slices:
                    live += 1
                    if part.exclusive:
                        free -= total
                    else:
                        free -= part.mib
                        shared_mib[part.gpu] = total
                card = PoolCard()
                card.gpu = gpu
                card.number = number
                card.at = at
                card.kind = kind
                card.live = live
                card.free_mib = free
                card.foreign_mib = foreign
                card.is_open = is_open = takes_work and gpu.is_schedulable
                card.is_plain = is_open and not foreign
                card.aside_for = card.added = None
                card.bucket = -1
                card.cost = UNRATED
                card.is_strained = False
                card.slices_before = slices
                cards.append(card)
                number += 1
                if not is_open:
                    closed_cards += 1
                elif free > 0 or not (live or foreign):
                    # All that has room is rated soon: now what that takes is at hand.
                    score, is_strained = card_rated(gpu, live=live)
                    card.cost = cost = -(score + points)
                    card.is_strained = is_strained
                    if live or foreign:
                        self.moved.append(card)
                    else:
                        ranked.append((is_strained, cost, card.number, card))
                    if free > 0:
                        free_cards += 1
            if item.is_uniform and cards:
                self.kind_counts[first_kind] += len(cards)
                self.kind_capacity[first_kind] += len(cards) - closed_cards
            else:
                for card in cards:
                    self.kind_counts[card.kind] += 1
                    self.kind_capacity[card.kind] += card.is_open
            if ranked:
                ranked.sort()
                item.empty = len(ranked)
                self.log_empties.append(item)
        self.free_cards = free_cards
        self.capacity = sum(self.kind_capacity)

    def cost_of(self, card: PoolCard) -> float:
        """Its ``cost``, also of one that had no room."""
        if card.cost == UNRATED:
            score, _is_strained = card_rated(card.gpu, live=len(card.slices_before))
            card.cost = -(score + node_score(self.nodes[card.at].node))
        return card.cost

    # Requests

    def number(self, request: Request) -> int:
        """Equal requests have one number: a cheap key, where hashing the request itself would cost more than the work it saves."""
        found = self._numbers.get(request.serial)
        if found is None:
            found = self._numbers[request.serial] = self._number_of.setdefault(request, len(self._number_of))
        return found

    def needs(self, request: Request) -> list[Need | Reason]:
        """What the request takes from a card of each kind, by ``PoolCard.kind``."""
        number = self.number(request)
        found = self._needs.get(number)
        if found is None:
            found = self._needs[number] = [
                node_mismatch(request, node) or need_on(request, gpu, self.policy)
                for gpu, node in zip(self.kinds, self.kind_nodes, strict=True)
            ]
        return found

    def inventory(self) -> Inventory:
        """The cards by kind, for ``never_reason``."""
        alike: dict[object, list[PoolNode]] = {}
        for item in self.nodes:
            cards = item.cards
            key = (cards[0].kind, len(cards)) if cards and item.is_uniform else tuple([card.kind for card in cards])
            if key in alike:
                alike[key].append(item)
            else:
                alike[key] = [item]
        counts = [(same[0].node, Counter([card.kind for card in same[0].cards]), len(same)) for same in alike.values()]
        return Inventory([item.node for item in self.nodes], list(zip(self.kinds, self.kind_nodes, strict=True)), counts)

    def host_of(self, node: PoolNode) -> int:
        if node.host is None:
            node.host = self.mix.host_class(node.cpu_milli, node.memory_mib)
        return node.host

    # Placing

    def place(self, job: int, shape: Shape, sets: Sequence[Candidate]) -> Placement:
        """Take the sets: all ranks of the job at once."""
        if len(sets) > 1:
            sets = sorted(sets, key=lambda item: item.node.node.id)
        ranks = []
        for index, item in enumerate(sets):
            grants = tuple([self._take(job, shape, item.node, card) for card in item.cards])
            self._changed(item.node, shape)
            ranks.append(RankPlacement(index, item.node.node.id, grants))
        return Placement(job, tuple(ranks))

    def place_one(self, job: int, shape: Shape, card: PoolCard) -> Placement:
        """Take one card, for a shape that asks nothing of the host."""
        node = self.nodes[card.at]
        grants = (self._take(job, shape, node, card),)
        node.version += 1
        self.log.append(node)
        rank, placement = new(RankPlacement), new(Placement)
        rank.index, rank.node, rank.grants = 0, node.node.id, grants
        placement.job, placement.ranks = job, (rank,)
        return placement

    def _changed(self, node: PoolNode, shape: Shape) -> None:
        request = shape.request
        if shape.has_host:
            if request.cpu_milli and node.cpu_milli is not None:
                node.cpu_milli -= request.cpu_milli
            if request.host_mem_mib and node.memory_mib is not None:
                node.memory_mib -= request.host_mem_mib
            node.host = None
            self.moved += node.cards
            node.version_empties += 1
            self.log_empties.append(node)
        node.version += 1
        self.log.append(node)

    def _take(self, job: int, shape: Shape, node: PoolNode, card: PoolCard) -> Grant:
        need: Need = shape.needs[card.kind]  # type: ignore[assignment]  # a Reason has no such numbers: it fails as loudly
        free, live = card.free_mib, card.live
        if live >= need.max_live or free < need.least_mib:
            raise AssertionError(f"card {card.gpu.id} was offered to job {job} without room")
        exclusive = need.exclusive
        mib = need.mib if exclusive or need.mib < free else free  # as Need.take says
        if live == 0:
            if card.is_plain:
                node.empty -= 1
            node.version_empties += 1
            self.log_empties.append(node)
        if card.added is None:
            card.added = [(job, mib, exclusive)]
        else:
            card.added.append((job, mib, exclusive))
        card.live = live + 1
        card.free_mib = free - mib
        if free <= mib:
            card.bucket = -1
            self.free_cards -= 1
        else:
            self.moved.append(card)
        grant = new(Grant)
        grant.gpu, grant.mib, grant.exclusive = card.gpu.id, mib, exclusive
        return grant

    def set_aside(self, cards: Iterable[PoolCard], job: int) -> None:
        """Keep the cards for a job that waits for them: no later job gets them, but for one whose shape takes kept cards."""
        for card in cards:
            node = self.nodes[card.at]
            if card.is_empty():
                node.empty -= 1
            node.kept += card.aside_for is None
            card.aside_for = job
            card.is_plain = False
            self.kept_kinds.add(card.kind)
            node.version += 1
            node.version_empties += 1
            self.moved.append(card)
            self.log.append(node)
            self.log_empties.append(node)


def _by_gpu(slices: Sequence[Slice]) -> dict[int, Sequence[Slice]]:
    """The slices by card."""
    found: dict[int, Sequence[Slice]] = {part.gpu: (part,) for part in slices}
    if len(found) == len(slices):
        return found
    shared: dict[int, list[Slice]] = {}
    for part in slices:
        shared.setdefault(part.gpu, []).append(part)
    return dict(shared)
