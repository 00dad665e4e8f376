"""Taking secret values out of a stream of bytes: pure.

What is masked: the value and its lines, as they are and as base64 (each of the three alignments, both alphabets), hex, percent-encoding,
JSON and Python strings, and with shells' backslashes. Each byte becomes one ``*``, so that a log's offsets stay the program's own.

A value may be cut by the border of two chunks. So a chunk is taken only up to where an unfinished value may begin; the rest comes again,
with what follows it.

The cost of a byte does not grow with the number of values (``quotas.multisearch``), and each call has a budget. A chunk that uses it up,
such as one that repeats the beginning of many values, is taken in part, and the rest comes again in a call of its own. Nothing is ever
shown unmasked because masking took too long.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from quotas.multisearch import MultiSearch

#: Shorter pieces (of a value's lines) are not masked: they would take half of the log with them.
LEAST = 8
#: A longer spelling is looked for in pieces of so many bytes: their stars join, and the end of a chunk is held back for one piece at most.
PIECE = 1024
MARK = b"*"
#: As in quotas.multisearch, which is imported only where there is something to mask.
BLOCK = 64 * 1024
#: What one call of ``take`` may cost, in comparisons: a few hundredths of a second. A usual chunk takes a hundredth of it.
WORK_MOST = 4_000_000


def patterns_of(value: str) -> set[bytes]:
    """All spellings of one value that are looked for, each of LEAST bytes or more."""
    whole = value.encode()
    pieces = {whole, whole.strip()}
    pieces |= {line.strip() for line in whole.splitlines()}
    found: set[bytes] = set()
    for piece in pieces:
        if len(piece) >= LEAST:
            found |= _spellings(piece)
    return {part for spelling in found if len(spelling) >= LEAST for part in _parts(spelling)}


def _parts(spelling: bytes) -> Iterable[bytes]:
    """Pieces of PIECE bytes that cover all of it, the last one up to its end."""
    if len(spelling) <= PIECE:
        return (spelling,)
    return {spelling[min(at, len(spelling) - PIECE) :][:PIECE] for at in range(0, len(spelling), PIECE)}


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


def lines_of(value: str) -> int:
    """How many lines of a value are looked for by themselves."""
    return sum(len(line.strip()) >= LEAST for line in value.encode("utf-8", "surrogatepass").splitlines())


class Masks:
    """The spellings of some values. Instances show nothing of them."""

    def __init__(self, values: Iterable[str] = (), *, is_of_everything: bool = False) -> None:
        self._is_of_everything = is_of_everything
        patterns: set[bytes] = set()
        for value in values:
            patterns |= patterns_of(value)
        self._search = _search(patterns) if patterns else None
        #: About what it keeps in memory.
        self.weight = sum(map(len, patterns)) + 100 * len(patterns)

    @classmethod
    def of_everything(cls) -> Masks:
        """For values that can't be looked for: each byte but the ends of lines is masked."""
        return cls(is_of_everything=True)

    def __bool__(self) -> bool:
        return self._is_of_everything or self._search is not None

    def __repr__(self) -> str:
        return f"Masks({0 if self._search is None else len(self._search)} spellings)"

    def take(self, data: bytes, *, is_last: bool) -> bytes:
        """``data`` masked, without its end where a value may be cut there. With ``is_last`` nothing more comes: all of it, unless that
        is more work than one call may do (WORK_MOST); what is not taken must come again in any case."""
        if self._is_of_everything:
            return b"\n".join(MARK * len(line) for line in data.split(b"\n"))
        if self._search is None:
            return data
        parts: list[bytes] = []
        at, spent = 0, self._search.work
        while at < len(data) and self._search.work - spent < WORK_MOST:
            block = data[at : at + BLOCK]
            is_end = at + len(block) == len(data)
            masked = self._mask(self._search, block, is_last=is_last and is_end)
            parts.append(masked)
            at += len(masked)
            if is_end:
                break
        return b"".join(parts)

    @staticmethod
    def _mask(search: MultiSearch, block: bytes, *, is_last: bool) -> bytes:
        import numpy as np

        ends, cut = search.find(block, is_last=is_last)
        if not ends.any():
            return block[:cut]
        reach = np.maximum.accumulate(ends)  # up to where the strings that begin here or before go
        before = np.concatenate((reach[:1] * 0, reach[:-1]))
        at = np.arange(len(ends))
        # The rest comes again without what stands before it. So a string that goes over the cut is either not there, or another one
        # that begins at the cut goes as far.
        cut = int(np.flatnonzero((before <= at)[: cut + 1] | (ends >= before)[: cut + 1])[-1])
        text = np.frombuffer(block, np.uint8)[:cut]
        return np.where((reach > at)[:cut], np.uint8(MARK[0]), text).tobytes()

    def text(self, text: str) -> str:
        """The same for a text that is whole. What is more work than one call may do is left out, and that is said."""
        if not self:
            return text
        data = text.encode("utf-8", "surrogatepass")
        masked = self.take(data, is_last=True)
        missing = (
            "" if len(masked) == len(data) else f"\n[nebulagrid] {len(data) - len(masked)} bytes withheld: masking them takes too long."
        )
        return masked.decode("utf-8", "replace") + missing


def _search(patterns: set[bytes]) -> MultiSearch:
    from quotas.multisearch import MultiSearch  # with numpy, which a process that never masks does without

    return MultiSearch(patterns)
