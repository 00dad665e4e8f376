"""Several cards or nodes, host cores and memory, nodes to be avoided: found by nodes, a heap of one candidate for each node that can serve
the shape. Caught up lazily from the pool's logs of changes; stale entries are dropped when they come to the top.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import count

from jobs.scheduler.fragmentation import State
from jobs.scheduler.need import Need, host_short, node_mismatch
from jobs.scheduler.pool import Pool, PoolCard, PoolNode
from jobs.scheduler.score import FIRST_FIT, FRAGMENTATION_AWARE, TOPOLOGY_WEIGHT, WEIGHTS, packing_class, whole_fragmentation
from jobs.scheduler.shapes import Candidate, Effect, Entry, Losses, Shape
from jobs.scheduler.topology import ALIKE, SCALE, choose_set
from jobs.scheduler.types import new


def _version(shape: Shape, node: PoolNode) -> int:
    """Grows with each change of the node that matters to the shape."""
    return node.version_empties if shape.by_empties else node.version


def _far(nearness: float) -> float:
    """How far apart the cards of a set are, for its key."""
    return -round(nearness, 3)


ALIKE_FAR = _far(ALIKE[1])


class NodeSets:
    """The best set of cards on each node, for one shape after the other."""

    def __init__(self, pool: Pool, losses: Losses) -> None:
        self._pool = pool
        self._losses = losses
        self._strategy = losses.strategy
        self._is_aware = losses.strategy == FRAGMENTATION_AWARE
        self._unit = losses.unit
        self._tick = count()

    def best_set(self, shape: Shape) -> Candidate | None:
        """The best set on one node; None = no node has one now."""
        heap = self._caught_up(shape)
        while heap:
            top = heap[0][-1]
            if top.version == _version(shape, top.node):
                return top
            heapq.heappop(heap)
        return None

    def _caught_up(self, shape: Shape) -> list[Entry]:
        """The shape's heap, with all changes since its last use worked in."""
        log = self._pool.log_empties if shape.by_empties else self._pool.log
        heap = shape.heap
        if heap is None:
            heap, nodes = [], self._pool.nodes
            if shape.plain is not None and shape.plain.heap is not None:
                # Only where cards are kept is there anything to be found that is not known.
                heap = [entry for entry in self._caught_up(shape.plain) if not entry[-1].node.kept]
                nodes = [node for node in nodes if node.kept]
            heap += self._on_nodes(shape, nodes)
            heapq.heapify(heap)
            shape.heap = heap
        elif shape.seen < len(log):
            for entry in self._on_nodes(shape, dict.fromkeys(log[shape.seen :])):
                heapq.heappush(heap, entry)
        shape.seen = len(log)
        return heap

    def _on_nodes(self, shape: Shape, nodes: Iterable[PoolNode]) -> list[Entry]:
        """The best set of each node that has one."""
        if shape.is_whole:
            # At most so many cards are empty: a cheap look spares the others a close one.
            least, kept = shape.per_node, shape.takes_kept
            nodes = [node for node in nodes if node.empty >= least or (kept and node.empty + node.kept >= least)]
        return [(*item.key, item) for node in nodes if (item := self._on_node(shape, node)) is not None]

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
            if k > 1 and node.is_uniform and self._is_aware:
                near, nearness = node.near()
                if near is None:
                    return self._wide(shape, node, nearness)
        able: list[tuple[PoolCard, Effect]] = []
        step = shape.step
        for card in node.cards if k else ():
            if not card.is_open or (card.aside_for is not None and not shape.takes_kept):
                continue
            state = (card.kind, card.free_mib, card.live)
            effect = step[state] if state in step else self._losses.step(shape, state)
            if effect is not None:
                able.append((card, effect))
        if len(able) < k:
            return None
        avoided = node.node.id in shape.avoid
        if self._strategy == FIRST_FIT:
            # The first ones, but for cards that come last whatever the strategy.
            cards = sorted([card for card, _effect in able], key=lambda card: card.is_strained)[:k]
            strained = any(card.is_strained for card in cards)
            key = (avoided, strained, 0.0, 0, False, 0.0, node.node.id, next(self._tick))
            return Candidate(key, node, cards, _version(shape, node))
        if k <= 1 and self._is_aware:
            return self._single(shape, node, able, avoided=avoided)
        return self._ranked(shape, node, able, avoided=avoided)

    def _single(self, shape: Shape, node: PoolNode, able: Sequence[tuple[PoolCard, Effect]], *, avoided: bool) -> Candidate:
        """The card of the node that loses least, or the node itself for a job without cards: on one node nothing is scattered by the finest
        difference, so that loss is not rounded there."""
        host, moved = self._losses.host_after(shape, node)
        best: tuple[bool, int, float, int] | None = None
        least = 0.0
        chosen: PoolCard | None = None
        breaks = False
        losses: dict[State, tuple[float, int]] = {}
        for card, (asked, after, tight, _free) in able:
            state = (card.kind, card.free_mib, card.live)
            found = losses.get(state)
            if found is None:
                empty = node.empty_of(card.kind) if card.is_empty() else 0
                found = losses[state] = (self._losses.lost(host, state, after, empty) - asked, empty)
            lost, empty = found
            full = whole_fragmentation(empty=node.empty, cards=len(node.cards)) if empty else tight
            score = card.cost - WEIGHTS["fragmentation"] * full
            key = (card.is_strained, round(lost), round(score * SCALE), card.number)
            if best is None or key < best:
                best, chosen, breaks, least = key, card, empty > 0 and not shape.is_whole, lost
        tick = next(self._tick)
        if best is None or chosen is None:
            cls = packing_class(self._strategy, lost=moved / self._unit, fragmentation=0.0, free_share=0.0)
            return Candidate((avoided, False, 0.0, cls, False, 0.0, node.node.id, tick), node, (), _version(shape, node))
        cls = packing_class(self._strategy, lost=(least + moved) / self._unit, fragmentation=0.0, free_share=0.0)
        return Candidate((avoided, best[0], 0.0, cls, breaks, best[2], node.node.id, tick), node, (chosen,), _version(shape, node))

    def _wide(self, shape: Shape, node: PoolNode, nearness: float) -> Candidate | None:
        """Whole cards of a node where any set is as near and packs as well as another: the ones with the best scores."""
        k = shape.per_node
        ranked = node.empties()
        if node.kept and len(ranked) != node.empty and not shape.takes_kept:
            ranked = [item for item in ranked if item[3].aside_for is None]
        if len(ranked) < k:
            return None
        found = None
        if not shape.has_host:
            found = shape.wide.get((ranked[0][3].kind, node.host, node.empty, len(node.cards)))
        cls, full = found or self._wide_class(shape, node, ranked[0][3].state())
        if cls is None:
            return None
        chosen = ranked[:k]
        cards = []
        cost = 0.0
        for _strained, each, _number, card in chosen:
            cost += each
            cards.append(card)
        score = (1 - TOPOLOGY_WEIGHT) * (full - cost / k) + TOPOLOGY_WEIGHT * nearness
        far = ALIKE_FAR if nearness == ALIKE[1] else _far(nearness)
        number = node.node.id
        candidate = new(Candidate)
        candidate.key = (number in shape.avoid, chosen[-1][0], far, cls, False, -round(score * SCALE), number, next(self._tick))
        candidate.node, candidate.cards, candidate.version = node, cards, _version(shape, node)
        return candidate

    def _wide_class(self, shape: Shape, node: PoolNode, state: State) -> tuple[int | None, float]:
        """(packing class, weighted fragmentation score) of so many empty cards of the node; the class None = they don't fit."""
        k, kind, empty, cards = shape.per_node, state[0], node.empty, len(node.cards)
        found: tuple[int | None, float] = (None, 0.0)
        effect = shape.step[state] if state in shape.step else self._losses.step(shape, state)
        if effect is not None:
            host, moved = self._losses.host_after(shape, node)
            mix = self._pool.mix
            table = mix.table(host)
            lost = moved + k * (table[state] - table[effect[1]] - effect[0])
            lost += mix.wide(host, kind, empty) - mix.wide(host, kind, max(empty - k, 0))
            cls = packing_class(self._strategy, lost=lost / self._unit, fragmentation=0.0, free_share=0.0)
            found = (cls, WEIGHTS["fragmentation"] * whole_fragmentation(empty=empty, cards=cards))
        shape.wide[kind, self._pool.host_of(node), empty, cards] = found
        return found

    def _ranked(self, shape: Shape, node: PoolNode, able: Sequence[tuple[PoolCard, Effect]], *, avoided: bool) -> Candidate:
        """The best set of the able cards, and the node's place among the others."""
        k = shape.per_node
        host, moved = self._losses.host_after(shape, node) if self._is_aware else (0, 0.0)
        ranked = []
        for card, (asked, after, tight, free) in able:
            empty = node.empty_of(card.kind) if card.is_empty() else 0
            need = shape.needs[card.kind]
            is_whole = isinstance(need, Need) and need.exclusive
            full = whole_fragmentation(empty=node.empty, cards=len(node.cards)) if empty else tight
            if is_whole and empty:
                tight = (tight + full) / 2
                free = empty / len(node.cards)
            lost = self._losses.lost(host, card.state(), after, empty) - asked if self._is_aware else 0.0
            cls = packing_class(self._strategy, lost=lost / self._unit, fragmentation=tight, free_share=free)
            score = WEIGHTS["fragmentation"] * full - card.cost
            level = (card.is_strained, cls, self._is_aware and empty > 0 and not is_whole)
            ranked.append((level, -round(score * SCALE), card.gpu.index, card.gpu.id, card, lost, tight, free))
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
        if self._is_aware and k > 1:
            lost += self._losses.wide_lost(host, node, [item[4] for item in chosen])
        cls = packing_class(
            self._strategy,
            lost=lost / self._unit,
            fragmentation=sum(item[6] for item in chosen) / max(k, 1),
            free_share=sum(item[7] for item in chosen) / max(k, 1),
        )
        strained = any(item[0][0] for item in chosen)
        breaks = any(item[0][2] for item in chosen)
        # Of several cards nearness decides before packing: the job lives with its links until its end.
        far = _far(nearness) if k > 1 else 0.0
        key = (avoided, strained, far, cls, breaks, -round(score * SCALE), node.node.id, next(self._tick))
        return Candidate(key, node, [item[4] for item in chosen], _version(shape, node))

    def best_sets(self, shape: Shape, wanted: int) -> list[Candidate] | None:
        """Several nodes: of one model if there are enough of those, of one network group if there are, then over the fastest links."""
        found = [item for node in self._pool.nodes if (item := self._on_node(shape, node)) is not None]
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
