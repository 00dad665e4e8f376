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


def watch_next(watch: Watch, *, now: float) -> Watch:
    """The memory to keep after a check at ``now`` (Unix time)."""
    is_continuous = watch.checked_at is not None and watch.epoch is not None and 0 <= now - watch.checked_at <= GAP_S
    return Watch(checked_at=now, epoch=watch.epoch if is_continuous else now)


def silent_nodes(nodes: Iterable[int], *, seen: Mapping[int, Seen], watch: Watch, now: float, after_s: float) -> list[int]:
    """Those of ``nodes`` that were not heard of for ``after_s`` seconds or more, while we were listening."""
    epoch = now if watch.epoch is None else watch.epoch
    silent = []
    for node in nodes:
        last = seen.get(node)
        heard = epoch if last is None or last.at > now + AHEAD_S else max(epoch, last.at)
        # A millisecond of slack: times pass through text with three digits.
        if now - heard >= after_s - 0.001:
            silent.append(node)
    return silent


def is_half_silent(*, unknown: int, watched: int) -> bool:
    """More than half of at least two nodes: then the fault is more likely ours or the network's than theirs."""
    return unknown > 1 and unknown * 2 > watched
