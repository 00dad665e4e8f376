"""Two schedules of the same jobs side by side: who gains, who loses, and what it comes to. Numbers only; words are made at the edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.scheduler.measures import Judged, OwnerMeasures

NEWS_S = 60.0  # an average wait that changes by less is the same …
NEWS_SHARE = 0.05  # … and so is one that changes by less than this share of the longer one
FAIR_NEWS = 0.01  # of the max-min deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One owner's average wait under each, seconds. ``verdict``: gains | loses | same."""

    owner: int
    jobs: float
    before_s: float
    after_s: float
    verdict: str

    @property
    def difference_s(self) -> float:
        """Below 0: it waits for less."""
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``after`` against ``before``. ``waits``: shorter | longer | same | unknown; ``fairness``: fairer | less_fair | same | unknown."""

    before: Judged
    after: Judged
    users: tuple[Change, ...]
    projects: tuple[Change, ...]
    waits: str
    fairness: str

    def count(self, verdict: str) -> int:
        """Users who gain, who lose or to whom it is the same."""
        return sum(change.verdict == verdict for change in self.users)


def wait_verdict(before_s: float, after_s: float) -> str:
    """gains | loses | same: a change counts from a minute and from 5 % of the longer wait."""
    difference = after_s - before_s
    if abs(difference) < NEWS_S or abs(difference) < NEWS_SHARE * max(before_s, after_s):
        return "same"
    return "gains" if difference < 0 else "loses"


def owner_changes(before: Mapping[int, OwnerMeasures], after: Mapping[int, OwnerMeasures]) -> tuple[Change, ...]:
    """Of the owners in both, the largest change first; ties by number."""
    found = [
        Change(
            owner=owner,
            jobs=after[owner].jobs,
            before_s=before[owner].wait_avg_s,
            after_s=after[owner].wait_avg_s,
            verdict=wait_verdict(before[owner].wait_avg_s, after[owner].wait_avg_s),
        )
        for owner in sorted(before.keys() & after.keys())
    ]
    return tuple(sorted(found, key=lambda change: (-abs(change.difference_s), change.owner)))


def compare(before: Judged, after: Judged) -> Comparison:
    """What ``after`` changes against ``before``."""
    first, second = before.measures, after.measures
    waits = fairness = "unknown"
    if first.wait_avg_s is not None and second.wait_avg_s is not None:
        waits = {"gains": "shorter", "loses": "longer", "same": "same"}[wait_verdict(first.wait_avg_s, second.wait_avg_s)]
    if first.maxmin_dev is not None and second.maxmin_dev is not None:
        change = second.maxmin_dev - first.maxmin_dev
        fairness = "same" if abs(change) < FAIR_NEWS else "fairer" if change < 0 else "less_fair"
    return Comparison(
        before=before,
        after=after,
        users=owner_changes(before.users, after.users),
        projects=owner_changes(before.projects, after.projects),
        waits=waits,
        fairness=fairness,
    )
