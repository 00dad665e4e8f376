"""Frozen dataclasses, made quickly: a pass makes up to three for each job, and ``__init__`` of a frozen one takes most of that time.

Each is made as its twin, which has the same slots but is not frozen, and then becomes what it is for. The same objects as their
classes would make; only for the pass, which knows that its values are sound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from jobs.scheduler.types import Grant, Placement, RankPlacement, Reason, Refusal


class _Grant:
    __slots__ = ("exclusive", "gpu", "mib")

    def __init__(self, gpu: int, mib: int, exclusive: bool) -> None:
        self.gpu = gpu
        self.mib = mib
        self.exclusive = exclusive
        self.__class__ = Grant  # type: ignore[assignment]


class _Rank:
    __slots__ = ("grants", "index", "node")

    def __init__(self, index: int, node: int, grants: tuple[Grant, ...]) -> None:
        self.index = index
        self.node = node
        self.grants = grants
        self.__class__ = RankPlacement  # type: ignore[assignment]


class _Placement:
    __slots__ = ("job", "ranks")

    def __init__(self, job: int, ranks: tuple[RankPlacement, ...]) -> None:
        self.job = job
        self.ranks = ranks
        self.__class__ = Placement  # type: ignore[assignment]


class _Refusal:
    __slots__ = ("job", "never", "position", "reason")

    def __init__(self, job: int, reason: Reason, position: int, never: bool) -> None:
        self.job = job
        self.reason = reason
        self.position = position
        self.never = never
        self.__class__ = Refusal  # type: ignore[assignment]


grant_made = cast(Callable[[int, int, bool], Grant], _Grant)
rank_made = cast(Callable[[int, int, tuple[Grant, ...]], RankPlacement], _Rank)
placement_made = cast(Callable[[int, tuple[RankPlacement, ...]], Placement], _Placement)
refusal_made = cast(Callable[[int, Reason, int, bool], Refusal], _Refusal)
