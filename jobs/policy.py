"""The installation's policy: what an administrator set (NEBULA_POLICY_*, docs/settings.md), as the core wants it."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any

from django.conf import settings

from jobs.scheduler.order import ORDERS
from jobs.scheduler.score import STRATEGIES
from jobs.scheduler.types import Policy, Queue

#: Fields of Policy that are settings of the same name (POLICY_<FIELD>), and what each may be.
AT_LEAST_0 = (
    "foreign_floor_mib",
    "half_life_s",
    "weight_per_job",
    "weight_per_card_hour",
    "weight_power",
    "load_power",
    "borrow_s",
    "trust",
    "trust_floor_s",
)
ABOVE_0 = ("min_slice_mib", "max_slices", "age_fold_s", "short_floor_s", "limit_max_s", "patience_s")
OTHERS = ("order", "strategy", "whole_above", "keeps_for_head")
NAME_MAX = 40  # of a queue or a QOS: what a job's row holds
QUEUES_EXAMPLE = '{"batch": {"guaranteed": 0.7}, "service": {"guaranteed": 0.3, "most": 0.5}}'
QOS_EXAMPLE = '{"high": 100, "low": -100}'


class PolicyError(ValueError):
    """A setting that is no policy: one sentence that names it, what it is, and what it may be."""


def policy_current() -> Policy:
    """The installation's policy; read from the settings at each call, as tests change them. Raises PolicyError."""
    values: dict[str, Any] = {name: getattr(settings, f"POLICY_{name.upper()}") for name in (*AT_LEAST_0, *ABOVE_0, *OTHERS)}
    if settings.POLICY_QUEUES:
        values["queues"] = queues_read(settings.POLICY_QUEUES)
    if settings.POLICY_QOS:
        values["qos"] = qos_read(settings.POLICY_QOS)
    return _policy(tuple(values.items()))


@lru_cache(maxsize=16)
def _policy(values: tuple[tuple[str, Any], ...]) -> Policy:
    """Raises PolicyError for what no pass could work with."""
    policy = Policy(**dict(values))
    for name, known in (("order", ORDERS), ("strategy", STRATEGIES)):
        if getattr(policy, name) not in known:
            raise _refuse(name, getattr(policy, name), f"one of {', '.join(known)}")
    for name in AT_LEAST_0:
        if not (math.isfinite(getattr(policy, name)) and getattr(policy, name) >= 0):
            raise _refuse(name, getattr(policy, name), "a number from 0 up")
    for name in ABOVE_0:
        if not (math.isfinite(getattr(policy, name)) and getattr(policy, name) > 0):
            raise _refuse(name, getattr(policy, name), "a number above 0")
    if not 0 < policy.whole_above <= 1:
        raise _refuse("whole_above", policy.whole_above, "a share of a card above 0, at most 1")
    return policy


def _refuse(name: str, value: object, expected: str) -> PolicyError:
    return PolicyError(f"NEBULA_POLICY_{name.upper()} is {value!r}; expected {expected}.")


def _object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise PolicyError(f"NEBULA_POLICY_{name.upper()} is not JSON ({error}); an example: {example}.") from error
    if not isinstance(found, dict) or not found or not all(0 < len(key) <= NAME_MAX for key in found):
        raise PolicyError(f"NEBULA_POLICY_{name.upper()} must map names of 1 to {NAME_MAX} characters; an example: {example}.")
    return found


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


@lru_cache(maxsize=16)
def queues_read(text: str) -> tuple[Queue, ...]:
    """``{"batch": {"guaranteed": 0.7}, "service": {"guaranteed": 0.3, "most": 0.5}}``, shares of the cards; the first is the
    queue of a job that names none. Raises PolicyError."""
    queues = []
    for name, shares in _object("queues", text, QUEUES_EXAMPLE).items():
        if not isinstance(shares, dict) or not {"guaranteed"} <= set(shares) <= {"guaranteed", "most"}:
            raise PolicyError(f"NEBULA_POLICY_QUEUES: queue {name!r} needs guaranteed, and may have most; an example: {QUEUES_EXAMPLE}.")
        guaranteed, most = shares["guaranteed"], shares.get("most", 1.0)
        if not (_is_share(guaranteed) and _is_share(most) and guaranteed <= most):
            raise PolicyError(
                f"NEBULA_POLICY_QUEUES: queue {name!r} has guaranteed {guaranteed!r} and most {most!r}; expected shares of the cards "
                "from 0 to 1, most not below guaranteed."
            )
        queues.append(Queue(name=name, guaranteed=float(guaranteed), most=float(most)))
    total = sum(queue.guaranteed for queue in queues)
    if total > 1 + 1e-9:
        raise PolicyError(f"NEBULA_POLICY_QUEUES guarantees {total:g} of the cards; all queues together can have at most 1.")
    return tuple(queues)


@lru_cache(maxsize=16)
def qos_read(text: str) -> tuple[tuple[str, int], ...]:
    """``{"high": 100, "low": -100}``: what each adds to a job's priority. Raises PolicyError."""
    found = _object("qos", text, QOS_EXAMPLE)
    for name, value in found.items():
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**31:
            raise PolicyError(f"NEBULA_POLICY_QOS: {name!r} is {value!r}; expected a whole number, which is added to a job's priority.")
    return tuple(found.items())
