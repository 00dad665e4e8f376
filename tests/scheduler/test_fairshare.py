"""Whose turn it is when owners share a pool: weights, fair shares, queues, predicted runtimes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.scheduler import Finished, History, Policy, Queue, Request, Running, plan, reasons
from jobs.scheduler.fairshare import Usage, max_min
from jobs.scheduler.predict import PRIOR_S, name_stem, remaining_s
from tests.scheduler.cases import Case, plan_check

HOUR, DAY = 3_600.0, 86_400.0


def order_of(case: Case, **snapshot: object) -> list[int]:
    """The jobs in the order in which they are tried: on a full cluster every one is refused with its position."""
    result = plan(replace(case.snapshot(), **snapshot), case.policy)  # type: ignore[arg-type]
    assert not result.placements
    return [refusal.job for refusal in sorted(result.refusals, key=lambda item: item.position)]


def full(**policy: object) -> Case:
    return Case(**policy).node("a").taken("a:0")


# Shares and weights


def test_max_min_gives_nobody_more_than_it_wants_and_deals_out_the_rest() -> None:
    # 12 cards: 1 wants 2 and gets 2; 10 left for two: 5 each; of these the second wants only 4, so the third gets 6.
    assert max_min({1: 2.0, 2: 4.0, 3: 50.0}, 12.0) == {1: 2.0, 2: 4.0, 3: 6.0}


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 50), max_size=8), st.floats(0, 100))
def test_max_min_is_max_min(wanted: dict[int, float], capacity: float) -> None:
    shares = max_min(wanted, capacity)
    assert sum(shares.values()) <= capacity + 1e-6
    assert math.isclose(sum(shares.values()), min(capacity, sum(wanted.values())), abs_tol=1e-6)
    for owner, share in shares.items():
        # Who gets less than it wants gets at least as much as anybody else.
        assert share >= wanted[owner] - 1e-9 or share >= max(shares.values()) - 1e-6


def test_past_use_fades_by_half_in_a_half_life() -> None:
    usage = Usage(Policy(half_life_s=DAY, weight_per_job=1.0, weight_per_card_hour=0.0))
    usage.finish(7, 0.0)
    assert usage.weights(0.0)[7] == pytest.approx(2.0)  # 1 + 1
    assert usage.weights(DAY)[7] == pytest.approx(1.5)  # 1 + 1 ÷ 2
    assert usage.weights(3 * DAY)[7] == pytest.approx(1.125)  # 1 + 1 ÷ 8


def test_cards_held_weigh_by_the_hour_and_without_half_life_for_ever() -> None:
    usage = Usage(Policy(half_life_s=0))
    usage.hold(7, 4.0, 0.0)
    usage.hold(7, -4.0, 10 * HOUR)
    usage.finish(7, 10 * HOUR)
    assert usage.weights(99 * DAY)[7] == pytest.approx(1 + 0.02 * 4 * 10 + 0.1)


def test_lower_weight_goes_first_then_submit_then_id() -> None:
    case = full().job(user=1, submitted=1.0).job(user=2, submitted=3.0).job(user=3, submitted=2.0).job(user=3, submitted=2.0)
    assert order_of(case, usage={1: 5.0, 2: 3.0, 3: 3.0}) == [3, 4, 2, 1]


def test_after_a_hundred_of_one_the_only_job_of_another_is_next() -> None:
    case = Case().node("a", cards=4).taken("a:0").taken("a:1").taken("a:2").job(count=100, user=1).job(user=2)  # user 1 holds all
    assert case.places()[-1] == "a:3"


def test_shares_count_anew_after_each_placement_of_a_pass() -> None:
    case = Case().node("a", cards=4).job(count=4, user=1).job(count=4, user=2)
    # Neither holds anything at first; after one card of user 1, user 2 is next, and so on: two each.
    assert [place is not None for place in case.places()] == [True, True, False, False] * 2


def test_a_project_above_its_share_waits_for_one_below() -> None:
    case = Case().node("a", cards=3).taken("a:0").taken("a:1")
    case.running = [Running(job=run.job, user=9, project=1, slices=run.slices, started=run.started) for run in case.running]
    case.job(user=1, project=1).job(user=2, project=2).expect(None, "a:2")


# Length and waiting


def test_the_job_predicted_to_be_short_goes_first() -> None:
    assert order_of(full().job(predicted_s=HOUR).job(predicted_s=60.0).job(time_limit_s=1_800)) == [2, 3, 1]


def test_waiting_makes_up_for_length() -> None:
    case = full(age_fold_s=HOUR)
    case.now = 10 * HOUR
    # e times as long, but submitted more than an hour earlier.
    assert order_of(case.job(submitted=9.9 * HOUR, predicted_s=1_000.0).job(submitted=8.8 * HOUR, predicted_s=2_718.0)) == [2, 1]


def test_a_job_passed_over_for_too_long_comes_first_whatever_its_priority() -> None:
    case = full(patience_s=DAY)
    case.now = 10 * DAY
    case.job(submitted=0.0, predicted_s=5 * HOUR, priority=-50, user=1).job(submitted=case.now, predicted_s=60.0, priority=50, user=2)
    assert order_of(case) == [1, 2]


def test_an_overdue_job_that_can_never_run_shields_nobody() -> None:
    case = Case(patience_s=DAY).node("a", cards=2).taken("a:0", limit_s=90_000)
    case.now = 80_000.0
    case.job(cards=9, submitted=-99 * DAY).job(cards=2, submitted=-98 * DAY).job(time_limit_s=60).job(time_limit_s=20_000)
    # Job 2 keeps both cards until 90,000: the first short job ends before, the other does not.
    assert case.places() == [None, None, "a:1", None]
    assert case.plan().kept[0].job == 2


# Borrowing


def test_above_its_share_an_owner_starts_only_what_ends_soon() -> None:
    case = Case().node("a", cards=4).node("b", cards=2).taken("a:0", 4_096)
    for card in ("b:0", "b:1"):
        case.taken(card)
    # User 1 (the runs of the case) holds 2.2 of 6 cards and more; user 2 waits for all four of a.
    case.job(user=2, cards=4, predicted_s=HOUR)
    case.job(user=1, cards=2, predicted_s=99 * HOUR, count=3)
    refusals = {refusal.job: refusal.reason.code for refusal in case.plan().refusals}
    assert refusals[1] != reasons.ABOVE_SHARE
    assert reasons.ABOVE_SHARE in {refusals.get(job) for job in (2, 3, 4)}
    plan_check(case.snapshot(), case.policy, case.plan())


def loans(*, waits: int, predicted_s: float) -> Case:
    """User 1 holds two of eight cards and wants six more for long; user 2, who holds none, waits ``waits`` times for four of a node."""
    case = Case(borrow_s=2 * HOUR).node("a", cards=4).node("b", cards=4).taken("a:0").taken("b:0")
    return case.job(user=2, cards=4, predicted_s=predicted_s, count=waits).job(user=1, count=6, predicted_s=99 * HOUR)


def started(case: Case) -> int:
    """How many start. Three cards are kept for user 2, three are free: two are user 1's by its share, the third is a loan."""
    return len(case.plan().placements)


