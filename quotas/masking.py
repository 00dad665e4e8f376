"""Taking secret values out of a stream of bytes: pure.

What is masked: the value and its lines, as they are and as base64 (each of the three alignments, both alphabets), hex, percent-encoding,
JSON and Python strings, and with shells' backslashes. Each byte becomes one ``*``, so that a log's offsets stay the program's own.

A value may be cut by the border of two chunks. So a chunk is taken only up to where an unfinished value may begin; the rest comes again,
with what follows it.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

#: Shorter pieces (of a value's lines) are not masked: they would take half of the log with them.
LEAST = 8
#: A key file has some dozens of lines; more of them add nothing.
LINES_MOST = 400
MARK = b"*"


def patterns_of(value: str) -> set[bytes]:
    """All spellings of one value that are looked for, each of LEAST bytes or more."""
    whole = value.encode()
    pieces = {whole, whole.strip()}
    pieces |= {line.strip() for line in whole.splitlines()[:LINES_MOST]}
    found: set[bytes] = set()
    for piece in pieces:
        if len(piece) >= LEAST:
            found |= _spellings(piece)
    return {spelling for spelling in found if len(spelling) >= LEAST}


def _spellings(piece: bytes) -> set[bytes]:
    text = piece.decode("utf-8", "replace")
    found = {piece, piece.hex().encode(), piece.hex().upper().encode()}
    for spelled in (
        quote(text, safe=""),
        quote(text),
        quote_plus(text),
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(text)[1:-1],
        ascii(text)[1:-1],
        shlex.quote(text).strip("'"),
        "".join(char if char.isalnum() or char in "_-./:=@%+," else f"\\{char}" for char in text),
    ):
        found.add(spelled.encode("utf-8", "replace"))
    for code in (base64.b64encode, base64.urlsafe_b64encode):
        found.add(code(piece).rstrip(b"="))
        # Inside of something longer it may begin at any of three places; only the digits that are of it alone can be known.
        for ahead in (1, 2):
            digits = code(b"\0" * ahead + piece).rstrip(b"=")
            skip = -(-ahead * 8 // 6)
            spare = (ahead + len(piece)) % 3
            found.add(digits[skip : len(digits) - (1 if spare else 0)])
        if len(piece) % 3:
            found.add(code(piece).rstrip(b"=")[:-1])
    return found


class Masks:
    """The spellings of some values. Instances show nothing of them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        found: set[bytes] = set()
        for value in values:
            found |= patterns_of(value)
        # A spelling within another one is found by the shorter alone only where the longer does not stand: both are kept.
        self._patterns = sorted(found, key=lambda pattern: (-len(pattern), pattern))

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def __repr__(self) -> str:
        return f"Masks({len(self._patterns)} spellings)"

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        """Where values stand, in order, overlaps joined."""
        spans: list[tuple[int, int]] = []
        for pattern in self._patterns:
            at = data.find(pattern)
            while at >= 0:
                spans.append((at, at + len(pattern)))
                at = data.find(pattern, at + 1)
        spans.sort()
        joined: list[tuple[int, int]] = []
        for start, end in spans:
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        return joined

    def _unfinished(self, data: bytes) -> int:
        """Where the first value may begin whose end has not come yet; len(data) = none does."""
        first = len(data)
        for pattern in self._patterns:
            at = max(0, len(data) - len(pattern) + 1)
            while (at := data.find(pattern[:1], at)) >= 0 and at < first:
                if pattern.startswith(data[at:]):
                    first = at
                    break
                at += 1
        return first

    def take(self, data: bytes, *, is_last: bool) -> bytes:
        """``data`` masked, without its end where a value may be cut there. With ``is_last`` nothing more comes: all of it."""
        spans = self._spans(data)
        cut = len(data) if is_last else self._unfinished(data)
        for start, end in spans:
            if start < cut < end:
                cut = start  # a value of which a part may belong to a longer one: both come again
        parts: list[bytes] = []
        at = 0
        for start, end in spans:
            if start >= cut:
                break
            parts += (data[at:start], MARK * (end - start))
            at = end
        parts.append(data[at:cut])
        return b"".join(parts)

    def text(self, text: str) -> str:
        """The same for a text that is whole."""
        return self.take(text.encode("utf-8", "surrogatepass"), is_last=True).decode("utf-8", "replace") if self else text
