"""What the browser tests of jobs share."""

from __future__ import annotations

import contextlib

from playwright.sync_api import Page, Response

from bench.live.grid import wait_for
from client.sdk import NebulaClient
from tests.browser.conftest import is_odd

LIVE = "WAITING,STARTING,RUNNING,STOPPING"


def jobs_end(client: NebulaClient) -> None:
    """Cancel what still lives and wait for its end."""
    for job in client.jobs(state=LIVE, owner="all"):
        with contextlib.suppress(Exception):  # it may have ended by itself
            client.job_cancel(job["id"])
    wait_for(lambda: not list(client.jobs(state=LIVE, owner="all")), what="all jobs of the test are over")


def odd_of(page: Page, url: str) -> list[str]:
    """Fills with what must not happen on a page: a word on the console, another host, a lax policy."""
    odd: list[str] = []

    def policy(response: Response) -> None:
        if "text/html" in response.headers.get("content-type", "") and response.url.startswith(url):
            rules = dict(rule.strip().partition(" ")[::2] for rule in response.headers["content-security-policy"].split(";"))
            if rules["script-src"] != "'self'":
                odd.append(f"{response.url} allows scripts from {rules['script-src']}")

    page.on("console", lambda message: odd.append(message.text) if is_odd(message) else None)
    page.on("pageerror", lambda error: odd.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((url, "data:")) else odd.append(request.url))
    page.on("response", policy)
    return odd
