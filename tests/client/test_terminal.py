"""A job's output on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.terminal import TerminalFilter

CASES = [
    ("plain ü ☠\n\tx\r", "plain ü ☠\n\tx\r"),
    ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
    ("\x1b[38;5;196;1mx", "\x1b[38;5;196;1mx"),
    ("a\x1b[2J\x1b[H\x1b[?25lb", "ab"),
    ("\x1b]0;owned\x07x", "x"),
    ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1b]52;c;cm0gLXJm\x07x", "x"),
    ("\x1bP+q544e\x1b\\x", "x"),
    ("\x9b2Jx\x9b31my", "x\x1b[31my"),
    ("\x1bc\x1b(0\x1b7x", "x"),
    ("bell\x07back\x08\x00\x7f", "bellback"),
    ("\x1b]0;never ends\nnext line", "\nnext line"),
    ("\x1b[>0;276;0cx", "x"),
    ("\x1b[999\x1b[31mx", "\x1b[31mx"),
]


def whole(text: str, size: int) -> str:
    gate = TerminalFilter()
    return "".join(gate.feed(text[i : i + size]) for i in range(0, len(text), size))


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("text", "shown"), CASES)
def test_colours_pass_and_nothing_else_does(text: str, shown: str, size: int) -> None:
    assert whole(text, size) == shown


@given(st.text(alphabet="\x1b[]m;0123\x07\\Px\n\x9b\x9d?(c", max_size=40), st.integers(1, 40))
def test_only_colours_come_out_however_it_is_cut(text: str, size: int) -> None:
    shown = whole(text, size)
    assert shown == whole(text, 1000)
    rest = shown
    while (start := rest.find("\x1b")) >= 0:
        end = rest.find("m", start)
        assert end >= 0
        assert rest[start + 1] == "["
        assert set(rest[start + 2 : end]) <= set("0123456789;:")
        rest = rest[end + 1 :]
    assert not set(shown) & set("\x07\x9b\x9d")


def test_the_terminal_gets_its_colours_back() -> None:
    gate = TerminalFilter()
    gate.feed("\x1b[31m")
    assert gate.end() == "\x1b[0m"
    gate = TerminalFilter()
    gate.feed("plain\x1b[")
    assert gate.end() == ""


def test_an_endless_sequence_neither_eats_the_log_nor_grows() -> None:
    gate = TerminalFilter()
    shown = "".join(gate.feed("\x1b]0;" + "x" * 1000 if n == 0 else "x" * 1000) for n in range(20))
    assert shown.count("x") > 10_000


@pytest.mark.timeout(20)
def test_a_hostile_log_is_linear_work() -> None:
    """Quadratic work would take minutes here."""
    gate = TerminalFilter()
    for introducer in ("\x1b]", "\x1b[", "\x9d", "\x9d;", "\x1b", "\x9b1"):
        assert len(gate.feed(introducer * 200_000)) <= 200_000
