"""Who is silent. Pure: times in, names out.

"I can't hear the node" must be the node's doing, not ours. So each check remembers when it ran; when the memory is gone
(an emptied Redis) or too old (worker, beat or the whole control plane was down, or the clock jumped), the watching
starts anew and every node has its full time again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodes.telemetry import Seen, Watch

#: Checks run each second. After a gap of more than this the timers start anew: sync interval + back-off + gap must
#: stay under the 15 s of silence that make a node UNKNOWN.
GAP_S = 4.0
#: A last sync so far ahead of our clock is not believed: the clock was set back since.
AHEAD_S = 60.0


def is_watching(watch: Watch, *, now: float) -> bool:
    """Whether the checks went on without a pause until ``now`` (Unix time)."""
    return watch.checked_at is not None and watch.epoch is not None and 0 <= now - watch.checked_at <= GAP_S


def watch_next(watch: Watch, *, now: float) -> Watch:
    """The memory to keep after a check at ``now``."""
    return Watch(checked_at=now, epoch=watch.epoch if is_watching(watch, now=now) else now)


def heard_at(node: int, *, seen: Mapping[int, Seen], watch: Watch, now: float) -> float:
    """Since when we have been listening in vain: the node's last sync, or the begin of the watching if that is later."""
    epoch = now if watch.epoch is None else watch.epoch
    last = seen.get(node)
    return epoch if last is None or last.at > now + AHEAD_S else max(epoch, last.at)


def silent_nodes(nodes: Iterable[int], *, seen: Mapping[int, Seen], watch: Watch, now: float, after_s: float) -> list[int]:
    """Those of ``nodes`` that were not heard of for ``after_s`` seconds or more, while we were listening."""
    # A millisecond of slack: times pass through text with three digits.
    return [node for node in nodes if now - heard_at(node, seen=seen, watch=watch, now=now) >= after_s - 0.001]


def is_half_silent(*, unknown: int, watched: int) -> bool:
    """More than half of at least two nodes: then the fault is more likely ours or the network's than theirs."""
    return unknown > 1 and unknown * 2 > watched
