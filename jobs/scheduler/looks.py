"""The cards and nodes of one pass as ``binding_reason`` wants to see them: cards that look alike are one to a request."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.scheduler.binding import CardView, NodeView, Tally
from jobs.scheduler.need import Need
from jobs.scheduler.pool import Pool, PoolCard
from jobs.scheduler.types import Gpu, Reason, Request, new

#: All that a reason depends on: kind, free MiB, live slices, foreign MiB, kept for, in service.
Look = tuple[int, int, int, int, int | None, bool]


class Looks:
    """How a pool looks now. It is not looked at again: make another one when it has changed."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._plain: dict[int, dict[int, dict[int, int]]] = {}  # kind -> live slices -> free MiB -> look, where the rest is as mostly
        self._numbers: dict[Look, int] = {}  # the other looks
        self._samples: list[tuple[Gpu, int, int, int, int, int | None]] = []  # what CardView wants to know of each look
        self._counts: list[int] = []  # how many cards have each
        self._views: list[NodeView] = []
        self._tallies: dict[tuple[Need | int, ...], Tally] = {}  # by needs
        plain, counts = self._plain, self._counts
        for item in pool.nodes:
            looks: list[int] = []
            for card in item.cards:
                # Most cards are in service, and nothing else is on them.
                if card.is_plain:
                    try:
                        number = plain[card.kind][card.live][card.free_mib]
                    except KeyError:
                        number = plain.setdefault(card.kind, {}).setdefault(card.live, {})[card.free_mib] = self._new(card)
                else:
                    look = (card.kind, card.free_mib, card.live, card.foreign_mib, card.aside_for, card.gpu.is_schedulable)
                    if look not in self._numbers:
                        self._numbers[look] = self._new(card)
                    number = self._numbers[look]
                looks.append(number)
                counts[number] += 1
            node, view = item.node, new(NodeView)
            view.name, view.refusal, view.takes_work = node.name, node.refusal, node.takes_work
            view.gpus, view.looks, view.cpu_milli, view.memory_mib = item.gpus, looks, item.cpu_milli, item.memory_mib
            self._views.append(view)

    def tally(self, request: Request, own: int | None = None) -> Tally:
        """The cards and nodes as the request sees them. ``own``: the job that asks, where cards are kept for it: to it they are not."""
        needs = self._pool.needs(request)
        if request.cpu_milli is not None or request.host_mem_mib is not None or not self._pool.all_take_work:
            return Tally(request, self._views, self._cards(needs, own))
        if own is not None:
            return Tally(request, self._views, self._cards(needs, own), self._counts)
        # Reasons are told apart by identity: they name what was asked for, and the pool keeps them.
        key = tuple([need if isinstance(need, Need) else id(need) for need in needs])
        found = self._tallies.get(key)
        if found is None:
            found = self._tallies[key] = Tally(request, self._views, self._cards(needs, None), self._counts)
        return found

    def _new(self, card: PoolCard) -> int:
        """The number of the look that the card is the first to have."""
        free, foreign = card.free_mib, card.foreign_mib
        self._samples.append((card.gpu, card.kind, max(free + foreign, 0), foreign, card.live, card.aside_for))
        self._counts.append(0)
        return len(self._counts) - 1

    def _cards(self, needs: Sequence[Need | Reason], own: int | None) -> list[CardView]:
        """How a request with these needs sees cards of each look."""
        return [
            CardView(gpu, needs[kind], free, foreign, live, None if aside == own else aside)
            for gpu, kind, free, foreign, live, aside in self._samples
        ]
