"""What could start this second: the scheduler's own plan, asked with jobs that nobody submitted.

The waiting jobs come first, as they would in a pass: what is kept for them is not free for anyone else.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from django.conf import settings
from django.utils import timezone

from jobs import snapshot
from jobs.scheduler import plan
from jobs.scheduler.types import Gpu, Job, Policy, Request, Snapshot
from nodes.formats import model_name, model_short

SIZES_GIB = (4, 8, 12, 16, 24, 40, 80)
#: Counting further costs and tells nobody more: 200 is shown as "200+".
MOST = 200
#: Questions about kinds of card; beyond these a whole-card line is long enough.
MODELS_MOST = 8
FRESH_S = 2.0
_PROBE = 1 << 62  # ids that no job has


@dataclass(frozen=True, slots=True)
class Rung:
    """``count`` jobs of this size would start; ``never`` = no card here could ever hold one. ``where``: short card names."""

    gib: int
    count: int
    never: bool
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ladder:
    """``whole``: card model → how many whole ones could be had."""

    rungs: tuple[Rung, ...]
    whole: tuple[tuple[str, int], ...]

    @property
    def is_capped(self) -> bool:
        return any(rung.count >= MOST for rung in self.rungs)


def ladder_of(state: Snapshot, policy: Policy) -> Ladder:
    """Pure. One plan a size and a model; each places at most ``MOST`` probes behind the waiting jobs."""
    gpus = {gpu.id: gpu for node in state.nodes for gpu in node.gpus}
    # Held jobs are in nobody's way, and a plan spends time on their reasons.
    queue = [job for job in state.jobs if job.hold is None]
    rungs = []
    for gib in SIZES_GIB:
        count, never, cards = _probe(state, policy, queue, Request(gpu_mem_mib=gib * 1024), most=_room(gpus.values(), policy))
        shorts = dict.fromkeys(model_short(gpus[card].model) for card in cards)
        rungs.append(Rung(gib, count, never, tuple(sorted(shorts)[:2])))
    whole = []
    models = Counter(gpu.model for node in state.nodes if node.takes_work for gpu in node.gpus if gpu.is_schedulable and gpu.total_mib)
    for model, number in models.most_common(MODELS_MOST):
        count, _, _ = _probe(state, policy, queue, Request(model=model), most=number)
        if count:
            whole.append((model_name(model), count))
    return Ladder(tuple(rungs), tuple(whole))


def _room(gpus: Iterable[Gpu], policy: Policy) -> int:
    return min(MOST, sum(policy.max_slices for gpu in gpus if gpu.is_schedulable and gpu.total_mib))


def _probe(state: Snapshot, policy: Policy, queue: Sequence[Job], request: Request, *, most: int) -> tuple[int, bool, list[int]]:
    """How many probes were placed, whether one could never be, and the cards they got."""
    # At least one: a pool without room still tells whether any card could hold it one day.
    probes = [Job(id=_PROBE + i, request=request, submitted=float("inf"), priority=-(1 << 40)) for i in range(max(1, most))]
    planned = plan(replace(state, jobs=[*queue, *probes]), policy)
    cards = [grant.gpu for item in planned.placements if item.job >= _PROBE for rank in item.ranks for grant in rank.grants]
    never = any(refusal.never for refusal in planned.refusals if refusal.job >= _PROBE)
    return len(cards), never, cards


_lock = threading.Lock()
_kept: tuple[float, Ladder] | None = None


def ladder_latest() -> Ladder:
    """The pool's ladder, ``FRESH_S`` old or so: the same for everybody, a reader's own limits are taken off later."""
    global _kept
    with _lock:
        if _kept is None or time.monotonic() > _kept[0] or settings.TESTING:
            began = time.monotonic()
            ladder = ladder_of(snapshot.build(timezone.now()), snapshot.policy_current())
            now = time.monotonic()
            # Behind a queue of thousands an answer takes a second: then it is kept longer, so that it never takes a tenth of a core.
            _kept = (now + max(FRESH_S, 10 * (now - began)), ladder)
        return _kept[1]
