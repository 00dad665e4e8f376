"""The memory rules at their edges (D1, D2, D14), and the re-check of a plan that has grown old."""

from __future__ import annotations

import pytest

from jobs.scheduler import Gpu, Grant, Node, Policy, RankPlacement, Reason, Request, Slice, fits, grant_for, nominal_mib, rank_fits, reasons
from jobs.scheduler.need import arch_normalise, model_matches
from tests.scheduler.cases import Case, reason_of

GIB = 1024


def card(total: int | None, **fields: object) -> Gpu:
    return Gpu(id=1, uuid="GPU-1", index=0, model="RTX 4090", total_mib=total, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total", "nominal_gib"),
    [
        (24_564, 24),  # RTX 4090
        (16_376, 16),
        (81_559, 80),  # H100: 81920 × 0.9956
        (23_028, 24),  # A10: 93.7 %
        (11_264, 11),
        (11_265, 12),
        (10_240, 10),
        (22_610, 24),  # 24576 × 0.92 = 22609.92
        (22_609, 23),  # just below 92 % of 24 GiB, above 20: whole GiB rounded up
        (3_000, 3),
        (143_771, 141),  # H200: 144384
        (196_608, 192),
        (200_000, 196),  # beyond the list: 195.3 rounded up
    ],
)
def test_nominal_size_is_the_smallest_known_size_of_which_the_total_is_92_to_100_percent(total: int, nominal_gib: int) -> None:
    assert nominal_mib(total) == nominal_gib * GIB


@pytest.mark.parametrize(
    ("total", "asked", "mib", "exclusive"),
    [
        (24_564, 24 * GIB, 24_564, True),  # D1: above the total, within nominal
        (24_564, None, 24_564, True),
        (24_564, 12 * GIB, 12_288, False),  # exactly half of nominal
        (24_564, 12 * GIB + 1, 24_564, True),
        (24_564, 12 * GIB - 1, 12_287, False),
        (24_564, 4_096, 4_096, False),
        (24_564, 4_095, 4_096, False),
        (24_564, 4_097, 4_097, False),
        (24_564, 1, 4_096, False),
        (4_096, 1_024, 4_096, False),  # a 4 GiB card is one slice
        (3_900, 1_024, 3_900, False),
        (2_000, 1_024, 2_000, False),  # smaller than the least slice: one slice as well
        (6_144, 3_073, 6_144, True),
    ],
)
def test_what_an_empty_card_gives(total: int, asked: int | None, mib: int, exclusive: bool) -> None:
    assert grant_for(Request(gpu_mem_mib=asked), card(total), []) == Grant(gpu=1, mib=mib, exclusive=exclusive)


def test_a_request_one_mib_above_nominal_does_not_fit() -> None:
    reason = reason_of(grant_for(Request(gpu_mem_mib=24 * GIB + 1), card(24_564), []))
    assert reason == Reason(code=reasons.GPU_TOO_SMALL, params={"needed_mib": 24_577, "nominal_mib": 24_576})


@pytest.mark.parametrize(
    ("total", "live", "asked", "mib"),
    [
        (16_376, [4_096] * 3, 4_096, 4_088),  # 16376 − 3 × 4096 = 4088: 8 short, nominal − total = 8
        (24_564, [12_288], 12_288, 12_276),  # 24564 − 12288 = 12276: 12 short, nominal − total = 12
        (16_376, [12_280], 4_096, 4_096),  # 16376 − 12280 = 4096: no need to shrink
        (16_376, [12_281], 4_096, 4_095),
        (16_376, [12_289], 4_096, None),  # 4087 free: 9 short, one more than it may shrink
        (24_576, [12_289], 12_288, None),  # total = nominal: nothing may shrink
        (24_564, [12_288, 12_276], 4_096, None),
    ],
)
def test_only_the_last_slice_shrinks_and_by_no_more_than_the_card_is_short(
    total: int, live: list[int], asked: int, mib: int | None
) -> None:
    taken = [Slice(gpu=1, mib=size, job=9) for size in live]
    grant = grant_for(Request(gpu_mem_mib=asked), card(total), taken)
    assert (grant.mib if isinstance(grant, Grant) else None) == mib


