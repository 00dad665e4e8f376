"""Evidence → verdict: the XID table row by row, self-tests, and runs of figures. Nothing here touches the database."""

from __future__ import annotations

import importlib

import pytest

from nodes.health import Card, Figures, Rule, Seen, Trend, health_score, judge_facts, judge_kind, judge_test, judge_xid, trend_next
from nodes.health_models import XidPolicy

ROWS = importlib.import_module("nodes.migrations.0005_xid_rules").RULES
LATER = importlib.import_module("nodes.migrations.0021_xid_rules_of_nvidias_catalogue").RULES
RULES = {xid: Rule(xid=xid, action=action, is_users=is_users, again_s=again_s) for xid, _, action, is_users, again_s in ROWS}
RULES |= {xid: Rule(xid=xid, action=action, again_s=again_s) for xid, _, _, action, again_s in LATER}
T = 1_000_000.0


def judge(xid, *, at=T, state="HEALTHY", past=(), owner=None, **card):
    return judge_xid(RULES.get(xid), Seen(xid=xid, at=at, owner=owner), Card(state=state, **card), past)


def came(verdict):
    return verdict.state, verdict.wants, verdict.fails_job


@pytest.mark.parametrize(
    ("xid", "expected"),
    [
        (13, (None, "test", False)),
        (31, (None, None, True)),
        (43, (None, "reset", False)),
        (45, (None, None, False)),
        (48, ("SUSPECT", "test", False)),
        (62, ("SUSPECT", "test", False)),
        (63, (None, None, False)),
        (64, ("ISOLATED", None, False)),
        (68, (None, None, False)),
        (74, ("SUSPECT", "test", False)),
        (79, ("SUSPECT", "test", False)),
        (94, (None, "reset", False)),
        (95, ("ISOLATED", None, False)),
        (46, ("SUSPECT", "reset", False)),
        (109, ("SUSPECT", "reset", False)),
        (143, ("SUSPECT", "reset", False)),
        (119, ("SUSPECT", "test", False)),
        (120, ("SUSPECT", "test", False)),
        (140, ("ISOLATED", None, False)),
        (999, (None, None, False)),  # nobody knows it
    ],
)
def test_what_one_xid_means_for_a_healthy_card(xid, expected):
    assert came(judge(xid)) == expected


def test_the_table_has_every_xid_of_the_decision_and_only_known_actions():
    assert set(RULES) == {13, 31, 43, 45, 46, 48, 62, 63, 64, 68, 74, 79, 94, 95, 109, 119, 120, 140, 143}
    assert {xid for xid, rule in RULES.items() if rule.is_users} == {13, 31, 43, 45, 68}
    assert {rule.action for rule in RULES.values()} <= set(XidPolicy.Action.values)


@pytest.mark.parametrize(("before_s", "state"), [(1, "ISOLATED"), (600, "ISOLATED"), (601, "SUSPECT")])
def test_a_second_79_isolates_only_within_ten_minutes(before_s, state):
    assert judge(79, past=[Seen(xid=79, at=T - before_s)], tested_at=T - before_s + 1).state == state


def test_another_fault_before_it_does_not_make_a_79_a_second_one():
    assert judge(79, past=[Seen(xid=62, at=T - 60)]).state == "SUSPECT"


@pytest.mark.parametrize(("reset_before_s", "wants"), [(None, "reset"), (60, None), (86_399, None), (86_400, "reset")])
def test_a_second_43_makes_no_second_reset_within_a_day(reset_before_s, wants):
    reset_at = None if reset_before_s is None else T - reset_before_s
    assert judge(43, reset_at=reset_at).wants == wants


def test_a_94_sends_its_program_back_and_a_31_ends_it():
    assert (judge(94).restarts_job, judge(94).fails_job) == (True, False)
    assert (judge(31).restarts_job, judge(31).fails_job) == (False, True)


def test_a_card_fault_that_a_reset_has_not_mended_isolates_the_card():
    assert (judge(109, reset_at=T - 60).code, judge(109, reset_at=T - 60).state) == ("xid_again", "ISOLATED")
    assert judge(109, reset_at=T - 86_400).wants == "reset"


