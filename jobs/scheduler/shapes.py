"""What one distinct request means within a pass, and what its placement costs the jobs to come."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.scheduler.fragmentation import State
from jobs.scheduler.need import Need, cards_per_node, request_error
from jobs.scheduler.pool import Pool, PoolCard, PoolNode
from jobs.scheduler.score import FRAGMENTATION_AWARE, slice_fragmentation
from jobs.scheduler.types import Reason, Request

Effect = tuple[int, State, float, float]  # MiB asked for, state after, fragmentation score, share free before
Level = tuple[bool, int, bool]  # (strained, packing class, breaks an empty card): least is best
#: (on a node to be avoided, strained, how far apart, packing class, breaks an empty card, -score, the node's id, a number of its own);
#: by first fit nothing else counts than the first two and the node's id.
Key = tuple[bool, int, float, int, bool, float, int, int]
#: A candidate behind its key, in one tuple: two of them are compared in one go.
Entry = tuple[bool, int, float, int, bool, float, int, int, "Candidate"]


class Candidate:
    """The best set of cards for one rank on one node. ``key`` orders candidates: least is best, and no two are equal."""

    __slots__ = ("cards", "key", "node", "version")

    def __init__(self, key: Key, node: PoolNode, cards: Sequence[PoolCard], version: int) -> None:
        self.key = key
        self.node = node
        self.cards = cards
        self.version = version


class Bucket:
    """Cards that pack alike. INVARIANT: ``cards`` is a heap of (-score, number, card); a card whose ``bucket`` is another one is stale."""

    __slots__ = ("cards", "empty", "host", "is_kept", "is_strained", "number", "size", "state")

    def __init__(self, number: int, state: State, host: int, empty: int, size: int, is_strained: bool, is_kept: bool) -> None:
        self.number = number
        self.state = state
        self.host = host
        self.empty = empty  # empty cards of the kind on the node; 0 = the card itself is not empty
        self.size = size  # cards of the node, where it matters
        self.is_strained = is_strained
        self.is_kept = is_kept
        self.cards: list[tuple[float, int, PoolCard]] = []


class Offer:
    """A bucket as one request sees it: its level, and the ``weight`` of its fragmentation score."""

    __slots__ = ("bucket", "level", "weight")
    level: Level
    weight: float
    bucket: Bucket


class Shape:
    """One distinct request within the pass: its needs by card kind, and its candidates."""

    __slots__ = (
        "avoid", "by_card", "by_empties", "has_host", "heap", "is_plain_cpu", "is_valid", "is_whole", "judged", "levels", "needs", "order",
        "per_node", "plain", "request", "seen", "step", "takes_kept", "wide",
    )  # fmt: skip

    def __init__(self, request: Request, avoid: frozenset[int], needs: list[Need | Reason], plain: Shape | None) -> None:
        """``plain``: the same but for kept cards, which are good for this one as well."""
        self.request = request
        self.avoid = avoid
        self.needs = needs
        self.plain = plain
        self.takes_kept = plain is not None
        self.is_valid = request_error(request) is None
        self.per_node = cards_per_node(request) if self.is_valid else 0
        self.has_host = bool(request.cpu_milli or request.host_mem_mib)
        self.is_plain_cpu = request.gpu_count == 0 and not self.has_host
        self.is_whole = request.gpu_mem_mib is None  # only empty cards will do
        self.by_card = self.is_valid and self.per_node == 1 and request.nodes == 1 and not avoid and not self.has_host
        self.by_empties = self.is_whole and self.per_node > 0 and not self.has_host  # only changes of empty cards matter
        self.seen = 0
        self.step: dict[State, Effect | None] = {} if plain is None else plain.step
        # By card: buckets by level.
        self.levels: dict[Level, dict[int, Offer]] = {}
        self.order: list[Level] = []
        self.judged: dict[int, Offer | None] = {} if plain is None else plain.judged  # by number of the bucket; None = of no use
        # By node.
        self.heap: list[Entry] | None = None
        # (kind, host class, empty cards, cards) -> (packing class, or None where they don't fit, and fragmentation score)
        self.wide: dict[tuple[int, int | None, int, int], tuple[int | None, float]] = {} if plain is None else plain.wide


class Losses:
    """What placements lose of the memory that the jobs to come could use (fragmentation.py); ``unit``: a mean card, MiB."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.strategy = FRAGMENTATION_AWARE if pool.policy.strategy == "default" else pool.policy.strategy
        sized = [(gpu.total_mib, cards) for gpu, cards in zip(pool.kinds, pool.kind_counts, strict=True) if gpu.total_mib]
        total, known = sum([mib * cards for mib, cards in sized]), sum([cards for _mib, cards in sized])
        self.unit = total / known if known else 1.0

    def step(self, shape: Shape, state: State) -> Effect | None:
        """What the shape does to a card in this state; None = it does not fit."""
        kind, free, live = state
        need = shape.needs[kind]
        found: Effect | None = None
        if isinstance(need, Need):
            mib = need.take(free_mib=free, live=live)
            if mib is not None:
                total = self._pool.kinds[kind].total_mib or 1
                asked = min(shape.request.gpu_mem_mib or total, total)
                tight = asked / total if need.exclusive else slice_fragmentation(total_mib=total, free_mib=free, taken_mib=mib)
                found = (asked, (kind, 0 if need.exclusive else free - mib, live + 1), tight, free / total)
        shape.step[state] = found
        return found

    def lost(self, host: int, before: State, after: State, empty: int) -> float:
        """Expected usable MiB lost when a card goes from one state to another; ``empty`` > 0: it is one of so many empty cards."""
        mix = self._pool.mix
        table = mix.table(host)
        lost = table[before] - table[after]
        if empty > 1:
            lost += mix.wide(host, before[0], empty) - mix.wide(host, before[0], empty - 1)
        return lost

    def wide_lost(self, host: int, node: PoolNode, chosen: Sequence[PoolCard]) -> float:
        """What taking several empty cards at once loses beyond the sum of taking each of them first."""
        mix = self._pool.mix
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

    def host_after(self, shape: Shape, node: PoolNode) -> tuple[int, float]:
        """The node's host class once the job is there, and the usable MiB that its cards lose by that alone."""
        pool, request = self._pool, shape.request
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
