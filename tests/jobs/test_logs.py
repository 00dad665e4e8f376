"""A rank's output: keyed by offset, contiguous, capped, closed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agent.protocol import ProtocolError
from jobs import logs


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
        except logs.WrongOffset:
            pass

    threads = [threading.Thread(target=write, args=(bytes([65 + n]) * 100,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert logs.log_read("7.1.0", offset=0, limit=1000) == won[0]
