"""Text for a terminal: safe names, tables in 80 columns, times in the reader's zone, memory in GiB.

Whatever came from a user, a job or a node is data: it can't move the cursor, recolour the screen or reorder a line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from client.i18n import _

NONE = "-"
#: Joins emoji; harmless and wanted inside names.
_ZWJ = "\u200d"


def safe(value: object) -> str:
    """``value`` as one line in which control, direction and invisible signs are spelled out (\\x1b, \\u202e)."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(c) for c in text)


def _spelled(c: str) -> str:
    category = unicodedata.category(c)
    # Cc control, Cf direction marks and other invisible signs, Cs half a surrogate pair (can't be encoded), Zl/Zp line breaks
    if category in {"Cc", "Cf", "Cs", "Zl", "Zp"} and c != _ZWJ:
        code = ord(c)
        named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(c)
        return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return c


def cells(text: str) -> int:
    """Columns that ``text`` takes on a terminal: East Asian wide signs two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(c) for c in text)


def _cells_of(c: str) -> int:
    if unicodedata.combining(c) or c == _ZWJ or unicodedata.category(c) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(c) in {"W", "F"} else 1


def cut(text: str, width: int) -> str:
    """At most ``width`` columns, with … where something was left out."""
    if cells(text) <= width:
        return text
    kept, used = [], 0
    for c in text:
        used += _cells_of(c)
        if used > width - 1:
            break
        kept.append(c)
    return "".join(kept) + "…"


def pad(text: str, width: int, *, is_right: bool = False) -> str:
    space = " " * max(0, width - cells(text))
    return space + text if is_right else text + space


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, width: int, right: frozenset[int] = frozenset(), shrink: Sequence[int] = ()
) -> str:
    """Columns two spaces apart, in at most ``width`` columns where shrinking allows it.

    ``right``: indexes of right-aligned columns. ``shrink``: indexes that give up room, widest first, down to 8 columns each.
    """
    grid = [[safe(cell) for cell in row] for row in rows]
    lines = [list(headers), *grid]
    widths = [max(cells(line[i]) for line in lines) for i in range(len(headers))]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0:
        widest = max(shrink, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= 8:
            break
        widths[widest] -= 1
        excess -= 1
    return "\n".join(
        "  ".join(pad(cut(cell, widths[i]), widths[i], is_right=i in right) for i, cell in enumerate(line)).rstrip() for line in lines
    )


def pairs(items: Iterable[tuple[str, object]]) -> str:
    """``name: value`` lines with the values under each other; entries whose value is None are left out."""
    shown = [(name, safe(value)) for name, value in items if value is not None]
    width = max((cells(name) for name, _value in shown), default=0) + 1
    return "\n".join(f"{pad(name + ':', width)} {value}" for name, value in shown)


# --- quantities ----------------------------------------------------------------------------------------------------


def gib(mib: int | None) -> str:
    """24564 → "24.0 GiB"; None → "-"."""
    return NONE if mib is None else f"{gib_number(mib)} GiB"


def gib_number(mib: int | None) -> str:
    """24564 → "24.0", for a column whose header names the unit."""
    return NONE if mib is None else f"{mib / 1024:.1f}"


def size(count: int | None) -> str:
    """Bytes for people: "512 B", "3.4 KiB"."""
    if count is None:
        return NONE
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def labels_text(labels: Mapping[str, str] | None) -> str:
    """ "rack=r2 zone=a"; none as "-"."""
    return " ".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.0f}%"


def known(value: object) -> object:
    """None and "" as "-"; 0 stays 0."""
    return NONE if value is None or value == "" else value


def duration(seconds: float | None) -> str:
    """3725 → "1:02:05"; days in front from 24 h on: "2d 03:00:00"."""
    if seconds is None:
        return NONE
    total = max(0, int(seconds))
    days, rest = divmod(total, 86_400)
    hours, minutes, left = rest // 3600, rest // 60 % 60, rest % 60
    return f"{days}d {hours:02}:{minutes:02}:{left:02}" if days else f"{hours}:{minutes:02}:{left:02}"


def time_parse(text: str | None) -> datetime | None:
    """The API's ISO 8601 as an aware time; None for None or for what is not a time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def time_local(text: str | None) -> str:
    """ "2026-03-01 17:04:05 CST" in this machine's zone (TZ)."""
    moment = time_parse(text)
    return NONE if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def time_short(text: str | None, now: datetime) -> str:
    """For tables: "17:04:05" today, else "03-01 17:04", with the year when it is another one."""
    moment = time_parse(text)
    if moment is None:
        return NONE
    local, today = moment.astimezone(), now.astimezone()
    if local.date() == today.date():
        return local.strftime("%H:%M:%S")
    return local.strftime("%m-%d %H:%M" if local.year == today.year else "%Y-%m-%d")


