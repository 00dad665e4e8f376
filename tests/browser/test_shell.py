"""The frame of every page: language, theme, keys, and a live connection that mends itself."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
from playwright.sync_api import expect

from bench.live.grid import Grid
from tests.browser.conftest import fits

PAGES = ("/", "/?cards=table", "/nodes/", "/nodes/add/new/")


def test_language_and_theme_stay_chosen(grid: Grid, open_page: Any) -> None:
    page = open_page("/", color_scheme="light")
    page.click("header [data-theme-toggle]")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.locator("header form button[name=language]").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")  # written by the server: nothing flashes
    expect(page.locator("h2").first).to_have_text("你现在可用")
    page.goto(grid.url + "/nodes/")
    expect(page.locator("h1")).to_have_text("节点")
    page.locator("header form button[name=language]").click()
    expect(page.locator("h1")).to_have_text("Nodes")


def test_keys_lead_around(grid: Grid, open_page: Any) -> None:
    page = open_page("/")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.wait_for_url("**/nodes/")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/nodes/[\w-]+/$"))
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url(grid.url + "/")


def test_single_keys_can_be_switched_off(grid: Grid, open_page: Any) -> None:
    page = open_page("/")
    page.keyboard.press("?")
    page.check("[data-keys-off]")
    page.keyboard.press("Escape")
    theme = page.locator("html").get_attribute("data-theme")
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") == theme


def test_a_lost_connection_is_told_and_mended(grid: Grid, open_page: Any, odd: list[str]) -> None:
    page = open_page("/")
    expect(page.locator("html")).to_have_attribute("data-live", "on")
    assert grid.process is not None
    grid.process.send_signal(signal.SIGSTOP)  # the supervisor: a web server that is back at once would be no loss to see
    try:
        old = grid.kill("web")
        expect(page.locator("html")).to_have_attribute("data-live", "off")
        expect(page.locator("[data-live-dot]")).to_have_text(re.compile(r"Paused \d+ s"))
    finally:
        grid.process.send_signal(signal.SIGCONT)
    grid.wait_restarted("web", old)
    with (
        page.expect_response(lambda answer: answer.url.endswith("/cells/")),
        page.expect_response(lambda answer: answer.url.endswith("/overview/pieces/")),
    ):  # what was missed is fetched
        expect(page.locator("html")).to_have_attribute("data-live", "on")
    expect(page.locator("[data-live-dot]")).to_have_text("Live")
    assert all("WebSocket" in text or "net::ERR_" in text for text in odd)  # the browser tells of each try
    odd.clear()


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_no_page_is_wider_than_the_window(grid: Grid, open_page: Any, language: str) -> None:
    with grid.client() as client:
        name = client.node_list()[0]["name"]
    page = open_page(None, language=language)
    for path in (*PAGES, f"/nodes/{name}/", f"/nodes/{name}/gpu0/", f"/nodes/{name}/drain/"):
        fits(page, grid.url + path)


def test_a_drain_is_seen_at_once_by_another_reader(grid: Grid, open_page: Any) -> None:
    with grid.client() as client:
        name = client.node_list()[0]["name"]
    staff, other = open_page(f"/nodes/{name}/"), open_page("/")
    expect(other.locator("html")).to_have_attribute("data-live", "on")
    staff.click("text=Drain…")
    staff.fill("#id_reason", "fan <i>broken</i>")
    staff.click("form.panel button.danger")
    expect(staff.locator(".note")).to_contain_text("fan <i>broken</i>")
    expect(other.locator("#notices")).to_contain_text(f"{name} takes no new work")
    staff.click("text=Resume")
    expect(staff.locator("text=Drain…")).to_be_visible()
    expect(other.locator("#notices")).not_to_contain_text(f"{name} takes no new work")


def test_an_agent_answers_a_ping(grid: Grid, open_page: Any) -> None:
    with grid.client() as client:
        name = client.node_list()[0]["name"]
    page = open_page(f"/nodes/{name}/")
    page.locator("button[value=ping]").click()
    expect(page.locator("#commands li").first).to_contain_text("Answered")


def test_what_is_lost_for_good_is_asked_first_without_any_script(open_page: Any) -> None:
    page = open_page("/secrets/", java_script_enabled=False)
    page.fill("#name", "hf-token")
    page.fill("#value", "not to be lost")
    page.get_by_role("button", name="Set", exact=True).click()
    delete = page.get_by_role("button", name="Delete… hf-token")
    question = page.get_by_role("dialog", name="Delete hf-token?")
    delete.click()
    expect(question.get_by_role("button", name="Keep")).to_be_focused()
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    delete.click()
    question.get_by_role("button", name="Delete the secret").click()
    expect(page.get_by_text("No secret yet.")).to_be_visible()
