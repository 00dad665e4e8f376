"""The live log: whole, harmless and quick, whatever a program writes and whatever happens to the connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from bench.live.grid import PATIENCE_S, Grid, wait_for
from client.errors import NebulaError
from client.sdk import NebulaClient
from tests.browser.conftest import context_new
from tests.browser.jobs_lab import jobs_end

ESC = "\\033"
IS_LOW = "() => { const e = document.querySelector('.log ol'); return e.scrollTop + e.clientHeight >= e.scrollHeight - 30 }"
LINES = ".log li > span:last-child"


@pytest.fixture
def client(grid: Grid) -> Iterator[NebulaClient]:
    """The administrator's; at the end nothing of the test runs on."""
    with grid.client() as client:
        yield client
        jobs_end(client)


@pytest.fixture
def page(grid: Grid, open_page: Callable[..., Page]) -> Page:
    return open_page(None, width=1280, base_url=grid.url)


def run(client: NebulaClient, script: str) -> int:
    """The id of a job of this shell script, once it is over."""
    job = client.job_submit(argv=["bash", "-c", script], gpu_count=0)
    client.wait(job["id"], timeout_s=PATIENCE_S)
    return int(job["id"])


def is_over(client: NebulaClient, id: int) -> bool:
    """False, too, while nobody answers."""
    try:
        return client.job_get(id)["state"] == "SUCCEEDED"
    except NebulaError:
        return False


@pytest.fixture(scope="module")
def any_page(browser: Browser, grid: Grid, signed_in: Any) -> Iterator[Page]:
    """A page for what needs its scripts only."""
    context = context_new(browser, storage_state=signed_in, base_url=grid.url)
    page = context.new_page()
    page.goto("/jobs/")
    yield page
    context.close()


def runs_of(page: Page, texts: list[str]) -> list[list[tuple[str, str]]]:
    """What static/js/ansi.js makes of pieces of output: lines of (text, classes)."""
    made = page.evaluate(
        """async (texts) => {
            const { Terminal } = await import(new URL("ansi.js", document.querySelector("script[src*='/js/live']").src));
            const terminal = new Terminal(), lines = texts.flatMap((text) => terminal.feed(text));
            return [...lines, terminal.open()].map((line) => line.runs);
        }""",
        texts,
    )
    return [[(text, style) for text, style in line] for line in made]


def test_what_a_program_writes_is_never_markup(page: Page, client: NebulaClient) -> None:
    evil = "<script>window.hurt=1</script><img src=x onerror=window.hurt=2>"
    id = run(client, f"""printf '{evil}\\n{ESC}[31m{evil}{ESC}[0m\\n{ESC}]8;;javascript:window.hurt=3\\007link{ESC}]8;;\\007\\n'""")
    page.goto(f"/jobs/{id}/")
    expect(page.locator(LINES).nth(2)).to_have_text("link")
    assert page.locator(LINES).all_inner_texts() == [evil, evil, "link"]
    assert page.locator(".log ol :is(script, img, a)").count() == 0
    assert page.locator(".log li .a-r").inner_text() == evil
    assert page.evaluate("window.hurt") is None


