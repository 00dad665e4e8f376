"""A rank's output: keyed by offset, contiguous, capped, closed."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from agent.protocol import ProtocolError
from jobs import logs
from quotas.masking import Masks
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


# --- the end of what is over the cap ----------------------------------------------------------------------------------

MIB = 1024 * 1024
LEFT_OUT = b"\n[nebulagrid] %d bytes of output are left out here; its end follows.\n"


def capped() -> int:
    """A log that took 1 MiB of an output and then its notice; how long it is."""
    return logs.log_append("7.1.0", offset=0, data=b"x" * (MIB + 5)).length


def end_of(length: int) -> bytes:
    return logs.log_read("7.1.0", offset=length, limit=MIB)


def test_the_last_lines_arrive_whatever_the_cap_behind_one_line_that_says_what_is_missing() -> None:
    length = capped()
    answer = logs.log_tail("7.1.0", offset=length, data=b"half a line\nTraceback\nValueError: x\n", total=5 * MIB)
    expected = LEFT_OUT % (4 * MIB - len(b"Traceback\nValueError: x\n")) + b"Traceback\nValueError: x\n"
    assert end_of(length) == expected
    assert (answer.length, answer.capped) == (length + len(expected), True)
    assert logs.log_is_closed("7.1.0")
    # The answer was lost, and it comes again.
    assert logs.log_tail("7.1.0", offset=length, data=b"a\nTraceback\n", total=5 * MIB) == answer


def test_an_end_that_follows_at_once_has_no_gap_and_nothing_twice() -> None:
    length = capped()
    output = b"x" * MIB + b"0123456789"
    logs.log_tail("7.1.0", offset=length, data=output[-100:], total=len(output))
    assert end_of(length) == b"0123456789"


def test_an_end_of_one_line_alone_is_kept() -> None:
    length = capped()
    logs.log_tail("7.1.0", offset=length, data=b"z" * 100, total=2 * MIB)
    assert end_of(length) == LEFT_OUT % (MIB - 100) + b"z" * 100


def test_a_node_that_has_no_more_than_the_end_may_leave_out_what_the_cap_would_take() -> None:
    logs.log_append("7.1.0", offset=0, data=b"abc")
    logs.log_tail("7.1.0", offset=3, data=b"\nend\n", total=100)
    assert end_of(0) == b"abc" + LEFT_OUT % 93 + b"end\n"
    with pytest.raises(logs.WrongOffset):
        logs.log_tail("8.1.0", offset=3, data=b"x", total=10)


def test_no_end_shows_a_part_of_a_secret() -> None:
    secret = "s3cret-" * 40  # the window begins in the middle of it
    length = capped()
    data = (secret[100:] + "y" * 4000 + f"\nkey {secret}\nValueError\n").encode()
    logs.log_tail("7.1.0", offset=length, data=data, total=5 * MIB, masks=Masks([secret]))
    assert b"s3cret" not in end_of(length)
    assert end_of(length).endswith(b"key " + b"*" * len(secret) + b"\nValueError\n")


def test_no_end_shows_the_rest_of_a_secret_that_the_cap_cut() -> None:
    secret = "0123456789abcdef" * 8
    output = b"x" * (MIB - 20) + secret.encode() + b"\nlast\n"
    masks = Masks([secret])
    length = logs.log_append("7.1.0", offset=0, data=output, masks=masks).length
    logs.log_tail("7.1.0", offset=length, data=output[-4096:], total=len(output), masks=masks)
    whole = logs.log_read("7.1.0", offset=0, limit=2 * MIB)
    assert b"abcdef" not in whole
    assert whole.endswith(b"*" * (len(secret) - 20) + b"\nlast\n")


# --- output that comes after the log was closed for want of it ----------------------------------------------------------


def test_late_output_goes_on_behind_the_line_that_closed_the_log() -> None:
    logs.log_append("7.1.0", offset=0, data=b"abc", inserted=0)
    logs.log_close("7.1.0", line="killed: node_lost")
    line = b"\n[nebulagrid] killed: node_lost\n"
    with pytest.raises(logs.WrongOffset) as caught:
        logs.log_append("7.1.0", offset=3, data=b"late", inserted=0)
    assert (caught.value.length, caught.value.inserted) == (3 + len(line), len(line))
    # An agent that knows the length and not the line would read its file at the wrong place.
    with pytest.raises(logs.WrongOffset):
        logs.log_append("7.1.0", offset=3 + len(line), data=b"late", inserted=0)
    answer = logs.log_append("7.1.0", offset=3 + len(line), data=b"la", inserted=len(line))
    assert not answer.capped
    logs.log_append("7.1.0", offset=answer.length, data=b"te", inserted=len(line), is_end=True)
    assert logs.log_read("7.1.0", offset=0, limit=100) == b"abc" + line + b"late"
    assert logs.log_is_closed("7.1.0")
    assert logs.log_append("7.1.0", offset=logs.log_length("7.1.0"), data=b"more", inserted=len(line)).capped


def test_late_output_is_capped_too_and_keeps_its_end() -> None:
    logs.log_close("7.1.0", line="killed: node_lost")
    own = logs.log_length("7.1.0")
    length = logs.log_append("7.1.0", offset=own, data=b"x" * 2 * MIB, inserted=own).length
    assert length < 1.1 * MIB
    logs.log_tail("7.1.0", offset=length, data=b"a\nend\n", total=3 * MIB)
    assert logs.log_read("7.1.0", offset=length, limit=MIB).endswith(b"its end follows.\nend\n")
    assert logs.log_append("7.1.0", offset=logs.log_length("7.1.0"), data=b"more", inserted=own).capped
