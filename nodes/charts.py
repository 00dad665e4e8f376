"""Curves → a plotly figure as a dict. Pure: points, words and a zone in, JSON out; nothing is read and no clock is asked.

One x axis for all panels, so that one look goes through all of them (``hoversubplots``). A colour is the name of a token
("--c1"; "--c1@.4" with an opacity): static/js/curves.js puts the value in that it has in the reader's theme. Times are written
as the reader's clock shows them, because plotly knows no zones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

PANEL_PX, GAP_PX, LANE_PX, FOOT_PX = 112, 38, 24, 40
EVENTS_MOST = 60
TONES = {"ok": "--ok", "warn": "--warn", "bad": "--bad", "info": "--info", "": "--fg-3"}
#: Numbers only: plotly brings no month names but English ones.
TICKS = [
    {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
    {"dtickrange": [60_000, 86_400_000], "value": "%H:%M\n%m-%d"},
    {"dtickrange": [86_400_000, None], "value": "%m-%d"},
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """``at``: Unix times, rising; ``values`` of the same length. ``is_faint``: a companion of the line before it, such as the peaks."""

    name: str
    at: Sequence[int]
    values: Sequence[float | None]
    colour: str = "--c1"
    dash: str = "solid"
    is_faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """``top``: where the axis ends at least; ``is_fixed``: it ends exactly there."""

    title: str
    unit: str
    lines: Sequence[Line]
    top: float | None = None
    is_fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at ``at`` (Unix time), on all panels. ``text`` may be a user's: plotly's own tags in it are escaped."""

    at: float
    text: str
    tone: str = ""


def figure(panels: Sequence[Panel], *, since: int, until: int, step_s: int, zone: tzinfo, marks: Iterable[Mark] = ()) -> dict[str, Any]:
    """``{"data", "layout", "height"}``. A step without a point breaks the line."""
    shown = sorted((mark for mark in marks if since <= mark.at < until), key=lambda mark: mark.at)[-EVENTS_MOST:]
    height = LANE_PX + len(panels) * (PANEL_PX + GAP_PX) + FOOT_PX
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": height,
        "margin": {"l": 46, "r": 12, "t": 4, "b": FOOT_PX, "pad": 0},
        # Not transparent: plotly draws an edge of this colour around the line that follows the pointer.
        "paper_bgcolor": "--surface",
        "plot_bgcolor": "--surface",
        "font": {"family": "Inter, Noto Sans SC, Noto Sans CJK SC, sans-serif", "size": 11, "color": "--fg-3"},
        "showlegend": False,
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverlabel": {"bgcolor": "--raised", "bordercolor": "--line", "font": {"color": "--fg", "size": 12}, "align": "left"},
        "dragmode": False,
        "xaxis": {
            "type": "date",
            "range": [local(since, zone), local(until, zone)],
            "anchor": _axis(len(panels)),
            "showgrid": False,
            "zeroline": False,
            "linecolor": "--line-2",
            "tickcolor": "--line-2",
            "ticks": "outside",
            "ticklen": 3,
            "tickformatstops": TICKS,
            "hoverformat": "%Y-%m-%d %H:%M:%S" if step_s < 60 else "%Y-%m-%d %H:%M",
            "nticks": 8,
            "showspikes": True,
            "spikecolor": "--ctl",
            "spikethickness": 1,
            "spikedash": "solid",
            "fixedrange": True,
        },
        "annotations": [],
        "shapes": [_rule(mark, zone) for mark in shown],
    }
    # 1. The lane of what happened, above all panels.
    inner = height - FOOT_PX - 4
    layout["yaxis"] = {"domain": [1 - LANE_PX / inner, 1], "range": [0, 1], "visible": False, "fixedrange": True}
    if shown:
        data.append(_lane(shown, zone))
    # 2. The panels, from the top down.
    for place, panel in enumerate(panels, start=1):
        top = inner - LANE_PX - (place - 1) * (PANEL_PX + GAP_PX) - GAP_PX
        bottom = max(0, top - PANEL_PX)
        layout[f"yaxis{place + 1}"] = _y_axis(panel, domain=[max(0, bottom / inner), top / inner])
        title = {"text": f"<b>{escape(panel.title)}</b>", "x": 0, "y": top / inner, "xref": "paper", "yref": "paper", "showarrow": False}
        look = {"xanchor": "left", "yanchor": "bottom", "yshift": 7, "xshift": -40, "font": {"size": 12, "color": "--fg-2"}}
        layout["annotations"].append(title | look)
        data += [_trace(line, unit=panel.unit, axis=_axis(place), step_s=step_s, zone=zone) for line in panel.lines]
    return {"data": data, "layout": layout, "height": height}