def test_colours_progress_bars_and_signs(page: Page, client: NebulaClient) -> None:
    script = f"""printf '{ESC}[1;32mok{ESC}[0m plain ☠ 医学 🚀\\n'; for i in 10 50 100; do printf '\\r%s%%' $i; done; printf '\\nlast'"""
    page.goto(f"/jobs/{run(client, script)}/")
    expect(page.locator(LINES).nth(2)).to_have_text("last")
    assert page.locator(LINES).all_inner_texts() == ["ok plain ☠ 医学 🚀", "100%", "last"]
    expect(page.locator(".log .a-g.a-1")).to_have_text("ok")
    assert page.locator(".log .no").all_inner_texts() == ["1", "2", "3"]
    expect(page.locator(".log .when-done")).to_be_visible()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a\r\nb\n"], [[("a", "")], [("b", "")], []]),
        (["12345\rab"], [[("ab345", "")]]),
        (["12345\rab\033[K\n"], [[("ab", "")], []]),
        (["abc\b\bX\n"], [[("aXc", "")], []]),
        (["\033[3", "1mred\033", "[0m!"], [[("red", "a-r"), ("!", "")]]),
        (["\033[38;5;196mx\033[38;2;0;0;255my\033[48;5;21mz"], [[("x", "a-r"), ("y", "a-b"), ("z", "a-b b-b")]]),
        (["\033[38:2::0:255:0mx"], [[("x", "a-g")]]),
        (["\033[91;4mx\033[24my\033[39mz"], [[("x", "a-r a-4"), ("y", "a-r"), ("z", "")]]),
        (["\033[2J\033[Ha\033(Bb\033]0;title\007c\x07\x00d"], [[("abcd", "")]]),
        (["\033[5Cx"], [[("     x", "")]]),
        (["\033[999999999Cx\n"], None),
        (["a" * 20_000], None),
        (["\033]0;cut off\033[31mred\033[0m \033]" + "\033]" * 50_000 + "\007end"], [[("red", "a-r"), (" end", "")]]),
        (["\033]8;;never closed " + "x" * 9000 + "\nnext\n"], None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_terminal_s_signs(any_page: Page, texts: list[str], expected: list[list[tuple[str, str]]] | None) -> None:
    found = runs_of(any_page, texts)
    if expected is not None:
        assert found == expected
    assert max((sum(len(text) for text, _ in line) for line in found), default=0) <= 8192


def test_pieces_cut_anywhere_make_the_same_lines(any_page: Page) -> None:
    text = "\033[32m一\033[0m\r\n\033]0;t\007🚀b\r99%\033[K\ntail\033[1m"
    whole = runs_of(any_page, [text])
    assert runs_of(any_page, list(text)) == whole
    assert [line for line in whole if line] == [[("一", "a-g")], [("99%", "")], [("tail", "")]]


def test_a_huge_log_shows_its_end_first_and_the_rest_by_range(page: Page, grid: Grid, client: NebulaClient) -> None:
    id = run(client, "echo begin")
    [path] = (grid.data / "logs").rglob(f"{id}.1.0.log")
    block = "".join(f"line {number:07d} {'x' * 35}\n" for number in range(20_000))
    with path.open("a") as file:
        for _number in range(200):
            file.write(block)  # 200 MB, four million lines
    assert path.stat().st_size > 190_000_000
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/logs?" in request.url else None)
    page.goto(f"/jobs/{id}/")
    expect(page.locator(LINES).last).to_contain_text("line 0019999")
    assert len(asked) == 1
    assert "tail=262144" in asked[0]
    assert 4000 <= page.locator(".log li").count() <= 5001
    first = page.locator(LINES).first.inner_text()
    assert first.startswith("line ")  # a whole one
    assert len(first) == 48
    assert page.locator(".log .no").first.inner_text() == ""  # nobody knows its number without reading 200 MB


def test_earlier_output_comes_without_a_gap_or_a_double(page: Page, client: NebulaClient) -> None:
    # 3,000 lines of 200 bytes: 600 kB, three pieces
    id = run(client, "for i in $(seq 3000); do printf '%06d %0193d\\n' $i 0; done")
    page.goto(f"/jobs/{id}/")
    expect(page.locator(LINES).last).to_contain_text("003000")
    for _number in range(2):
        before = page.locator(".log li").count()
        page.locator(".log ol").evaluate("e => { e.scrollTop = 0 }")
        expect(page.locator(".log li").nth(before)).to_be_attached()
    numbers = [int(text[:6]) for text in page.locator(LINES).all_inner_texts()]
    assert numbers == list(range(1, 3001))
    assert page.locator(".log .no").last.inner_text() == "3000"


def test_find_goes_from_hit_to_hit(page: Page, client: NebulaClient) -> None:
    page.goto(f"/jobs/{run(client, 'for i in $(seq 300); do echo line $i; done')}/")
    expect(page.locator(LINES).nth(299)).to_be_attached()
    page.fill("[data-find]", "LINE 29")
    expect(page.locator("[data-found]")).to_have_text("– / 11")  # 29 and 290–299
    page.press("[data-find]", "Enter")
    expect(page.locator(".log li[data-hit]")).to_contain_text("line 29")
    page.press("[data-find]", "Shift+Enter")
    expect(page.locator(".log li[data-hit]")).to_contain_text("line 299")


def test_following_stops_when_one_scrolls_and_goes_on_by_key(page: Page, client: NebulaClient) -> None:
    script = "for i in $(seq 200); do echo early $i; done; for i in $(seq 600); do echo late $i; sleep 0.1; done"
    job = client.job_submit(argv=["bash", "-c", script], gpu_count=0)
    page.goto(f"/jobs/{job['id']}/")
    expect(page.locator(LINES).filter(has_text="late 3").first).to_be_visible()
    follow = page.locator("[data-follow]")
    expect(follow).to_have_attribute("aria-pressed", "true")
    page.locator(".log ol").evaluate("e => { e.scrollTop = 0 }")
    expect(follow).to_have_attribute("aria-pressed", "false")
    count = page.locator(".log li").count()
    expect(page.locator(".log li").nth(count + 5)).to_be_attached()
    assert page.locator(".log ol").evaluate("e => e.scrollTop") == 0  # what one reads stays
    page.keyboard.press("f")
    expect(follow).to_have_attribute("aria-pressed", "true")
    wait_for(lambda: page.evaluate(IS_LOW), what="the newest line is in sight")
    page.keyboard.press("w")
    expect(page.locator("[data-wrap]")).to_have_attribute("aria-pressed", "false")


def test_no_line_is_lost_when_the_connection_is(browser: Browser, grid: Grid, client: NebulaClient, signed_in: Any, tmp_path: Path) -> None:
    page = context_new(browser, storage_state=signed_in, base_url=grid.url).new_page()  # unwatched: a lost connection is an error there
    go = tmp_path / "go"
    script = 'i=0; while [ ! -e "$0" ]; do i=$((i + 1)); echo line $i; sleep 0.05; done; echo $i lines'
    job = client.job_submit(argv=["bash", "-c", script, str(go)], gpu_count=0)
    page.goto(f"/jobs/{job['id']}/")
    expect(page.locator(LINES).filter(has_text="line 20").first).to_be_attached()
    grid.wait_restarted("web", grid.kill("web"))
    wait_for(grid.answers, what="the web server answers again")
    go.touch()
    wait_for(lambda: is_over(client, job["id"]), what="the job is over")
    expect(page.locator(".log .when-done")).to_be_visible()
    *lines, last = page.locator(LINES).all_inner_texts()
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
    assert last == f"{len(lines)} lines"
    expect(page.locator("#job-head")).to_contain_text("Succeeded")
    page.context.close()
