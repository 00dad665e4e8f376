"""Masking many secrets: the same as looking for each by itself, at a cost that does not grow with how many there are."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from quotas import masking
from quotas.masking import Masks, patterns_of
from quotas.multisearch import FAMILY_MOST, LONGEST, MultiSearch

LETTERS = string.ascii_letters + string.digits


def masked_one_by_one(patterns: set[bytes], data: bytes) -> bytes:
    """The plain way: each pattern at each position. Slow, and surely right."""
    hidden = bytearray(len(data))
    for pattern in patterns:
        at = data.find(pattern)
        while at >= 0:
            hidden[at : at + len(pattern)] = b"\1" * len(pattern)
            at = data.find(pattern, at + 1)
    return bytes(42 if is_hidden else byte for byte, is_hidden in zip(data, hidden, strict=True))


def shipped(masks: Masks, data: bytes, *, chunk: int) -> tuple[bytes, int]:
    """As a node ships it: chunk by chunk from where the log ends; also how many calls it took."""
    log, calls = b"", 0
    wanted = chunk
    while len(log) < len(data):
        sent = data[len(log) : len(log) + wanted]
        took = masks.take(sent, is_last=len(log) + len(sent) == len(data))
        assert took or len(sent) < 3 * LONGEST, "a chunk that is longer than any value was not taken at all"
        wanted = chunk if took else wanted + chunk
        log += took
        calls += 1
    return log, calls


def random_lines(count: int, *, length: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS, k=length)) for _ in range(count)]


@hypothesis_settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    values=st.lists(st.text("ab", min_size=8, max_size=140), min_size=1, max_size=4),
    parts=st.lists(st.one_of(st.integers(0, 3), st.text("ab", max_size=60), st.sampled_from(["日", "\n", "c"])), max_size=12),
    chunk=st.integers(1, 300),
)
def test_it_masks_what_one_by_one_would_and_chunks_change_nothing(values, parts, chunk):
    data = "".join(values[part % len(values)] if isinstance(part, int) else part for part in parts).encode()
    patterns = set().union(*map(patterns_of, values))
    masks = Masks(values)
    assert masks.take(data, is_last=True) == masked_one_by_one(patterns, data)
    assert shipped(masks, data, chunk=chunk)[0] == masked_one_by_one(patterns, data)


@pytest.mark.parametrize("length", [8, 31, 32, 33, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 5000])
def test_a_value_of_any_length_is_masked_whole_and_its_neighbours_are_not(length):
    (value,) = random_lines(1, length=length)
    other = "-" + value[: length - 1] + "-" + value[1:] + "-"
    data = f"<{value}>{other if length <= 1024 else ''}<{value}".encode()
    assert shipped(Masks([value]), data, chunk=700)[0] == data.replace(value.encode(), b"*" * length)


def test_more_beginnings_alike_than_are_told_apart_hide_more_and_never_less():
    values = [f"the-same-beginning-of-all-{number:06d}" for number in range(FAMILY_MOST + 4)]
    data = f"{values[3]} and {values[7]}; the-same-beginning-of-all-others; the-same-beginning is no value".encode()
    masked = Masks(values).take(data, is_last=True)
    assert len(masked) == len(data)
    assert all(value.encode() not in masked for value in values)
    assert masked.endswith(b"; the-same-beginning is no value")


def comparisons(values: list[str], data: bytes) -> int:
    search = MultiSearch(set().union(*map(patterns_of, values)))
    search.find(data, is_last=True)
    return search.work


def test_the_comparisons_do_not_grow_with_the_number_of_values():
    data = "".join(random_lines(1, length=60_000, seed=2)).encode()
    assert comparisons(["\n".join(random_lines(400, length=16, seed=n)) for n in range(20)], data) < 1_000
    # Nothing but beginnings of values: a hundred times the values are not even five times the work.
    few, many = ("\n".join("a" * 8 + f"{number:06d}" for number in range(count)) for count in (30, 3_000))
    assert comparisons([many], b"a" * 60_000) < 5 * comparisons([few], b"a" * 60_000)


def test_the_comparisons_grow_with_the_text_alone_however_it_repeats_a_value():
    long, half = comparisons(["a" * 32_768], b"a" * 60_000), comparisons(["a" * 32_768], b"a" * 30_000)
    assert half < long < 2.5 * half
    assert long < 60_000 * 20


def test_twelve_secrets_of_one_letter_and_a_job_that_prints_it_leave_nothing_unmasked():
    values = ["a" * (32_768 - number) for number in range(12)]
    masks = Masks(values)
    log, calls = shipped(masks, b"a" * 600_000 + b"done\n", chunk=256 * 1024)
    assert log == b"*" * 600_000 + b"done\n"
    assert calls <= 5


def test_a_chunk_that_is_too_much_work_is_taken_in_parts_and_none_is_shown_unmasked(monkeypatch):
    monkeypatch.setattr(masking, "WORK_MOST", 100_000)
    value = "a" * 40
    data = b"a" * 500_000 + b" b " + value.encode()
    log, calls = shipped(Masks([value]), data, chunk=400_000)
    assert calls > 4
    assert log == b"*" * 500_000 + b" b " + b"*" * 40
    text = Masks([value]).text("a" * 500_000)
    assert "a" * 8 not in text.split("[nebulagrid]")[0]
    assert "bytes withheld" in text


def test_masks_of_everything_leave_only_the_ends_of_lines():
    masks = Masks.of_everything()
    assert masks
    assert masks.take(b"one\ntwo three\n", is_last=False) == b"***\n*********\n"
