"""The whole way of a notice: a job fails on a node, and its owner's bell rings on a page that nobody touched."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from bench.live.grid import Grid


def test_a_failed_job_rings_the_bell_of_an_open_page(grid: Grid, open_page: Any) -> None:
    page = open_page("/notices/")
    if page.locator("form[action='/notices/read/']").count():
        page.click("form[action='/notices/read/'] button")  # what other tests' jobs left
    page.goto(grid.url + "/nodes/")
    bell = page.locator("#bell .count")
    expect(bell).to_have_count(0)
    with grid.client() as client:
        job = client.job_submit(name="bell", argv=["false"], gpu_count=0)
    expect(bell).to_have_text(re.compile(r"\d+"))
    page.click("#bell")
    row = page.locator("#notices li", has_text=f"Failed: bell (#{job['id']})")
    expect(row).to_contain_text("The program ended with exit code 1.")
    row.locator("a").click()
    page.wait_for_url(f"**/jobs/{job['id']}/")
    page.goto(grid.url + "/alerts/")
    expect(page.locator("h1")).to_have_text("Alerts")
    expect(page.locator("html")).to_have_attribute("data-live", "on")
