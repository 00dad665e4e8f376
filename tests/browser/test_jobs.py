"""The job pages as a person uses them: submit, watch, clone, hold, cancel; in both languages, and without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from bench.live.grid import Grid, wait_for
from client.sdk import NebulaClient
from tests.browser.conftest import admin_of, context_new, fits
from tests.browser.jobs_lab import jobs_end, odd_of

STEPS = "import time\nfor i in range(1000): print('step', i, flush=True); time.sleep(0.2)"


@pytest.fixture
def client(grid: Grid) -> Iterator[NebulaClient]:
    """The administrator's; at the end nothing of the test runs on."""
    with grid.client() as client:
        yield client
        jobs_end(client)


@pytest.fixture
def page(grid: Grid, open_page: Callable[..., Page]) -> Page:
    return open_page(None, width=1280, base_url=grid.url)


def job_id(page: Page) -> int:
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    found = re.search(r"/jobs/(\d+)/", page.url)
    assert found
    return int(found[1])


def log_lines(page: Page) -> list[str]:
    return page.locator(".log li > span:last-child").all_inner_texts()


def test_from_the_sign_in_to_a_cancelled_clone(grid: Grid, browser: Browser, client: NebulaClient) -> None:
    page = context_new(browser, base_url=grid.url, locale="en-GB").new_page()
    odd = odd_of(page, grid.url)
    page.goto("/accounts/login/")
    email, password = admin_of(grid)
    page.fill("#id_login", email)
    page.fill("#id_password", password)
    page.press("#id_password", "Enter")
    page.wait_for_url(f"{grid.url}/")
    # 1. A new job by its key; the verdict follows what is typed, before anything is sent.
    page.keyboard.press("n")
    page.wait_for_url("**/jobs/new/")
    page.fill("[name=name]", "训练 one")
    page.fill("[name=command]", f'python3 -c "{STEPS}"')
    page.fill("[name=gpu_mem]", "96")
    expect(page.locator("[data-verdict=never]")).to_contain_text("96 GiB are asked on one GPU")
    page.get_by_role("button", name="4 GiB", exact=True).click()
    expect(page.locator("[data-verdict=starts]")).to_contain_text("Starts at once on")
    expect(page.locator("#cli")).to_contain_text("--gpu-mem 4G")
    for box in page.locator("[name=model]").all():
        box.check(force=True)
    page.locator("details.more > summary").click()
    page.fill("[name=cpus]", "0.1")
    expect(page.locator("#cli")).to_contain_text("--cpus 0.1 --model 'Simulated A100 80GB|Simulated RTX 4090'")
    expect(page.locator("[data-verdict=starts]")).to_contain_text("Starts at once on")
    assert not list(client.jobs(owner="all", q="训练"))
    page.get_by_role("button", name="Submit job").click()
    first = job_id(page)
    # 2. The page comes alive by itself: state, card, log that grows while one looks.
    expect(page.locator("#job-head")).to_contain_text("Running")
    expect(page.locator("#job-cards")).to_contain_text("gpu")
    expect(page.locator(".log li").nth(3)).to_be_visible()
    many = len(log_lines(page))
    expect(page.locator(".log li").nth(many + 5)).to_be_attached()
    lines = log_lines(page)
    assert lines == [f"step {i}" for i in range(len(lines))]
    # 3. A clone has the same form.
    page.keyboard.press("c")
    page.wait_for_url(f"**/jobs/new/?from=job:{first}")
    assert page.input_value("[name=name]") == "训练 one"
    assert page.input_value("[name=gpu_mem]") == "4"
    page.fill("[name=name]", "训练 two")
    page.press("[name=name]", "Control+Enter")
    second = job_id(page)
    assert second != first
    assert client.job_get(second)["argv"] == client.job_get(first)["argv"]
    # 4. A cancel asks first, then the page changes in place.
    expect(page.locator("#job-head")).to_contain_text("Running")
    page.get_by_role("link", name="Cancel job…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Cancel #{second}?")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert not client.job_get(second)["want_cancel"]
    page.get_by_role("link", name="Cancel job…").click()
    dialog.get_by_role("button", name="Cancel job").click()
    expect(dialog).to_have_count(0)
    expect(page.locator("#job-head")).to_contain_text("Cancelled")
    expect(page.locator(".log .when-done")).to_be_visible()
    assert page.url.endswith(f"/jobs/{second}/")
    assert odd == []
    page.context.close()