@pytest.mark.parametrize(
    ("facts", "uncorrected", "expected"),
    [
        ({"remap_failed": True}, "note", ("remap_failed", "ISOLATED", None)),
        ({"remap_failed": True, "ecc_uncorrected": 4}, "suspect", ("remap_failed", "ISOLATED", None)),
        ({"ecc_uncorrected": 1}, "suspect", ("ecc_uncorrected", "SUSPECT", "reset")),
        ({"ecc_uncorrected": 1}, "isolate", ("ecc_uncorrected", "ISOLATED", None)),
        ({"ecc_uncorrected": 1}, "note", None),
        ({"ecc_uncorrected": 0, "remap_failed": False, "remap_pending": True}, "isolate", None),
        ({"ecc_uncorrected": None, "remap_failed": None}, "isolate", None),
        ({}, "isolate", None),
    ],
)
def test_what_a_cards_memory_means_by_policy(facts, uncorrected, expected):
    verdict = judge_facts(facts, Card(), uncorrected=uncorrected)
    assert (None if verdict is None else (verdict.code, verdict.state, verdict.wants)) == expected


def test_memory_errors_that_a_test_has_answered_count_no_more_and_a_card_that_is_out_gets_no_worse():
    assert judge_facts({"ecc_uncorrected": 3}, Card(), uncorrected="suspect", since_reset=3) is None
    assert judge_facts({"ecc_uncorrected": 4}, Card(), uncorrected="suspect", since_reset=3) is not None
    assert judge_facts({"remap_failed": True}, Card(state="MAINTENANCE"), uncorrected="isolate") is None


def test_a_13_right_after_a_passed_test_asks_for_no_other():
    assert judge(13, tested_at=T - 10).wants is None
    assert judge(13, tested_at=T - 3600).wants == "test"


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68])
def test_what_a_program_can_cause_makes_a_card_suspect_only_when_three_people_met_it_in_an_hour(xid):
    def met(*pairs):
        return judge(xid, owner=3, past=[Seen(xid=xid, at=T - before, owner=owner) for owner, before in pairs]).state

    assert met((1, 10), (2, 20)) == "SUSPECT"
    assert met((1, 10), (1, 20), (1, 30), (1, 40)) is None  # one person, many times
    assert met((1, 10), (2, 3601)) is None
    assert met((1, 10), (None, 20), (None, 30)) is None  # whose it was is not known


def test_three_people_again_within_an_hour_of_a_passed_test_isolate_the_card():
    past = [Seen(xid=13, at=T - 100 - n, owner=n) for n in (1, 2)]
    assert judge(13, owner=3, past=past, tested_at=T - 200).state == "ISOLATED"
    assert judge(13, owner=3, past=past, tested_at=T - 50).state is None  # the test answered those before it


@pytest.mark.parametrize("state", ["ISOLATED", "MAINTENANCE", "MISSING"])
def test_a_card_that_is_out_gets_no_worse(state):
    assert came(judge(79, state=state)) == (None, None, False)
    assert came(judge(13, state=state)) == (None, None, False)


def test_a_card_that_is_lost_is_isolated_and_one_that_came_back_is_tested():
    assert judge_kind("lost", Card()).state == "ISOLATED"
    assert came(judge_kind("appeared", Card())) == ("SUSPECT", "test", False)
    assert judge_kind("missing", Card(state="MISSING")).state is None
    assert judge_kind("anomaly", Card()) is None


@pytest.mark.parametrize(
    ("result", "is_users", "tries", "state", "wants"),
    [
        ("passed", False, 1, "HEALTHY", None),
        ("failed", False, 1, "ISOLATED", None),
        ("failed", True, 1, "ISOLATED", None),
        ("impossible", False, 1, None, None),  # a person has to look
        ("impossible", True, 1, "HEALTHY", None),  # a program takes no card out for want of a test
        ("error", False, 1, None, "test"),
        ("error", False, 3, None, None),
        ("error", True, 3, "HEALTHY", None),
    ],
)
def test_what_a_self_test_means(result, is_users, tries, state, wants):
    verdict = judge_test(result, Card(state="SUSPECT"), is_users=is_users, tries=tries)
    assert (verdict.state, verdict.wants) == (state, wants)


