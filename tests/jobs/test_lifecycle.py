"""The tables of states: every pair, and what is for ever."""

from __future__ import annotations

import itertools

import pytest

from jobs.lifecycle import FINAL, LIVE, MOVES, RANK_FINAL, RANK_MOVES, SLICE_MOVES, JobState, RankState, SliceState, sources

ALLOWED = {
    ("WAITING", "STARTING"),
    ("WAITING", "CANCELLED"),
    ("WAITING", "FAILED"),
    ("STARTING", "RUNNING"),
    ("STARTING", "STOPPING"),
    ("STARTING", "FAILED"),
    ("STARTING", "WAITING"),
    ("RUNNING", "SUCCEEDED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "STOPPING"),
    ("RUNNING", "WAITING"),
    ("STOPPING", "SUCCEEDED"),
    ("STOPPING", "FAILED"),
    ("STOPPING", "CANCELLED"),
    ("STOPPING", "WAITING"),
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(JobState, JobState)))
def test_a_job_moves_exactly_along_the_table(old: JobState, new: JobState) -> None:
    assert (new in MOVES[old]) == ((old.value, new.value) in ALLOWED)


def test_final_states_lead_nowhere_and_the_rest_lead_somewhere() -> None:
    assert {state for state in JobState if not MOVES[state]} == FINAL
    assert {state for state in RankState if not RANK_MOVES[state]} == RANK_FINAL
    assert {state for state in SliceState if not SLICE_MOVES[state]} == {SliceState.RELEASED}


def test_live_and_final_and_waiting_are_all_states() -> None:
    assert LIVE | FINAL | {JobState.WAITING} == set(JobState)


def test_sources_are_the_table_read_backwards() -> None:
    for new in JobState:
        assert {(old.value, new.value) for old in sources(new)} == {pair for pair in ALLOWED if pair[1] == new.value}
