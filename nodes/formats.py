"""Numbers and times as people read them, in the reader's language. A number and its unit are joined by U+00A0.

None is never 0: what is not known is ``n/a``.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from django.utils import formats, timezone
from django.utils.translation import get_language
from django.utils.translation import gettext as _

NBSP = "\N{NO-BREAK SPACE}"
#: Days, hours, minutes, seconds, as static/js/times.js needs them too (data-units).
SIZES = (86_400, 3600, 60, 1)


def is_chinese() -> bool:
    return (get_language() or "").startswith("zh")


def units() -> tuple[str, str, str, str]:
    return ("天", "小时", "分", "秒") if is_chinese() else ("d", "h", "min", "s")


def number(value: float, digits: int = 1) -> str:
    """Thousands with commas, at most ``digits`` decimals, none if they are zeros."""
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def gib_number(mib: float | None) -> str:
    return _("n/a") if mib is None else number(mib / 1024, 1 if mib < 100 * 1024 else 0)


def gib(mib: float | None) -> str:
    """MiB as GiB: one decimal below 100, none if whole."""
    return _("n/a") if mib is None else f"{gib_number(mib)}{NBSP}GiB"


def size(count: int | None) -> str:
    """Bytes: ``512 B``, ``2.1 KiB``; static/js/logbar.js says it in the same way."""
    if count is None:
        return _("n/a")
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{number(amount)}{NBSP}{unit}"


def gib_of(used: float | None, total: float | None) -> str:
    """``14.2 of 20 GiB``."""
    values = {"used": gib_number(used), "total": gib(total)}
    return _("%(used)s of %(total)s") % values


def percent(value: float | None) -> str:
    return _("n/a") if value is None else f"{round(value)}%"


def share(value: float) -> str:
    """A part of a card, two decimals: ``0.25``; whole numbers plain."""
    return number(value, 2)


def gpu_hours(hours: float | None) -> str:
    """One decimal, two below 1; never broken at its hyphen."""
    if hours is None:
        return _("n/a")
    text = f"{hours:,.2f}" if 0 < hours < 1 else f"{hours:,.1f}".removesuffix(".0")
    return f"{text}{NBSP}卡时" if is_chinese() else f"{text}{NBSP}GPU\u2060-\u2060h"


def duration(seconds: float | None) -> str:
    """Two units at most: ``1 h 39 min``, ``42 s``, ``84 ms``."""
    if seconds is None:
        return _("n/a")
    if 0 < seconds < 1:
        return f"{round(seconds * 1000)}{NBSP}{'毫秒' if is_chinese() else 'ms'}"
    rest, parts = max(0, int(seconds)), []
    for size, unit in zip(SIZES, units(), strict=True):
        amount, rest = divmod(rest, size)
        if amount or (size == 1 and not parts):
            parts.append(f"{amount}{NBSP}{unit}")
        elif parts:
            break  # 1 d 0 h 5 min is 1 d
        if len(parts) == 2:
            break
    return " ".join(parts)


def clock_limit(seconds: int | None) -> str:
    """A time limit as it is typed: ``2:00:00``."""
    if seconds is None:
        return _("none")
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def ago(seconds: float) -> str:
    return _("%(duration)s ago") % {"duration": duration(max(0, seconds))}


def date_text(at: datetime, *, now: datetime | None = None) -> str:
    """``14 Jul`` / ``7 月 14 日``; the year only if it is not this one. In the active time zone."""
    local, this = timezone.localtime(at), timezone.localtime(now or timezone.now())
    if is_chinese():
        text = f"{local.month}{NBSP}月{NBSP}{local.day}{NBSP}日"
        return text if local.year == this.year else f"{local.year}{NBSP}年{NBSP}{text}"
    text = f"{local.day}{NBSP}{formats.date_format(local, 'M')}"
    return text if local.year == this.year else f"{text}{NBSP}{local.year}"


def clock_text(at: datetime, *, now: datetime | None = None, is_exact: bool = False) -> str:
    """``13:18`` of today, else the date with it; ``is_exact``: to the second."""
    local, this = timezone.localtime(at), timezone.localtime(now or timezone.now())
    text = f"{local:%H:%M:%S}" if is_exact else f"{local:%H:%M}"
    if local.date() == this.date():
        return text
    return f"{date_text(at, now=now)} {text}" if is_chinese() else f"{date_text(at, now=now)}, {text}"


def moment_title(at: datetime) -> str:
    """The exact time with its zone, for a tooltip."""
    local = timezone.localtime(at)
    return f"{local:%Y-%m-%d %H:%M:%S} {local:%Z}"


# --- names of cards -----------------------------------------------------------------------------------------------

_VENDOR_WORDS = re.compile(
    r"\b(?:nvidia|geforce|intel|amd|radeon|instinct|tesla|quadro|huawei|simulated|graphics|gpu|\(r\)|\(tm\))\b|\((?:r|tm)\)", re.I
)
_NUMBERED = re.compile(r"\b(?:[A-Za-z]{1,3}\d{2,4}|\d{3,4})[A-Za-z]{0,2}\d?\b")


@functools.lru_cache(maxsize=1024)
def model_name(model: str) -> str:
    """``NVIDIA GeForce RTX 4060 Laptop GPU`` → ``RTX 4060 Laptop``."""
    return " ".join(_VENDOR_WORDS.sub(" ", model).split()) or model


@functools.lru_cache(maxsize=1024)
def model_short(model: str) -> str:
    """What fits into a cell: ``4060L``, ``A100``, ``A770``, ``910B``; at most six signs."""
    name = model_name(model)
    found = _NUMBERED.search(name)
    words = name.split() or ["GPU"]
    text = found[0] if found else words[-1] if name == model else words[0]
    return f"{text[:5]}L" if "laptop" in name.lower() else text[:6]


def models_text(models: Iterable[str], *, most: int = 3) -> str:
    """``RTX 4090 ×2, RTX 4060 Laptop``; the rest is counted."""
    counts = Counter(model_name(model) for model in models)
    parts = [f"{name} ×{count}" if count > 1 else name for name, count in counts.items()]
    return ", ".join(parts[:most] + ([f"+{len(parts) - most}"] if len(parts) > most else []))
