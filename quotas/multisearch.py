"""Finding very many byte strings in one pass over a text: pure, linear in the text, vectorised.

The work for a byte of text does not depend on how many strings are looked for, nor on how they repeat or contain each other:

1. Each string is filed on a rung: the longest of ``RUNGS`` that is not longer than the string, by the hash of its first so many bytes.
2. A bitmap of the first eight bytes of all strings leaves few positions of a usual text.
3. At those, and for each rung, the hash of the text's next bytes tells which strings may stand there: at most ``FAMILY_MOST``. More
   strings with the same beginning are one *family*: wherever the beginning stands, as many bytes as the longest of them has count as
   found. That may be more than stands there, and never less.
4. The hash of the whole string decides. Hashes are sums modulo 2**64 with a random base; two strings with one hash would, again, find
   more and never less.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

#: No string is shorter than the first rung or longer than LONGEST.
RUNGS = (8, 32, 128, 512)
LONGEST = 1024
FAMILY_MOST = 16
#: At most so many bytes are looked at together: the arrays for them stay in the processor's cache.
BLOCK = 64 * 1024

HEAD = RUNGS[0]
_U64 = np.uint64
_BASE = int.from_bytes(os.urandom(8), "little") | 1
_SPREAD = _U64(0x9E3779B97F4A7C15)

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@lru_cache(maxsize=2)
def _powers(base: int = _BASE) -> Words:
    """Powers of ``base`` modulo 2**64, one for each position of a block."""
    factors = np.full(BLOCK + 1, base, _U64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _inverse_powers() -> Words:
    return _powers(pow(_BASE, -1, 1 << 64))  # an odd number has an inverse modulo 2**64


def _hashes_of(strings: Sequence[bytes]) -> Words:
    """The hash of each string, in batches: many megabytes of strings take little more memory meanwhile."""
    powers, hashes = _powers(), np.empty(len(strings), _U64)
    for at in range(0, len(strings), 4096):
        batch = strings[at : at + 4096]
        lengths = np.fromiter(map(len, batch), np.int64, len(batch))
        begins = np.cumsum(lengths) - lengths
        text = np.frombuffer(b"".join(batch), np.uint8)
        within = np.arange(len(text)) - np.repeat(begins, lengths)
        hashes[at : at + len(batch)] = np.add.reduceat(text * powers[within], begins)
    return hashes


class _Rung:
    """The strings of one rung, by families: those with the same beginning."""

    def __init__(self, length: int, strings: Sequence[bytes]) -> None:
        self.length = length
        self.heads = np.unique(np.fromiter((int.from_bytes(string[:HEAD], "little") for string in strings), _U64, len(strings)))
        begins = _hashes_of([string[:length] for string in strings])
        order = np.argsort(begins, kind="stable")
        keys, first, sizes = np.unique(begins[order], return_index=True, return_counts=True)
        self.keys, self.first, self.sizes = keys, first.astype(np.int64), sizes.astype(np.int64)
        self.lengths: Ints = np.fromiter(map(len, strings), np.int64, len(strings))[order]
        self.hashes = _hashes_of(strings)[order]
        self.longest: Ints = np.maximum.reduceat(self.lengths, self.first)


class MultiSearch:
    """Looks for ``strings``, of HEAD to LONGEST bytes each.

    ``work``: the positions and strings that were compared so far, beyond one look at each byte. What a caller may spend is counted in it.
    """

    def __init__(self, strings: Collection[bytes]) -> None:
        self._strings = sorted(set(strings))
        by_rung: dict[int, list[bytes]] = {length: [] for length in RUNGS}
        for string in self._strings:
            by_rung[max(length for length in RUNGS if length <= len(string))].append(string)
        self._rungs = [_Rung(length, mine) for length, mine in by_rung.items() if mine]
        self._heads = np.unique(np.concatenate([rung.heads for rung in self._rungs]))
        self._is_on = [np.isin(self._heads, rung.heads) for rung in self._rungs]
        bits = min(22, max(12, len(self._heads).bit_length() + 4))
        self._shift = _U64(64 - bits)
        self._filter = np.zeros(1 << bits, np.bool_)
        self._filter[self._slots(self._heads)] = True
        self.work = 0

    def __len__(self) -> int:
        return len(self._strings)

    def _slots(self, heads: Words) -> Words:
        return (heads * _SPREAD) >> self._shift

    def find(self, data: bytes, *, is_last: bool) -> tuple[Ints, int]:
        """All strings in ``data`` (at most BLOCK bytes), as the end of the longest that begins at each position (0 = none does) and
        the first position where one begins whose end has not come yet. With ``is_last`` nothing follows; that position is the end then.
        """
        ends = np.zeros(len(data) + 1, np.int64)
        places, number = self._places(data)
        cut = len(data) if is_last else self._unfinished(data, places)
        if not places.size:
            return ends, cut
        sums = np.zeros(len(data) + 1, _U64)
        np.cumsum(np.frombuffer(data, np.uint8) * _powers()[: len(data)], out=sums[1:])
        for rung, is_on in zip(self._rungs, self._is_on, strict=True):
            late = self._climb(rung, places[is_on[number]], sums, ends)
            cut = cut if is_last else min(cut, late)
        return ends, cut

    def _places(self, data: bytes) -> tuple[Ints, Ints]:
        """Where the first eight bytes of a string stand, and the number of that head."""
        nothing: Ints = np.zeros(0, np.int64)
        if len(data) < HEAD:
            return nothing, nothing
        heads = np.ndarray((len(data) - HEAD + 1,), "<u8", buffer=data, strides=(1,)).astype(_U64)
        places = np.flatnonzero(self._filter[self._slots(heads)])
        number = np.searchsorted(self._heads, heads[places])
        is_head = self._heads[np.minimum(number, len(self._heads) - 1)] == heads[places]
        return places[is_head], number[is_head]

    def _unfinished(self, data: bytes, places: Ints) -> int:
        """The first position from which on all of ``data`` is the beginning of a longer string; its end where there is none."""
        near = places[np.searchsorted(places, len(data) - LONGEST + 1) :].tolist()
        for place in (*near, *range(max(0, len(data) - HEAD + 1), len(data))):
            rest = data[place:]
            after = bisect_right(self._strings, rest)
            self.work += 1
            if after < len(self._strings) and self._strings[after].startswith(rest):
                return int(place)
        return len(data)

    def _climb(self, rung: _Rung, places: Ints, sums: Words, ends: Ints) -> int:
        """Writes the strings of this rung into ``ends``; the first position of a family whose longest string would end behind the text."""
        end = len(sums) - 1
        places = places[: np.searchsorted(places, end - rung.length, side="right")]
        self.work += int(places.size)
        # 1. The family of what stands there. A hash of the text is its part of the sums, moved to the power 0.
        keys = (sums[places + rung.length] - sums[places]) * _inverse_powers()[places]
        family = np.minimum(np.searchsorted(rung.keys, keys), len(rung.keys) - 1)
        is_there = rung.keys[family] == keys
        places, family = places[is_there], family[is_there]
        # 2. Families of many: their beginning is enough.
        is_many = rung.sizes[family] > FAMILY_MOST
        begin, until = places[is_many], places[is_many] + rung.longest[family[is_many]]
        late = begin[until > end]
        np.maximum.at(ends, begin, np.minimum(until, end))
        # 3. The others: each of the family's strings against what stands there.
        places, family = places[~is_many], family[~is_many]
        sizes = rung.sizes[family]
        begin = np.repeat(places, sizes)
        string = np.repeat(rung.first[family] - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(begin))
        self.work += len(begin)
        until = begin + rung.lengths[string]
        is_inside = until <= end
        begin, until, string = begin[is_inside], until[is_inside], string[is_inside]
        is_equal = sums[until] - sums[begin] == rung.hashes[string] * _powers()[begin]
        np.maximum.at(ends, begin[is_equal], until[is_equal])
        return int(late[0]) if late.size else end
