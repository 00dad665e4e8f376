"""Text for a terminal: safe, in 80 columns, in the reader's zone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import output
from client.commands.common import columns


@pytest.fixture
def shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("az' $(touch x)", "az' $(touch x)"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u200fb\u2066c", "a\\u200fb\\u2066c"),
        ("训练 ☠ é", "训练 ☠ é"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("\ud800", "\\ud800"),
        ("\u2028\x85\x9b31m", "\\u2028\\x85\\x9b31m"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_names_can_not_move_colour_or_reorder_the_line(text: str, shown: str) -> None:
    assert output.safe(text) == shown


@given(st.text())
def test_whatever_the_name_it_is_one_printable_line(text: str) -> None:
    shown = output.safe(text)
    assert len(shown.splitlines()) <= 1
    assert "\x1b" not in shown
    shown.encode("utf-8")


@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60)), max_size=5))
def test_a_table_keeps_its_width(rows: list[tuple[str, str]]) -> None:
    text = output.table(["A", "B"], rows, width=40, shrink=(0, 1))
    assert max(output.cells(line) for line in text.split("\n")) <= 40


def test_wide_signs_count_twice() -> None:
    assert output.cells("训练") == 4
    assert output.cells("e\u0301") == 1
    assert output.cut("训练任务名", 6) == "训练…"
    assert output.table(["N", "X"], [["训练", 1], ["ab", 2]], width=80) == "N     X\n训练  1\nab    2"


@pytest.mark.parametrize(
    ("mib", "shown"), [(None, "-"), (0, "0.0 GiB"), (512, "0.5 GiB"), (24_564, "24.0 GiB"), (24_576, "24.0 GiB"), (4096, "4.0 GiB")]
)
def test_memory_is_gib_with_one_decimal(mib: int | None, shown: str) -> None:
    assert output.gib(mib) == shown


def test_none_is_not_zero() -> None:
    assert (output.percent(None), output.percent(0)) == ("-", "0%")
    assert (output.known(None), output.known(0), output.known("")) == ("-", 0, "-")
    assert (output.size(None), output.size(0), output.size(1536)) == ("-", "0 B", "1.5 KiB")


@pytest.mark.parametrize(("seconds", "shown"), [(None, "-"), (0, "0:00:00"), (3725.9, "1:02:05"), (86_400, "1d 00:00:00"), (-3, "0:00:00")])
def test_durations(seconds: float | None, shown: str) -> None:
    assert output.duration(seconds) == shown


@pytest.mark.usefixtures("shanghai")
def test_times_are_in_the_readers_zone() -> None:
    now = datetime(2026, 3, 1, 20, 0, tzinfo=UTC)  # 04:00 of the next day in Shanghai
    assert output.time_local("2026-03-01T16:30:00Z") == "2026-03-02 00:30:00 CST"
    assert output.time_local("2026-03-01T16:30:00.123456+00:00") == "2026-03-02 00:30:00 CST"
    assert output.time_short("2026-03-01T16:30:00Z", now) == "00:30:00"
    assert output.time_short("2026-03-01T15:30:00Z", now) == "03-01 23:30"
    assert output.time_short("2025-12-31T15:30:00Z", now) == "2025-12-31"
    assert output.time_local(None) == "-"
    assert output.time_local("soon") == "-"


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX 4060 Laptop"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("Intel(R) Arc(TM) A770 Graphics", "Arc A770"),
        ("Ascend 910B", "Ascend 910B"),
        ("Simulated RTX 4090", "RTX 4090"),
        ("AMDGPU", "AMDGPU"),
        ("NVIDIA", "NVIDIA"),
        ("", ""),
    ],
)
def test_models_are_shortened_to_what_tells_them_apart(model: str, short: str) -> None:
    assert output.model_short(model) == short


def test_only_a_terminal_cuts_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = [[1, "llama3-70b-qlora-of-the-second-week", "Needs 72 GiB on one GPU; all that are large enough are in use."]]
    whole = output.table(["ID", "NAME", "NOTE"], rows, width=columns(), shrink=(1, 2))  # captured output is no terminal
    assert rows[0][1] in whole
    assert rows[0][2] in whole
    monkeypatch.setenv("COLUMNS", "60")
    narrow = output.table(["ID", "NAME", "NOTE"], rows, width=columns(), shrink=(1, 2))
    assert max(map(len, narrow.splitlines())) <= 60
