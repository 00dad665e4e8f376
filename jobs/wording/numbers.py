"""Sizes, times and places inside a sentence, and how a table of sentences is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from nodes.formats import gib_number

Params = Mapping[str, Any]
Sentence = Callable[[Params], str]


def said(table: Mapping[str, Sentence], code: str, params: Params | None) -> str:
    try:
        return table[code](params or {})
    except (KeyError, TypeError, ValueError, AttributeError):
        # A code from a newer version, or params that an older one stored: the code is still better than a failed page.
        return code


def gib(mib: int | float | None) -> str:
    """MiB as the pages say it, but with a plain blank: these sentences are for terminals and programs, too."""
    return _("unknown") if mib is None else f"{gib_number(mib)} GiB"


def gibs(one: int | float | None, other: int | float | None) -> tuple[str, str]:
    """Two sizes of one sentence: in MiB where they are not equal but would read so. A GPU of "24 GiB" has 24564 MiB, and half of it is free
    for what needs no more than 12282."""
    texts = gib(one), gib(other)
    if texts[0] == texts[1] and one != other:
        return f"{one} MiB", f"{other} MiB"
    return texts


def duration(seconds: int | float | None) -> str:
    """Two units: ``1 h 39 min``, ``42 s``."""
    if seconds is None:
        return _("unknown")
    whole = int(seconds)
    days, hours, minutes, rest = whole // 86_400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    parts = [
        (days, pgettext("days", "d")),
        (hours, pgettext("hours", "h")),
        (minutes, pgettext("minutes", "min")),
        (rest, pgettext("seconds", "s")),
    ]
    shown = [f"{number} {unit}" for number, unit in parts if number][:2]
    return " ".join(shown) or f"0 {parts[3][1]}"


def moment(text: str | None) -> str:
    """An ISO time with its zone, cut to minutes: ``2026-08-01 00:00 +08:00``, or ``… UTC``."""
    at = parse_datetime(text) if text else None
    if at is None or at.tzinfo is None:
        return text or _("never")
    return f"{at:%Y-%m-%d %H:%M} " + (at.isoformat()[-6:] if at.utcoffset() else "UTC")


def place(p: Params) -> str:
    """``node03 gpu5``, ``node03`` or ``gpu5``: whatever is known."""
    parts = [str(p["node"])] if p.get("node") is not None else []
    if p.get("gpu") is not None:
        parts.append(f"gpu{p['gpu']}")
    return " ".join(parts)


def at_place(p: Params) -> str:
    where = place(p)
    return f" ({where})" if where else ""


def listed(values: Any) -> str:
    if isinstance(values, list | tuple | set | frozenset):
        return ", ".join(str(value) for value in values) or _("none")
    return _("none") if values is None else str(values)


def cores(milli: int | None) -> str:
    """Thousandths of a core as cores: ``8``, ``1.5``."""
    return _("unknown") if milli is None else f"{milli / 1000:,.3f}".rstrip("0").rstrip(".")
