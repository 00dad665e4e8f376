"""The cards and nodes of one pass as ``binding_reason`` wants to see them: cards that look alike are one to a request.

Caught up lazily from ``Pool.moved``: between two requests that fail only the cards that have changed are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobs.scheduler.binding import CardView, Move, NodeView, Tally
from jobs.scheduler.need import Need
from jobs.scheduler.pool import Pool, PoolCard
from jobs.scheduler.types import Gpu, Reason, Request

#: All that a reason depends on: kind, free MiB, live slices, foreign MiB, kept for, in service.
Look = tuple[int, int, int, int, int | None, bool]


class Looks:
    """How one pool looks."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._plain: dict[int, dict[int, dict[int, int]]] = {}  # kind -> live slices -> free MiB -> look, where the rest is as mostly
        self._numbers: dict[Look, int] = {}  # the other looks
        self._samples: list[tuple[Gpu, int, int, int, int, int | None]] = []  # what CardView wants to know of each look
        self._counts: list[int] = []  # how many cards have each
        self._views: list[NodeView] = []
        self._looks: list[list[int]] = []  # of each node, which look each of its cards has: what the views show
        self._moves: list[Move] = []  # the cards that have come to look otherwise
        self._seen = 0  # how much of the pool's log is worked in
        self._tallies: dict[tuple[Need | int, ...], tuple[Tally, int]] = {}  # by needs; and how many moves are worked in

    def tally(self, request: Request) -> Tally:
        """The cards and nodes as the request sees them now: good until the next call."""
        pool = self._pool
        self._catch_up()
        needs = pool.needs(request)
        if request.cpu_milli is not None or request.host_mem_mib is not None:
            for view, item in zip(self._views, pool.nodes, strict=True):
                view.cpu_milli, view.memory_mib = item.cpu_milli, item.memory_mib
        elif pool.all_take_work:
            return self._shared(request, needs)
        return Tally(request, self._views, self._cards(needs, 0))

    def _shared(self, request: Request, needs: Sequence[Need | Reason]) -> Tally:
        """The tally of all requests with these needs, caught up."""
        # Reasons are told apart by identity: they name what was asked for, and the pool keeps them.
        key = tuple([need if isinstance(need, Need) else id(need) for need in needs])
        found = self._tallies.get(key)
        if found is None:
            tally = Tally(request, self._views, self._cards(needs, 0), self._counts)
        else:
            tally, seen = found
            tally.catch_up(self._cards(needs, len(tally.looks)), self._moves[seen:])
        self._tallies[key] = (tally, len(self._moves))
        return tally

    def _catch_up(self) -> None:
        """Look at all cards, then at those that have changed."""
        pool, counts = self._pool, self._counts
        if not self._views:
            for item in pool.nodes:
                node = item.node
                looks = self._all(item.cards)
                self._looks.append(looks)
                self._views.append(NodeView(node.name, node.refusal, node.takes_work, item.gpus, looks))
            for looks in self._looks:
                for number in looks:
                    counts[number] += 1
        else:
            moved = [*dict.fromkeys(pool.moved[self._seen :])]
            for card, number in zip(moved, self._all(moved), strict=True):
                looks, place = self._looks[card.at], card.place
                before = looks[place]
                if number != before:
                    counts[before] -= 1
                    counts[number] += 1
                    looks[place] = number
                    self._moves.append((card.at, before, number))
        self._seen = len(pool.moved)

    def _all(self, cards: Iterable[PoolCard]) -> list[int]:
        """The look of each card."""
        plain, found = self._plain, []
        for card in cards:
            # Most cards are in service, and nothing else is on them.
            if card.is_open and not card.foreign_mib and card.aside_for is None:
                try:
                    found.append(plain[card.kind][card.live][card.free_mib])
                except KeyError:
                    number = plain.setdefault(card.kind, {}).setdefault(card.live, {})[card.free_mib] = self._new(card)
                    found.append(number)
            else:
                look = (card.kind, card.free_mib, card.live, card.foreign_mib, card.aside_for, card.gpu.is_schedulable)
                if look not in self._numbers:
                    self._numbers[look] = self._new(card)
                found.append(self._numbers[look])
        return found

    def _new(self, card: PoolCard) -> int:
        """The number of the look that the card is the first to have."""
        free, foreign = card.free_mib, card.foreign_mib
        self._samples.append((card.gpu, card.kind, max(free + foreign, 0), foreign, card.live, card.aside_for))
        self._counts.append(0)
        return len(self._counts) - 1

    def _cards(self, needs: Sequence[Need | Reason], first: int) -> list[CardView]:
        """How a request with these needs sees cards of each look from that number on."""
        return [CardView(gpu, needs[kind], free, foreign, live, aside) for gpu, kind, free, foreign, live, aside in self._samples[first:]]
