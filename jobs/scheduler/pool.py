"""The cards and nodes of one pass, as they fill up.

Nothing is freed within a pass. So a request that failed once fails again, and cards only ever fill.

INVARIANT: each change of a card or of a node's host is in ``Pool.log``; a node's ``version`` grows with each change of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from jobs.scheduler.binding import CardView, NodeView
from jobs.scheduler.fragmentation import Mix, State, mix_of
from jobs.scheduler.need import Need, cpu_ranks_max, foreign_counted_mib, host_free, host_short, need_on, node_mismatch
from jobs.scheduler.never import NodeTraits, kind_of
from jobs.scheduler.score import STRATEGIES, card_score, is_strained, node_score
from jobs.scheduler.topology import Nearness, pair_nearness
from jobs.scheduler.types import Gpu, Grant, Node, Placement, Policy, RankPlacement, Reason, Request, Slice, Snapshot

if TYPE_CHECKING:
    from jobs.scheduler.candidates import Bucket, Candidate, Shape

_gpu_key = attrgetter("index", "id")
_request_of = attrgetter("request")


#: All that a reason says of a card, or depends on.
Look = tuple[int, int, int, int, int | None, str, int]


class PoolCard:
    """A card as it fills up within the pass. ``free_mib`` is what is really free: slices and counted foreign use taken off."""

    __slots__ = (
        "_added", "_first", "_strained", "aside_for", "bucket", "foreign_mib", "free_mib", "gpu", "is_open", "kind", "live", "node",
        "points",
    )  # fmt: skip

    def __init__(self, gpu: Gpu, node: PoolNode, kind: int, slices: Sequence[Slice], free_mib: int, foreign_mib: int) -> None:
        self.gpu = gpu
        self.node = node
        self.kind = kind
        self.live = len(slices)
        self.free_mib = free_mib
        self.foreign_mib = foreign_mib
        self.is_open = gpu.is_schedulable and node.node.takes_work
        self.aside_for: int | None = None
        self.bucket: Bucket | None = None
        self.points: float | None = None
        self._strained: bool | None = None
        self._first = slices
        self._added: list[tuple[int, int, bool]] = []

    def can_take(self, need: Need, *, kept: bool = False) -> bool:
        """Whether the need fits now and the card is not kept for another job; ``kept``: kept cards are good as well."""
        return self.live < need.max_live and self.free_mib >= need.least_mib and self.is_open and (kept or self.aside_for is None)

    def state(self) -> State:
        return (self.kind, self.free_mib, self.live)

    def is_empty(self) -> bool:
        """Whether a job that wants a whole card could have it now."""
        return self.live == 0 and self.foreign_mib == 0 and self.is_open and self.aside_for is None

    def score(self) -> float:
        """The part of the score that no placement changes."""
        if self.points is None:
            self.points = card_score(self.gpu) + self.node.points
        return self.points

    def is_strained(self) -> bool:
        """As the pass began: what it places itself strains nothing yet."""
        if self._strained is None:
            self._strained = is_strained(self.gpu, live=len(self._first))
        return self._strained

    def look(self) -> Look:
        return (self.kind, self.free_mib, self.live, self.foreign_mib, self.aside_for, self.gpu.state, self.gpu.index)

    @property
    def slices(self) -> list[Slice]:
        """All that lives on the card now, what this pass has placed included."""
        gpu = self.gpu.id
        return [*self._first, *(Slice(gpu=gpu, mib=mib, exclusive=whole, job=job) for job, mib, whole in self._added)]

    def take(self, job: int, mib: int, *, exclusive: bool) -> None:
        self._added.append((job, mib, exclusive))
        self.live += 1
        self.free_mib -= mib


class _CardViews(dict[int, CardView]):
    """How one request sees a card, by the number of its look: of the card itself a reason says nothing that is not in it."""

    def __init__(self, needs: Sequence[Need | Reason], numbers: Mapping[Look, int]) -> None:
        super().__init__()
        self._needs = needs
        self._numbers = numbers
        self.cards: Sequence[PoolCard] = ()  # of the node that is looked at now

    def __missing__(self, look: int) -> CardView:
        card = next(card for card in self.cards if self._numbers[card.look()] == look)
        free = max(card.free_mib + card.foreign_mib, 0)
        view = self[look] = CardView(card.gpu, self._needs[card.kind], free, card.foreign_mib, card.live, card.aside_for)
        return view


class PoolNode:
    """A node and its cards, in index order. ``empty`` = cards that could go to a whole-card job now.

    ``cpu_milli`` and ``memory_mib``: what the host has free; None = unknown.
    """

    __slots__ = (
        "_near",
        "_points",
        "cards",
        "cpu_milli",
        "cpu_ranks",
        "empty",
        "host",
        "is_uniform",
        "look",
        "looks",
        "memory_mib",
        "node",
        "version",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cards: list[PoolCard] = []
        self.empty = 0
        self.version = 0
        self.cpu_ranks = node.live_cpu_ranks
        self.cpu_milli, self.memory_mib = host_free(node)
        self.host: int | None = None  # the mix's class of it; None = to be asked for again
        self.is_uniform = True  # cards of one kind
        self.look = -1  # the number of how the node looks (Pool.views); -1 = to be looked at again
        self.looks: tuple[int, ...] = ()
        self._points: float | None = None
        self._near: tuple[Nearness | None, float] | None = None

    @property
    def has_cpu_room(self) -> bool:
        return self.cpu_ranks < cpu_ranks_max(self.node)

    @property
    def points(self) -> float:
        if self._points is None:
            self._points = node_score(self.node)
        return self._points

    def empty_of(self, kind: int) -> int:
        """Empty cards of one kind."""
        return self.empty if self.is_uniform else sum(card.kind == kind and card.is_empty() for card in self.cards)

    def near(self) -> tuple[Nearness | None, float]:
        if self._near is None:
            self._near = pair_nearness(self.node)
        return self._near


class Pool:
    """Everything that one pass fills up. Built from a snapshot; the order of its nodes, cards and slices does not matter.

    Raises ValueError for a ``policy.strategy`` that does not exist.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        if policy.strategy not in STRATEGIES:
            raise ValueError(f"Policy.strategy is {policy.strategy!r}; it can be {', '.join(STRATEGIES)}.")
        self.policy = policy
        self.nodes: list[PoolNode] = []
        self.kinds: list[Gpu] = []  # one sample of each kind …
        self.kind_nodes: list[Node] = []  # … and of the node it is on
        self.kept_kinds: set[int] = set()  # kinds of which some card is kept for a waiting job
        self.log: list[PoolNode] = []
        self._needs: dict[int, list[Need | Reason]] = {}
        self._mix: Mix | None = None
        self._look_numbers: dict[object, int] = {}
        self._card_looks: dict[Look, int] = {}
        self._known_mix = snapshot.mix
        # Equal requests are mostly one object: counting objects first saves hashing each.
        requests = [*map(_request_of, snapshot.jobs)]
        by_id = dict(zip(map(id, requests), requests, strict=True))
        self.requests: Counter[Request] = Counter()
        self._numbers: dict[int, int] = {}  # by the request's identity; the snapshot keeps the objects alive
        self._number_of: dict[Request, int] = {}
        for key, times in Counter(map(id, requests)).items():
            request = by_id[key]
            self.requests[request] += times
            self._numbers[key] = self._number_of.setdefault(request, len(self._number_of))
        self.traits = NodeTraits(self.requests)
        self._build(snapshot)

    def _build(self, snapshot: Snapshot) -> None:
        taken: dict[int, list[Slice]] = {}
        for part in snapshot.slices:
            if part.gpu in taken:
                taken[part.gpu].append(part)
            else:
                taken[part.gpu] = [part]
        nothing: list[Slice] = []
        policy = self.policy
        kind_at: dict[object, int] = {}
        for node in sorted(snapshot.nodes, key=attrgetter("id")):
            item = PoolNode(node)
            self.nodes.append(item)
            traits = self.traits.of(node)
            first_kind = -1
            for gpu in sorted(node.gpus, key=_gpu_key):
                key = (kind_of(gpu), traits)
                kind = kind_at.get(key)
                if kind is None:
                    kind = kind_at[key] = len(self.kinds)
                    self.kinds.append(gpu)
                    self.kind_nodes.append(node)
                if first_kind < 0:
                    first_kind = kind
                elif kind != first_kind:
                    item.is_uniform = False
                foreign = foreign_counted_mib(gpu, policy) if gpu.foreign_mib else 0
                total = gpu.total_mib or 0
                slices = taken.get(gpu.id, nothing)
                free = total - foreign
                for part in slices:
                    free -= total if part.exclusive else part.mib
                card = PoolCard(gpu, item, kind, slices, free, foreign)
                item.cards.append(card)
                if not slices and not foreign and card.is_open:
                    item.empty += 1

    # Requests

    def number(self, request: Request) -> int:
        """Equal requests have one number: a cheap key, where hashing the request itself would cost more than the work it saves."""
        found = self._numbers.get(id(request))
        # Not of this snapshot's jobs: its identity may be used again.
        return self._number_of.setdefault(request, len(self._number_of)) if found is None else found

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

    @property
    def mix(self) -> Mix:
        """What comes, as packing sees it: made when first asked for."""
        if self._mix is None:
            self._mix = Mix(mix_of(self._known_mix or self.requests.items()), self.kinds, self.needs, is_sliced=self.policy.slicing_rules)
        return self._mix

    def host_of(self, node: PoolNode) -> int:
        if node.host is None:
            node.host = self.mix.host_class(node.cpu_milli, node.memory_mib)
        return node.host

    def views(self, request: Request) -> Iterable[NodeView]:
        """The pool as the request sees it, for ``binding_reason``: nodes that look alike are one view, by the first of them."""
        needs = self.needs(request)
        has_host = request.cpu_milli is not None or request.host_mem_mib is not None
        numbers = self._look_numbers
        groups: dict[object, list[PoolNode]] = {}
        for item in self.nodes:
            number = item.look
            if number < 0:
                looks = self._card_looks
                item.looks = tuple([looks.setdefault(card.look(), len(looks)) for card in item.cards])
                number = item.look = numbers.setdefault((item.node.takes_work, item.node.refusal, item.looks), len(numbers))
            key = (number, item.cpu_milli, item.memory_mib) if has_host else number
            if key in groups:
                groups[key].append(item)
            else:
                groups[key] = [item]
        views = _CardViews(needs, self._card_looks)
        for alike in groups.values():
            item = alike[0]
            node = item.node
            views.cards = item.cards
            cards = [views[look] for look in item.looks]
            short = host_short(request, item.cpu_milli, item.memory_mib) if has_host else None
            yield NodeView(node.name, node.refusal, node.takes_work, cards, short, item.cpu_milli, item.memory_mib, times=len(alike))

    # Placing

    def place(self, job: int, shape: Shape, sets: Sequence[Candidate]) -> Placement:
        """Take the sets: all ranks of the job at once."""
        if len(sets) > 1:
            sets = sorted(sets, key=lambda item: item.node.node.id)
        request = shape.request
        ranks = []
        for index, item in enumerate(sets):
            node = item.node
            grants = tuple([self._take(job, shape, card) for card in item.cards])
            if request.cpu_milli and node.cpu_milli is not None:
                node.cpu_milli -= request.cpu_milli
                node.host = None
            if request.host_mem_mib and node.memory_mib is not None:
                node.memory_mib -= request.host_mem_mib
                node.host = None
            node.version += 1
            node.look = -1
            self.log.append(node)
            ranks.append(RankPlacement(index=index, node=node.node.id, grants=grants))
        return Placement(job=job, ranks=tuple(ranks))

    @staticmethod
    def _take(job: int, shape: Shape, card: PoolCard) -> Grant:
        need = shape.needs[card.kind]
        mib = need.take(free_mib=card.free_mib, live=card.live) if isinstance(need, Need) else None
        if mib is None or not isinstance(need, Need):
            raise AssertionError(f"card {card.gpu.id} was offered to job {job} without room")
        if card.live == 0 and card.is_empty():
            card.node.empty -= 1
        card.take(job, mib, exclusive=need.exclusive)
        return Grant(gpu=card.gpu.id, mib=mib, exclusive=need.exclusive)

    def set_aside(self, cards: Iterable[PoolCard], job: int) -> None:
        """Keep the cards for a job that waits for them: no later job gets them, but for one whose shape takes kept cards."""
        for card in cards:
            if card.is_empty():
                card.node.empty -= 1
            card.aside_for = job
            self.kept_kinds.add(card.kind)
            card.node.version += 1
            card.node.look = -1
            self.log.append(card.node)