def elapsed(start: str | None, end: str | None, now: datetime) -> str:
    begun = time_parse(start)
    if begun is None:
        return NONE
    return duration(((time_parse(end) or now) - begun).total_seconds())


# --- models --------------------------------------------------------------------------------------------------------

#: "Simulated" goes too: wherever a model is shown, its mark says so.
_MAKERS = re.compile(r"^(?:Simulated\s+)?(?:(?:NVIDIA\s+GeForce|NVIDIA|GeForce|Intel\(R\)|Intel|AMD|Huawei)\s+)?", re.IGNORECASE)


def model_short(model: str) -> str:
    """ "NVIDIA GeForce RTX 4060 Laptop GPU" → "RTX 4060 Laptop", "Intel(R) Arc(TM) A770 Graphics" → "Arc A770"."""
    short = _MAKERS.sub("", model.replace("(R)", "").replace("(TM)", "").strip())
    short = re.sub(r"\s+(?:GPU|Graphics)$", "", short).strip()
    return short or model


def overview(usage: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]] | None) -> str:
    """What ``nebula-ctl status`` prints. ``nodes`` None = not for this reader."""
    gpus, vram = usage["gpus"], usage["vram"]
    words = (("idle", _("idle")), ("busy", _("busy")), ("maintenance", _("maintenance")))
    parts = ", ".join(f"{gpus[part]} {word}" for part, word in words)
    lines = [
        _("Cluster Overview:"),
        "  " + _("Nodes: {count}").format(count=usage["nodes"]["total"]),
        "  " + _("GPUs: {count} ({parts})").format(count=gpus["total"], parts=parts),
        "  " + _("Total VRAM: {total} (free: {free})").format(total=_gib_whole(vram["total_mib"]), free=_gib_whole(vram["free_mib"])),
    ]
    out = out_of_use(nodes or ())
    if out:
        more = [_("and {count} more").format(count=len(out) - OUT_SHOWN)] if len(out) > OUT_SHOWN else []
        lines.append("  " + _("Maintenance: {cards}").format(cards=", ".join([*out[:OUT_SHOWN], *more])))
    if nodes is not None:
        lines.append(_("Node Details:"))
        lines += [f"  {node_line(node)}" for node in nodes] or ["  " + _("no nodes yet; add one with nebula-ctl node add NAME")]
    for notice in usage.get("notices") or []:
        text = notice.get("text") or notice.get("code") if isinstance(notice, Mapping) else notice
        lines.append(_("Notice: {text}").format(text=safe(text)))
    return "\n".join(lines)


def _gib_whole(mib: int | None) -> str:
    return _("unknown") if mib is None else f"{mib / 1024:.0f} GiB"


def out_of_use(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cards that count as maintenance, each with its reason: ``node03:1 MISSING``, ``node02:0 on a node that is UNKNOWN``."""
    found = []
    for node in nodes:
        away = _("node {state}").format(state=safe(node["state"])) if node["state"] != "READY" else _("node cordoned")
        for gpu in node.get("gpus") or []:
            if gpu["state"] != "HEALTHY":
                found.append(f"{safe(node['name'])}:{gpu['index']} {safe(gpu['state'])}")
            elif gpu.get("use") == "maintenance":
                found.append(f"{safe(node['name'])}:{gpu['index']} {away}")
    return found


#: So many cards out of use are named in the overview.
OUT_SHOWN = 6


def node_line(node: Mapping[str, Any]) -> str:
    """``node01: RTX 4090 x2, RTX 4060 Laptop x1, load 42% (simulated)``"""
    counts: dict[tuple[str, bool], int] = {}
    for gpu in node.get("gpus") or []:
        # A simulated card on a real node is marked itself; on a simulated node the node's mark says it for all.
        key = (model_short(gpu["model"]), bool(gpu.get("simulated")) and not node.get("simulated"))
        counts[key] = counts.get(key, 0) + 1
    mark = f" ({_('simulated')})"
    cards = [f"{safe(model)} x{count}{mark if is_simulated else ''}" for (model, is_simulated), count in counts.items()]
    load = node.get("load_pct")
    cards = cards or [_("no GPUs")]
    cards.append(_("load {load}").format(load=_("unknown") if load is None else percent(load)))
    marks = node_marks(node)
    return f"{safe(node['name'])}: {', '.join(cards)}" + (f" ({', '.join(marks)})" if marks else "")


def node_marks(node: Mapping[str, Any]) -> list[str]:
    marks = []
    if node.get("state") != "READY":
        marks.append(safe(node.get("state")))
    if node.get("simulated"):
        marks.append(_("simulated"))
    if node.get("metrics_only"):
        marks.append(_("metrics only"))
    if node.get("cordoned"):
        why = node.get("cordon_reason")
        marks.append(_("cordoned: {why}").format(why=safe(why)) if why else _("cordoned"))
    return marks