def test_four_slices_of_4g_fill_a_card_of_16376() -> None:
    case = Case().node("a", mib=16_376).job(mib=4_096, count=5).expect("a", "a", "a", "a", None)
    assert case.mib() == [4_096, 4_096, 4_096, 4_088]  # Σ = 16376


def test_twice_12g_on_a_card_of_24564() -> None:
    assert Case().node("a", mib=24_564).job(mib=12_288, count=2).expect("a", "a").mib() == [12_288, 12_276]


def test_a_fifth_slice_is_refused_by_count_though_memory_is_left() -> None:
    case = Case().node("a", mib=81_920).job(mib=4_096, count=5).expect("a", "a", "a", "a", None)
    case.expect_reason(reasons.SLICE_LIMIT, job=5, limit=4, needed_mib=4_096, free_mib=65_536, node="a", gpu=0)  # 81920 − 4 × 4096


def test_the_card_may_allow_fewer_slices_than_the_policy() -> None:
    Case().node("a", max_slices=2).job(mib=4_096, count=3).expect("a", "a", None)


def test_an_exclusive_slice_is_alone() -> None:
    Case().node("a").job(mib=13_000).job(mib=4_096).expect("a", None)
    Case().node("a").taken("a:0", 4_096).job(mib=13_000).expect(None)


def test_byte_accurate_slices_without_the_rules() -> None:
    case = Case(slicing_rules=False).node("a", mib=24_564).job(mib=20_000).job(mib=1_000, count=4).job(mib=564).job(mib=1)
    assert case.expect("a", "a", "a", "a", "a", "a", None).mib() == [20_000, 1_000, 1_000, 1_000, 1_000, 564]


def test_the_share_that_takes_a_whole_card_is_the_admins() -> None:
    Case(whole_above=0.75).node("a").job(mib=18_432).job(mib=6_144).expect("a", "a")  # 24576 × 0.75 = 18432
    Case(whole_above=0.75).node("a").job(mib=18_433).job(mib=6_143).expect("a", None)


def test_foreign_use_counts_only_above_the_floor() -> None:
    Case().node("a", foreign_mib=512).job().expect("a")
    Case().node("a", foreign_mib=513).job().expect(None).expect_reason(
        reasons.FOREIGN_USE, needed_mib=None, largest_free_mib=24_063, foreign_mib=513, node="a", gpu=0
    )


def test_a_foreign_process_of_12g_keeps_a_16g_job_off_and_is_named() -> None:
    case = Case().node("a", foreign_mib=12_288).job(mib=16_384).expect(None)
    case.expect_reason(reasons.FOREIGN_USE, needed_mib=16_384, largest_free_mib=12_288, foreign_mib=12_288, node="a", gpu=0)


def test_a_job_that_fits_beside_foreign_use_gets_the_card() -> None:
    Case().node("a", foreign_mib=2_048).job(mib=16_384).expect("a")
    Case().node("a", foreign_mib=12_288).job(mib=8_192).job(mib=4_097).expect("a", None)


def test_a_card_of_unknown_size_holds_nothing_and_does_not_count_as_zero() -> None:
    case = Case().node("a", mib=None).job().job(mib=1).expect(None, None)
    case.expect_reason(reasons.MEMORY_UNKNOWN, node="a", gpu=0, cards=1).expect_reason(reasons.MEMORY_UNKNOWN, job=2)


@pytest.mark.parametrize(
    ("asked", "have", "matches"),
    [("a100", "NVIDIA A100-SXM4-80GB", True), ("A10", "NVIDIA A100-SXM4-80GB", False), ("rtx 4090", "NVIDIA GeForce RTX 4090", True)],
)
def test_a_model_matches_by_whole_words(asked: str, have: str, matches: bool) -> None:
    assert model_matches(asked, have) is matches


