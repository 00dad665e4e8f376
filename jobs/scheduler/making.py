"""Frozen dataclasses, made quickly: a pass makes up to three for each job, and ``__init__`` of a frozen one takes most of that time.

The same objects as their classes would make; only for the pass, which knows that its values are sound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs.scheduler.types import Grant, Placement, RankPlacement, Reason, Refusal

_new = object.__new__


def _setters(cls: type, *names: str) -> list[Callable[[Any, Any], None]]:
    return [cls.__dict__[name].__set__ for name in names]


_grant_gpu, _grant_mib, _grant_exclusive = _setters(Grant, "gpu", "mib", "exclusive")
_rank_index, _rank_node, _rank_grants = _setters(RankPlacement, "index", "node", "grants")
_placement_job, _placement_ranks = _setters(Placement, "job", "ranks")
_refusal_job, _refusal_reason, _refusal_position, _refusal_never = _setters(Refusal, "job", "reason", "position", "never")


def grant_made(gpu: int, mib: int, exclusive: bool) -> Grant:
    made = _new(Grant)
    _grant_gpu(made, gpu)
    _grant_mib(made, mib)
    _grant_exclusive(made, exclusive)
    return made


def rank_made(index: int, node: int, grants: tuple[Grant, ...]) -> RankPlacement:
    made = _new(RankPlacement)
    _rank_index(made, index)
    _rank_node(made, node)
    _rank_grants(made, grants)
    return made


def placement_made(job: int, ranks: tuple[RankPlacement, ...]) -> Placement:
    made = _new(Placement)
    _placement_job(made, job)
    _placement_ranks(made, ranks)
    return made


def refusal_made(job: int, reason: Reason, position: int, never: bool) -> Refusal:
    made = _new(Refusal)
    _refusal_job(made, job)
    _refusal_reason(made, reason)
    _refusal_position(made, position)
    _refusal_never(made, never)
    return made