def test_what_is_said_during_a_fetch_is_not_missed(page: Page, client: NebulaClient) -> None:
    job = client.job_submit(name="hasty", argv=["sleep", "60"], gpu_count=0, hold=True)
    page.goto("/jobs/?q=hasty")
    expect(page.locator("html")).to_have_attribute("data-live", "on")
    row = page.locator(f"#job-{job['id']}")
    page.evaluate("id => { window.told = 0; document.body.addEventListener(`job:${id}`, () => { window.told++ }) }", job["id"])
    slow: list[tuple[Route, APIResponse]] = []

    def answer(route: Route) -> None:
        slow.append((route, route.fetch())) if not slow else route.continue_()

    page.route(f"**/jobs/{job['id']}/row/", answer)
    client.job_release(job["id"])
    # The answer is on its way; what happens now is newer than it.
    wait_for(lambda: page.wait_for_timeout(50) or slow, what="the row is fetched")
    wait_for(lambda: client.job_get(job["id"])["state"] == "RUNNING", what="the job runs")
    client.job_cancel(job["id"])
    wait_for(lambda: client.job_get(job["id"])["state"] == "CANCELLED", what="the job is cancelled")
    wait_for(lambda: page.wait_for_timeout(50) or page.evaluate("window.told") >= 2, what="the socket told of both")
    page.wait_for_timeout(2_000)  # the last word of the socket came, too: at most one in 1.5 s
    slow[0][0].fulfill(response=slow[0][1])
    expect(row).to_contain_text("Cancelled")


def test_the_list_is_alive(page: Page, client: NebulaClient) -> None:
    job = client.job_submit(name="listed", argv=["sleep", "60"], gpu_count=1, gpu_mem="4G")
    page.goto("/jobs/?q=listed")
    row = page.locator(f"#job-{job['id']}")
    expect(row).to_contain_text("Running")
    row.get_by_role("checkbox").check()
    expect(page.locator("[data-chosen]")).to_contain_text("1 chosen")
    client.job_submit(name="listed too", argv=["true"], gpu_count=0)
    expect(page.locator("#newer")).to_contain_text("1 new job")
    expect(page.locator("tbody tr")).to_have_count(1)  # nothing moves under the hand
    # What the socket could not tell yet is fetched when it opens.
    row.evaluate("e => { e.dataset.old = '1' }")
    catch_up = page.locator("[hx-get*='/jobs/rows/']")
    catch_up.evaluate("(e, id) => e.setAttribute('hx-get', `/jobs/rows/?row=${id}-WAITING`)", job["id"])
    page.evaluate("() => { document.body.dispatchEvent(new CustomEvent('live:on')) }")
    expect(row).not_to_have_attribute("data-old", "1")
    expect(row).to_contain_text("Running")
    expect(row.get_by_role("checkbox")).to_be_checked()
    page.get_by_role("button", name="Cancel jobs…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel 1 job").click()
    expect(page.locator(f"#job-{job['id']}")).to_contain_text("Cancelled")
    page.locator("#find").fill("nothing of this name")
    expect(page.locator("#jobs")).to_contain_text("No job matches.")
    assert "q=nothing" in page.url


def test_a_waiting_job_says_why_is_held_released_and_shows_its_log_when_it_starts(page: Page, client: NebulaClient) -> None:
    nodes = [node["name"] for node in client.node_list()]
    for name in nodes:
        client.node_drain(name, reason="test")
    job = client.job_submit(name="waits", argv=["sh", "-c", "echo here I am; sleep 60"], gpu_count=1, gpu_mem="4G")
    page.goto(f"/jobs/{job['id']}/")
    expect(page.locator("#job-summary")).to_contain_text("cordoned")
    page.get_by_role("link", name="Hold…").click()
    page.get_by_role("dialog").get_by_label("Why").fill("waits for <data>")
    page.get_by_role("dialog").get_by_role("button", name="Hold").click()
    expect(page.locator("#job-summary")).to_contain_text("waits for <data>")
    for name in nodes:
        client.node_resume(name)
    page.get_by_role("button", name="Release").click()
    expect(page.locator("#job-head")).to_contain_text("Running")
    expect(page.locator(".log li")).to_contain_text("here I am")