@pytest.mark.parametrize(("text", "normal"), [("sm_120", "12.0"), ("SM89", "8.9"), ("compute_90a", "9.0"), ("12.0", "12.0")])
def test_compute_capability_has_one_form(text: str, normal: str) -> None:
    assert arch_normalise(text) == normal


def node_of(*gpus: Gpu, takes_work: bool = True, refusal: str | None = None) -> Node:
    return Node(id=1, name="a", gpus=gpus, takes_work=takes_work, refusal=refusal)


def test_fits_looks_at_the_share_of_one_node() -> None:
    node = node_of(card(24_576))
    assert fits(Request(gpu_count=2, nodes=2), node, []) is None
    assert reason_of(fits(Request(gpu_count=2), node, [])).code == reasons.GPU_COUNT
    assert fits(Request(), node, [Slice(gpu=2, mib=24_576, exclusive=True, job=7)]) is None  # another node's card


@pytest.mark.parametrize(("refusal", "code"), [("cordoned", reasons.NODE_CORDONED), ("UNKNOWN", reasons.NODE_NOT_READY)])
@pytest.mark.parametrize("cards", [0, 1])
def test_fits_names_a_node_that_takes_no_work(refusal: str, code: str, cards: int) -> None:
    reason = reason_of(fits(Request(gpu_count=cards), node_of(card(24_576), takes_work=False, refusal=refusal), []))
    assert (reason.code, reason.params["node"]) == (code, "a")


class TestRankFits:
    def check(self, grant: Grant, taken: list[Slice], *, gpu: Gpu | None = None, request: Request | None = None) -> str | None:
        node = node_of(gpu or card(24_564))
        rank = RankPlacement(index=0, node=1, grants=(grant,))
        reason = rank_fits(request or Request(gpu_mem_mib=12_288), rank, node, taken, Policy())
        return None if reason is None else reason.code

    def test_it_accepts_what_the_plan_would_give(self) -> None:
        assert self.check(Grant(gpu=1, mib=12_288, exclusive=False), []) is None

    def test_it_accepts_a_shrunk_slice_when_the_neighbour_has_left(self) -> None:
        assert self.check(Grant(gpu=1, mib=12_276, exclusive=False), []) is None

    def test_it_refuses_a_slice_smaller_than_the_rules_allow(self) -> None:
        assert self.check(Grant(gpu=1, mib=12_275, exclusive=False), []) == reasons.GRANT_GONE

    def test_it_refuses_when_the_room_is_gone(self) -> None:
        taken = [Slice(gpu=1, mib=12_288, job=5)]
        assert self.check(Grant(gpu=1, mib=12_288, exclusive=False), taken) == reasons.GRANT_GONE  # only 12276 left
        assert self.check(Grant(gpu=1, mib=12_276, exclusive=False), [*taken, Slice(gpu=1, mib=4_096, job=6)]) == reasons.GPU_MEMORY

    def test_it_refuses_a_card_that_fell_ill_or_vanished(self) -> None:
        grant = Grant(gpu=1, mib=12_288, exclusive=False)
        assert self.check(grant, [], gpu=card(24_564, is_schedulable=False, state="SUSPECT")) == reasons.GPU_UNHEALTHY
        assert self.check(Grant(gpu=2, mib=12_288, exclusive=False), []) == reasons.GRANT_GONE

    def test_it_refuses_the_same_card_twice(self) -> None:
        node = node_of(card(24_576))
        grants = (Grant(gpu=1, mib=4_096, exclusive=False),) * 2
        reason = rank_fits(Request(gpu_count=2, gpu_mem_mib=4_096), RankPlacement(index=0, node=1, grants=grants), node, [])
        assert reason_of(reason).code == reasons.GPU_COUNT