def test_long_loans_end_where_those_below_their_share_wait_with_much_work() -> None:
    # Eight cards, three times two hours: 48 card-hours. Waiting: 2 × 4 cards × 5.9 or 6.1 hours.
    assert started(loans(waits=2, predicted_s=5.9 * HOUR)) == 3
    case = loans(waits=2, predicted_s=6.1 * HOUR)
    assert started(case) == 2
    assert reasons.ABOVE_SHARE in {refusal.reason.code for refusal in case.plan().refusals}


def test_work_on_hold_or_for_other_cards_ends_no_loans() -> None:
    assert started(loans(waits=1, predicted_s=3 * HOUR).job(user=2, cards=4, predicted_s=99 * HOUR, hold="held")) == 3
    case = loans(waits=1, predicted_s=3 * HOUR).node("c", model="H100").taken("c:0", job=77)
    assert started(case.job(user=2, request={"model": "H100"}, predicted_s=999 * HOUR)) == 3


def test_with_nobody_else_waiting_an_owner_may_have_everything() -> None:
    Case().node("a", cards=4).taken("a:0").job(count=3, user=1, predicted_s=99 * HOUR).expect("a", "a", "a")


def test_nobody_leaves_cards_to_one_who_waits_for_others() -> None:
    case = Case().node("a", cards=4, model="A100").node("b", model="H100").taken("b:0", job=77)
    case.job(user=2, request={"model": "H100"}).job(user=1, count=4, predicted_s=99 * HOUR).expect(None, "a", "a", "a", "a")


# Named orders


def test_the_twenty_percent_user_comes_before_the_eighty_percent_user() -> None:
    case = Case(order="drf").node("a", cards=6)
    for index in range(4):
        case.taken(f"a:{index}")
    case.taken("a:4", job=500)
    case.running[-1] = Running(job=500, user=2, slices=case.running[-1].slices, started=0.0)
    case.job(user=1, submitted=1.0).job(user=2, submitted=2.0).expect(None, "a:5")


