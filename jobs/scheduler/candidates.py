"""The best free set of cards for a request, found without looking at every card: the index that makes a pass cheap.

Per distinct request there is a ``Shape``. What is asked for most, one card of one node without a say on the host, is found by
*buckets*: cards in the same state, on nodes with as many empty cards, are equally good for packing, so each bucket is judged
once for each shape, and within it the cards stand in the order of their own scores. All else (several cards or nodes, host
cores and memory, nodes to be avoided) is found by nodes: a heap of one candidate for each node that can serve the shape.
Both are caught up lazily from the pool's log of changes; stale entries are dropped when they come to the top.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from jobs.scheduler.fragmentation import State
from jobs.scheduler.need import Need, cards_per_node, host_short, node_mismatch
from jobs.scheduler.pool import Pool, PoolCard, PoolNode
from jobs.scheduler.score import (
    FIRST_FIT,
    FRAGMENTATION_AWARE,
    TOPOLOGY_WEIGHT,
    WEIGHTS,
    packing_class,
    slice_fragmentation,
    whole_fragmentation,
)
from jobs.scheduler.topology import ROUND, choose_set
from jobs.scheduler.types import Reason, Request

Level = tuple[bool, int, bool]  # (strained, packing class, breaks an empty card): least is best


def _card_place(card: PoolCard) -> tuple[int, int]:
    return (card.gpu.index, card.gpu.id)


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


class Bucket:
    """Cards that pack alike. INVARIANT: ``cards`` is a heap by score, node, index; a card whose ``bucket`` is another is stale."""

    __slots__ = ("cards", "empty", "host", "is_kept", "is_strained", "size", "state")

    def __init__(self, state: State, host: int, empty: int, size: int, is_strained: bool, is_kept: bool) -> None:
        self.state = state
        self.host = host
        self.empty = empty  # empty cards of the kind on the node; 0 = the card itself is not empty
        self.size = size  # cards of the node, where it matters
        self.is_strained = is_strained
        self.is_kept = is_kept
        self.cards: list[tuple[float, int, int, int, PoolCard]] = []

    def top(self) -> tuple[float, int, int, int, PoolCard] | None:
        cards = self.cards
        while cards:
            if cards[0][4].bucket is self:
                return cards[0]
            heapq.heappop(cards)
        return None


class Shape:
    """One distinct request within the pass: its needs by card kind, and its candidates."""

    __slots__ = (
        "avoid", "by_card", "has_host", "heap", "is_whole", "known", "levels", "needs", "order", "per_node", "request", "seen",
        "step", "takes_kept",
    )  # fmt: skip

    def __init__(self, request: Request, avoid: frozenset[int], needs: list[Need | Reason], *, takes_kept: bool) -> None:
        self.request = request
        self.avoid = avoid
        self.needs = needs
        self.takes_kept = takes_kept
        self.per_node = cards_per_node(request)
        self.has_host = bool(request.cpu_milli or request.host_mem_mib)
        self.is_whole = request.gpu_mem_mib is None  # only empty cards will do
        self.by_card = self.per_node == 1 and request.nodes == 1 and not avoid and not self.has_host
        self.seen = 0
        self.step: dict[State, tuple[int, State, float, float] | None] = {}
        # By card: level -> (weight of the bucket's fragmentation score, bucket).
        self.levels: dict[Level, list[tuple[float, Bucket]]] = {}
        self.order: list[Level] = []
        self.known: set[int] = set()
        # By node.
        self.heap: list[Candidate] | None = None


class Candidates:
    """The shapes of one pass and the buckets that they share."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.strategy = FRAGMENTATION_AWARE if pool.policy.strategy == "default" else pool.policy.strategy
        self._shapes: dict[tuple[int, frozenset[int], bool], Shape] = {}
        self._buckets: dict[tuple[State, int, int, int, bool, bool], Bucket] = {}
        self._filled: list[Bucket] = []  # buckets in the order in which they got their first card
        self._seen: int | None = None
        self._tick = count()
        self._unit = self._mean_card()

    def _mean_card(self) -> float:
        sizes = [card.gpu.total_mib for node in self.pool.nodes for card in node.cards if card.gpu.total_mib]
        return sum(sizes) / len(sizes) if sizes else 1.0

    def shape(self, request: Request, avoid: frozenset[int] = frozenset(), *, takes_kept: bool = False) -> Shape:
        """``takes_kept``: cards that are kept for a waiting job are good as well (for one that ends before they are needed)."""
        key = (self.pool.number(request), avoid, takes_kept)
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = Shape(request, avoid, self.pool.needs(request), takes_kept=takes_kept)
        return found

    def best_sets(self, shape: Shape) -> Sequence[Candidate] | None:
        """The best card set on each of ``request.nodes`` distinct nodes; None = there are not so many now. Nothing is taken yet."""
        if shape.by_card:
            card = self._best_card(shape)
            return None if card is None else (Candidate((), card.node, (card,), 0),)
        if shape.request.nodes > 1:
            return self._best_nodes(shape, shape.request.nodes)
        heap = self._caught_up(shape)
        while heap:
            if heap[0].version == heap[0].node.version:
                return heap[:1]
            heapq.heappop(heap)
        return None

    # What a placement costs

    def _step(self, shape: Shape, state: State) -> tuple[int, State, float, float] | None:
        """What the shape does to a card in this state: (MiB asked for, state after, fragmentation score, share free before)."""
        kind, free, live = state
        need = shape.needs[kind]
        found: tuple[int, State, float, float] | None = None
        if isinstance(need, Need):
            mib = need.take(free_mib=free, live=live)
            if mib is not None:
                total = self.pool.kinds[kind].total_mib or 1
                asked = min(shape.request.gpu_mem_mib or total, total)
                tight = asked / total if need.exclusive else slice_fragmentation(total_mib=total, free_mib=free, taken_mib=mib)
                found = (asked, (kind, 0 if need.exclusive else free - mib, live + 1), tight, free / total)
        shape.step[state] = found
        return found

    def _lost(self, host: int, before: State, after: State, empty: int) -> float:
        """Expected usable MiB lost when a card goes from one state to another; ``empty`` > 0: it is one of so many empty cards."""
        mix = self.pool.mix
        table = mix.table(host)
        lost = table[before] - table[after]
        if empty > 1:
            lost += mix.wide(host, before[0], empty) - mix.wide(host, before[0], empty - 1)
        return lost

    # By card

    def _best_card(self, shape: Shape) -> PoolCard | None:
        self._refresh()
        if shape.seen < len(self._filled):
            for bucket in self._filled[shape.seen :]:
                self._offer(shape, bucket)
            shape.seen = len(self._filled)
        order, levels = shape.order, shape.levels
        while order:
            best: tuple[float, int, int, int] | None = None
            card: PoolCard | None = None
            has_stale = False
            offers = levels[order[0]]
            for weight, bucket in offers:
                item = bucket.top()
                if item is None:
                    has_stale = True
                    continue
                key = (round(item[0] - weight, ROUND), item[1], item[2], item[3])
                if best is None or key < best:
                    best, card = key, item[4]
            if has_stale:
                shape.known.difference_update(id(bucket) for _weight, bucket in offers if not bucket.cards)
                levels[order[0]] = [offer for offer in offers if offer[1].cards]
            if card is not None:
                return card
            del levels[heapq.heappop(order)]
        return None

    def _offer(self, shape: Shape, bucket: Bucket) -> None:
        if id(bucket) in shape.known or (bucket.is_kept and not shape.takes_kept):
            return
        state = bucket.state
        step = shape.step[state] if state in shape.step else self._step(shape, state)
        if step is None:
            return
        asked, after, tight, free = step
        shape.known.add(id(bucket))
        if self.strategy == FIRST_FIT:
            level: Level = (False, 0, False)
            weight = 0.0
        else:
            need = shape.needs[state[0]]
            is_whole = isinstance(need, Need) and need.exclusive
            full = whole_fragmentation(empty=bucket.empty, cards=bucket.size) if bucket.empty else tight
            if is_whole and bucket.empty:
                tight = (tight + full) / 2
                free = bucket.empty / bucket.size
            lost = 0.0
            if self.strategy == FRAGMENTATION_AWARE:
                lost = (self._lost(bucket.host, state, after, bucket.empty) - asked) / self._unit
            weight = WEIGHTS["fragmentation"] * full
            cls = packing_class(self.strategy, lost=lost, fragmentation=tight, free_share=free)
            level = (bucket.is_strained, cls, bucket.empty > 0 and not is_whole and self.strategy == FRAGMENTATION_AWARE)
        if level in shape.levels:
            shape.levels[level].append((weight, bucket))
        else:
            shape.levels[level] = [(weight, bucket)]
            heapq.heappush(shape.order, level)

    def _refresh(self) -> None:
        """Put the cards of all changed nodes into their buckets."""
        log = self.pool.log
        if self._seen is None:
            for node in self.pool.nodes:
                if node.node.takes_work:
                    self._sort_in(node)
        elif self._seen < len(log):
            for node in dict.fromkeys(log[self._seen :]):
                self._sort_in(node)
        else:
            return
        self._seen = len(log)

    def _sort_in(self, node: PoolNode) -> None:
        pool = self.pool
        buckets = self._buckets
        host = pool.host_of(node)
        is_first = self.strategy == FIRST_FIT
        for card in node.cards:
            if card.free_mib <= 0 or not card.is_open:
                card.bucket = None
                continue
            was = card.bucket
            is_kept = card.aside_for is not None
            empty, size = (node.empty_of(card.kind), len(node.cards)) if card.live == 0 and not is_kept and not card.foreign_mib else (0, 0)
            is_strained = card.is_strained() if was is None else was.is_strained
            state = (card.kind, card.free_mib, card.live)
            key = (state, host, empty, size, is_strained, is_kept)
            bucket = buckets.get(key)
            if bucket is None:
                bucket = buckets[key] = Bucket(*key)
            elif bucket is was:
                continue
            if not bucket.cards:
                self._filled.append(bucket)
            card.bucket = bucket
            score = 0.0 if is_first else -card.score()
            heapq.heappush(bucket.cards, (score, node.node.id, card.gpu.index, card.gpu.id, card))

    # By node

    def _caught_up(self, shape: Shape) -> list[Candidate]:
        """The shape's heap, with all changes since its last use worked in."""
        log = self.pool.log
        if shape.heap is None:
            shape.heap = [item for node in self.pool.nodes if (item := self._on_node(shape, node)) is not None]
            heapq.heapify(shape.heap)
        elif shape.seen < len(log):
            for node in dict.fromkeys(log[shape.seen :]):
                item = self._on_node(shape, node)
                if item is not None:
                    heapq.heappush(shape.heap, item)
        shape.seen = len(log)
        return shape.heap

    def _on_node(self, shape: Shape, node: PoolNode) -> Candidate | None:
        request, k = shape.request, shape.per_node
        if not node.node.takes_work or (shape.has_host and host_short(request, node.cpu_milli, node.memory_mib) is not None):
            return None
        if k == 0:
            if node_mismatch(request, node.node) is not None:
                return None
        elif shape.is_whole:
            if node.empty < k and not shape.takes_kept:
                return None
            if k > 1 and node.is_uniform and self.strategy == FRAGMENTATION_AWARE and node.near()[0] is None:
                return self._wide(shape, node)
        able: list[tuple[PoolCard, tuple[int, State, float, float]]] = []
        step = shape.step
        for card in node.cards if k else ():
            if not card.is_open or (card.aside_for is not None and not shape.takes_kept):
                continue
            state = (card.kind, card.free_mib, card.live)
            effect = step[state] if state in step else self._step(shape, state)
            if effect is not None:
                able.append((card, effect))
        if len(able) < k:
            return None
        avoided = node.node.id in shape.avoid
        if self.strategy == FIRST_FIT:
            cards = [card for card, _effect in able[:k]]
            return Candidate((avoided, node.node.id, next(self._tick)), node, cards, node.version)
        if k <= 1 and self.strategy == FRAGMENTATION_AWARE:
            return self._single(shape, node, able, avoided=avoided)
        return self._ranked(shape, node, able, avoided=avoided)

    def _single(
        self, shape: Shape, node: PoolNode, able: Sequence[tuple[PoolCard, tuple[int, State, float, float]]], *, avoided: bool
    ) -> Candidate:
        """The card of the node that loses least, or the node itself for a job without cards: on one node nothing is scattered by the finest
        difference, so that loss is not rounded there."""
        host, moved = self._host_after(shape, node)
        best: tuple[bool, int, float, int, int] | None = None
        least = 0.0
        chosen: PoolCard | None = None
        breaks = False
        losses: dict[State, tuple[float, int]] = {}
        for card, (asked, after, tight, _free) in able:
            state = (card.kind, card.free_mib, card.live)
            found = losses.get(state)
            if found is None:
                empty = node.empty_of(card.kind) if card.is_empty() else 0
                found = losses[state] = (self._lost(host, state, after, empty) - asked, empty)
            lost, empty = found
            full = whole_fragmentation(empty=node.empty, cards=len(node.cards)) if empty else tight
            score = -(card.score() + WEIGHTS["fragmentation"] * full)
            key = (card.is_strained(), round(lost), round(score, ROUND), card.gpu.index, card.gpu.id)
            if best is None or key < best:
                best, chosen, breaks, least = key, card, empty > 0 and not shape.is_whole, lost
        tick = next(self._tick)
        if best is None or chosen is None:
            cls = packing_class(self.strategy, lost=moved / self._unit, fragmentation=0.0, free_share=0.0)
            return Candidate((avoided, False, 0.0, cls, False, 0.0, node.node.id, tick), node, (), node.version)
        cls = packing_class(self.strategy, lost=(least + moved) / self._unit, fragmentation=0.0, free_share=0.0)
        return Candidate((avoided, best[0], 0.0, cls, breaks, best[2], node.node.id, tick), node, (chosen,), node.version)

    def _wide(self, shape: Shape, node: PoolNode) -> Candidate | None:
        """Whole cards of a node where any set is as near and packs as well as another: the ones with the best scores."""
        k = shape.per_node
        empties = [
            card
            for card in node.cards
            if card.live == 0 and card.is_open and not card.foreign_mib and (card.aside_for is None or shape.takes_kept)
        ]
        if len(empties) < k:
            return None
        state = empties[0].state()
        step = shape.step[state] if state in shape.step else self._step(shape, state)
        if step is None:
            return None
        ranked = sorted([(card.is_strained(), -card.score(), card.gpu.index, card.gpu.id, card) for card in empties])
        chosen = ranked[:k]
        host, moved = self._host_after(shape, node)
        mix, kind = self.pool.mix, state[0]
        table = mix.table(host)
        lost = moved + k * (table[state] - table[step[1]] - step[0])
        lost += mix.wide(host, kind, node.empty) - mix.wide(host, kind, max(node.empty - k, 0))
        cls = packing_class(self.strategy, lost=lost / self._unit, fragmentation=0.0, free_share=0.0)
        full = whole_fragmentation(empty=node.empty, cards=len(node.cards))
        nearness = node.near()[1]
        score = WEIGHTS["fragmentation"] * full - sum([item[1] for item in chosen]) / k
        score = (1 - TOPOLOGY_WEIGHT) * score + TOPOLOGY_WEIGHT * nearness
        cards = sorted([item[4] for item in chosen], key=_card_place)
        avoided = node.node.id in shape.avoid
        key = (avoided, chosen[-1][0], -round(nearness, 3), cls, False, -round(score, ROUND), node.node.id, next(self._tick))
        return Candidate(key, node, cards, node.version)

    def _ranked(
        self, shape: Shape, node: PoolNode, able: Sequence[tuple[PoolCard, tuple[int, State, float, float]]], *, avoided: bool
    ) -> Candidate:
        """The best set of the able cards, and the node's place among the others."""
        k = shape.per_node
        is_aware = self.strategy == FRAGMENTATION_AWARE
        host, moved = self._host_after(shape, node) if is_aware else (0, 0.0)
        ranked = []
        for card, (asked, after, tight, free) in able:
            empty = node.empty_of(card.kind) if card.is_empty() else 0
            need = shape.needs[card.kind]
            is_whole = isinstance(need, Need) and need.exclusive
            full = whole_fragmentation(empty=node.empty, cards=len(node.cards)) if empty else tight
            if is_whole and empty:
                tight = (tight + full) / 2
                free = empty / len(node.cards)
            lost = self._lost(host, card.state(), after, empty) - asked if is_aware else 0.0
            cls = packing_class(self.strategy, lost=lost / self._unit, fragmentation=tight, free_share=free)
            score = card.score() + WEIGHTS["fragmentation"] * full
            level = (card.is_strained(), cls, is_aware and empty > 0 and not is_whole)
            ranked.append((level, -round(score, ROUND), card.gpu.index, card.gpu.id, card, lost, tight, free))
        ranked.sort(key=lambda item: item[:4])
        near, nearness = node.near() if k > 1 else (None, 1.0)
        if near is None:
            chosen = ranked[:k]
        else:
            by_id = {item[3]: item for item in ranked}
            # A whole class outweighs any score, a strained card any class.
            worth = [-1000.0 * item[0][0] - 2.0 * item[0][1] - item[0][2] - item[1] for item in ranked]
            ids, nearness = choose_set(list(by_id), worth, k, near)
            chosen = [by_id[gpu_id] for gpu_id in ids]
        score = -sum(item[1] for item in chosen) / max(k, 1)
        if k > 1:
            score = (1 - TOPOLOGY_WEIGHT) * score + TOPOLOGY_WEIGHT * nearness
        lost = sum(item[5] for item in chosen) + moved
        if is_aware and k > 1:
            lost += self._wide_lost(host, node, [item[4] for item in chosen])
        cls = packing_class(
            self.strategy,
            lost=lost / self._unit,
            fragmentation=sum(item[6] for item in chosen) / max(k, 1),
            free_share=sum(item[7] for item in chosen) / max(k, 1),
        )
        strained = any(item[0][0] for item in chosen)
        breaks = any(item[0][2] for item in chosen)
        # Of several cards nearness decides before packing: the job lives with its links until its end.
        far = -round(nearness, 3) if k > 1 else 0.0
        key = (avoided, strained, far, cls, breaks, -round(score, ROUND), node.node.id, next(self._tick))
        cards = sorted((item[4] for item in chosen), key=_card_place)
        return Candidate(key, node, cards, node.version)

    def _wide_lost(self, host: int, node: PoolNode, chosen: Sequence[PoolCard]) -> float:
        """What taking several empty cards at once loses beyond the sum of taking each of them first."""
        mix = self.pool.mix
        lost = 0.0
        by_kind: dict[int, int] = {}
        for card in chosen:
            if card.is_empty():
                by_kind[card.kind] = by_kind.get(card.kind, 0) + 1
        for kind, taken in by_kind.items():
            empty = node.empty_of(kind)
            once = mix.wide(host, kind, empty) - mix.wide(host, kind, empty - 1)
            lost += mix.wide(host, kind, empty) - mix.wide(host, kind, empty - taken) - taken * once
        return lost

    def _host_after(self, shape: Shape, node: PoolNode) -> tuple[int, float]:
        """The node's host class once the job is there, and the usable MiB that its cards lose by that alone."""
        pool, request = self.pool, shape.request
        before = pool.host_of(node)
        if not shape.has_host:
            return before, 0.0
        cpu = None if node.cpu_milli is None else node.cpu_milli - (request.cpu_milli or 0)
        memory = None if node.memory_mib is None else node.memory_mib - (request.host_mem_mib or 0)
        after = pool.mix.host_class(cpu, memory)
        if after == before:
            return before, 0.0
        one, two = pool.mix.table(before), pool.mix.table(after)
        lost = 0.0
        kinds = set()
        for card in node.cards:
            if card.free_mib > 0 and card.is_open and card.aside_for is None:
                state = (card.kind, card.free_mib, card.live)
                lost += one[state] - two[state]
                kinds.add(card.kind)
        for kind in kinds:
            empty = node.empty_of(kind)
            lost += pool.mix.wide(before, kind, empty) - pool.mix.wide(after, kind, empty)
        return after, lost

    def _best_nodes(self, shape: Shape, wanted: int) -> list[Candidate] | None:
        """Several nodes: of one model if there are enough of those, of one network group if there are, then over the fastest links."""
        found = [item for node in self.pool.nodes if (item := self._on_node(shape, node)) is not None]
        if len(found) < wanted:
            return None
        groups: dict[tuple[str | None, str | None], list[Candidate]] = {}
        for item in found:
            models = {card.gpu.model for card in item.cards}
            model = models.pop() if len(models) == 1 else None
            group = item.node.node.network_group
            for pair in {(model, group), (model, None), (None, group), (None, None)}:
                groups.setdefault(pair, []).append(item)
        best: tuple[tuple[object, ...], list[Candidate]] | None = None
        for (model, group), items in groups.items():
            if len(items) < wanted:
                continue
            items.sort(key=lambda item: (item.key[0], item.key[1], -(item.node.node.network_mbps or 0), item.key))
            chosen = items[:wanted]
            slowest = min(item.node.node.network_mbps or 0 for item in chosen)
            rank = (any(item.key[0] for item in chosen), model is None, group is None, -slowest, sorted(item.key for item in chosen))
            if best is None or rank < best[0]:
                best = (rank, chosen)
        return best[1] if best is not None else None
