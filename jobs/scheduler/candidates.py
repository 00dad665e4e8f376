"""The best free set of cards for a request, found without looking at every card: the index that makes a pass cheap.

Per distinct request there is a ``Shape`` (shapes.py). One card of one node is found by buckets of cards that pack alike (buckets.py),
all else by nodes (nodesets.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from jobs.scheduler.buckets import Buckets
from jobs.scheduler.nodesets import NodeSets
from jobs.scheduler.pool import Pool
from jobs.scheduler.shapes import Candidate, Losses, Shape
from jobs.scheduler.types import Request


class Candidates:
    """The shapes of one pass, and where each fits best."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._shapes: dict[tuple[int, frozenset[int], bool], Shape] = {}
        losses = Losses(pool)
        self._buckets = Buckets(pool, losses)
        self.best_card = self._buckets.best_card  # for shapes that are found by cards
        self._node_sets = NodeSets(pool, losses)

    def shape(self, request: Request, avoid: frozenset[int] = frozenset(), *, takes_kept: bool = False) -> Shape:
        """``takes_kept``: cards that are kept for a waiting job are good as well (for one that ends before they are needed)."""
        key = (self._pool.number(request), avoid, takes_kept)
        found = self._shapes.get(key)
        if found is None:
            plain = self.shape(request, avoid) if takes_kept else None
            found = self._shapes[key] = Shape(request, avoid, self._pool.needs(request), plain)
        return found

    def best_sets(self, shape: Shape) -> Sequence[Candidate] | None:
        """The best card set on each of ``request.nodes`` distinct nodes; None = there are not so many now. Nothing is taken yet."""
        if shape.request.nodes > 1:
            found: Sequence[Candidate] | None = self._node_sets.best_sets(shape, shape.request.nodes)
        else:
            best = self._node_sets.best_set(shape)
            found = None if best is None else (best,)
        if found is not None and shape.per_node > 1:
            for item in found:
                item.cards = sorted(item.cards, key=attrgetter("number"))
        return found
