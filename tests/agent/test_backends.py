"""The helpers that the backends share; what each must keep to is in test_conformance.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.backends.base import HEALTH_LIMITS, INFO_LIMITS, LIMITS, UNKNOWN, Sanity, bus_key, sane
from agent.backends.nvml import nvml_present
from agent.backends.simulated import SimulatedBackend
from agent.probe import InlineProbe
from agent.protocol import GpuStatus


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("util_pct", 200),
        ("util_pct", -1),
        ("util_pct", 2**32 - 1),
        ("mem_util_pct", 101),
        ("temp_c", -21),
        ("temp_c", 151),
        ("power_w", 2**32 - 1),
        ("fan_pct", 2**32 - 1),
        ("used_mib", -1),
        ("core_mhz", 2**31),
    ],
)
def test_impossible_values_become_none(name: str, bad: int) -> None:
    status = GpuStatus(uuid="A", **{name: bad})  # type: ignore[arg-type]
    assert getattr(sane(status), name) is None


@pytest.mark.parametrize("bad", [*sorted(UNKNOWN), 9.2e18, float("nan"), float("inf"), True, "61"])
def test_what_drivers_say_for_unknown_is_a_value_of_no_field_and_is_counted(bad: object) -> None:
    for limits in (LIMITS, HEALTH_LIMITS, INFO_LIMITS):
        for name in limits:
            sanity = Sanity()
            assert (name, sanity.value(name, bad, limits=limits, uuid="A")) == (name, None)
            assert (sanity.anomalies, sanity.by_card) == ({name: 1}, {"A": 1})


def test_the_limits_themselves_are_possible() -> None:
    for bounds in (0, 1):
        status = GpuStatus(uuid="A", **{name: limit[bounds] for name, limit in LIMITS.items()})  # type: ignore[arg-type]
        assert sane(status) == status


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", (0, 0x3B, 0, 0)),
        ("0001:41:1f.7", (1, 0x41, 0x1F, 7)),
        ("3b:00.0", (0, 0x3B, 0, 0)),
        ("0000:3b:00", (0, 0x3B, 0, 0)),
    ],
)
def test_a_bus_id_sorts_by_number(text: str, expected: tuple[int, int, int, int]) -> None:
    assert bus_key(text) == expected


@pytest.mark.parametrize("text", ["", "x", "00000000:3B", "zz:00:00.0"])
def test_what_is_no_bus_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        bus_key(text)


def test_the_library_is_looked_for_without_loading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.backends.nvml_lib.LIBRARY_DIRS", (str(tmp_path / "none"),))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert not nvml_present()
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert nvml_present()


def test_an_inline_probe_reads_at_once_and_keeps_a_wish_for_processes() -> None:
    probe = InlineProbe(SimulatedBackend(salt="x"))
    probe.request(processes=True)
    samples, events = probe.poll()
    assert len(samples) == 1
    assert samples[0].processes == ()
    assert events == []
    assert probe.fileno() is None
    assert not probe.unresponsive
