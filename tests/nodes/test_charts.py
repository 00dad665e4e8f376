"""Figures: plotly takes them, gaps are gaps, users' text is data, times are the reader's."""

from __future__ import annotations

import itertools
import json
import re
from zoneinfo import ZoneInfo

import pytest

from nodes.charts import EVENTS_MOST, Line, Mark, Panel, brief, escape, figure, local, with_gaps

NOON = 1_773_576_000
SHANGHAI, UTC = ZoneInfo("Asia/Shanghai"), ZoneInfo("UTC")


def panel(values, *, at=None, **more):
    at = at or [NOON + 30 * step for step in range(len(values))]
    return Panel(**{"title": "Use", "unit": "%", "lines": [Line(name="use", at=at, values=values)], **more})


def drawn(*panels, marks=(), zone=UTC, step_s=30):
    return figure(panels, since=NOON, until=NOON + 3600, step_s=step_s, zone=zone, marks=marks)


def test_plotly_takes_the_figure():
    graph_objects = pytest.importorskip("plotly.graph_objects")
    faint = Line(name="peaks", at=[NOON], values=[9.5], is_faint=True, dash="dot")
    found = drawn(panel([1, None, 3]), panel([], lines=[faint], top=24.0), marks=[Mark(at=NOON + 5, text="XID 79", tone="bad")])
    names = re.findall(r'"(--[a-z0-9-]+(?:@[.\d]+)?)"', json.dumps(found))
    assert {"--c1", "--c1@.45", "--bad", "--bad@.6", "--line"} <= set(names)
    # Names of tokens become colours in the browser; everything else must be right as it is: an unknown key or value raises.
    plain = json.loads(re.sub(r'"--[a-z0-9-]+(?:@[.\d]+)?"', '"#123456"', json.dumps(found)))
    graph_objects.Figure(data=plain["data"], layout=plain["layout"])


def test_every_token_of_a_figure_is_one_of_the_style_sheet(request):
    tokens = (request.config.rootpath / "static" / "css" / "tokens.css").read_text(encoding="utf-8")
    found = drawn(panel([1]), marks=[Mark(at=NOON, text="x", tone=tone) for tone in ("", "ok", "warn", "bad", "info")])
    for name in set(re.findall(r'"(--[a-z0-9-]+)', json.dumps(found))):
        assert f"{name}:" in tokens, name


def test_a_line_breaks_where_a_step_has_no_sample():
    at = [NOON, NOON + 30, NOON + 120, NOON + 150]
    assert with_gaps(at, [1, 2, 3, None], step_s=30) == ([*at[:2], NOON + 60, *at[2:]], [1, 2, None, 3, None])
    trace = drawn(panel([1, 2, 3], at=[NOON, NOON + 30, NOON + 120]))["data"][0]
    assert (trace["y"], trace["connectgaps"]) == ([1, 2, None, 3], False)


def test_times_are_those_of_the_readers_clock():
    assert local(NOON, SHANGHAI) == "2026-03-15 20:00:00"
    found = drawn(panel([1]), zone=SHANGHAI)
    assert found["data"][0]["x"] == ["2026-03-15 20:00:00"]
    assert found["layout"]["xaxis"]["range"] == ["2026-03-15 20:00:00", "2026-03-15 21:00:00"]


def test_what_happened_is_marked_within_the_range_only_and_the_newest_of_many():
    inside = [Mark(at=NOON + second, text=f"e{second}") for second in range(EVENTS_MOST + 5)]
    found = drawn(panel([1]), marks=[Mark(at=NOON - 1, text="before"), *inside, Mark(at=NOON + 3600, text="after")])
    lane = found["data"][0]
    assert len(found["layout"]["shapes"]) == EVENTS_MOST == len(lane["x"])
    assert lane["text"][0] == "e5"
    assert lane["text"][-1] == f"e{EVENTS_MOST + 4}"


def test_a_users_text_is_data_to_plotly():
    text = '<a href="javascript:alert(1)">x</a> %{y} & <b>'
    found = drawn(panel([1], title=text), marks=[Mark(at=NOON, text=text)])
    shown = json.dumps([found["data"][0]["text"], found["layout"]["annotations"][0]["text"]])
    assert "<a" not in shown
    assert "%{" not in shown
    assert escape("a < b") == "a &lt; b"


def test_an_axis_holds_its_figures_and_its_top():
    assert drawn(panel([3, 250], top=100, is_fixed=True))["layout"]["yaxis2"]["range"] == [0, 100]
    assert drawn(panel([3, 250], top=100))["layout"]["yaxis2"]["range"] == [0, 265]  # 250 and a little room
    assert drawn(panel([None]))["layout"]["yaxis2"]["range"] == [0, 1.06]
    domains = [drawn(panel([1]), panel([1]), panel([1]))["layout"][f"yaxis{n}"]["domain"] for n in ("", 2, 3, 4)]
    assert all(0 <= low < high <= 1 for low, high in domains)
    assert all(below[1] < above[0] for above, below in itertools.pairwise(domains))


def test_the_brief_leaves_out_what_was_not_told():
    assert brief([10, None, 30]) == (20, 30)
    assert brief([None]) is None
