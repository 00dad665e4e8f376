"""One card of one node without a say on the host, found by *buckets*: what is asked for most.

Cards in the same state, on nodes with as many empty cards, are equally good for packing: each bucket is judged once for each shape,
and within it the cards stand in the order of their own scores. All is caught up lazily from the pool's logs; stale entries are
dropped when they come to the top.
"""

from __future__ import annotations

from heapq import heappop, heappush

from jobs.scheduler.need import Need
from jobs.scheduler.pool import Pool, PoolCard, PoolNode
from jobs.scheduler.score import FIRST_FIT, FRAGMENTATION_AWARE, WEIGHTS, packing_class, whole_fragmentation
from jobs.scheduler.shapes import Bucket, Level, Losses, Offer, Shape
from jobs.scheduler.topology import SCALE
from jobs.scheduler.types import new

#: The buckets of empty cards that differ only in how many there are on their node, by that number.
Family = list[Bucket | None]
#: Values that are farther apart than this differ in what of them counts.
NEAR = 2 / SCALE


def _is_before(value: float, place: int, best: float, at: int) -> bool:
    """Whether it comes before the best one so far: by as much of the value as counts, then by the card's place."""
    return (round(value * SCALE), place) < (round(best * SCALE), at)


class Buckets:
    """The buckets of one pass, shared by its shapes."""

    def __init__(self, pool: Pool, losses: Losses) -> None:
        self._pool = pool
        self._losses = losses
        self._is_first_fit = losses.strategy == FIRST_FIT
        self._buckets: dict[tuple[int, ...], Bucket] = {}  # of cards that are not empty, by all that they have in common
        self._families: dict[tuple[int, ...], Family] = {}  # of empty cards, by all but how many empty ones their node has
        self._count = 0  # buckets that there are
        self._filled: list[Bucket] = []  # buckets in the order in which they got their first card
        self._seen_moved = self._seen_empties = 0  # how much of the pool's logs is worked in
        self._least: list[int] = []  # what ``_least_of_kinds`` said

    def best_card(self, shape: Shape) -> PoolCard | None:
        """The best card for the shape; None = it fits nowhere now."""
        self._refresh()
        if shape.seen < len(self._filled):
            judged = shape.judged
            for bucket in self._filled[shape.seen :]:
                if not bucket.cards or (bucket.is_kept and not shape.takes_kept):
                    continue
                number = bucket.number
                offer = judged[number] if number in judged else self._judge(shape, bucket)
                if offer is None:
                    continue
                level = offer.level
                if level not in shape.levels:
                    shape.levels[level] = {number: offer}
                    heappush(shape.order, level)
                else:
                    shape.levels[level][number] = offer
            shape.seen = len(self._filled)
        order, levels = shape.order, shape.levels
        while order:
            best, at = 0.0, 0
            found: PoolCard | None = None
            gone: list[int] = []
            offers = levels[order[0]]
            for number, offer in offers.items():
                cards = offer.bucket.cards
                while cards:
                    less_score, place, card = cards[0]
                    if card.bucket == number:
                        break
                    heappop(cards)
                else:
                    gone.append(number)
                    continue
                value = less_score - offer.weight
                if found is None or value < best - NEAR or (value < best + NEAR and _is_before(value, place, best, at)):
                    best, at, found = value, place, card
            if found is not None:
                for number in gone:
                    del offers[number]
                return found
            del levels[heappop(order)]
        return None

    def _judge(self, shape: Shape, bucket: Bucket) -> Offer | None:
        """What the bucket is to the shape; None = of no use."""
        shape.judged[bucket.number] = None
        state = bucket.state
        effect = shape.step[state] if state in shape.step else self._losses.step(shape, state)
        if effect is None:
            return None
        asked, after, tight, free = effect
        strategy = self._losses.strategy
        if strategy == FIRST_FIT:
            level: Level = (bucket.is_strained, 0, False)
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
        offer = shape.judged[bucket.number] = new(Offer)
        offer.level, offer.weight, offer.bucket = level, weight, bucket
        return offer

    def _refresh(self) -> None:
        """Put all cards that have changed into their buckets."""
        pool = self._pool
        moved, emptied = pool.moved, pool.log_empties
        before, emptied_before = self._seen_moved, self._seen_empties
        self._seen_moved, self._seen_empties = len(moved), len(emptied)
        if before < self._seen_moved:
            least, nodes = self._least or self._least_of_kinds(), pool.nodes
            for card in moved[before:]:
                # Most that have changed have no room left for anything that waits.
                if card.free_mib >= least[card.kind]:
                    self._sort_in(nodes[card.at], card)
                else:
                    card.bucket = -1
        # The empty cards of a node are the better the fewer there are.
        if emptied_before < self._seen_empties:
            done: PoolNode | None = None
            for node in emptied[emptied_before:]:
                if node is not done and (node.empty or not node.is_uniform):
                    self._sort_empties(node)
                    done = node

    def _least_of_kinds(self) -> list[int]:
        """By kind of card: the least memory that anything that waits needs of one; at least 1."""
        pool = self._pool
        least = [max(gpu.total_mib or 0, 0) + 1 for gpu in pool.kinds]
        for request in pool.requests:
            for kind, need in enumerate(pool.needs(request)):
                if isinstance(need, Need) and need.least_mib < least[kind]:
                    least[kind] = need.least_mib
        self._least = least
        return least

    def _sort_empties(self, node: PoolNode) -> None:
        """Of a node's empty cards the best stands for all, as it is taken first; the best of those that are strained for those."""
        if not node.is_uniform or self._is_first_fit:
            for card in node.cards:
                if card.live == 0:
                    self._sort_in(node, card)
            return
        was_strained = None
        for is_strained, _score, _number, card in node.empties():
            if is_strained is not was_strained and card.aside_for is None:
                self._put_empty(node, card, node.empty, len(node.cards), is_strained)
                was_strained = is_strained

    def _sort_in(self, node: PoolNode, card: PoolCard) -> None:
        if card.free_mib <= 0 or not card.is_open:
            card.bucket = -1
        elif card.live or not card.is_plain:
            self._put_used(node, card)
        elif not node.is_uniform or self._is_first_fit:
            self._put_empty(node, card, node.empty_of(card.kind), len(node.cards), card.is_strained)

    def _put_used(self, node: PoolNode, card: PoolCard) -> None:
        host = node.host
        if host is None:
            host = self._pool.host_of(node)
        is_strained, is_kept = card.is_strained, card.aside_for is not None
        key = (card.kind, card.free_mib, card.live, host, is_strained, is_kept)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = self._bucket(card, host, 0, 0, is_strained, is_kept)
        self._push(bucket, card)

    def _put_empty(self, node: PoolNode, card: PoolCard, empty: int, size: int, is_strained: bool) -> None:
        """An empty card has all of its memory free: that goes with its kind."""
        host = node.host
        if host is None:
            host = self._pool.host_of(node)
        key = (card.kind, host, size, is_strained)
        family = self._families.get(key)
        if family is None:
            family = self._families[key] = [None] * (size + 1)
        bucket = family[empty]
        if bucket is None:
            bucket = family[empty] = self._bucket(card, host, empty, size, is_strained, False)
        self._push(bucket, card)

    def _push(self, bucket: Bucket, card: PoolCard) -> None:
        if bucket.number != card.bucket:
            if not bucket.cards:
                self._filled.append(bucket)
            card.bucket = bucket.number
            heappush(bucket.cards, (0.0 if self._is_first_fit else card.cost, card.number, card))

    def _bucket(self, card: PoolCard, host: int, empty: int, size: int, is_strained: bool, is_kept: bool) -> Bucket:
        bucket = Bucket(self._count, card.state(), host, empty, size, is_strained, is_kept)
        self._count += 1
        return bucket
