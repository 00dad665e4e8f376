"""Whether a job does nothing on the cards that it holds: the rule, pure, and the windows that policy gives.

A job is idle only if the whole window lies behind it since its program began, every card of it told its use for the whole window and
never did anything, and its machines' processors told theirs and did nothing to speak of either. What is not told is never idle, a
gap of samples is not told, and a busy processor means that the job prepares data or talks to somebody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from django.conf import settings

#: So much of the window must have been told: a sample now and then is lost.
COVERED = 0.9
WINDOW_LEAST_S, WINDOW_MOST_S = 300, 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``util_below`` in %, ``cores_below`` in processor cores of a machine."""

    util_below: int
    cores_below: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was sampled of one card or machine in the window: samples, those that told the figure, and the most that was told."""

    samples: int
    told: int
    most: float | None


def window_of(*, queue: str, job_s: int | None) -> int | None:
    """The shortest window, in seconds, that the installation, the queue or the job asks for; None = never looked at.

    One rule for all three: whoever sets one, it holds.
    """
    wanted = (settings.IDLE_AFTER_S, queues_read(settings.IDLE_QUEUES).get(queue, 0), job_s or 0)
    return min((seconds for seconds in wanted if seconds > 0), default=None)


@lru_cache(maxsize=4)
def queues_read(text: str) -> Mapping[str, int]:
    """``{"interactive": 1800}``: queue → seconds. Raises ValueError with a sentence."""
    if not text:
        return {}
    example = '{"interactive": 1800}'
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"NEBULA_IDLE_QUEUES is not JSON ({error}); an example: {example}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"NEBULA_IDLE_QUEUES must map queues to seconds; an example: {example}.")
    for queue, seconds in found.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int) or not WINDOW_LEAST_S <= seconds <= WINDOW_MOST_S:
            raise ValueError(
                f"NEBULA_IDLE_QUEUES: {queue!r} has {seconds!r}; expected whole seconds from {WINDOW_LEAST_S} to {WINDOW_MOST_S}."
            )
    return found


def is_idle(*, ran_s: float, window_s: int, step_s: int, cards: Sequence[Seen], machines: Sequence[Seen], rule: Rule) -> bool:
    """``ran_s``: since its program began. ``step_s``: between two samples."""
    if ran_s < window_s or not cards or not machines:
        return False
    wanted = COVERED * window_s / step_s

    def quiet(seen: Seen, below: float) -> bool:
        return seen.samples >= wanted and seen.told == seen.samples and seen.most is not None and seen.most < below

    return all(quiet(card, rule.util_below) for card in cards) and all(quiet(machine, rule.cores_below) for machine in machines)
