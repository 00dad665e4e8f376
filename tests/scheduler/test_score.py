"""Which of several good cards is taken."""

from __future__ import annotations

import pytest

from jobs.scheduler import Gpu, score
from tests.scheduler.cases import Case


def test_the_weights_add_up_and_temperature_and_load_are_heaviest() -> None:
    assert sum(score.WEIGHTS.values()) == pytest.approx(1.0)
    heavy = {score.WEIGHTS["temperature"], score.WEIGHTS["load"]}
    assert min(heavy) > max(weight for name, weight in score.WEIGHTS.items() if name not in ("temperature", "load"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (score.temperature_score(40), 1.0),
        (score.temperature_score(65), 0.5),  # (90 − 65) ÷ 50
        (score.temperature_score(95), 0.0),
        (score.temperature_score(None), 0.5),
        (score.load_score(25), 0.75),
        (score.load_score(0), 1.0),
        (score.load_score(None), 0.5),
        (score.pcie_score(8), 0.5),
        (score.pcie_score(None), 0.5),
        (score.health_score(80), 0.8),
        (score.slice_fragmentation(total_mib=24_576, free_mib=8_192, taken_mib=8_192), 1.0),
        (score.slice_fragmentation(total_mib=24_576, free_mib=24_576, taken_mib=6_144), 0.25),
        (score.whole_fragmentation(empty=1, cards=4), 0.75),  # three of four are in use
        (score.pcie_score(16, 0), 1.0),
        (score.pcie_score(16, 1), 0.85),  # 0.7 × 1 + 0.3 × ½
        (score.power_score(40), 0.4),
        (score.power_score(None), 0.5),
    ],
)
def test_scores_are_in_0_to_1_and_unknown_is_neutral(value: float, expected: float) -> None:
    assert value == pytest.approx(expected)


def test_the_score_of_a_card_is_the_weighted_sum() -> None:
    gpu = Gpu(id=1, uuid="u", index=0, model="m", temp_c=65, util_pct=25, health=80, pcie_width=8)
    assert score.card_score(gpu) == pytest.approx(0.28 * 0.5 + 0.28 * 0.75 + 0.14 * 0.8 + 0.10 * 0.5)


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"temp_c": 80}, {"temp_c": 50}),
        ({"util_pct": 90}, {"util_pct": 5}),
        ({"health": 40}, {"health": 100}),
        ({"pcie_width": 4}, {"pcie_width": 16}),
        ({"temp_c": 85}, {"temp_c": None}),
        ({"temp_c": None}, {"temp_c": 45}),
    ],
)
@pytest.mark.parametrize("mib", [None, 4_096])
def test_the_better_card_is_taken(worse: dict[str, int | None], better: dict[str, int | None], mib: int | None) -> None:
    Case().node("a", per_card=[worse, better], cards=2).job(mib=mib).expect("a:1")
    Case().node("a", **worse).node("b", **better).job(mib=mib).expect("b")


def test_slices_fill_a_used_card_before_they_break_a_whole_one() -> None:
    case = Case().node("a", cards=2, per_card=[{}, {"util_pct": 90}]).taken("a:1", 4_096).job(mib=4_096).job()
    case.expect("a:1", "a:0")


def test_a_slice_leaves_what_the_others_in_the_queue_can_use() -> None:
    # a:0 has 20480 free: 8192 leave 12288, room for another. a:1 has 12288 free: 8192 leave 4096, room for none.
    case = Case().node("a", cards=2).taken("a:0", 4_096).taken("a:1", 12_288)
    case.job(mib=8_192).job(mib=12_288).job(mib=8_192, submitted=9.0).expect("a:0", "a:0", "a:1")


def test_of_used_cards_best_fit_takes_the_tightest() -> None:
    Case(strategy="best-fit").node("a", cards=2).taken("a:0", 4_096).taken("a:1", 12_288).job(mib=8_192).expect("a:1")


def test_small_jobs_go_to_the_fuller_node_and_leave_the_empty_one_for_a_large_job() -> None:
    Case().node("a", cards=4).node("b", cards=4).taken("b:0").taken("b:1").job().job(cards=4).expect("b", "a")


def test_a_job_that_says_its_size_takes_the_smaller_card() -> None:
    Case().node("a", mib=49_152).node("b", mib=24_576).job(mib=13_000).job(mib=25_000).expect("b", "a")


def test_ties_go_to_the_first_node_and_card() -> None:
    Case().node("a", cards=2).node("b", cards=2).job(count=4).expect("a:0", "a:1", "b:0", "b:1")


@pytest.mark.parametrize("temp_c", [None, 20, 40, 65, 90, 99])
@pytest.mark.parametrize("util_pct", [None, 0, 30, 100])
@pytest.mark.parametrize("slot", [(None, None), (16, 0), (8, 2), (0, -1)])
def test_a_cards_score_is_the_sum_of_its_parts(temp_c: int | None, util_pct: int | None, slot: tuple[int | None, int | None]) -> None:
    gpu = Gpu(id=1, uuid="G", index=0, model="m", temp_c=temp_c, util_pct=util_pct, health=70, pcie_width=slot[0], pcie_hops=slot[1])
    parts = (
        score.WEIGHTS["temperature"] * score.temperature_score(temp_c)
        + score.WEIGHTS["load"] * score.load_score(util_pct)
        + score.WEIGHTS["health"] * score.health_score(70)
        + score.WEIGHTS["pcie"] * score.pcie_score(*slot)
    )
    assert score.card_score(gpu) == parts
