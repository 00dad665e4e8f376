"""One card of one node without a say on the host, found by *buckets*: what is asked for most.

Cards in the same state, on nodes with as many empty cards, are equally good for packing: each bucket is judged once for each shape,
and within it the cards stand in the order of their own scores. All is caught up lazily from the pool's logs; stale entries are
dropped when they come to the top.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from jobs.scheduler.fragmentation import State
from jobs.scheduler.need import Need
from jobs.scheduler.pool import Pool, PoolCard, PoolNode
from jobs.scheduler.score import FIRST_FIT, FRAGMENTATION_AWARE, WEIGHTS, packing_class, whole_fragmentation
from jobs.scheduler.shapes import Bucket, Level, Losses, Offer, Shape
from jobs.scheduler.topology import ROUND


class Buckets:
    """The buckets of one pass, shared by its shapes."""

    def __init__(self, pool: Pool, losses: Losses) -> None:
        self._pool = pool
        self._losses = losses
        self._buckets: dict[tuple[State, int, int, int, bool, bool], Bucket] = {}
        self._filled: list[Bucket] = []  # buckets in the order in which they got their first card
        self._seen: tuple[int, int] | None = None  # how much of the pool's logs is worked in

    def best_card(self, shape: Shape) -> PoolCard | None:
        """The best card for the shape; None = it fits nowhere now."""
        self._refresh()
        if shape.seen < len(self._filled):
            for bucket in self._filled[shape.seen :]:
                self._offer(shape, bucket)
            shape.seen = len(self._filled)
        order, levels = shape.order, shape.levels
        pop = heapq.heappop
        while order:
            best: tuple[float, int, int, int] | None = None
            found: PoolCard | None = None
            has_stale = False
            offers = levels[order[0]]
            for offer in offers:
                bucket = offer.bucket
                cards, number = bucket.cards, bucket.number
                while cards and cards[0][4].bucket != number:
                    pop(cards)
                if not cards:
                    has_stale = True
                    continue
                item = cards[0]
                if item is not offer.item:
                    offer.item = item
                    offer.key = (round(item[0] - offer.weight, ROUND), item[1], item[2], item[3])
                if best is None or offer.key < best:
                    best, found = offer.key, item[4]
            if has_stale:
                shape.known.difference_update([offer.bucket.number for offer in offers if not offer.bucket.cards])
                levels[order[0]] = [offer for offer in offers if offer.bucket.cards]
            if found is not None:
                return found
            del levels[pop(order)]
        return None

    def _offer(self, shape: Shape, bucket: Bucket) -> None:
        """Judge the bucket for the shape."""
        if bucket.number in shape.known or (bucket.is_kept and not shape.takes_kept):
            return
        state = bucket.state
        effect = shape.step[state] if state in shape.step else self._losses.step(shape, state)
        if effect is None:
            return
        asked, after, tight, free = effect
        shape.known.add(bucket.number)
        strategy = self._losses.strategy
        if strategy == FIRST_FIT:
            level: Level = (False, 0, False)
            weight = 0.0
        else:
            need = shape.needs[state[0]]
            is_whole = isinstance(need, Need) and need.exclusive
            full = whole_fragmentation(empty=bucket.empty, cards=bucket.size) if bucket.empty else tight
            if is_whole and bucket.empty:
                tight = (tight + full) / 2
                free = bucket.empty / bucket.size
            is_aware = strategy == FRAGMENTATION_AWARE
            lost = (self._losses.lost(bucket.host, state, after, bucket.empty) - asked) / self._losses.unit if is_aware else 0.0
            weight = WEIGHTS["fragmentation"] * full
            cls = packing_class(strategy, lost=lost, fragmentation=tight, free_share=free)
            level = (bucket.is_strained, cls, bucket.empty > 0 and not is_whole and is_aware)
        if level in shape.levels:
            shape.levels[level].append(Offer(weight, bucket))
        else:
            shape.levels[level] = [Offer(weight, bucket)]
            heapq.heappush(shape.order, level)

    def _refresh(self) -> None:
        """Put all cards that have changed into their buckets."""
        pool = self._pool
        moved, emptied = len(pool.moved), len(pool.log_empties)
        if self._seen is None:
            for node in pool.nodes:
                if node.node.takes_work:
                    self._sort_in(node, node.cards)
        elif self._seen != (moved, emptied):
            before, emptied_before = self._seen
            for card in pool.moved[before:]:
                self._sort_in(pool.nodes[card.at], (card,))
            # The empty cards of a node are the better the fewer there are.
            for node in dict.fromkeys(pool.log_empties[emptied_before:]):
                self._sort_in(node, [card for card in node.cards if card.live == 0])
        self._seen = (moved, emptied)

    def _sort_in(self, node: PoolNode, cards: Iterable[PoolCard]) -> None:
        buckets = self._buckets
        host = self._pool.host_of(node)
        is_first = self._losses.strategy == FIRST_FIT
        for card in cards:
            if card.free_mib <= 0 or not card.is_open:
                card.bucket = -1
                continue
            is_kept = card.aside_for is not None
            empty, size = (node.empty_of(card.kind), len(node.cards)) if card.live == 0 and not is_kept and not card.foreign_mib else (0, 0)
            is_strained = card.is_strained()
            state = (card.kind, card.free_mib, card.live)
            key = (state, host, empty, size, is_strained, is_kept)
            bucket = buckets.get(key)
            if bucket is None:
                bucket = buckets[key] = Bucket(len(buckets), state, host, empty, size, is_strained, is_kept)
            elif bucket.number == card.bucket:
                continue
            if not bucket.cards:
                self._filled.append(bucket)
            card.bucket = bucket.number
            gpu = card.gpu
            heapq.heappush(bucket.cards, (0.0 if is_first else -card.score(), node.node.id, gpu.index, gpu.id, card))
