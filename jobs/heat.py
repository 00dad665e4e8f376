"""The heat map as HTML: a cell has two layers, the field (a metric, 21 steps) and the strip (who holds the memory).

static/js/heat.js restyles the same cells from the same frames; what a cell says is put together there as it is here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.cells import HOT_C, MARKS, Card, Picture
from nodes import formats, icons, states

#: What the colour shows: key → (name, column of the frame, what lies at both ends of the scale, unit after a figure).
METRICS: dict[str, tuple[Any, str, tuple[int, int], str]] = {
    "memory": (gettext_lazy("Memory"), "m", (0, 100), "%"),
    "use": (gettext_lazy("Use"), "u", (0, 100), "%"),
    "temp": (gettext_lazy("Temp"), "t", (30, 95), "°"),
}
#: More cells than this are drawn small.
TIGHT_ABOVE = 64
#: Marks of a card that is not there to be measured.
OFF_MARKS = "MX"


@dataclass(frozen=True, slots=True)
class Who:
    """Who uses a card, as one reader may know it: ``lin +1`` for the cell, persons and jobs for its words."""

    short: str = ""
    text: str = ""


NOBODY = Who()


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the memory strip: ‰ of the card and data-k (mine, ghost, quar or empty = another's)."""

    permille: int
    kind: str


def metric_step(value: float | None, metric: str) -> int | None:
    """0–20; None = not told."""
    if value is None:
        return None
    low, high = METRICS[metric][2]
    return max(0, min(20, round(20 * (value - low) / (high - low))))


def strip_parts(text: str, me: str) -> list[Part]:
    parts = []
    for piece in text.split(",") if text else ():
        permille, _colon, whose = piece.partition(":")
        kind = {"!g": "ghost", "!q": "quar"}.get(whose, "mine" if whose == me else "")
        parts.append(Part(int(permille), kind))
    return parts


def strip_html(text: str, me: str) -> SafeString:
    return format_html_join(
        "",
        '<i{} style="--w:{}%"></i>',
        ((format_html(' data-k="{}"', p.kind) if p.kind else "", p.permille / 10) for p in strip_parts(text, me)),
    )


def words() -> dict[str, Any]:
    """What heat.js and cells.js say, in the reader's language."""
    return {
        "memory": _("memory %s"),
        "use": _("use %s"),
        "free": _("%s free"),
        "na": _("n/a"),
        "off": _("off"),
        "gone": _("gone"),
        "simulated": _("simulated"),
        "silent": _("silent %s"),
        "joint": formats.NBSP,
        "hot": HOT_C,
        "marks": {
            letter: [str(look.word).lower() if not formats.is_chinese() else str(look.word), look.icon, look.tone]
            for letter, (kind, state) in MARKS.items()
            for look in (states.look(kind, state),)
        },
        "sim": states.look("mark", "SIMULATED").icon,
        "scales": {key: list(metric[2]) for key, metric in METRICS.items()},
    }


def words_json() -> str:
    return json.dumps(words(), ensure_ascii=False)


def cell_label(card: Card, frame: Mapping[str, Any], said: Mapping[str, Any], who: str = "") -> str:
    """The whole of a cell in words: ``node04 gpu2, RTX 4090, lin@lab.example: train #12, memory 64%, use 55%, 68 °C, ghost use``."""
    at = card.at
    temp, free = frame["t"][at], frame["r"][at]
    parts = [
        f"{card.node} gpu{card.index}",
        formats.model_name(card.model),
        *([who] if who else []),
        said["memory"].replace("%s", formats.percent(frame["m"][at])),
        said["use"].replace("%s", formats.percent(frame["u"][at])),
    ]
    if temp is not None:
        parts.append(f"{temp}{formats.NBSP}°C")
    if free is not None:
        parts.append(said["free"].replace("%s", formats.gib(free)))
    parts += [said["marks"][letter][0] for letter in frame["k"][at]]
    if card.is_simulated:
        parts.append(said["simulated"])
    return ", ".join(parts)


def _mark(marks: str, is_simulated: bool, said: Mapping[str, Any]) -> tuple[str, str]:
    """(icon, tone) of the one mark that is drawn; the icon is empty if there is none."""
    if marks:
        _word, icon, tone = said["marks"][marks[0]]
        return icon, tone
    return (said["sim"], "sim") if is_simulated else ("", "")


