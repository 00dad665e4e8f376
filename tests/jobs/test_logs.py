"""A rank's output: keyed by offset, contiguous, capped, closed."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from agent.protocol import ProtocolError
from jobs import logs
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def log_dir(tmp_path: Path, settings) -> Path:  # type: ignore[no-untyped-def]
    settings.LOG_DIR = tmp_path
    settings.LOG_CAP_MIB = 1
    return tmp_path


def test_it_appends_at_the_end_and_reads_any_part() -> None:
    assert logs.log_append("7.1.0", offset=0, data=b"loss 0.5\n").length == 9
    assert logs.log_append("7.1.0", offset=9, data="☠ 中文\n".encode()).length == 9 + 11
    assert logs.log_read("7.1.0", offset=5, limit=3) == b"0.5"
    assert logs.log_read("7.1.0", offset=9, limit=100).decode() == "☠ 中文\n"
    assert logs.log_read("7.1.0", offset=1000, limit=10) == b""


def test_a_repeat_or_a_gap_is_refused_with_the_true_length() -> None:
    logs.log_append("7.1.0", offset=0, data=b"abc")
    for offset in (0, 2, 4):
        with pytest.raises(logs.WrongOffset) as caught:
            logs.log_append("7.1.0", offset=offset, data=b"x")
        assert caught.value.length == 3
    assert logs.log_read("7.1.0", offset=0, limit=10) == b"abc"


def test_an_unwritten_log_is_empty() -> None:
    assert logs.log_length("7.1.0") == 0
    assert logs.log_read("7.1.0", offset=0, limit=10) == b""


@pytest.mark.parametrize("rank", ["../../etc/passwd", "7.1", "7.1.0/../x", "a.b.c", "", "7.1.0\n", "-1.1.0"])
def test_a_name_that_is_no_rank_touches_nothing(rank: str, log_dir: Path) -> None:
    with pytest.raises(ProtocolError):
        logs.log_append(rank, offset=0, data=b"x")
    assert list(log_dir.rglob("*")) == []


def test_past_the_cap_there_is_one_notice_and_no_more() -> None:
    answer = logs.log_append("7.1.0", offset=0, data=b"x" * (1024 * 1024 + 5))
    assert answer.capped
    tail = logs.log_read("7.1.0", offset=1024 * 1024 - 1, limit=1000)
    assert tail.startswith(b"x\n[nebulagrid] The log is cut here at 1 MiB")
    assert logs.log_append("7.1.0", offset=answer.length, data=b"more").capped
    assert logs.log_length("7.1.0") == answer.length


def test_a_closed_log_says_why_and_takes_nothing() -> None:
    logs.log_append("7.1.0", offset=0, data=b"abc")
    logs.log_close("7.1.0", line="killed: node_lost")
    logs.log_close("7.1.0", line="killed: node_lost")
    assert logs.log_read("7.1.0", offset=0, limit=100) == b"abc\n[nebulagrid] killed: node_lost\n"
    assert logs.log_append("7.1.0", offset=3, data=b"late").capped


def test_of_many_writers_at_one_offset_one_wins() -> None:
    won: list[bytes] = []

    def write(data: bytes) -> None:
        try:
            logs.log_append("7.1.0", offset=0, data=data)
            won.append(data)
        except (logs.WrongOffset, logs.LogBusy):
            pass

    threads = [threading.Thread(target=write, args=(bytes([65 + n]) * 100,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert logs.log_read("7.1.0", offset=0, limit=1000) == won[0]


class SlowMasks:
    """Stands for a chunk that takes long to look through: it holds the log's lock until it is let go."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def take(self, data: bytes, *, is_last: bool) -> bytes:
        self.began.set()
        assert self.may_end.wait(PATIENCE_S)
        return data


def test_who_repeats_a_chunk_that_is_being_written_is_told_so_and_waits_for_nothing() -> None:
    masks = SlowMasks()
    writer = threading.Thread(target=logs.log_append, args=("7.1.0",), kwargs={"offset": 0, "data": b"abc", "masks": masks})
    writer.start()
    assert masks.began.wait(PATIENCE_S)
    for _ in range(20):
        with pytest.raises(logs.LogBusy) as caught:
            logs.log_append("7.1.0", offset=0, data=b"abc")
        assert caught.value.length == 0
    masks.may_end.set()
    writer.join()
    assert logs.log_read("7.1.0", offset=0, limit=10) == b"abc"


def test_a_log_that_ends_while_a_chunk_is_written_gets_its_last_line_from_that_writer() -> None:
    masks = SlowMasks()
    writer = threading.Thread(target=logs.log_append, args=("7.1.0",), kwargs={"offset": 0, "data": b"abc", "masks": masks})
    writer.start()
    assert masks.began.wait(PATIENCE_S)
    logs.log_close("7.1.0", line="killed: node_lost")  # would wait for ever if it waited at all
    assert not logs.log_is_closed("7.1.0")
    masks.may_end.set()
    writer.join()
    assert logs.log_is_closed("7.1.0")
    assert logs.log_read("7.1.0", offset=0, limit=100) == b"abc\n[nebulagrid] killed: node_lost\n"


def test_a_last_line_that_a_killed_process_left_behind_is_written_by_the_next_one(log_dir: Path) -> None:
    logs.log_append("7.1.0", offset=0, data=b"abc")
    with open(logs.log_path("7.1.0"), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # and ends without a look at what it was left
        logs.log_close("7.1.0", line="killed: node_lost")
    assert logs.log_append("7.1.0", offset=3, data=b"late").capped
    assert logs.log_read("7.1.0", offset=0, limit=100) == b"abc\n[nebulagrid] killed: node_lost\n"
    assert [path.name for path in logs.log_path("7.1.0").parent.iterdir() if "closing" in path.name] == []
