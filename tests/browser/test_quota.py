"""A user at the limit asks, the admin grants it at the front of the admin panel, and the held job starts; and how the pages look."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from bench.live.grid import Grid, wait_for
from client.sdk import NebulaClient
from tests.browser.conftest import context_new, fits, sign_in
from tests.browser.jobs_lab import jobs_end, odd_of

EMAIL, PASSWORD = "mira@lab.example", "correct horse 1"
WHY = "Rebuttal experiments, 3 ablations <b>of</b> 40 GPU-hours each."


@pytest.fixture
def mira(grid: Grid) -> Iterator[NebulaClient]:
    """A user with a token of her own; at the end nothing of her runs on."""
    code = (
        "from quotas.models import User; from quotas.services import user_create; from quotas.tokens import token_create\n"
        f"user = User.objects.filter(email='{EMAIL}').first() or user_create(email='{EMAIL}', password='{PASSWORD}')\n"
        "print(token_create(user=user, name='t')[1])"
    )
    token = grid.manage("shell", "-v", "0", "-c", code).strip().splitlines()[-1]
    with grid.client(token) as client:
        yield client
        jobs_end(client)


def limit_set(grid: Grid, hours: str) -> None:
    grid.manage(
        "shell", "-v", "0", "-c", f"from quotas.models import Quota; Quota.objects.filter(user__email='{EMAIL}').update(gpu_hours={hours})"
    )


def test_at_the_limit_one_asks_the_admin_grants_and_the_held_job_starts(
    grid: Grid, browser: Browser, mira: NebulaClient, open_page: Callable[..., Page]
) -> None:
    # 1. A job that waits, and a limit that is hit.
    job = mira.job_submit(argv=["sleep", "600"], gpu_mem="4G", name="held-by-quota", hold=True)
    limit_set(grid, "0")
    mira.job_release(job["id"])
    wait_for(lambda: mira.job_why(job["id"])["code"] == "quota_exceeded", what="the job waits for the quota")
    page = context_new(browser, base_url=grid.url, locale="en-GB").new_page()
    odd = odd_of(page, grid.url)
    sign_in(page, grid.url, EMAIL, PASSWORD)
    # 2. Refused: what happened, and the way out.
    page.goto("/jobs/new/")
    page.fill("[name=command]", "true")
    page.fill("[name=gpu_mem]", "4")
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("alert")).to_contain_text("0 GPU-hours are used")
    odd[:] = [text for text in odd if "403" not in text]  # the browser says so of the refusal
    page.get_by_role("alert").get_by_role("link", name="Ask for more").click()
    page.wait_for_url(re.compile(r"/quota/\?what=gpu_hours"))
    expect(page.locator("#what")).to_have_value("gpu_hours")
    expect(page.locator(".note")).to_contain_text(f"#{job['id']}")
    fits(page, f"{grid.url}/quota/?what=gpu_hours")
    # 3. Asked.
    page.fill("#amount", "5")
    page.fill("#why", WHY)
    page.get_by_role("button", name="Send request").click()
    expect(page.get_by_text("+5 GPU-hours a month")).to_be_visible()
    # 4. Granted, at the front of the admin panel.
    admin = open_page("/admin/")
    row = admin.locator(".approvals tr", has_text=EMAIL)
    expect(row).to_contain_text(WHY)  # her text is text
    row.locator("input[type=number]").fill("3")
    row.get_by_role("button", name="Approve").click()
    expect(admin.get_by_text("1 request is approved.")).to_be_visible()
    # 5. The held job starts, and the page says what was granted.
    wait_for(lambda: mira.job_get(job["id"])["state"] == "RUNNING", what="the held job runs")
    page.reload()
    expect(page.get_by_text("+3 GPU-hours a month")).to_be_visible()
    expect(page.get_by_text("Granted on top")).to_be_visible()
    assert odd == []


def test_the_pages_fit_and_speak_chinese(grid: Grid, open_page: Callable[..., Page]) -> None:
    page = open_page("/quota/", language="zh-hans")
    expect(page.get_by_role("heading", name="申请扩容")).to_be_visible()
    for path in ("/quota/", "/quota/approvals/", "/usage/"):
        fits(page, grid.url + path)
        expect(page.locator("h1")).to_be_visible()