def cell_html(
    card: Card, frame: Mapping[str, Any], *, metric: str, me: str, said: Mapping[str, Any], is_tight: bool, who: Who = NOBODY
) -> SafeString:
    at, marks = card.at, frame["k"][card.at]
    value = frame[METRICS[metric][1]][at]
    is_off = value is None or any(letter in marks for letter in OFF_MARKS)
    step = None if is_off else metric_step(value, metric)
    icon, mark_tone = _mark(marks, card.is_simulated, said)
    tone = {"S": "warn", "I": "bad", "X": "bad"}.get(marks[:1]) or ("sim" if card.is_simulated else "")
    attributes = format_html(' data-tone="{}"', tone) if tone else ""
    attributes += SafeString(" data-off" if is_off else "") + SafeString(" data-stale" if "T" in marks and not is_off else "")
    field = ""
    if not is_tight:
        text = said["off"] if "M" in marks else said["gone"] if "X" in marks else said["na"] if value is None else value
        # Three digits and a mark leave no room for the unit.
        unit = "" if is_off or value >= 100 else format_html("<small>{}</small>", METRICS[metric][3])
        field = format_html('<span>{}</span><b>{}{}</b><em class="cell-who cut">{}</em>', card.short, text, unit, who.short)
    label = cell_label(card, frame, said, who.text)
    return format_html(
        '<a class="gpu" href="{}" data-i="{}"{} data-name="{} gpu{}, {}" data-who="{}"{} aria-label="{}" title="{}">'
        '<span class="gpu-f"{}>{}'
        '<span class="mark"{}{}><svg class="i" aria-hidden="true"><use href="{}#i-{}"/></svg></span></span>'
        '<span class="strip">{}</span></a>',
        reverse("gpu-detail", args=(card.node, card.index)),
        at,
        SafeString(" data-sim") if card.is_simulated else "",
        card.node,
        card.index,
        formats.model_name(card.model),
        who.text,
        attributes,
        label,
        label.replace(", ", " · "),
        format_html(' data-h="{}"', step) if step is not None else "",
        field,
        format_html(' data-tone="{}"', mark_tone) if mark_tone else "",
        "" if icon else SafeString(" hidden"),
        icons.sprite_url(),
        icon or "help",
        strip_html(frame["s"][at], me),
    )


def heat_context(picture: Picture, *, metric: str, me: str, who: Mapping[int, Who]) -> dict[str, Any]:
    """What ``overview/_heat.html`` needs. ``who``: card id → who uses it, as far as the reader may know."""
    said, frame = words(), picture.frame
    count = len(picture.cards)
    is_tight = count > TIGHT_ABOVE
    nodes = []
    for at, node in enumerate(picture.nodes):
        state, _plus, cordoned = frame["n"][at].partition("+")
        nodes.append(
            {
                "at": at,
                "name": node.name,
                "url": reverse("node-detail", args=(node.name,)),
                "what": formats.models_text([card.model for card in node.cards]),
                "is_simulated": bool(node.cards) and all(card.is_simulated for card in node.cards),
                "state": state,
                "cordoned": bool(cordoned),
                "is_marked": bool(cordoned) or state != "READY",  # then "simulated" has no room beside the name
                "silent_s": None if frame["z"][at] is None else max(0, time.time() - frame["z"][at]),
                "count": len(node.cards),
                "cells": [
                    cell_html(card, frame, metric=metric, me=me, said=said, is_tight=is_tight, who=who.get(card.pk, NOBODY))
                    for card in node.cards
                ],
            }
        )
    low, high = METRICS[metric][2]
    unit = "%" if METRICS[metric][3] == "%" else f"{formats.NBSP}°C"
    return {
        "nodes": nodes,
        "layout": picture.version,
        "me": me,
        "is_tight": is_tight,
        "count": count,
        "metric": metric,
        "metrics": [(key, name, lo, hi, "%" if u == "%" else f"{formats.NBSP}°C") for key, (name, _column, (lo, hi), u) in METRICS.items()],
        "scale": (str(low), f"{high}{unit}"),
        "steps": range(21),
        "words_json": json.dumps(said, ensure_ascii=False),
    }


def health_of(marks: str) -> str:
    """The card's state, which is its mark unless it is healthy."""
    return next((MARKS[letter][1] for letter in marks if MARKS[letter][0] == "gpu"), "HEALTHY")


def table_rows(picture: Picture, *, me: str, who: Mapping[int, Who]) -> list[dict[str, Any]]:
    """The same figures for a table: one row a card, in the same order."""
    frame = picture.frame
    rows = []
    for node in picture.nodes:
        for card in node.cards:
            i = card.at
            rows.append(
                {
                    "at": i,
                    "node": node.name,
                    "index": card.index,
                    "url": reverse("gpu-detail", args=(node.name, card.index)),
                    "model": formats.model_name(card.model),
                    "is_simulated": card.is_simulated,
                    "health": health_of(frame["k"][i]),
                    "marks": [MARKS[letter] for letter in frame["k"][i] if MARKS[letter][0] != "gpu"],
                    "total_mib": card.total_mib,
                    "free_mib": frame["r"][i],
                    "memory": frame["m"][i],
                    "use": frame["u"][i],
                    "temp": frame["t"][i],
                    "power": frame["w"][i],
                    "who": who.get(card.pk, NOBODY).text,
                    "strip": strip_html(frame["s"][i], me),
                }
            )
    return rows
