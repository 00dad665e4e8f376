"""How long a job will probably run, from how long jobs like it ran: nobody has to type a limit for a short job to slip through.

A job is like the earlier ones of the same owner, project, name and limit (or size, where no limit was typed). Runtimes spread
over five orders of magnitude, so everything is done with logarithms: the prediction is a geometric mean. People type limits from
habit, so with a limit the *share* of it that was used is predicted, not the runtime.

Each level, from "all jobs" to "this name by this owner", is drawn towards the one before it with the weight of two jobs; only its
last ten jobs count, as what somebody runs changes every week.
Source of the idea: Tsafrir, Etsion, Feitelson, "Backfilling Using System-Generated Predictions", IEEE TPDS 2007.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from jobs.scheduler.types import Job, Policy, Request

LAST = 10  # jobs of a level that count
PRIOR_JOBS = 2  # what the level before weighs, in jobs
PRIOR_S = 3600.0  # where nothing at all is known
PRIOR_SHARE = 0.3  # of the limit, likewise
SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job that ran to its own end, and how long. Leave out what was stopped by hand, failed to launch or was preempted."""

    user: int
    project: int = 0
    name: str = ""
    request: Request
    time_limit_s: int | None = None
    seconds: float


def name_stem(name: str) -> str:
    """``train-lr0.01-17`` and ``train-lr0.02-18`` are one kind of job: digits and what parts them do not tell kinds apart."""
    return re.sub(r"[\W_\d]+", "-", name.lower()).strip("-")


class History:
    """What finished jobs teach. Feed it in the order in which the jobs finished; the same jobs give the same predictions."""

    def __init__(self, finished: Iterable[Finished] = ()) -> None:
        self._levels: dict[Hashable, deque[float]] = {}
        self.version = 0  # grows with each job: predictions made before are old
        for item in finished:
            self.add(item)

    def add(self, done: Finished) -> None:
        seconds = max(done.seconds, SHORTEST_S)
        self.version += 1
        limits = (None,) if done.time_limit_s is None else (done.time_limit_s, None)
        for limit in limits:
            value = math.log(seconds) if limit is None else math.log(min(seconds / limit, 1.0))
            for key in _keys(done.user, done.project, done.name, done.request, limit):
                level = self._levels.get(key)
                if level is None:
                    level = self._levels[key] = deque(maxlen=LAST)
                level.append(value)

    def predict(self, *, user: int, project: int = 0, name: str = "", request: Request, time_limit_s: int | None = None) -> float:
        """Seconds, never above the limit. Where nothing is known: an hour, or 0.3 of the limit."""
        value = math.log(PRIOR_S if time_limit_s is None else PRIOR_SHARE)
        for key in _keys(user, project, name, request, time_limit_s):
            level = self._levels.get(key)
            if level:
                value = (PRIOR_JOBS * value + sum(level)) / (PRIOR_JOBS + len(level))
        if time_limit_s is None:
            return max(math.exp(value), SHORTEST_S)
        return max(min(math.exp(value), 1.0) * time_limit_s, SHORTEST_S)


def _keys(user: int, project: int, name: str, request: Request, limit: int | None) -> list[Hashable]:
    """The levels from general to special. With a limit they hold shares of it, so the two kinds never meet."""
    how = limit is None
    kind: Hashable = (request.gpu_count, request.gpu_mem_mib, request.nodes) if limit is None else limit
    keys: list[Hashable] = [("all", how), ("project", how, project), ("user", how, user), ("kind", how, user, kind)]
    stem = name_stem(name) if name else ""
    if stem:
        keys.append(("name", how, user, stem))
        keys.append(("both", how, user, stem, kind))
    return keys


def likely_s(job: Job) -> float:
    """The runtime by which jobs are ordered: predicted, else a share of the limit, else nothing is known."""
    limit = job.time_limit_s
    if job.predicted_s is not None:
        return job.predicted_s if limit is None else min(job.predicted_s, limit)
    return PRIOR_S if limit is None else PRIOR_SHARE * limit


def longest_s(limit_s: int | None, predicted_s: float | None, policy: Policy, *, strict: bool) -> float:
    """The runtime after which this pass counts on a job having ended. ``strict``: by its limit (or the queue's maximum) alone."""
    most = policy.limit_max_s if limit_s is None else float(limit_s)
    if strict or predicted_s is None or policy.trust <= 0:
        return most
    return min(most, max(policy.trust * predicted_s, policy.trust_floor_s))


def remaining_s(*, elapsed_s: float, limit_s: int | None, predicted_s: float | None, policy: Policy, strict: bool) -> float:
    """How long a running job still counts as running; negative = it should have ended already.

    One that has outlived its prediction is expected to live as long again as it has lived: the longer something has run, the
    longer it will (runtimes have heavy tails). So no pass waits minute by minute for a job that shows no sign of ending.
    """
    most = policy.limit_max_s if limit_s is None else float(limit_s)
    likely = longest_s(limit_s, predicted_s, policy, strict=strict) - elapsed_s
    if not strict and predicted_s is not None and policy.trust > 0:
        likely = max(likely, elapsed_s)
    return min(likely, most - elapsed_s)
