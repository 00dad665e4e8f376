"""What a job may ask of its cards and nodes: users' words as numbers, and the keys under which they are kept.

``Job.constraints`` has those of ``KIND`` (which cards, which nodes) and of ``HOST`` (how much of each node, whether alone on a
card); a key is there only if it was asked for. Pure; a refusal is a code with its params (jobs/refusals.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jobs.parsing import MAX_INT, Unreadable, shorten, size_mib
from jobs.scheduler import Policy
from nodes.labels import VALUE_MAX, is_key, is_value

KIND: Final = ("arch", "model", "vendor", "cuda_min", "driver_min", "labels")
HOST: Final = ("cpu_milli", "host_mem_mib", "exclusive")
MAX_LABELS: Final = 16

_CORES: Final = re.compile(r"([0-9]{1,7})(?:\.([0-9]{1,3}))?")
_VERSION: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,3}")


def cores_milli(value: str | int | float) -> int:
    """Thousandths of a core of ``"0.5"``, 0.5 or 8. Raises Unreadable: ``cores_unreadable``, ``cores_range``."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Unreadable("cores_unreadable", value=shorten(str(value)))
    text = str(value).strip()
    found = _CORES.fullmatch(text)
    if found is None:
        raise Unreadable("cores_unreadable", value=shorten(text))
    milli = int(found[1]) * 1000 + int((found[2] or "").ljust(3, "0"))
    if not 1 <= milli <= MAX_INT:
        raise Unreadable("cores_range", value=shorten(text), most=MAX_INT // 1000)
    return milli


def host_mem_mib(value: str | int) -> int:
    """MiB of ``"64G"`` or 65536. Raises Unreadable: ``size_unreadable``, ``size_range``."""
    try:
        return size_mib(value)
    except Unreadable as error:
        # A fraction without a unit is no share of a card here.
        code = "size_unreadable" if error.code == "size_fraction" else error.code
        raise Unreadable(code, **error.params) from error


def version_check(text: str) -> str:
    """``12.4``, ``550`` or ``550.54.14``. Raises Unreadable: ``version_unreadable``."""
    if not _VERSION.fullmatch(text):
        raise Unreadable("version_unreadable", value=shorten(text))
    return text


def labels_check(labels: Mapping[str, str]) -> dict[str, str]:
    """By name. Raises Unreadable: ``labels_many``, ``label_key``, ``label_value``."""
    if len(labels) > MAX_LABELS:
        raise Unreadable("labels_many", count=len(labels), limit=MAX_LABELS)
    for key, value in labels.items():
        if not is_key(key):
            raise Unreadable("label_key", key=shorten(key))
        if not is_value(value):
            raise Unreadable("label_value", key=key, limit=VALUE_MAX)
    return dict(sorted(labels.items()))


def queue_check(name: str, policy: Policy) -> str:
    """Raises Unreadable: ``queue_unknown``, with those that there are."""
    names = [queue.name for queue in policy.queues]
    if name and name not in names:
        raise Unreadable("queue_unknown", value=shorten(name), known=", ".join(names))
    return name


def qos_check(name: str, policy: Policy, *, is_staff: bool) -> str:
    """One that raises the priority is for staff, as a priority above 0 is. Raises Unreadable: ``qos_unknown``, ``qos_staff``."""
    points = dict(policy.qos)
    if name and name not in points:
        raise Unreadable("qos_unknown", value=shorten(name), known=", ".join(points))
    if name and points[name] > 0 and not is_staff:
        raise Unreadable("qos_staff", value=name, points=points[name])
    return name


def constraints_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, by ``KIND`` and ``HOST``, without what says nothing."""
    return {key: asked[key] for key in (*KIND, *HOST) if asked.get(key)}
