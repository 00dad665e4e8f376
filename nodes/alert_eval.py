"""When a rule opens and resolves an alert. Pure: figures and times in, what to remember and what happened out.

  past the threshold for ``for_s`` without a break                     → open (or raise, from warning to critical)
  back by ``clear_by`` for ``clear_s``, twice as long for each return  → clear
  the subject is not there any more                                    → gone
  an open one without a figure for ``NO_DATA_S``                       → no_data

A figure that is missing (None) is neither good nor bad: it opens nothing, clears nothing, and the time without it counts for neither
side. The same goes for a pause of the one who looks (``GAP_S``): nobody knows what was in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

GAP_S: Final = 60.0
NO_DATA_S: Final = 3600.0
#: A return doubles the time that the figure has to be back, up to so many times.
DOUBLINGS: Final = 5
#: Times pass through text.
SLACK_S: Final = 0.001
Event = Literal["open", "raise", "clear", "gone", "no_data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``op`` gt | ge | lt | le; a threshold that is None is not used. Seconds."""

    op: str
    warning: float | None
    critical: float | None
    for_s: float
    clear_by: float = 0.0
    clear_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What is remembered of one rule and one subject. ``level`` 0 = no open alert; times are Unix times, None = not so now."""

    level: int = 0
    warn_since: float | None = None
    crit_since: float | None = None
    clear_since: float | None = None
    told_at: float | None = None
    times: int = 1

    @property
    def is_blank(self) -> bool:
        """Nothing that the next look has to know."""
        return self.level == 0 and self.warn_since is None and self.crit_since is None

    def to_json(self) -> list[Any]:
        return [self.level, self.warn_since, self.crit_since, self.clear_since, self.told_at, self.times]

    @classmethod
    def from_json(cls, found: Any) -> Track:
        """Raises ValueError, TypeError for what another version wrote."""
        level, warn, crit, clear, told, times = found
        as_time = [None if value is None else float(value) for value in (warn, crit, clear, told)]
        return cls(
            level=int(level), warn_since=as_time[0], crit_since=as_time[1], clear_since=as_time[2], told_at=as_time[3], times=int(times)
        )


BLANK: Final = Track()


def is_past(op: str, value: float, threshold: float | None, *, back_by: float = 0.0) -> bool:
    """Whether the figure is past the threshold; ``back_by`` moves that towards the good side."""
    if threshold is None:
        return False
    if op in ("gt", "ge"):
        limit = threshold - back_by
        return value > limit or (op == "ge" and value == limit)
    limit = threshold + back_by
    return value < limit or (op == "le" and value == limit)


def track_next(rule: Rule, track: Track, value: float | None, *, now: float, elapsed_s: float) -> tuple[Track, Event | None]:
    """A look at ``now`` (Unix time), ``elapsed_s`` after the last one of this rule."""
    # 1. Time that nobody can speak for counts for neither side: up to a look without a figure, after one, and a pause.
    was_untold = track.told_at is not None and track.told_at < now - elapsed_s - SLACK_S
    if elapsed_s > 0 and (value is None or was_untold or elapsed_s > GAP_S):
        track = _shifted(track, elapsed_s)
    if value is None:
        if track.level and track.told_at is not None and now - track.told_at >= NO_DATA_S:
            return BLANK, "no_data"
        return track, None

    # 2. Since when is it past, and since when back?
    is_critical = is_past(rule.op, value, rule.critical)
    is_warning = is_critical or is_past(rule.op, value, rule.warning)
    first = rule.warning if rule.warning is not None else rule.critical
    is_back = not is_past(rule.op, value, first, back_by=rule.clear_by)
    track = replace(
        track,
        told_at=now,
        warn_since=_since(track.warn_since, is_warning, now),
        crit_since=_since(track.crit_since, is_critical, now),
        clear_since=_since(track.clear_since, is_back, now) if track.level else None,
    )

    # 3. Long enough?
    level = 2 if _lasts(track.crit_since, rule.for_s, now) else 1 if _lasts(track.warn_since, rule.for_s, now) else 0
    if level > track.level:
        event: Event = "raise" if track.level else "open"
        return replace(track, level=level, clear_since=None), event
    if track.level and _lasts(track.clear_since, rule.clear_s * 2 ** min(max(0, track.times - 1), DOUBLINGS), now):
        return BLANK, "clear"
    return track, None


def _since(before: float | None, holds: bool, now: float) -> float | None:
    return (now if before is None else before) if holds else None


def _lasts(since: float | None, least_s: float, now: float) -> bool:
    return since is not None and now - since >= least_s - SLACK_S


def _shifted(track: Track, by_s: float) -> Track:
    def later(at: float | None) -> float | None:
        return None if at is None else at + by_s

    return replace(track, warn_since=later(track.warn_since), crit_since=later(track.crit_since), clear_since=later(track.clear_since))


Figures = Mapping[str, float | None]  # subject → figure


def rule_look(
    rule: Rule, tracks: Mapping[str, Track], figures: Figures, *, now: float, elapsed_s: float
) -> tuple[dict[str, Track], list[tuple[str, Event]]]:
    """One rule over all its subjects: what to remember of each, and what happened, in the order of the figures."""
    kept: dict[str, Track] = {}
    events: list[tuple[str, Event]] = []
    op, warning, critical = rule.op, rule.warning, rule.critical
    for subject, value in figures.items():
        track = tracks.get(subject)
        # Nearly all subjects are well and have no past: they cost two comparisons.
        if track is None and (value is None or not (is_past(op, value, warning) or is_past(op, value, critical))):
            continue
        after, event = track_next(rule, track or BLANK, value, now=now, elapsed_s=elapsed_s)
        if event is not None:
            events.append((subject, event))
        if not after.is_blank:
            kept[subject] = after
    events += [(subject, "gone") for subject, track in tracks.items() if subject not in figures and track.level]
    return kept, events
