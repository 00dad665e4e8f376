from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import logs as logs_module
from agent.http import HttpClient, authorization, endpoint_parse
from agent.logs import CHUNK, CUT, LogShipper, output_tail
from agent.testing import Failure, FakeControlPlane
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as found:
        yield found
        assert found.problems == []


class Shipping:
    def __init__(self, plane: FakeControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.done: dict[str, int] = {}
        self.order: list[str] = []
        client = HttpClient(endpoint_parse(plane.url), authorization=authorization(plane.node_id, plane.credential))
        self.shipper = LogShipper(client, done=self._done, rng=random.Random(1))

    def _done(self, rank: str, length: int) -> None:
        with self.plane.lock:
            self.done[rank] = length
            self.order.append(rank)
            self.plane.lock.notify_all()

    def path(self, rank: str) -> Path:
        return self.folder / rank

    def write(self, rank: str, data: bytes) -> None:
        with open(self.path(rank), "ab") as file:
            file.write(data)

    def track(self, rank: str, **settings: object) -> None:
        self.shipper.track(rank, str(self.path(rank)), **settings)  # type: ignore[arg-type]

    def shipped(self, rank: str, data: bytes) -> None:
        self.plane.wait(lambda: bytes(self.plane.logs.get(rank, b"")) == data, what=f"{len(data)} bytes of {rank}")

    def ended(self, rank: str) -> int:
        self.plane.wait(lambda: rank in self.done, what=f"the end of {rank}")
        return self.done[rank]


@pytest.fixture
def ship(plane: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shipping]:
    monkeypatch.setattr(logs_module, "RETRY_S", (0.01, 0.05))
    found = Shipping(plane, tmp_path)
    found.shipper.start()
    yield found
    plane.log_gate.set()
    found.shipper.stop()


def test_output_arrives_while_the_rank_runs(ship: Shipping) -> None:
    ship.track("1.1.0")  # before the file is there
    for i in range(1, 4):
        ship.write("1.1.0", b"line\n")
        ship.shipped("1.1.0", b"line\n" * i)
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == 15


def test_bytes_arrive_as_they_are(ship: Shipping) -> None:
    data = "☠ 中文 😀 ".encode() + bytes(range(256)) + b"\r\n\0<script>"
    ship.write("1.1.0", data)
    ship.track("1.1.0")
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == len(data)
    assert bytes(ship.plane.logs["1.1.0"]) == data


def test_a_rank_without_output_ends_at_once(ship: Shipping) -> None:
    ship.track("1.1.0")
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == 0
    assert ship.plane.log_puts == []


def test_a_flood_goes_in_chunks_and_starves_no_other_rank(ship: Shipping) -> None:
    ship.plane.log_gate.clear()
    with open(ship.path("1.1.0"), "wb") as file:
        file.truncate(200 * 1024 * 1024)  # sparse: zeros that cost no disk
    ship.track("1.1.0")
    ship.write("2.1.0", b"quick\n")
    ship.track("2.1.0")
    ship.shipper.end("2.1.0")
    ship.plane.log_gate.set()
    ship.ended("2.1.0")
    with ship.plane.lock:
        puts = list(ship.plane.log_puts)
    # A chunk or two ahead, not 200 MB.
    assert [rank for rank, _, _ in puts].index("2.1.0") <= 3
    assert max(size for _, _, size in puts) <= CHUNK
    ship.shipper.drop("1.1.0")


def test_after_a_restart_it_goes_on_where_the_server_is(ship: Shipping) -> None:
    data = os.urandom(CHUNK * 2)
    ship.plane.logs["1.1.0"] = bytearray(data[:300_001])
    ship.write("1.1.0", data)
    ship.track("1.1.0", offset=0, is_new=False)  # the store knows less than the server
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == len(data)
    assert bytes(ship.plane.logs["1.1.0"]) == data


def test_it_goes_back_when_the_server_has_less(ship: Shipping) -> None:
    data = os.urandom(10_000)
    ship.write("1.1.0", data)
    ship.track("1.1.0", offset=9_000, is_new=False)
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == len(data)
    assert bytes(ship.plane.logs["1.1.0"]) == data


def test_of_a_capped_log_only_the_end_is_sent_and_only_when_the_rank_is_over(ship: Shipping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "TAIL_BYTES", 100)
    ship.plane.log_cap = 1000
    ship.write("1.1.0", b"x" * 900)
    ship.track("1.1.0")
    ship.shipped("1.1.0", b"x" * 900)
    ship.write("1.1.0", b"y" * 900)
    ship.shipped("1.1.0", b"x" * 900 + b"y" * 100)
    puts = len(ship.plane.log_puts)
    ship.write("1.1.0", b"z" * 890 + b"Traceback\n")
    ship.shipper.end("1.1.0")
    expected = b"x" * 900 + b"y" * 100 + b"<100 of 2700 bytes>" + b"z" * 90 + b"Traceback\n"
    assert ship.ended("1.1.0") == len(expected)  # what the server holds, so that it does not wait for more
    assert bytes(ship.plane.logs["1.1.0"]) == expected
    assert len(ship.plane.log_puts) == puts


def test_what_may_be_a_hole_is_never_sent(ship: Shipping, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node gives the middle of a long output back to its disk, whatever the control plane would take."""
    monkeypatch.setattr(logs_module, "TAIL_BYTES", 100)
    ship.write("1.1.0", b"a" * 1000 + bytes(5000) + b"e" * 200)
    ship.track("1.1.0", head=1000)
    ship.shipped("1.1.0", b"a" * 1000)
    ship.shipper.end("1.1.0")
    ship.ended("1.1.0")
    assert bytes(ship.plane.logs["1.1.0"]) == b"a" * 1000 + b"<100 of 6200 bytes>" + b"e" * 100


def test_a_file_that_ends_where_holes_would_begin_is_sent_whole(ship: Shipping) -> None:
    ship.write("1.1.0", b"a" * 1000)
    ship.track("1.1.0", head=1000)
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == 1000
    assert bytes(ship.plane.logs["1.1.0"]) == b"a" * 1000


def test_after_a_restart_a_capped_log_gets_its_end(ship: Shipping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "TAIL_BYTES", 10)
    ship.plane.log_cap = 1000
    ship.plane.logs["1.1.0"] = bytearray(b"x" * 1000)
    ship.write("1.1.0", b"x" * 1000 + b"y" * 90 + b"z" * 10)
    ship.track("1.1.0", offset=1000, is_new=False)
    ship.shipper.end("1.1.0")
    ship.ended("1.1.0")
    assert bytes(ship.plane.logs["1.1.0"]) == b"x" * 1000 + b"<10 of 1100 bytes>" + b"z" * 10


@pytest.mark.parametrize("status", [0, 500, 503, 429, 401])
def test_it_tries_again_until_the_server_takes_it(ship: Shipping, status: int) -> None:
    ship.plane.failures.append(Failure("/api/agent/v1/logs/", status, 3, retry_after="0" if status == 429 else None))
    ship.write("1.1.0", b"hello\n")
    ship.track("1.1.0")
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == 6
    assert bytes(ship.plane.logs["1.1.0"]) == b"hello\n"


def test_a_control_plane_that_was_away_gets_it_all(ship: Shipping) -> None:
    port = ship.plane.port
    ship.write("1.1.0", b"one\n")
    ship.track("1.1.0")
    ship.shipped("1.1.0", b"one\n")
    ship.plane.stop()
    ship.write("1.1.0", b"two\n")
    ship.shipper.end("1.1.0")
    ship.plane.start(port)
    assert ship.ended("1.1.0") == 8
    assert bytes(ship.plane.logs["1.1.0"]) == b"one\ntwo\n"


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_log_that_nobody_wants_ends_without_hurting_the_others(ship: Shipping, status: int) -> None:
    ship.plane.failures.append(Failure("/api/agent/v1/logs/1.1.0", status, 99))
    for rank in ("1.1.0", "2.1.0"):
        ship.write(rank, b"hello\n")
        ship.track(rank)
        ship.shipper.end(rank)
    assert ship.ended("2.1.0") == 6
    assert ship.ended("1.1.0") == 0


def test_a_server_in_trouble_over_one_rank_takes_the_others(ship: Shipping) -> None:
    ship.plane.failures.append(Failure("/api/agent/v1/logs/1.1.0", 500, 10**9))
    for rank in ("1.1.0", "2.1.0"):
        ship.write(rank, b"hello\n")
        ship.track(rank)
        ship.shipper.end(rank)
    assert ship.ended("2.1.0") == 6
    assert "1.1.0" not in ship.done


def test_a_rank_whose_chunk_is_still_at_work_waits_for_as_long_as_it_is_told_and_the_others_do_not(ship: Shipping) -> None:
    busy = Failure("/api/agent/v1/logs/1.1.0", 409, 1000, retry_after="3600", code="busy")
    ship.plane.failures.append(busy)
    ship.write("1.1.0", b"hello\n")
    ship.track("1.1.0")
    ship.plane.wait(lambda: busy.times == 999, what="the answer that it is at work")
    for n in range(2, 6):
        ship.write(f"{n}.1.0", b"hello\n")
        ship.track(f"{n}.1.0")
        ship.shipper.end(f"{n}.1.0")
        assert ship.ended(f"{n}.1.0") == 6
    assert busy.times == 999


def test_a_link_in_place_of_the_output_is_not_followed(ship: Shipping, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"credential")
    ship.path("1.1.0").symlink_to(secret)
    ship.track("1.1.0")
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == 0
    assert ship.plane.log_puts == []


def test_what_a_job_writes_after_it_cut_its_file_follows_behind_a_line_that_says_so(ship: Shipping) -> None:
    ship.write("1.1.0", b"0123456789")
    ship.track("1.1.0")
    ship.shipped("1.1.0", b"0123456789")
    os.truncate(ship.path("1.1.0"), 0)
    ship.write("1.1.0", b"abc")
    ship.shipped("1.1.0", b"0123456789" + CUT + b"abc")
    ship.write("1.1.0", b"def" * 100)  # longer than before: not taken for a cut, and not begun in its middle
    ship.shipped("1.1.0", b"0123456789" + CUT + b"abc" + b"def" * 100)
    os.truncate(ship.path("1.1.0"), 1)
    ship.shipped("1.1.0", whole := b"0123456789" + CUT + b"abc" + b"def" * 100 + CUT + b"a")
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == len(whole)  # what the server holds, though the file has one byte


@pytest.mark.parametrize("after", [b"abcdefghij", b"abcdefghij and more"], ids=["as long", "longer"])
def test_a_cut_shows_though_the_file_has_grown_again_before_anybody_looked(ship: Shipping, after: bytes) -> None:
    ship.write("1.1.0", b"0123456789")
    ship.track("1.1.0")
    ship.shipped("1.1.0", b"0123456789")
    ship.path("1.1.0").write_bytes(after)  # in one go, as far as the shipper can see
    ship.shipped("1.1.0", b"0123456789" + CUT + after)
    ship.write("1.1.0", b"!")
    ship.shipped("1.1.0", b"0123456789" + CUT + after + b"!")


def test_a_cut_is_told_once_though_the_answer_was_lost(ship: Shipping) -> None:
    ship.write("1.1.0", b"0123456789")
    ship.track("1.1.0")
    ship.shipped("1.1.0", b"0123456789")
    with ship.plane.lock:
        ship.plane.logs["1.1.0"] += CUT  # it arrived, and nobody heard so
    os.truncate(ship.path("1.1.0"), 0)
    ship.write("1.1.0", b"abc")
    ship.shipped("1.1.0", b"0123456789" + CUT + b"abc")


@pytest.mark.parametrize("known", [0, 10], ids=["stored nothing", "stored the length"])
@pytest.mark.parametrize("left", [b"abc", b""], ids=["some output", "none"])
def test_a_file_that_was_cut_while_the_agent_was_down_follows_from_its_beginning(ship: Shipping, known: int, left: bytes) -> None:
    ship.plane.logs["1.1.0"] = bytearray(b"0123456789")
    ship.write("1.1.0", left)
    ship.track("1.1.0", offset=known, is_new=False)
    if known or left:
        ship.shipped("1.1.0", b"0123456789" + CUT + left)
    ship.shipper.end("1.1.0")
    ship.ended("1.1.0")


def test_after_a_restore_a_cut_file_follows_from_its_beginning_again(ship: Shipping) -> None:
    ship.write("1.1.0", b"0123456789")
    ship.track("1.1.0")
    ship.shipped("1.1.0", b"0123456789")
    os.truncate(ship.path("1.1.0"), 0)
    ship.write("1.1.0", b"abc")
    ship.shipped("1.1.0", b"0123456789" + CUT + b"abc")
    with ship.plane.lock:
        ship.plane.logs["1.1.0"] = bytearray(b"01234")
    ship.shipper.rewind()
    ship.shipped("1.1.0", b"01234" + CUT + b"abc")
    with ship.plane.lock:
        ship.plane.logs["1.1.0"] = bytearray()
    ship.shipper.rewind()
    ship.shipped("1.1.0", b"abc")  # nothing is left of what was before the cut


def test_without_ranks_the_thread_sleeps_without_a_timer(ship: Shipping) -> None:
    """Its condition is waited on without a time-out: nothing wakes it but a rank."""
    waits: list[float | None] = []
    inner = ship.shipper._lock
    real_wait = inner.wait

    def wait(timeout: float | None = None) -> bool:
        waits.append(timeout)
        return real_wait(timeout)

    inner.wait = wait  # type: ignore[method-assign]
    ship.track("1.1.0")
    ship.shipper.end("1.1.0")
    ship.ended("1.1.0")
    wait_until(lambda: waits and waits[-1] is None, "a wait without a time-out")
    assert all(w is None or w <= logs_module.LOOK_S[1] for w in waits)


def test_stopping_does_not_wait_for_a_server_that_hangs(plane: FakeControlPlane, tmp_path: Path) -> None:
    ship = Shipping(plane, tmp_path)
    ship.shipper.start()
    plane.log_gate.clear()
    ship.write("1.1.0", b"x")
    ship.track("1.1.0")
    stopper = threading.Thread(target=lambda: ship.shipper.stop(timeout_s=0.1))
    stopper.start()
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    plane.log_gate.set()


@pytest.mark.parametrize(("lines", "expected"), [(0, ""), (1, "c"), (2, "b\nc"), (99, "a\nb\nc")])
def test_tail(tmp_path: Path, lines: int, expected: str) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"a\nb\nc\n")
    assert output_tail(str(path), lines) == expected


def test_tail_of_a_huge_or_missing_or_linked_file(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * 1_000_000 + "\n☠".encode() + b"\xff")
    assert output_tail(str(big), 1) == "☠\ufffd"
    assert len(output_tail(str(big), 100, max_bytes=1000)) <= 1000
    assert output_tail(str(tmp_path / "none"), 10) == ""
    (tmp_path / "link").symlink_to(big)
    assert output_tail(str(tmp_path / "link"), 1) == ""


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")], ids=["folder", "pipe", "link"])
def test_what_a_job_puts_in_place_of_its_output_is_not_shipped(ship: Shipping, put) -> None:  # type: ignore[no-untyped-def]
    ship.write("1.1.0", b"before\n")
    ship.track("1.1.0")
    ship.shipped("1.1.0", b"before\n")
    ship.path("1.1.0").unlink()
    put(ship.path("1.1.0"))
    ship.shipper.end("1.1.0")
    assert ship.ended("1.1.0") == 7
    assert bytes(ship.plane.logs["1.1.0"]) == b"before\n"
