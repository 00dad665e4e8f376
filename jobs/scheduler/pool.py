"""The cards and nodes of one pass, as they fill up, and the best free set for a request: the index that makes a pass cheap.

Nothing is freed within a pass. So a request that failed once fails again, and cards only ever fill. Per distinct request a
``Shape`` keeps a heap of candidates that is caught up lazily from a log of changed cards; entries carry the version of their
card or node and are dropped when stale. A pass costs about (distinct requests × open cards) + (placements × distinct requests).

INVARIANT: a card's ``version`` grows with each change of it, a node's with each change of one of its cards.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import count

from jobs.scheduler.binding import CardView, NodeView
from jobs.scheduler.need import Need, cards_per_node, cpu_ranks_max, foreign_counted_mib, need_on
from jobs.scheduler.never import kind_of
from jobs.scheduler.score import TOPOLOGY_WEIGHT, WEIGHTS, card_score, slice_fragmentation, whole_fragmentation
from jobs.scheduler.topology import ROUND, Nearness, choose_set, pair_nearness
from jobs.scheduler.types import Gpu, Grant, Node, Placement, Policy, RankPlacement, Reason, Request, Slice, Snapshot


class PoolCard:
    """A card as it fills up within the pass. ``free_mib`` is what is really free: slices and counted foreign use taken off."""

    __slots__ = ("aside_for", "base", "foreign_mib", "free_mib", "gpu", "is_open", "kind", "live", "node", "slices", "version")

    def __init__(self, gpu: Gpu, node: PoolNode, kind: int, slices: list[Slice], policy: Policy) -> None:
        self.gpu = gpu
        self.node = node
        self.kind = kind
        self.slices = slices
        self.live = len(slices)
        self.foreign_mib = foreign_counted_mib(gpu, policy)
        used = self.foreign_mib
        for part in slices:
            used += part.mib if not part.exclusive else gpu.total_mib or 0
        self.free_mib = (gpu.total_mib or 0) - used
        self.is_open = gpu.is_schedulable and node.node.takes_work
        self.aside_for: int | None = None
        self.version = 0
        self.base: float | None = None

    def can_take(self, need: Need) -> bool:
        """Whether the need fits now and the card is not kept for another job."""
        return self.live < need.max_live and self.free_mib >= need.least_mib and self.is_open and self.aside_for is None

    def score(self) -> float:
        if self.base is None:
            self.base = card_score(self.gpu)
        return self.base

    def view(self, need: Need | Reason) -> CardView:
        free = self.free_mib + self.foreign_mib
        return CardView(self.gpu, need, max(free, 0), self.foreign_mib, self.live, self.aside_for)


class PoolNode:
    """A node and its cards, in index order. ``empty`` = cards that could go to a whole-card job now."""

    __slots__ = ("_near", "cards", "cpu_ranks", "empty", "node", "version")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cards: list[PoolCard] = []
        self.empty = 0
        self.version = 0
        self.cpu_ranks = node.live_cpu_ranks
        self._near: tuple[Nearness | None, float] | None = None

    @property
    def has_cpu_room(self) -> bool:
        return self.cpu_ranks < cpu_ranks_max(self.node)

    def near(self) -> tuple[Nearness | None, float]:
        if self._near is None:
            self._near = pair_nearness(self.node)
        return self._near


class Candidate:
    """The best set of cards for one rank on one node. ``key`` orders candidates: least is best, and no two are equal."""

    __slots__ = ("cards", "key", "node", "version")

    def __init__(self, key: tuple[float, ...], node: PoolNode, cards: Sequence[PoolCard], version: int) -> None:
        self.key = key
        self.node = node
        self.cards = cards
        self.version = version

    def __lt__(self, other: Candidate) -> bool:
        return self.key < other.key


class Shape:
    """One distinct request within the pass: its needs by card kind, and its heap of candidates."""

    __slots__ = ("avoid", "by_card", "has_exclusive", "heap", "needs", "per_node", "request", "seen")

    def __init__(self, request: Request, avoid: frozenset[int], needs: list[Need | Reason]) -> None:
        self.request = request
        self.avoid = avoid
        self.needs = needs
        self.per_node = cards_per_node(request)
        good = [need for need in needs if isinstance(need, Need)]
        self.has_exclusive = any(need.exclusive for need in good)
        # One slice: cards are ranked one by one. Else nodes are, as a set's worth depends on its neighbours.
        self.by_card = self.per_node == 1 and not self.has_exclusive
        self.heap: list[Candidate] | None = None
        self.seen = 0


class Pool:
    """Everything that one pass fills up. Built from a snapshot; the order of its nodes, cards and slices does not matter."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.policy = policy
        self.nodes: list[PoolNode] = []
        self.kinds: list[Gpu] = []  # one sample of each kind
        self.kept_kinds: set[int] = set()  # kinds of which some card is kept for a waiting job
        self.log: list[PoolCard] = []
        self.cpu_heap: list[tuple[float, int, int, int, PoolNode]] | None = None
        self._tick = count()
        self._shapes: dict[tuple[Request, frozenset[int]], Shape] = {}
        self._needs: dict[Request, list[Need | Reason]] = {}
        taken: dict[int, list[Slice]] = {}
        for part in snapshot.slices:
            taken.setdefault(part.gpu, []).append(part)
        kind_at: dict[object, int] = {}
        for node in sorted(snapshot.nodes, key=lambda item: item.id):
            pool_node = PoolNode(node)
            self.nodes.append(pool_node)
            for gpu in sorted(node.gpus, key=lambda item: (item.index, item.id)):
                key = kind_of(gpu)
                kind = kind_at.setdefault(key, len(self.kinds))
                if kind == len(self.kinds):
                    self.kinds.append(gpu)
                card = PoolCard(gpu, pool_node, kind, taken.get(gpu.id, []), policy)
                pool_node.cards.append(card)
                pool_node.empty += card.live == 0 and card.is_open

    # Requests

    def shape(self, request: Request, avoid: frozenset[int]) -> Shape:
        key = (request, avoid)
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = Shape(request, avoid, self.needs(request))
        return found

    def needs(self, request: Request) -> list[Need | Reason]:
        """What the request takes from a card of each kind, by ``PoolCard.kind``."""
        found = self._needs.get(request)
        if found is None:
            found = self._needs[request] = [need_on(request, gpu, self.policy) for gpu in self.kinds]
        return found

    def views(self, request: Request) -> Iterable[NodeView]:
        """The pool as the request sees it, for ``binding_reason``."""
        needs = self.needs(request)
        for item in self.nodes:
            node = item.node
            yield NodeView(node.name, node.refusal, node.takes_work, [card.view(needs[card.kind]) for card in item.cards])

    # Candidates

    def best_sets(self, shape: Shape) -> list[Candidate] | None:
        """The best card set on each of ``request.nodes`` distinct nodes; None = there are not so many now. Nothing is taken yet."""
        wanted = shape.request.nodes
        if wanted > 1:
            return self._best_nodes(shape, wanted)
        heap = self._caught_up(shape)
        while heap:
            top = heap[0]
            if top.version == (top.cards[0].version if shape.by_card else top.node.version):
                return [top]
            heapq.heappop(heap)
        return None

    def _best_nodes(self, shape: Shape, wanted: int) -> list[Candidate] | None:
        """Several nodes: the best of one model if there are enough of those, else mixed."""
        found = sorted(item for node in self.nodes if (item := self._on_node(shape, node)) is not None)
        if len(found) < wanted:
            return None
        by_model: dict[tuple[str, ...], list[Candidate]] = {}
        for item in found:
            by_model.setdefault(tuple(sorted({card.gpu.model for card in item.cards})), []).append(item)
        uniform = [group[:wanted] for model, group in by_model.items() if len(model) == 1 and len(group) >= wanted]
        return min(uniform, key=lambda group: [item.key for item in group]) if uniform else found[:wanted]

    def _caught_up(self, shape: Shape) -> list[Candidate]:
        """The shape's heap, with all changes since its last use worked in."""
        if shape.heap is None:
            if shape.by_card:
                cards = (card for node in self.nodes if node.node.takes_work for card in node.cards)
                heap = [item for card in cards if (item := self._on_card(shape, card)) is not None]
            else:
                heap = [item for node in self.nodes if (item := self._on_node(shape, node)) is not None]
            heapq.heapify(heap)
            shape.heap = heap
        elif shape.seen < len(self.log):
            changed = self.log[shape.seen :]
            if shape.by_card:
                fresh = [self._on_card(shape, card) for card in dict.fromkeys(changed)]
            else:
                fresh = [self._on_node(shape, node) for node in dict.fromkeys(card.node for card in changed)]
            for item in fresh:
                if item is not None:
                    heapq.heappush(shape.heap, item)
        shape.seen = len(self.log)
        return shape.heap

    def _on_card(self, shape: Shape, card: PoolCard) -> Candidate | None:
        need = shape.needs[card.kind]
        if not isinstance(need, Need) or not card.can_take(need):
            return None
        tier, score = self._rank(card, need, taken=1)
        node = card.node
        key = (node.node.id in shape.avoid, tier, -round(score, ROUND), node.node.id, card.gpu.index, card.gpu.id, next(self._tick))
        return Candidate(key, node, (card,), card.version)

    def _on_node(self, shape: Shape, node: PoolNode) -> Candidate | None:
        k = shape.per_node
        if not node.node.takes_work:
            return None
        able: list[tuple[PoolCard, Need]] = []
        for card in node.cards:
            need = shape.needs[card.kind]
            if isinstance(need, Need) and card.can_take(need):
                able.append((card, need))
        if len(able) < k:
            return None
        ranked = []
        for card, need in able:
            tier, score = self._rank(card, need, taken=k)
            ranked.append((tier, -round(score, ROUND), card.gpu.index, card.gpu.id, card))
        ranked.sort(key=lambda item: item[:4])
        near, nearness = node.near() if k > 1 else (None, 1.0)
        if near is None:
            chosen = ranked[:k]
        else:
            by_id = {item[3]: item for item in ranked}
            # A whole tier outweighs any score.
            ids, nearness = choose_set(list(by_id), [-item[0] - item[1] for item in ranked], k, near)
            chosen = [by_id[gpu_id] for gpu_id in ids]
        score = -sum(item[1] for item in chosen) / k
        if k > 1:
            score = (1 - TOPOLOGY_WEIGHT) * score + TOPOLOGY_WEIGHT * nearness
        tier = max(item[0] for item in chosen)
        key = (node.node.id in shape.avoid, tier, -round(score, ROUND), node.node.id, next(self._tick))
        cards = sorted((item[4] for item in chosen), key=lambda card: (card.gpu.index, card.gpu.id))
        return Candidate(key, node, cards, node.version)

    @staticmethod
    def _rank(card: PoolCard, need: Need, *, taken: int) -> tuple[int, float]:
        """(tier, score) of one card: tier 0 = a slice on a card that is partly used already; score in [0, 1]."""
        total = card.gpu.total_mib or 1
        if need.exclusive:
            asked = need.least_mib
            frag = whole_fragmentation(total_mib=total, needed_mib=asked, empty=card.node.empty, taken=taken, cards=len(card.node.cards))
            return 1, card.score() + WEIGHTS["fragmentation"] * frag
        free = card.free_mib
        frag = slice_fragmentation(total_mib=total, free_mib=free, taken_mib=min(need.mib, free))
        return int(card.live == 0), card.score() + WEIGHTS["fragmentation"] * frag

    # Changes

    def place(self, job: int, shape: Shape, sets: Sequence[Candidate]) -> Placement:
        """Take the sets: all ranks of the job at once."""
        ranks = []
        for index, item in enumerate(sorted(sets, key=lambda item: item.node.node.id)):
            grants = tuple(self._take(job, shape, card) for card in item.cards)
            ranks.append(RankPlacement(index=index, node=item.node.node.id, grants=grants))
        return Placement(job=job, ranks=tuple(ranks))

    def _take(self, job: int, shape: Shape, card: PoolCard) -> Grant:
        need = shape.needs[card.kind]
        mib = need.take(free_mib=card.free_mib, live=card.live) if isinstance(need, Need) else None
        if mib is None or not isinstance(need, Need):
            raise AssertionError(f"card {card.gpu.id} was offered to job {job} without room")
        # A new list: the slices of the snapshot are not ours to change.
        card.slices = [*card.slices, Slice(gpu=card.gpu.id, mib=mib, exclusive=need.exclusive, job=job)]
        card.node.empty -= card.live == 0
        card.live += 1
        card.free_mib -= mib
        self._changed(card)
        return Grant(gpu=card.gpu.id, mib=mib, exclusive=need.exclusive)

    def set_aside(self, cards: Iterable[PoolCard], job: int) -> None:
        """Keep the cards for a job that waits for them: no later job of this pass gets them."""
        for card in cards:
            card.aside_for = job
            self.kept_kinds.add(card.kind)
            card.node.empty -= card.live == 0
            self._changed(card)

    def _changed(self, card: PoolCard) -> None:
        card.version += 1
        card.node.version += 1
        self.log.append(card)

    # Jobs without cards

    def place_cpu(self, job: int, *, nodes: int, avoid: frozenset[int]) -> Placement | None:
        """Ranks without cards, on the nodes with the fewest of them per core; None = too few nodes have room for one."""
        if self.cpu_heap is None:
            self.cpu_heap = [self._cpu_entry(node) for node in self.nodes if node.node.takes_work and node.has_cpu_room]
            heapq.heapify(self.cpu_heap)
        if len(self.cpu_heap) < nodes:
            return None
        chosen: list[PoolNode] = []
        avoided: list[tuple[float, int, int, int, PoolNode]] = []
        while len(chosen) < nodes and self.cpu_heap:
            entry = heapq.heappop(self.cpu_heap)
            if entry[3] in avoid:
                avoided.append(entry)
            else:
                chosen.append(entry[4])
        while len(chosen) < nodes:
            chosen.append(avoided.pop(0)[4])
        for entry in avoided:
            heapq.heappush(self.cpu_heap, entry)
        chosen.sort(key=lambda node: node.node.id)
        for node in chosen:
            node.cpu_ranks += 1
            if node.has_cpu_room:
                heapq.heappush(self.cpu_heap, self._cpu_entry(node))
        ranks = tuple(RankPlacement(index=index, node=node.node.id, grants=()) for index, node in enumerate(chosen))
        return Placement(job=job, ranks=ranks)

    @staticmethod
    def _cpu_entry(node: PoolNode) -> tuple[float, int, int, int, PoolNode]:
        # Unknown cores count as one, the careful guess. Of equally busy nodes the one with fewer cards is taken.
        busy = node.cpu_ranks / max(node.node.cpu_cores or 1, 1)
        return (busy, node.cpu_ranks, len(node.cards), node.node.id, node)
