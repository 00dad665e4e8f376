"""Whose turn it is: threads by kind of caller, and turns within a kind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from nebulagrid.lanes import Lane, LaneFull, lane_of
from tests.waiting import PATIENCE_S, until


class Work:
    """Requests whose end the test decides."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.gate = lane, threading.Event()
        self.order: list[str] = []

    def start(self, caller: str, name: str) -> asyncio.Task[str]:
        def work() -> str:
            self.order.append(name)
            assert self.gate.wait(PATIENCE_S)
            return name

        return asyncio.create_task(self.lane.run(caller, work))


@pytest.mark.parametrize(
    ("path", "lane"),
    [
        ("/healthz", "health"),
        ("/healthz/", "people"),
        ("/api/agent/v1/sync", "agents"),
        ("/api/agent/v1/logs/1.1.0", "output"),
        ("/api/agent/v1/artifacts/1.1.0/x", "output"),
        ("/api/v1/jobs", "people"),
        ("/", "people"),
    ],
)
def test_each_kind_of_request_has_its_lane(path: str, lane: str) -> None:
    assert lane_of(path) == lane


async def test_one_address_leaves_a_thread_for_the_others() -> None:
    work = Work(Lane("t", 3, share=2))
    mine = [work.start("a", f"a{n}") for n in range(6)]
    await until(lambda: len(work.order) == 2, "two of mine")
    other = work.start("b", "b0")
    await until(lambda: "b0" in work.order, "the other one's")
    assert work.order == ["a0", "a1", "b0"]
    work.gate.set()
    assert sorted(await asyncio.gather(*mine, other)) == ["a0", "a1", "a2", "a3", "a4", "a5", "b0"]
    assert work.lane.waiting == 0


async def test_addresses_take_turns_however_much_one_of_them_asks() -> None:
    work = Work(Lane("t", 1))
    first = work.start("a", "a0")
    await until(lambda: work.order == ["a0"], "the first")
    rest = [work.start("a", f"a{n}") for n in range(1, 5)] + [work.start("b", "b0"), work.start("c", "c0")]
    await until(lambda: work.lane.waiting == 6, "all others wait")
    work.gate.set()
    await asyncio.gather(first, *rest)
    assert work.order == ["a0", "a1", "b0", "c0", "a2", "a3", "a4"]


async def test_who_finds_the_lane_full_is_told_at_once() -> None:
    work = Work(Lane("t", 1, waiting_most=1))
    tasks = [work.start("a", "a0"), work.start("a", "a1")]
    await until(lambda: work.lane.waiting == 1, "one waits")
    with pytest.raises(LaneFull):
        await work.lane.run("b", lambda: "b0")
    work.gate.set()
    assert await asyncio.gather(*tasks) == ["a0", "a1"]


async def test_a_request_that_is_given_up_frees_its_place_in_the_line() -> None:
    work = Work(Lane("t", 1))
    first, second, third = (work.start("a", f"a{n}") for n in range(3))
    await until(lambda: work.lane.waiting == 2, "two wait")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert work.lane.waiting == 1
    work.gate.set()
    assert await asyncio.gather(first, third) == ["a0", "a2"]
    assert await work.lane.run("b", lambda: "b0") == "b0"


async def test_an_error_leaves_the_lane_as_it_was() -> None:
    lane = Lane("t", 1)

    def fail() -> None:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await lane.run("a", fail)
    assert await lane.run("a", lambda: 1) == 1