def _axis(place: int) -> str:
    """The y axis of panel ``place``, from 1; y itself is the lane."""
    return f"y{place + 1}"


def _y_axis(panel: Panel, *, domain: list[float]) -> dict[str, Any]:
    told = [value for line in panel.lines for value in line.values if value is not None]
    most = max([*told, panel.top or 0]) or 1
    return {
        "domain": domain,
        "range": [0, panel.top if panel.is_fixed else most * 1.06],
        "nticks": 4,
        "gridcolor": "--line",
        "zerolinecolor": "--line-2",
        "fixedrange": True,
        "ticksuffix": f" {panel.unit}" if panel.unit != "%" else "%",
        "tickfont": {"size": 10},
    }


def _trace(line: Line, *, unit: str, axis: str, step_s: int, zone: tzinfo) -> dict[str, Any]:
    x, y = with_gaps(line.at, line.values, step_s=step_s)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(line.at) == 1 else "lines",
        "name": escape(line.name),
        "x": [local(at, zone) for at in x],
        "y": y,
        "yaxis": axis,
        "connectgaps": False,
        "line": {"color": f"{line.colour}@.45" if line.is_faint else line.colour, "width": 1 if line.is_faint else 1.6, "dash": line.dash},
        "marker": {"size": 4},
        "hovertemplate": f"%{{y:,.4~g}}{'%' if unit == '%' else ' ' + unit}",
    }


def with_gaps(at: Sequence[int], values: Sequence[float | None], *, step_s: int) -> tuple[list[int], list[float | None]]:
    """The same points with a None in each gap, so that no line is drawn over it."""
    x: list[int] = []
    y: list[float | None] = []
    for when, value in zip(at, values, strict=True):
        if x and when - x[-1] > step_s * 1.5:
            x.append(x[-1] + step_s)
            y.append(None)
        x.append(when)
        y.append(value)
    return x, y


def _lane(marks: Sequence[Mark], zone: tzinfo) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "",
        "x": [local(mark.at, zone) for mark in marks],
        "y": [0.5] * len(marks),
        "yaxis": "y",
        "cliponaxis": False,
        "marker": {"symbol": "diamond", "size": 9, "color": [TONES.get(mark.tone, "--fg-3") for mark in marks]},
        "text": [escape(mark.text[:200]) for mark in marks],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _rule(mark: Mark, zone: tzinfo) -> dict[str, Any]:
    when = local(mark.at, zone)
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": when, "x1": when, "y0": 0, "y1": 1, "layer": "below",
        "line": {"color": f"{TONES.get(mark.tone, '--fg-3')}@.6", "width": 1, "dash": "dot"},
    }  # fmt: skip


def local(at: float, zone: tzinfo) -> str:
    """Unix time as the clock of ``zone`` shows it."""
    return datetime.fromtimestamp(int(at), zone).strftime("%Y-%m-%d %H:%M:%S")


def escape(text: str) -> str:
    """Plotly reads some HTML (``<b>``, ``<a href>``) and ``%{…}`` in its texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%\u200b{")


def brief(values: Iterable[float | None]) -> tuple[float, float] | None:
    """(mean, most) of what was told; None where nothing was."""
    told = [value for value in values if value is not None]
    return (sum(told) / len(told), max(told)) if told else None
