"""When an alert opens and when it is over: no database, no clock of its own."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.alert_eval import BLANK, NO_DATA_S, Rule, Track, is_past, rule_look, track_next
from nodes.alert_metrics import slope

MEMORY = Rule(op="gt", warning=90, critical=None, for_s=300, clear_by=2, clear_s=60)
HEAT = Rule(op="ge", warning=85, critical=92, for_s=120, clear_by=5, clear_s=120)
T0 = 1_800_000_000.0


class Watch:
    """A rule that looks at one subject, with the clock in its hand."""

    def __init__(self, rule: Rule, *, step: float = 15.0) -> None:
        self.rule, self.step, self.now, self.track, self.events = rule, step, T0, BLANK, []

    def see(self, value: float | None, *, for_s: float = 0.0, after_s: float | None = None) -> Watch:
        """``value`` at each look for ``for_s`` seconds; the first one step (or ``after_s``) after the last."""
        until = None
        while until is None or self.now + self.step <= until + 0.001:
            gap = self.step if after_s is None or until is not None else after_s
            self.now += gap
            until = self.now + for_s if until is None else until
            self.track, event = track_next(self.rule, self.track, value, now=self.now, elapsed_s=gap)
            if event:
                self.events.append((event, self.now - T0))
        return self


def test_four_minutes_fifty_nine_are_none_and_five_minutes_are_one() -> None:
    watch = Watch(MEMORY, step=1.0).see(93)
    began = watch.now
    watch.see(93, for_s=298)
    assert (watch.now - began, watch.events) == (299, [])
    watch.see(93)
    assert [event for event, _ in watch.events] == ["open"]
    watch.see(93, for_s=3600)
    assert len(watch.events) == 1


def test_a_moment_below_begins_the_time_anew() -> None:
    watch = Watch(MEMORY).see(93, for_s=285).see(89).see(93, for_s=285)
    assert watch.events == []
    assert [event for event, _ in watch.see(93).events] == ["open"]


def test_a_missing_figure_opens_nothing_and_its_time_does_not_count() -> None:
    assert Watch(MEMORY).see(None, for_s=7200).events == []
    watch = Watch(MEMORY).see(93, for_s=150).see(None, for_s=600).see(93, for_s=120)
    assert watch.events == []
    watch.see(93, for_s=60)
    assert [event for event, _ in watch.events] == ["open"]


def test_a_missing_figure_is_no_recovery_before_its_time() -> None:
    watch = Watch(MEMORY).see(93, for_s=300)
    watch.see(None, for_s=NO_DATA_S - 60)
    assert [event for event, _ in watch.events] == ["open"]
    watch.see(None, for_s=60)
    assert [event for event, _ in watch.events] == ["open", "no_data"]


def test_a_missing_figure_stops_the_way_back_too() -> None:
    watch = Watch(MEMORY).see(93, for_s=300).see(50, for_s=30).see(None, for_s=600).see(50)
    assert [event for event, _ in watch.events] == ["open"]
    assert [event for event, _ in watch.see(50, for_s=45).events] == ["open", "clear"]


def test_it_is_over_only_past_the_hysteresis_and_after_its_time() -> None:
    watch = Watch(MEMORY).see(93, for_s=300)
    watch.see(89, for_s=3600)  # below 90, but not below 88
    assert [event for event, _ in watch.events] == ["open"]
    watch.see(88, for_s=45)
    assert len(watch.events) == 1
    assert [event for event, _ in watch.see(88).events] == ["open", "clear"]
    assert watch.track == BLANK


def test_it_rises_from_warning_to_critical_once() -> None:
    watch = Watch(HEAT).see(86, for_s=120).see(93, for_s=600).see(86, for_s=600).see(93, for_s=600)
    assert [event for event, _ in watch.events] == ["open", "raise"]
    assert watch.track.level == 2


def test_critical_at_once_is_one_event() -> None:
    watch = Watch(HEAT).see(95, for_s=600)
    assert [event for event, _ in watch.events] == ["open"]
    assert watch.track.level == 2


def test_a_rule_without_a_warning_opens_as_critical() -> None:
    watch = Watch(Rule(op="gt", warning=None, critical=50, for_s=0)).see(50).see(51)
    assert ([event for event, _ in watch.events], watch.track.level) == (["open"], 2)


def test_a_pause_of_the_one_who_looks_counts_for_neither_side() -> None:
    watch = Watch(MEMORY).see(93, for_s=30).see(93, after_s=3600)
    assert watch.events == []
    watch.see(93, for_s=240)
    assert watch.events == []
    assert [event for event, _ in watch.see(93).events] == ["open"]


def test_each_return_doubles_the_time_that_it_has_to_be_well() -> None:
    for times, wait in ((1, 60), (2, 120), (3, 240), (99, 60 * 32)):
        watch = Watch(MEMORY)
        watch.track = Track(level=1, times=times, told_at=T0)
        watch.see(50, for_s=wait - 15)
        assert watch.events == []
        assert [event for event, _ in watch.see(50).events] == ["clear"]


@pytest.mark.parametrize(("op", "bad", "edge"), [("gt", 91, False), ("ge", 91, True), ("lt", 89, False), ("le", 89, True)])
def test_what_each_comparison_means_at_its_edge(op: str, bad: float, edge: bool) -> None:
    assert (is_past(op, bad, 90), is_past(op, 90, 90), is_past(op, bad, None)) == (True, edge, False)


def test_hysteresis_of_a_lower_limit_goes_upward() -> None:
    rule = Rule(op="lt", warning=20, critical=None, for_s=0, clear_by=5, clear_s=0)
    watch = Watch(rule).see(19).see(24)
    assert [event for event, _ in watch.events] == ["open"]
    assert [event for event, _ in watch.see(25).events] == ["open", "clear"]


def test_a_subject_that_is_gone_ends_its_alert_and_its_memory() -> None:
    tracks = {"gpu:1": Track(level=1, told_at=T0), "gpu:2": Track(warn_since=T0, told_at=T0)}
    kept, events = rule_look(MEMORY, tracks, {"gpu:3": 50.0}, now=T0 + 15, elapsed_s=15)
    assert (kept, events) == ({}, [("gpu:1", "gone")])


def test_who_is_well_costs_no_memory() -> None:
    kept, events = rule_look(MEMORY, {}, {f"gpu:{n}": 50.0 if n % 2 else None for n in range(1000)}, now=T0, elapsed_s=15)
    assert (kept, events) == ({}, [])


def test_memory_survives_its_way_through_text() -> None:
    track = Track(level=1, warn_since=T0, clear_since=T0 + 1.5, told_at=T0, times=3)
    assert Track.from_json(track.to_json()) == track
    for odd in (None, [], [1, 2], {"a": 1}, [1, "x", None, None, None, 1]):
        with pytest.raises((ValueError, TypeError)):
            Track.from_json(odd)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.none(), st.floats(0, 120)), max_size=60), st.sampled_from([MEMORY, HEAT]))
def test_opening_and_ending_take_turns_and_an_opening_has_its_full_time(values: list[float | None], rule: Rule) -> None:
    watch = Watch(rule, step=30.0)
    for value in values:
        watch.see(value)
    kinds = [event for event, _ in watch.events if event != "raise"]
    assert all(a != b for a, b in itertools.pairwise(kinds))
    assert kinds[:1] in ([], ["open"])
    if "open" in kinds:
        told = [value for value in values if value is not None and is_past(rule.op, value, rule.warning)]
        assert len(told) > rule.for_s / 30  # that many looks past the threshold, at least


def test_the_slope_of_a_line_is_its_slope() -> None:
    assert slope([(T0 + 15 * n, 60 + 0.5 * n) for n in range(12)]) == pytest.approx(0.5 / 15)
    assert slope([(T0, 60)]) == slope([(T0, 60), (T0, 70)]) == 0.0
