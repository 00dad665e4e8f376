"""How long a rank is known to have run: until then it is charged, and not until somebody heard of its end. Pure.

The node's own word comes first: the run time that its shim counted by a clock that nobody sets. Without it (a machine that lost
power, a rank that was written off, one that a restored database names) it is the last sync that saw the rank alive.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from agent.protocol import ExitInfo, Observed
from nodes.telemetry import Seen

#: So far a clock is set back by mistake, and not further.
STEP_MOST = timedelta(hours=2)
#: A charge may end so much later than now: two clocks never tick quite alike, and the start is known to a second.
SLACK_S = 1.0
#: No program runs for longer.
RAN_MOST_S = 1e9


def seen_s(*, started_at: datetime | None, began_s: float | None, last: Seen | None) -> float:
    """Seconds from the rank's start to ``last``, the last sync that saw it; 0 where there was none. By the node's own clock where it
    told that: no step forward of ours, and no request that was under way for long, makes a difference then."""
    if started_at is None or last is None:
        return 0.0
    by_ours_s = last.at - started_at.timestamp()
    if began_s is not None and last.uptime_s is not None:
        return max(0.0, min(last.uptime_s - began_s, by_ours_s + SLACK_S))
    return max(0.0, by_ours_s)


def told_s(info: ExitInfo | None, *, started_at: datetime | None, now: datetime) -> float | None:
    """Seconds that the node says the rank ran, at most until now (``until_now_s``); None where it says nothing, or what can't be."""
    if info is None or started_at is None or info.ran_s is None or not 0 <= info.ran_s < RAN_MOST_S:
        return None
    # Later than now: our own clock may have been set back meanwhile. What no such step explains is a fault of the node: then its word
    # counts for nothing.
    ended = started_at + timedelta(seconds=info.ran_s)
    return until_now_s(info.ran_s, started_at=started_at, now=now) if ended <= now + STEP_MOST else None


def until_now_s(ran_s: float, *, started_at: datetime, now: datetime) -> float:
    """``ran_s``, but no more than what lies between the start and now by our own clock: whatever a node says, nobody is charged for
    time that has not passed. After a step back of our clock that is less than what ran, never more."""
    return min(ran_s, max(0.0, (now - started_at).total_seconds() + SLACK_S))


def alive_until(started_at: datetime | None, ran_s: float | None, *, now: datetime) -> datetime:
    """The moment of the last proof of life, where charging ends; ``now`` of what never ran."""
    return now if started_at is None else started_at + timedelta(seconds=ran_s or 0.0)


def begin_of(seen: Observed, *, placed_at: datetime, uptime_s: float | None, now: datetime) -> datetime:
    """When a rank began that was not known to run: between its placement and now, so that no clock can charge too much. By the
    node's uptime at this sync, else by its wall clock."""
    if uptime_s is not None and seen.began_s is not None:
        age_s = uptime_s - seen.began_s
        return _between(placed_at, now - timedelta(seconds=age_s) if 0 <= age_s < RAN_MOST_S else now, now)
    latest = now
    if seen.exit is not None and seen.exit.ran_s is not None and 0 <= seen.exit.ran_s < RAN_MOST_S:
        latest = now - timedelta(seconds=seen.exit.ran_s)
    if seen.started_at is None:
        return _between(placed_at, latest, now)
    try:
        return _between(placed_at, min(latest, datetime.fromtimestamp(seen.started_at, tz=UTC)), now)
    except (OverflowError, OSError, ValueError):
        return _between(placed_at, latest, now)


def _between(earliest: datetime, at: datetime, latest: datetime) -> datetime:
    return min(latest, max(earliest, at))