def test_drf_counts_the_dominant_resource() -> None:
    case = Case(order="drf").node("a", cards=6, cpu_cores=10).taken("a:0", job=500).taken("a:1", job=501)
    # User 1 holds one card of six and 8 of 10 cores; user 2 one card and nothing else.
    first, second = case.running
    case.running = [
        Running(job=500, user=1, slices=first.slices, started=0.0, request=Request(cpu_milli=8_000)),
        Running(job=501, user=2, slices=second.slices, started=0.0, request=Request()),
    ]
    for card in ("a:2", "a:3", "a:4"):
        case.taken(card, job=600)
    case.job(user=1, submitted=1.0).job(user=2, submitted=2.0).expect(None, "a:5")


QUEUES = (Queue(name="batch", guaranteed=0.5), Queue(name="interactive", guaranteed=0.5), Queue(name="service", guaranteed=0.25, most=0.5))


def test_a_queue_below_its_guaranteed_share_comes_first() -> None:
    case = Case(order="capacity", queues=QUEUES).node("a", cards=4).taken("a:0").taken("a:1")  # batch holds 2 of 4
    case.job(queue="batch", count=2).job(queue="interactive", count=2).expect(None, None, "a", "a")


def test_what_others_leave_idle_may_be_borrowed() -> None:
    Case(order="capacity", queues=QUEUES).node("a", cards=4).job(queue="batch", count=4).expect("a", "a", "a", "a")


def test_a_queue_never_goes_above_its_most() -> None:
    case = Case(order="capacity", queues=QUEUES).node("a", cards=4).job(queue="service", count=3).expect("a", "a", None)
    case.expect_reason(reasons.QUEUE_FULL, job=3, queue="service", held=2.0, most=2.0)


def test_qos_adds_to_the_priority() -> None:
    assert order_of(full().job(user=1).job(user=2, qos="low").job(user=3, qos="high").job(user=4, priority=99)) == [3, 4, 1, 2]


def test_under_priority_waiting_gains_a_level_each_time_patience_has_passed() -> None:
    case = full(order="priority", patience_s=DAY, limit_max_s=100 * DAY)
    case.now = 5 * DAY
    # Two days gain two levels.
    assert order_of(case.job(submitted=4.9 * DAY, priority=1).job(submitted=3.0 * DAY)) == [2, 1]


# Prediction


def test_a_job_is_expected_to_run_as_long_as_its_namesakes() -> None:
    short, long = Request(), Request()
    history = History(Finished(user=1, name=f"eval-{n}", request=short, seconds=100.0) for n in range(10))
    for n in range(10):
        history.add(Finished(user=1, name=f"train_{n}", request=long, seconds=50_000.0))
    assert history.predict(user=1, name="eval-99", request=short) < 300.0
    assert history.predict(user=1, name="train_99", request=long) > 20_000.0


def test_with_a_limit_the_share_of_it_is_predicted_and_never_more() -> None:
    history = History(Finished(user=1, request=Request(), time_limit_s=1_000, seconds=100.0) for _ in range(10))
    assert history.predict(user=1, request=Request(), time_limit_s=50_000) == pytest.approx(5_000, rel=0.6)
    full_use = History(Finished(user=1, request=Request(), time_limit_s=1_000, seconds=9_999.0) for _ in range(10))
    assert full_use.predict(user=1, request=Request(), time_limit_s=500) <= 500


def test_where_nothing_is_known_an_hour_is_guessed() -> None:
    assert History().predict(user=1, request=Request()) == pytest.approx(PRIOR_S)


def test_numbers_do_not_tell_names_apart() -> None:
    assert name_stem("train-lr0.01-17") == name_stem("Train_lr0.2_3") != name_stem("eval-17")


def test_what_outlives_its_prediction_is_expected_to_live_as_long_again() -> None:
    policy = Policy()
    left = remaining_s(elapsed_s=5 * HOUR, limit_s=None, predicted_s=60.0, policy=policy, strict=False)
    assert left == 5 * HOUR
    assert remaining_s(elapsed_s=5 * HOUR, limit_s=6 * 3600, predicted_s=60.0, policy=policy, strict=False) == HOUR
    assert remaining_s(elapsed_s=5 * HOUR, limit_s=None, predicted_s=60.0, policy=policy, strict=True) == policy.limit_max_s - 5 * HOUR