# --- runs of figures ------------------------------------------------------------------------------------------------

LOAD = Figures(util_pct=90, temp_c=80, used_mib=8000, core_mhz=2000, mem_mhz=10_000, core_max_mhz=2500, mem_max_mhz=10_500, held=(8192, 1))
IDLE = Figures(util_pct=0, temp_c=40, used_mib=0, core_mhz=210, mem_mhz=405, core_max_mhz=2500, mem_max_mhz=10_500)


def change(figures, **fields):
    return Figures(**{name: getattr(figures, name) for name in figures.__slots__} | fields)


def told(*samples):
    """What began and what ended, sample by sample."""
    trend, found = Trend(), []
    for sample in samples:
        trend, began, over = trend_next(trend, sample)
        found.append([*(f"+{name}" for name in began), *(f"-{name}" for name in over)])
    return found


def test_three_samples_of_thermal_throttling_under_load_are_told_once_and_their_end_too():
    hot = change(LOAD, throttle=("sw_thermal",))
    assert told(hot, hot, LOAD, hot, hot, hot, hot, LOAD, LOAD, LOAD) == [[], [], [], [], [], ["+throttle"], [], [], [], ["-throttle"]]


def test_a_power_cap_or_an_idle_card_is_no_thermal_throttling():
    assert told(*[change(LOAD, throttle=("power_cap",))] * 4) == [[]] * 4
    assert told(*[change(IDLE, throttle=("hw_thermal",))] * 4) == [[]] * 4


@pytest.mark.parametrize(("temp_c", "is_told"), [(74, False), (75, True)])
def test_little_use_at_75_degrees_under_the_base_clock_is_a_cooling_fault(temp_c, is_told):
    weak = change(LOAD, util_pct=10, temp_c=temp_c, core_mhz=1200)
    assert told(weak, weak, weak)[-1] == (["+cooling"] if is_told else [])


@pytest.mark.parametrize("temp_c", [40, 80])
def test_an_idle_card_with_low_clocks_is_never_a_fault(temp_c):
    assert told(*[change(IDLE, temp_c=temp_c)] * 5) == [[]] * 5
    assert told(*[change(IDLE, temp_c=temp_c, held=(8192, 1))] * 5) == [[]] * 5  # a job sleeps on it


def test_a_memory_clock_held_low_at_load_is_told():
    slow = change(LOAD, mem_mhz=405)
    assert told(slow, slow, slow)[-1] == ["+memory_clock"]


def test_a_figure_that_is_not_told_begins_and_ends_nothing():
    hot, dark = change(LOAD, throttle=("hw_thermal",)), change(LOAD, throttle=None, util_pct=None, temp_c=None, used_mib=None)
    assert told(dark, dark, dark, dark) == [[]] * 4
    assert told(hot, hot, dark, hot) == [[], [], [], ["+throttle"]]
    assert told(hot, hot, hot, dark, dark, dark, dark)[3:] == [[]] * 4


def leak(*used, held=(8192, 1)):
    return told(*[change(LOAD, used_mib=mib, held=held) for mib in used])


def test_memory_that_grows_over_three_samples_beyond_what_jobs_hold_is_a_leak():
    assert leak(8200, 8300, 8400, 8500)[-1] == ["+leak"]
    assert leak(8200, 8300, 8400, 8401)[-1] == []
    assert leak(1000, 2000, 4000, 8000)[-1] == []  # a job that fills what it asked for


def test_memory_that_grows_because_somebody_took_some_is_no_leak():
    steps = [change(LOAD, used_mib=9000 + 4096 * n, held=(4096 * (n + 1), n + 1)) for n in range(4)]
    assert told(*steps) == [[]] * 4


def test_a_health_score_tells_the_worse_card():
    assert health_score() == 100
    assert health_score(faults_week=1) == 85
    assert health_score(faults_week=99) == 55
    assert health_score(told=("throttle", "cooling")) == 70
    assert health_score(faults_week=9, told=("throttle", "memory_clock"), remap_pending=True, remap_failed=True) == 0
