"""How much of a node's free memory the jobs to come can be expected to use: what a packing decision must not destroy.

A ``Mix`` is the distribution of the requests to come: each with its share of all jobs. A node's *usable* memory is the mean,
over the mix, of the free memory on those of its cards that a job drawn from the mix could use; 0 for a job that finds too few
such cards, cores or host memory there. A placement's loss is usable before − usable after; the best placement loses least.
Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023; there the same is said with the complement, free − usable = expected fragments.

All is looked up in tables by the card's state, the number of empty cards and the *host class* (which jobs of the mix the
host still has cores and memory for), so that the mix is gone through once for each state, not for each card.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from jobs.scheduler.need import Need, cards_per_node, request_error
from jobs.scheduler.types import Gpu, Reason, Request

#: Under the slicing rules a slice takes half a card at most, so that a part of a card finds its job sooner or later: nine tenths of
#: its worth are nearly all that jobs of one card can use, as soon as any kind of slice fits. And a card that is broken is lost for
#: whole-card jobs, though those may use it less well: a little more than what it holds.
SLICED_WORTH = 0.9
SLICED_POWER = 0.05
WHOLE_WORTH = 1.03
COVERED = 0.95  # of the jobs; the rare rest would cost time and change nothing
MOST_KINDS = 64

State = tuple[int, int, int]  # (kind, free MiB, live slices) of a card that takes work


def mix_of(weighted: Iterable[tuple[Request, float]]) -> list[tuple[Request, float]]:
    """The most frequent requests that make up 95 % of all; the shares add up to 1.

    Host memory is left out of them: cores run short first, and the more requests are told apart, the less each says.

    Requests that no cluster can serve are left out; those without cards count, as they are part of what comes.
    """
    weights: dict[Request, float] = {}
    for request, weight in weighted:
        if request.host_mem_mib is not None:
            request = replace(request, host_mem_mib=None)
        weights[request] = weights.get(request, 0.0) + weight
    found = [(request, weight) for request, weight in weights.items() if weight > 0 and request_error(request) is None]
    found.sort(key=lambda item: (-item[1], _order(item[0])))
    total = sum(weight for _request, weight in found)
    kept: list[tuple[Request, float]] = []
    covered = 0.0
    for request, weight in found[:MOST_KINDS]:
        if covered >= COVERED * total:
            break
        kept.append((request, weight))
        covered += weight
    return [(request, weight / covered) for request, weight in kept]


def _order(request: Request) -> tuple[object, ...]:
    """A stated order of equally frequent requests, so that the cut does not depend on the order of the queue."""
    sizes = (request.gpu_count, request.nodes, request.gpu_mem_mib or 0, request.cpu_milli or 0, request.host_mem_mib or 0)
    texts = tuple(str(text or "") for text in (request.model, request.vendor, request.arch, request.cuda_min, request.driver_min))
    return (sizes, texts, request.labels, request.is_exclusive, sorted(request.lacks))


@dataclass(slots=True)
class _Kind:
    """One request of the mix: its share of the jobs, and what it takes from a card of each kind."""

    share: float
    cards: int
    cpu_milli: int
    host_mem_mib: int
    needs: Sequence[Need | Reason]


class Mix:
    """The tables of one pass. ``kinds``: one sample of each kind of card; ``needs``: what a request takes from each."""

    def __init__(
        self,
        requests: Sequence[tuple[Request, float]],
        kinds: Sequence[Gpu],
        needs: Callable[[Request], Sequence[Need | Reason]],
        *,
        is_sliced: bool,
    ) -> None:
        self._kinds = kinds
        self._is_sliced = is_sliced
        self._asked = [
            _Kind(share, cards_per_node(request), request.cpu_milli or 0, request.host_mem_mib or 0, needs(request))
            for request, share in requests
            if request.gpu_count > 0
        ]
        self._cpu_steps = sorted({kind.cpu_milli for kind in self._asked})
        self._memory_steps = sorted({kind.host_mem_mib for kind in self._asked})
        self._width = len(self._memory_steps) + 1
        self.has_hosts = len(self._cpu_steps) > 1 or len(self._memory_steps) > 1 or any((*self._cpu_steps, *self._memory_steps))
        self.all_hosts = len(self._cpu_steps) * self._width + self._width - 1
        self._kinds_of: dict[tuple[int, bool], list[_Kind]] = {}  # what ``_served`` said
        self._usable: dict[int, dict[State, float]] = {}
        self._wide: dict[tuple[int, int, int], float] = {}

    def host_class(self, cpu_milli: int | None, memory_mib: int | None) -> int:
        """Which jobs of the mix a host with so much free can serve; unknown counts as enough, as nothing better is known."""
        if not self.has_hosts:
            return self.all_hosts
        cpu = len(self._cpu_steps) if cpu_milli is None else bisect_right(self._cpu_steps, cpu_milli)
        memory = self._width - 1 if memory_mib is None else bisect_right(self._memory_steps, memory_mib)
        return cpu * self._width + memory

    def _served(self, host: int, *, is_wide: bool) -> list[_Kind]:
        """What a host of the class can serve: jobs of several cards a node, or those of one."""
        found = self._kinds_of.get((host, is_wide))
        if found is None:
            cpu, memory = divmod(host, self._width)
            cpu_most = self._cpu_steps[cpu - 1] if cpu else -1
            memory_most = self._memory_steps[memory - 1] if memory else -1
            found = self._kinds_of[host, is_wide] = [
                kind
                for kind in self._asked
                if (kind.cards > 1) == is_wide and kind.cpu_milli <= cpu_most and kind.host_mem_mib <= memory_most
            ]
        return found

    def table(self, host: int) -> _Table:
        """state -> MiB of a card that jobs of one card a node can be expected to use; filled as it is asked."""
        found = self._usable.get(host)
        if found is None:
            found = self._usable[host] = _Table(self, host)
        return found  # type: ignore[return-value]

    def card(self, host: int, state: State) -> float:
        kind, free, live = state
        if free <= 0:
            return 0.0
        every = slices = fitting = 0.0  # shares of the mix: jobs of one card; those that share it; those that fit now
        for asked in self._served(host, is_wide=False):
            need = asked.needs[kind]
            if isinstance(need, Need):
                share = asked.share
                every += share
                if not need.exclusive:
                    slices += share
                if free >= need.least_mib and live < need.max_live:
                    fitting += share
        if not self._is_sliced:
            return fitting * free
        if live == 0:
            return WHOLE_WORTH * fitting * free
        if not slices or not fitting:
            return 0.0
        return (SLICED_WORTH * every * float((fitting / slices) ** SLICED_POWER) + (1 - SLICED_WORTH) * fitting) * free

    def wide(self, host: int, kind: int, empty: int) -> float:
        """MiB that jobs of several cards a node can be expected to use of a node's ``empty`` cards of one kind."""
        if empty < 2:
            return 0.0
        key = (host, kind, empty)
        found = self._wide.get(key)
        if found is None:
            share = sum(
                asked.share for asked in self._served(host, is_wide=True) if asked.cards <= empty and isinstance(asked.needs[kind], Need)
            )
            found = self._wide[key] = share * empty * (self._kinds[kind].total_mib or 0)
        return found


class _Table(dict[State, float]):
    """The usable memory of a card by its state, for one host class; computed when first asked for."""

    def __init__(self, mix: Mix, host: int) -> None:
        super().__init__()
        self._mix = mix
        self._host = host

    def __missing__(self, state: State) -> float:
        value = self[state] = self._mix.card(self._host, state)
        return value