def test_what_would_start_sooner_comes_by_itself_and_can_be_taken(page: Page, client: NebulaClient) -> None:
    filler = client.job_submit(name="filler", argv=["sleep", "120"], gpu_count=2, nodes=2, time="1:00:00")  # a card of each node
    wait_for(lambda: client.job_get(filler["id"])["state"] == "RUNNING", what="a card of each node is in use")
    page.goto("/jobs/new/?command=true&gpu_count=3&time=0:30:00")
    verdict = page.locator("#verdict")
    expect(verdict.locator("[data-into=start]")).to_contain_text("Starts")
    smaller = verdict.get_by_role("listitem").filter(has_text="1 card instead of 3")
    expect(smaller).to_contain_text("Starts now.")
    job = client.job_submit(name="patient", argv=["true"], gpu_count=3, time="0:30:00")
    page.goto(f"/jobs/{job['id']}/")
    expect(page.locator("#job-sooner").get_by_role("link", name="Use this…").first).to_be_visible()
    expect(page.locator("#job-lead")).to_contain_text("Starts ≈")  # the forecast came, and the socket told it
    page.goto("/jobs/new/?command=true&gpu_count=3&time=0:30:00")
    smaller.get_by_role("button", name="Use this").click()
    expect(verdict).to_contain_text("Starts at once")
    jobs_end(client)


def test_errors_are_told_at_their_fields(page: Page) -> None:
    page.goto("/jobs/new/")
    page.fill("[name=command]", "python a.py | tee log")
    page.fill("[name=time]", "30:00")
    page.locator("[name=checkpoint]").click()
    expect(page.locator("#time-e")).to_contain_text("0:30:00")
    expect(page.locator("[name=time]")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Submit job").click()  # never disabled
    expect(page.locator("#command-e")).to_contain_text("shell operator |")
    expect(page.locator("[name=command]")).to_be_focused()
    page.get_by_role("button", name="Run it with sh").click()
    expect(page.locator("[name=command]")).to_have_value("sh -c 'python a.py | tee log'")
    expect(page.locator("#command-e")).to_be_empty()
    expect(page.locator("[name=command]")).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("[name=time]")).to_have_attribute("aria-invalid", "true")


def test_language_and_theme_are_switched_and_kept(page: Page, client: NebulaClient) -> None:
    job = client.job_submit(name="words", argv=["sleep", "60"], gpu_count=0)
    page.goto(f"/jobs/{job['id']}/")
    root = page.locator("html")
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    page.keyboard.press("t")
    expect(root).to_have_attribute("data-theme", "light" if dark else "dark")
    page.locator("header form button[name=language]").click()
    expect(root).to_have_attribute("lang", "zh-Hans")
    expect(root).to_have_attribute("data-theme", "light" if dark else "dark")
    expect(page.locator("#job-head")).to_contain_text("运行中")
    page.goto("/jobs/new/")
    expect(page.get_by_role("heading", level=1)).to_have_text("新建任务")


def test_it_works_without_scripts(grid: Grid, open_page: Callable[..., Page], client: NebulaClient) -> None:
    page = open_page("/jobs/new/", width=1280, base_url=grid.url, java_script_enabled=False)
    page.fill("[name=command]", "sleep 60")
    page.fill("[name=gpu_mem]", "4")
    page.get_by_role("button", name="Submit job").click()
    id = job_id(page)
    wait_for(lambda: client.job_get(id)["state"] == "RUNNING", what="the job runs")
    page.reload()
    expect(page.locator("#job-head")).to_contain_text("Running")
    page.get_by_role("link", name="Cancel job…").click()
    page.get_by_role("button", name="Cancel job").click()
    wait_for(lambda: client.job_get(id)["state"] == "CANCELLED", what="the job is cancelled")
    page.reload()
    expect(page.locator("#job-head")).to_contain_text("Cancelled")


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_no_job_page_is_wider_than_the_window(grid: Grid, open_page: Callable[..., Page], client: NebulaClient, language: str) -> None:
    script = "print('x' * 3000, flush=True); import time; time.sleep(60)"
    live = client.job_submit(name="long " * 30, argv=["python3", "-c", script, "y" * 500], gpu_count=1, gpu_mem="4G")["id"]
    held = client.job_submit(argv=["true"], gpu_count=1, hold=True, env={"LONG": "z" * 500}, workdir="/w" * 200)["id"]
    pages = ["/jobs/", "/jobs/?q=nothing", f"/jobs/new/?from=job:{held}", f"/jobs/{live}/cancel/", f"/jobs/{held}/hold/"]
    pages += [f"/jobs/{id}/{tab}" for id in (live, held) for tab in ("", "events/", "files/", "request/")]
    page = open_page(None, language=language)
    for path in pages:
        fits(page, grid.url + path)
    fits(page, f"{grid.url}/jobs/{live}/", lambda: expect(page.locator(".log li").first).to_contain_text("xxx"))
