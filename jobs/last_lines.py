"""The last lines that say why a program ended: a traceback's own, else the last that were written. Pure, linear in a bounded tail.

No regular expressions: an output is its job's own text and may be made to be slow to search.
"""

from __future__ import annotations

from nodes.text import text_clean

LINES_MOST = 3
LINE_MOST = 240
_TRACEBACK = "Traceback (most recent call last):"


def last_lines(tail: str) -> list[str]:
    """At most ``LINES_MOST`` lines of at most ``LINE_MOST`` characters, without what moves a terminal's cursor.

    Of the last traceback the exception itself with its message; where there is none, the end of the output.
    """
    # A progress bar writes over its own line: what stands there last counts.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in tail.split("\n")]
    begin = max((at for at, line in enumerate(lines) if line.lstrip().startswith(_TRACEBACK)), default=None)
    if begin is not None:
        depth = len(lines[begin]) - len(lines[begin].lstrip())
        for at in range(begin + 1, len(lines)):
            # Frames are indented deeper than the heading; the exception is the first line that is not.
            if lines[at].strip() and len(lines[at]) - len(lines[at].lstrip()) <= depth:
                return [_shown(line) for line in _paragraph(lines[at:])]
    return [_shown(line) for line in lines if line.strip()][-LINES_MOST:]


def _paragraph(lines: list[str]) -> list[str]:
    """The exception's line, and the further lines of its message up to a blank one."""
    found: list[str] = []
    for line in lines[:LINES_MOST]:
        if not line.strip():
            break
        found.append(line)
    return found


def _shown(line: str) -> str:
    text = text_clean(_uncoloured(line)).strip()
    return text if len(text) <= LINE_MOST else text[: LINE_MOST - 1] + "…"


def _uncoloured(line: str) -> str:
    """Without ``ESC [ … letter``; other control signs are ``text_clean``'s."""
    parts = line.split("\x1b[")
    return parts[0] + "".join(_after_letter(part) for part in parts[1:])


def _after_letter(part: str) -> str:
    for at, sign in enumerate(part[:20]):
        if sign.isalpha():
            return part[at + 1 :]
    return part
