"""What the passes did, counted across processes in Redis. Counters only: an emptied Redis starts them anew, which Prometheus
takes for a restart."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field

import redis

from nodes import telemetry

KEY = "nebula:counts"
#: Upper bounds of the duration of a pass, in seconds.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PARTS = ("snapshot", "plan", "apply", "reasons")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCounts:
    """``buckets``: as many as BOUNDS and one above; ``parts``: seconds in each part of all passes."""

    buckets: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    started: int = 0
    failed: int = 0


def pass_counted(*, seconds: float, parts_ms: Mapping[str, float], started: int) -> None:
    """A pass that was run to its end. One round trip; nothing happens while Redis is away."""

    def write(c: redis.Redis) -> None:
        pipe = c.pipeline(transaction=False)
        pipe.hincrby(KEY, f"le:{bisect.bisect_left(BOUNDS, seconds)}", 1)
        pipe.hincrbyfloat(KEY, "seconds", seconds)
        for part, spent in parts_ms.items():
            pipe.hincrbyfloat(KEY, f"part:{part}", spent / 1000)
        if started:
            pipe.hincrby(KEY, "started", started)
        pipe.execute()

    telemetry.ask(write, None)


def pass_failed() -> None:
    """A pass that ended with an error."""
    telemetry.ask(lambda c: c.hincrby(KEY, "failed", 1), None)


def pass_counts() -> PassCounts | None:
    """None while Redis is away."""
    found = telemetry.ask(lambda c: c.hgetall(KEY), None)
    if found is None:
        return None
    return PassCounts(
        buckets=tuple(int(found.get(f"le:{place}", 0)) for place in range(len(BOUNDS) + 1)),
        seconds=float(found.get("seconds", 0)),
        parts={part: float(found[f"part:{part}"]) for part in PARTS if f"part:{part}" in found},
        started=int(found.get("started", 0)),
        failed=int(found.get("failed", 0)),
    )
