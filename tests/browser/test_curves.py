"""Curves are drawn when they come into sight, in the reader's theme, with no word on the console."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from bench.live.grid import Grid, wait_for

COLOUR = "getComputedStyle(document.querySelector('[data-plot] .scatterlayer path.js-line')).stroke"


@pytest.mark.soak  # the first sample of a card comes after half a minute
def test_a_cards_curves_are_drawn_and_follow_range_and_theme(grid: Grid, open_page: Callable[..., Page]) -> None:
    with grid.client() as client:
        node = client.node_list()[0]["name"]

    def is_told() -> bool:
        page.reload()
        return page.evaluate("async (url) => Boolean((await (await fetch(url)).json()).figure)", f"/nodes/{node}/gpu0/curves/?range=1h")

    page = open_page(f"/nodes/{node}/gpu0/", color_scheme="light")
    wait_for(is_told, what="the first sample is kept", every_s=1)
    page.locator("[data-curves]").scroll_into_view_if_needed()
    page.wait_for_selector('[data-drawn="1h"]')  # the grid is younger than that
    assert page.locator("[data-plot] .scatterlayer .trace").count() >= 4
    assert "Use:" in page.locator("[data-summary]").inner_text()
    light = page.evaluate(COLOUR)
    page.click('[data-range="24h"]')
    page.wait_for_selector('[data-drawn="24h"]')
    assert page.get_attribute('[data-range="24h"]', "aria-pressed") == "true"
    page.click("[data-theme-toggle]")
    wait_for(lambda: page.wait_for_timeout(50) or page.evaluate(COLOUR) != light, what="the theme's colour")


def test_a_page_without_curves_does_not_fetch_plotly(open_page: Callable[..., Page]) -> None:
    page = open_page("/")
    assert page.evaluate("performance.getEntriesByType('resource').filter(e => e.name.includes('plotly')).length") == 0
