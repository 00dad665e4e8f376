"""The arithmetic of the fleet's bench."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

fleet = pytest.importorskip("bench.live.fleet")


def test_a_fleets_figures():
    before = fleet.Watched(cpu={"web": 10.0, "redis": 1.0}, web_mib=90.0)
    after = fleet.Watched(cpu={"web": 10.4, "redis": 1.1}, web_mib=91.5)
    sent = [(float(at), 10.0 if at < 50 else 20.0, 1.0) for at in range(100)]
    found = fleet.result(sent, before, after, spent_s=50.0, interval=5.0)
    assert (found["syncs"], found["syncs_per_s"], found["p50_ms"], found["p99_ms"]) == (100, 2.0, 15.0, 20.0)
    assert found["flat"] == 2.0  # the second half is twice as slow
    assert found["cpu_ms_per_sync"] == 4.0  # 0.4 s of 100 syncs
    assert found["nodes_per_core"] == 1250  # 5 s / 4 ms
    assert (found["web_core"], found["redis_core"], found["web_grew_mib"]) == (0.008, 0.002, 1.5)


def test_silence_is_told_from_a_false_alarm():
    begin = datetime(2026, 7, 14, 7, 0, tzinfo=UTC)

    def standing(state="READY", since=0.0, heard=100.0):
        return fleet.Standing(state=state, since=begin + timedelta(seconds=since), heard=begin + timedelta(seconds=heard))

    before = {name: standing() for name in "abcdef"}
    after = {
        "a": standing(),  # went on
        "b": standing(since=50.0),  # went on, but was called silent for a while
        "c": standing("UNKNOWN", since=90.0, heard=75.0),  # went on and is called silent
        "d": standing("UNKNOWN", since=115.2),
        "e": standing("UNKNOWN", since=115.9),
        "f": standing(),  # silent, and nobody saw it
    }
    assert fleet.silences(before, after, set("def")) == {
        "false_alarms": 2, "silent": 3, "silent_untold": 1, "silent_least_s": 15.2, "silent_most_s": 15.9,
    }  # fmt: skip


def test_a_fleet_without_an_answer_has_no_figures():
    nothing = fleet.Watched(cpu={}, web_mib=0.0)
    with pytest.raises(fleet.FleetError):
        fleet.result([], nothing, nothing, spent_s=1.0, interval=5.0)


@pytest.mark.parametrize("words", [["--nodes", "0"], ["--url", "http://127.0.0.1:1"], ["--url", "https://x", "--token-file", "y"]])
def test_a_wrong_call_is_told(words, capsys):
    with pytest.raises(SystemExit) as ended:
        fleet.main(words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
