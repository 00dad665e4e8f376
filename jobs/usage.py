"""Past use as a weight (D4): 1 + 0.1 a finished job + 0.02 a card-hour, each fading with the half-life; the numbers are the policy's.

Card-hours are those of the ledger (from ACTIVE to RELEASING, a slice by its share of the card), and of what runs now until now, or
until its node fell silent.
Finished are jobs with cards that ran and ended, however; not those that the machines ended, nor those cancelled while waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from jobs.history import Lately
from jobs.scheduler import Policy
from quotas.usage import card_hours_left, faded_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePart:
    """A part of a card in use: whose it is, its share of the card, since when and until when (seconds since the epoch)."""

    user: int
    project: int
    share: float
    since: float
    until: float


def weights_read(live: Iterable[LivePart], *, lately: Lately, now: datetime, policy: Policy) -> tuple[dict[int, float], dict[int, float]]:
    """(user → weight, project → weight), each ≥ 1; owners without past use are left out. One query."""
    users, projects = card_hours_left(now=now, half_life_s=policy.half_life_s)
    at = now.timestamp()
    for part in live:
        hours = faded_hours(share=part.share, begin=part.since, end=part.until, now=at, half_life_s=policy.half_life_s)
        users[part.user] = users.get(part.user, 0.0) + hours
        projects[part.project] = projects.get(part.project, 0.0) + hours
    return _weights(users, lately.users, policy), _weights(projects, lately.projects, policy)


def _weights(hours: Mapping[int, float], jobs: Mapping[int, float], policy: Policy) -> dict[int, float]:
    return {
        owner: 1.0 + max(policy.weight_per_job * jobs.get(owner, 0.0) + policy.weight_per_card_hour * hours.get(owner, 0.0), 0.0)
        for owner in sorted({*hours, *jobs})
    }
