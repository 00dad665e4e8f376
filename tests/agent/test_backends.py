"""What every backend must keep to, and the helpers that they share."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from agent.backends.base import LIMITS, HardwareBackend, NoBackend, Placed, bus_key, sane
from agent.backends.nvml import NvmlBackend, nvml_present
from agent.backends.simulated import SimulatedBackend
from agent.probe import InlineProbe
from agent.protocol import GpuGrant, GpuStatus
from tests.agent.nvml_lab import Machine, library_build


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library_build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(params=["nvml", "simulated", "none"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HardwareBackend]:
    found: HardwareBackend
    if request.param == "nvml":
        machine = Machine(tmp_path / "state")
        machine.card()
        machine.card()
        monkeypatch.setenv("NEBULA_NVML_STATE", str(machine.path))
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(request.getfixturevalue("library"))))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        found = NvmlBackend(xid_wait_ms=2)
    elif request.param == "simulated":
        found = SimulatedBackend(salt="test")
    else:
        found = NoBackend()
    yield found
    found.cleanup()


def test_a_backend_keeps_the_contract(backend: HardwareBackend) -> None:
    backend.initialize()
    cards = backend.inventory()
    expected = 0 if backend.name == "none" else 2
    assert len(cards.gpus) == expected
    assert len({g.uuid for g in cards.gpus}) == expected
    assert [g.index for g in cards.gpus] == list(range(expected))
    status = backend.get_status()
    assert [s.uuid for s in status] == [g.uuid for g in cards.gpus]
    for card in status:
        assert card == sane(card)
        assert card.used_mib is not None
    for gpu in cards.gpus:
        bus_key(gpu.pci_bus_id or "")
        assert gpu.total_mib is not None
        assert gpu.simulated is cards.simulated is (backend.name == "simulated")
    backend.placed([Placed(rank="1.1.0", pids=(1,), gpus=(GpuGrant(uuid="GPU-nowhere", mib=1),))])
    assert backend.get_process_list() == []
    assert backend.events() == []
    backend.cleanup()
    backend.cleanup()
    backend.initialize()
    assert len(backend.get_status()) == expected


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


def test_the_limits_themselves_are_possible() -> None:
    for bounds in (0, 1):
        status = GpuStatus(uuid="A", **{name: limit[bounds] for name, limit in LIMITS.items()})  # type: ignore[arg-type]
        assert sane(status) == status


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00000000:3B:00.0", (0, 0x3B, 0, 0)), ("0001:41:1f.7", (1, 0x41, 0x1F, 7)), ("3b:00.0", (0, 0x3B, 0, 0))],
)
def test_a_bus_id_sorts_by_number(text: str, expected: tuple[int, int, int, int]) -> None:
    assert bus_key(text) == expected


@pytest.mark.parametrize("text", ["", "x", "00000000:3B", "zz:00:00.0"])
def test_what_is_no_bus_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        bus_key(text)


def test_the_library_is_looked_for_without_loading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.backends.nvml._LIBRARY_DIRS", (str(tmp_path / "none"),))
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
