"""Several kinds of cards in one machine: none hides another's, whatever becomes of its driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent import main as main_module
from agent.backends.base import Cards, HardwareEvent, Placed
from agent.config import Config
from agent.http import endpoint_parse
from agent.probe import ChildProbe, Sample
from agent.probe_group import ProbeGroup
from agent.protocol import GpuHealth, GpuInfo, GpuProcess, GpuStatus
from tests.agent.nvml_lab import Machine
from tests.waiting import wait_until


class FakeProbe:
    """Answers what it is given, when it is given."""

    def __init__(self) -> None:
        self.unresponsive = False
        self.samples: list[Sample] = []
        self.events: list[HardwareEvent] = []
        self.requests: list[bool] = []

    def fileno(self) -> int | None:
        return None

    def request(self, *, processes: bool) -> None:
        self.requests.append(processes)

    def poll(self) -> tuple[list[Sample], list[HardwareEvent]]:
        samples, self.samples = self.samples, []
        events, self.events = self.events, []
        return samples, events

    def placed(self, ranks: Sequence[Placed]) -> None: ...

    def remember(self, cards: Cards) -> None: ...

    def rest(self, seconds: float) -> None: ...

    def close(self) -> None: ...


NVIDIA = GpuInfo(uuid="GPU-1", index=0, model="RTX 4090", vendor="nvidia", total_mib=24564)
ASCEND = (
    GpuInfo(uuid="NPU-1", index=0, model="Ascend 910B3", vendor="ascend", total_mib=65536),
    GpuInfo(uuid="NPU-2", index=1, model="Ascend 910B3", vendor="ascend", total_mib=65536),
)


def nvidia_sample(at: float, **changes: object) -> Sample:
    sample = Sample(
        at=at,
        cards=Cards(gpus=(NVIDIA,), driver_version="570.86", cuda_version="12.8", backends=("nvml",)),
        status=(GpuStatus(uuid="GPU-1", used_mib=700),),
    )
    return replace(sample, **changes)  # type: ignore[arg-type]


def ascend_sample(at: float, **changes: object) -> Sample:
    sample = Sample(
        at=at,
        cards=Cards(gpus=ASCEND, driver_version="23.0.6", backends=("ascend",)),
        status=tuple(GpuStatus(uuid=g.uuid, used_mib=3000) for g in ASCEND),
    )
    return replace(sample, **changes)  # type: ignore[arg-type]


class Lab:
    def __init__(self) -> None:
        self.nvml, self.ascend = FakeProbe(), FakeProbe()
        self.group = ProbeGroup([("nvml", self.nvml), ("ascend", self.ascend)])

    def poll(self) -> Sample:
        samples, _ = self.group.poll()
        (sample,) = samples
        return sample

    def both(self, at: float = 1.0) -> Sample:
        self.nvml.samples.append(nvidia_sample(at))
        self.ascend.samples.append(ascend_sample(at))
        return self.poll()


def test_all_cards_are_numbered_through_and_say_what_they_are_read_with() -> None:
    cards = Lab().both().cards
    assert [(g.index, g.uuid) for g in cards.gpus] == [(0, "GPU-1"), (1, "NPU-1"), (2, "NPU-2")]
    assert cards.backends == ("nvml", "ascend")
    assert (cards.driver_version, cards.cuda_version) == ("570.86", "12.8")


def test_nothing_is_told_before_each_has_answered_once() -> None:
    lab = Lab()
    lab.nvml.samples.append(nvidia_sample(1.0))
    assert lab.group.poll() == ([], [])  # cards that come later would look like new ones
    lab.ascend.samples.append(ascend_sample(1.5))
    sample = lab.poll()
    assert (len(sample.status), sample.at) == (3, 1.0)


def test_the_quick_one_does_not_wait_for_the_slow_one() -> None:
    lab = Lab()
    lab.both(at=1.0)
    lab.nvml.samples.append(nvidia_sample(6.0, status=(GpuStatus(uuid="GPU-1", used_mib=900),)))
    sample = lab.poll()
    assert [s.used_mib for s in sample.status] == [900, 3000, 3000]
    assert sample.at == 1.0  # as old as its oldest part


def test_a_process_list_counts_once_every_list_in_it_is_that_new() -> None:
    lab = Lab()
    lab.both(at=1.0)
    mine = GpuProcess(uuid="GPU-1", pid=1)
    lab.nvml.samples.append(nvidia_sample(6.0, processes=(mine,), processes_read=True))
    assert not lab.poll().processes_read
    lab.nvml.samples.append(nvidia_sample(11.0))  # the next light sample comes in between
    assert not lab.poll().processes_read
    lab.ascend.samples.append(ascend_sample(6.0, processes=(GpuProcess(uuid="NPU-2", pid=2),), processes_read=True))
    sample = lab.poll()
    assert sample.processes_read
    assert sample.at == 6.0
    assert [p.pid for p in sample.processes or ()] == [1, 2]
    lab.nvml.samples.append(nvidia_sample(16.0))
    assert not lab.poll().processes_read  # told once


def test_a_hanging_driver_makes_its_own_cards_unresponsive_and_no_others() -> None:
    lab = Lab()
    lab.both()
    lab.ascend.unresponsive = True
    samples, events = lab.group.poll()
    assert [(s.uuid, s.error) for s in samples[0].status] == [("GPU-1", None), ("NPU-1", "unresponsive"), ("NPU-2", "unresponsive")]
    assert [(e.kind, e.data) for e in events] == [("unresponsive", {"backend": "ascend"})]
    assert len(samples[0].cards.gpus) == 3  # they are not gone
    assert not lab.group.unresponsive
    lab.nvml.samples.append(nvidia_sample(40.0, processes=(), processes_read=True))
    sample = lab.poll()
    assert sample.processes_read  # ranks on the other cards end meanwhile
    assert sample.at == 40.0
    lab.ascend.unresponsive = False
    lab.ascend.samples.append(ascend_sample(50.0))
    samples, events = lab.group.poll()
    assert [s.error for s in samples[0].status] == [None, None, None]
    assert [e.kind for e in events] == ["responsive"]


def test_one_that_hangs_from_the_start_holds_up_nobody_for_ever() -> None:
    lab = Lab()
    lab.group.remember(Cards(gpus=(NVIDIA, *(replace(g, index=i + 1) for i, g in enumerate(ASCEND)))))
    lab.nvml.samples.append(nvidia_sample(1.0))
    assert lab.group.poll() == ([], [])
    lab.ascend.unresponsive = True
    sample = lab.poll()
    assert [(s.uuid, s.error) for s in sample.status] == [("GPU-1", None), ("NPU-1", "unresponsive"), ("NPU-2", "unresponsive")]
    assert [g.index for g in sample.cards.gpus] == [0, 1, 2]  # known from an earlier run


def test_a_driver_that_does_not_open_is_advice_and_an_error_of_its_cards() -> None:
    lab = Lab()
    lab.both()
    lab.nvml.samples.append(Sample(at=6.0, error="Driver and NVML library differ", error_kind="driver_mismatch"))
    sample = lab.poll()
    assert sample.error is None
    assert [s.error for s in sample.status] == ["driver_mismatch", None, None]
    assert sample.cards.advice == ("driver_mismatch",)
    lab.nvml.samples.append(nvidia_sample(36.0))
    sample = lab.poll()
    assert [s.error for s in sample.status] == [None, None, None]
    assert sample.cards.advice == ()


def test_when_none_opens_the_whole_layer_has_failed() -> None:
    lab = Lab()
    lab.nvml.samples.append(Sample(at=1.0, error="no driver.", error_kind="driver_not_loaded"))
    lab.ascend.samples.append(Sample(at=1.0, error="no tool.", error_kind="no_library"))
    sample = lab.poll()
    assert (sample.error, sample.error_kind) == ("no driver. no tool.", "driver_not_loaded")


def test_all_silent_is_told_by_the_group_itself() -> None:
    lab = Lab()
    lab.both()
    lab.nvml.unresponsive = lab.ascend.unresponsive = True
    assert lab.group.unresponsive
    assert lab.group.poll()[0] == []


def test_slow_facts_are_passed_on_once() -> None:
    lab = Lab()
    lab.nvml.samples.append(nvidia_sample(1.0, health=(GpuHealth(uuid="GPU-1", pcie_width=8),)))
    lab.ascend.samples.append(ascend_sample(1.0, health=()))
    assert [h.uuid for h in lab.poll().health or ()] == ["GPU-1"]
    lab.nvml.samples.append(nvidia_sample(6.0))
    assert lab.poll().health is None
    lab.ascend.samples.append(ascend_sample(6.0, health=(GpuHealth(uuid="NPU-1"),)))
    assert {h.uuid for h in lab.poll().health or ()} >= {"NPU-1"}


def test_requests_and_events_go_through() -> None:
    lab = Lab()
    lab.group.request(processes=True)
    assert (lab.nvml.requests, lab.ascend.requests) == ([True], [True])
    lab.nvml.events.append(HardwareEvent(kind="xid", gpu="GPU-1", data={"xid": 79}))
    assert [e.kind for e in lab.group.poll()[1]] == ["xid"]
    lab.group.close()


# --- real children ------------------------------------------------------------------------------------------------------


def test_a_machine_with_nvidia_and_ascend_cards_reads_both_and_one_hanging_tool_stops_nobody(
    tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "state")
    uuid = machine.card()
    recorded = Path(__file__).parent / "ascend"
    tool = tmp_path / "npu-smi"
    tool.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/hang ] && exec /bin/sleep 600\n"
        f'[ "$*" = info ] && exec /bin/cat {recorded}/v23_910b.txt\nexec /bin/cat {recorded}/board.txt\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("NEBULA_NVML_STATE", str(machine.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    config = Config(
        path=tmp_path / "agent.toml",
        endpoint=endpoint_parse("http://127.0.0.1:1"),
        node_id=4,
        name="node04",
        credential_file=tmp_path / "c",
        data_dir=tmp_path,
        agent_id="node04",
    )
    monkeypatch.setattr("agent.backends.choose._drm_vendors", lambda root: set())
    group, name = main_module._probe(config)
    assert name == "nvml+ascend"
    assert isinstance(group, ProbeGroup)
    samples: list[Sample] = []

    def read() -> Sample | None:
        group.request(processes=True)
        samples.extend(group.poll()[0])
        return samples[-1] if samples else None

    try:
        first = wait_until(read, "the first sample")
        assert [(g.vendor, g.index) for g in first.cards.gpus] == [("nvidia", 0), ("ascend", 1), ("ascend", 2)]
        assert [s.used_mib for s in first.status] == [700, 3162, 41877]
        (tmp_path / "hang").touch()
        for member in group._members:
            assert isinstance(member.probe, ChildProbe)
            member.probe._deadline_s = 0.5
        wait_until(lambda: (found := read()) and [s.error for s in found.status] == [None, "unresponsive", "unresponsive"], "silence")
        count = len(samples)
        wait_until(lambda: read() and len(samples) >= count + 3, "samples of the other card")  # the tool hangs for longer than we wait
        assert (samples[-1].status[0].uuid, samples[-1].status[0].used_mib) == (uuid, 700)
    finally:
        group.close()
