"""The cards and nodes of one pass as ``binding_reason`` wants to see them: cards that look alike are one to a request.

Caught up lazily from ``Pool.moved``: between two requests that fail only the cards that have changed are looked at.
"""

from __future__ import annotations

from jobs.scheduler.binding import CardView, NodeView
from jobs.scheduler.pool import Pool, PoolCard
from jobs.scheduler.types import Gpu, Request

#: All that a reason says of a card, or depends on: kind, free MiB, live slices, foreign MiB, kept for, in service, state.
Look = tuple[int, int, int, int, int | None, bool, str]


class Looks:
    """How one pool looks. ``counts``: how many cards have each look; call ``nodes`` before."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._numbers: dict[Look, int] = {}
        self._samples: list[tuple[Gpu, int, int, int, int, int | None]] = []  # what CardView wants to know of each look
        self.counts: list[int] = []
        self._views: list[NodeView] = []
        self._looks: list[list[int]] = []  # of each node, which look each of its cards has: what the views show
        self._seen = 0  # how much of the pool's log is worked in

    def nodes(self, request: Request) -> list[NodeView]:
        """The nodes as the request sees them now; their ``looks`` are of ``cards``."""
        pool, counts, views = self._pool, self.counts, self._views
        if not views:
            for item in pool.nodes:
                node = item.node
                looks = [self._number(card) for card in item.cards]
                for number in looks:
                    counts[number] += 1
                self._looks.append(looks)
                views.append(NodeView(node.name, node.refusal, node.takes_work, item.gpus, looks))
        else:
            for card in pool.moved[self._seen :]:
                looks, place = self._looks[card.at], card.place
                counts[looks[place]] -= 1
                number = looks[place] = self._number(card)
                counts[number] += 1
        self._seen = len(pool.moved)
        if request.cpu_milli is not None or request.host_mem_mib is not None:
            for view, item in zip(views, pool.nodes, strict=True):
                view.cpu_milli, view.memory_mib = item.cpu_milli, item.memory_mib
        return views

    def _number(self, card: PoolCard) -> int:
        gpu = card.gpu
        look = (card.kind, card.free_mib, card.live, card.foreign_mib, card.aside_for, gpu.is_schedulable, gpu.state)
        number = self._numbers.get(look)
        if number is None:
            number = self._numbers[look] = len(self._samples)
            free = max(card.free_mib + card.foreign_mib, 0)
            self._samples.append((gpu, card.kind, free, card.foreign_mib, card.live, card.aside_for))
            self.counts.append(0)
        return number

    def cards(self, request: Request) -> list[CardView]:
        """How the request sees cards of each look. Call ``nodes`` before."""
        needs = self._pool.needs(request)
        return [CardView(gpu, needs[kind], free, foreign, live, aside) for gpu, kind, free, foreign, live, aside in self._samples]
