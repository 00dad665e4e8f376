"""Eight cards of different kinds in one machine: every field, then each of them failing in each way."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pynvml
import pytest

from agent.backends.base import HardwareEvent
from agent.backends.nvml import NvmlBackend
from agent.backends.nvml_lib import library_version, module_version, versions_differ
from agent.protocol import GpuHealth, GpuStatus
from tests.agent.nvml_lab import HEALTHY, MIB, Machine
from tests.waiting import PATIENCE_S, wait_until

NOT_SUPPORTED, NO_PERMISSION, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 3, 4, 10, 13, 15, 16, 999


@pytest.fixture
def machine(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path / "state")
    found.write()
    monkeypatch.setenv("NEBULA_NVML_STATE", str(found.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return found


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[NvmlBackend]:
    found = NvmlBackend(xid_wait_ms=2, kernel_log=str(tmp_path / "kmsg"), root=str(tmp_path))
    (tmp_path / "kmsg").touch()
    yield found
    found.cleanup()


def lab(machine: Machine) -> list[str]:
    """Two consumer cards, a laptop's, a data-centre card in MIG parts, an old one, one of host memory, a vGPU, a plain A100."""
    consumer = dict.fromkeys(("ecc", "rows", "energy_mj"))
    uuids = [
        machine.card(**{**HEALTHY, **consumer}),
        machine.card(**{**HEALTHY, **consumer, "pcie_width_now": 8, "persistence": 0, "bar1": 256 * MIB}),
        machine.card(name="NVIDIA GeForce RTX 4060 Laptop GPU", total=8188 * MIB, fan=None, limit_mw=None),
        machine.card(**{**HEALTHY, "name": "NVIDIA A100-SXM4-80GB", "total": 81920 * MIB, "mig_mode": 1, "cc": "8.0"}),
        machine.card(
            **{**HEALTHY, "name": "Tesla V100-PCIE-32GB", "rows": None, "retired_single": 2, "retired_double": 1, "retired_pending": 1}
        ),
        machine.card(name="NVIDIA GB10", total=None, used=None, fan=None, clk_mem=None),
        machine.card(name="GRID A100D-40C", util=None, mem_util=None, temp=None, temp_v=None, power_mw=None, fan=None, reasons=None),
        machine.card(**{**HEALTHY, "name": "NVIDIA A100-SXM4-80GB", "total": 81920 * MIB, "rows": "1,2,1,1", "ecc_double": 4}),
    ]
    machine.say(
        "mig 3 0 MIG-aaaaaaaa-0000-4000-8000-000000000000 10603200512 1073741824 1 0 1g.10gb",
        "mig 3 2 MIG-bbbbbbbb-0000-4000-8000-000000000000 42949672960 0 2 0 4g.40gb",
        "migproc 3 0 4711 1048576000",
        "proc 7 99 2097152",
    )
    return uuids


def test_eight_mixed_cards_tell_every_field_that_they_have(machine: Machine, backend: NvmlBackend) -> None:
    uuids = lab(machine)
    backend.initialize()
    gpus = backend.inventory().gpus
    assert [g.uuid for g in gpus[:8]] == uuids
    assert [g.total_mib for g in gpus[:5]] == [24564, 24564, 8188, None, 24564]  # the card in parts has nothing to give itself
    assert gpus[5].unified
    assert gpus[5].total_mib is not None
    status = {s.uuid: s for s in backend.get_status()}
    every = {f.name for f in fields(GpuStatus)} - {"uuid", "error", "foreign_mib", "tensor_pct"}  # of tensor units, see below
    silent = {uuid: {name for name in every if getattr(status[uuid], name) is None} for uuid in uuids}
    assert [silent[uuid] for uuid in uuids] == [
        set(),
        set(),
        {"fan_pct"},
        set(),
        set(),
        {"used_mib", "reserved_mib", "fan_pct", "mem_mhz"},
        {"util_pct", "mem_util_pct", "temp_c", "power_w", "fan_pct", "throttle"},
        set(),
    ]
    assert all(s.error is None for s in status.values())


def test_tensor_use_is_of_the_time_since_the_last_reading_and_of_cards_that_tell_it(machine: Machine, backend: NvmlBackend) -> None:
    machine.card(tensor=3)
    machine.card()
    backend.initialize()
    assert [status.tensor_pct for status in backend.get_status()] == [None, None]
    machine.cards[0]["tensor"] = 41
    machine.write()
    assert [status.tensor_pct for status in backend.get_status()] == [41, None]
    machine.say(f"fail 0 nvmlGpmSampleGet {UNKNOWN}")
    assert [status.tensor_pct for status in backend.get_status()] == [None, None]
    machine.unsay("fail")
    machine.cards[0]["tensor"] = 400
    machine.write()
    assert backend.get_status()[0].tensor_pct is None  # no card can do that
    assert backend.sanity.anomalies == {"tensor_pct": 1}
    held = pynvml._nvmlGetFunctionPointer("nebula_samples")
    assert held() == 1  # what is kept for the next reading, whatever failed in between
    backend.cleanup()
    assert held() == 0


def test_the_slow_facts_of_a_card_that_has_them_all(machine: Machine, backend: NvmlBackend) -> None:
    uuid = machine.card(**HEALTHY)
    machine.say(*(f"nvlink 0 {link} 0000:09:00" for link in range(3)), "nvlink 0 3 down")
    backend.initialize()
    assert backend.get_health() == [
        GpuHealth(
            uuid=uuid,
            ecc=True,
            ecc_corrected=3,
            ecc_uncorrected=0,
            ecc_uncorrected_total=1,
            remapped_rows=0,
            remap_pending=False,
            remap_failed=False,
            pcie_gen=4,
            pcie_width=16,
            pcie_replays=2,
            nvlinks=4,
            nvlinks_up=3,
            nvlink_errors=9,  # 3 links × (1 replay + 0 recoveries + 2 flits + 0 CRC)
            persistence=True,
            compute_mode="default",
            power_limit_w=450,
            power_default_w=450,
            core_max_mhz=3105,
            mem_max_mhz=10501,
            slow_c=90,
            bar1_mib=32768,
            energy_j=123456,
        )
    ]
    (health,) = backend.get_health()
    assert (health.pcie_gen, health.pcie_replays, health.energy_j) == (4, 2, 123456)  # not part of the comparison above


@pytest.mark.parametrize(("told", "expected"), [(0, "wddm"), (1, "tcc"), (2, "mcdm"), (9, None), (None, None)])
def test_windows_driver_model_is_read_where_the_agent_is_told_to(machine: Machine, told: int | None, expected: str | None) -> None:
    machine.card(driver_model=told)
    backend = NvmlBackend(xid_wait_ms=50, driver_model=True)
    backend.initialize()
    try:
        assert backend.get_health()[0].driver_model == expected
    finally:
        backend.cleanup()


def test_windows_driver_model_is_not_asked_for_otherwise(machine: Machine, backend: NvmlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    machine.card(driver_model=0)
    backend.initialize()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetDriverModel", lambda handle: pytest.fail("it was asked for"))
    assert backend.get_health()[0].driver_model is None


def test_the_slow_facts_of_the_mixed_cards(machine: Machine, backend: NvmlBackend) -> None:
    uuids = lab(machine)
    backend.initialize()
    health = {h.uuid: h for h in backend.get_health()}
    assert set(health) == set(uuids)  # parts do not age, cards do
    consumer, narrow, laptop, _, old, _, _, worn = (health[uuid] for uuid in uuids)
    assert (consumer.ecc, consumer.ecc_corrected, consumer.remapped_rows, consumer.retired_pages) == (None, None, None, None)
    assert (narrow.pcie_width, narrow.persistence, narrow.bar1_mib) == (8, False, 256)
    assert laptop == GpuHealth(uuid=uuids[2])  # none of this is told: all None
    assert (old.retired_pages, old.remap_pending, old.remapped_rows) == (3, True, None)
    assert (worn.remapped_rows, worn.remap_pending, worn.remap_failed, worn.ecc_uncorrected) == (2, True, True, 4)


GETTERS = {
    "nvmlDeviceGetUtilizationRates": ("util_pct", "mem_util_pct"),
    "nvmlDeviceGetPowerUsage": ("power_w",),
    "nvmlDeviceGetFanSpeed": ("fan_pct",),
    "nvmlDeviceGetClockInfo": ("core_mhz", "mem_mhz"),
    "nvmlDeviceGetTemperatureV": (),  # the older call stands in
    "nvmlDeviceGetMemoryInfo_v2": ("reserved_mib",),
    "nvmlDeviceGetCurrentClocksEventReasons": ("throttle",),
}
SLOW = {
    "nvmlDeviceGetEccMode": ("ecc", "ecc_corrected", "ecc_uncorrected", "ecc_uncorrected_total"),
    "nvmlDeviceGetTotalEccErrors": ("ecc_corrected", "ecc_uncorrected", "ecc_uncorrected_total"),
    "nvmlDeviceGetRemappedRows": ("remapped_rows", "remap_pending", "remap_failed"),
    "nvmlDeviceGetCurrPcieLinkGeneration": ("pcie_gen",),
    "nvmlDeviceGetCurrPcieLinkWidth": ("pcie_width",),
    "nvmlDeviceGetPcieReplayCounter": ("pcie_replays",),
    "nvmlDeviceGetPersistenceMode": ("persistence",),
    "nvmlDeviceGetComputeMode": ("compute_mode",),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_w",),
    "nvmlDeviceGetPowerManagementDefaultLimit": ("power_default_w",),
    "nvmlDeviceGetMaxClockInfo": ("core_max_mhz", "mem_max_mhz"),
    "nvmlDeviceGetTemperatureThreshold": ("slow_c",),
    "nvmlDeviceGetBAR1MemoryInfo": ("bar1_mib",),
    "nvmlDeviceGetTotalEnergyConsumption": ("energy_j",),
    "nvmlDeviceGetNvLinkState": ("nvlinks", "nvlinks_up", "nvlink_errors"),
    "nvmlDeviceGetNvLinkErrorCounter": ("nvlink_errors",),
}


@pytest.mark.parametrize("getter", [*GETTERS, *SLOW])
def test_a_getter_that_fails_takes_its_own_fields_and_no_others(machine: Machine, backend: NvmlBackend, getter: str) -> None:
    for _ in range(2):
        machine.card(**HEALTHY)
    machine.say("nvlink 0 0 0000:09:00", "nvlink 1 0 0000:09:00")
    backend.initialize()
    for code in (NOT_SUPPORTED, NO_PERMISSION, TIMEOUT, FUNCTION_NOT_FOUND, UNKNOWN):
        machine.unsay("fail")
        machine.say(f"fail 0 {getter} {code}")
        for read, gone in ((backend.get_status, GETTERS.get(getter, ())), (backend.get_health, SLOW.get(getter, ()))):
            poor, rich = read()  # type: ignore[operator]
            for name in (f.name for f in fields(rich) if f.name not in ("uuid", "used_mib", "temp_c")):
                assert getattr(poor, name) == (None if name in gone else getattr(rich, name)), (name, code)


@pytest.mark.parametrize(("code", "error"), [(GPU_IS_LOST, "lost"), (RESET_REQUIRED, "reset_required")])
def test_one_lost_of_eight_leaves_seven_whole(machine: Machine, backend: NvmlBackend, code: int, error: str) -> None:
    uuids = lab(machine)
    backend.initialize()
    before = {s.uuid: s for s in backend.get_status()}
    machine.say(f"fail 0 * {code}")
    after = {s.uuid: s for s in backend.get_status()}
    assert after.pop(uuids[0]) == GpuStatus(uuid=uuids[0], error=error)
    assert after == {uuid: status for uuid, status in before.items() if uuid != uuids[0]}
    assert [h.uuid for h in backend.get_health()] == uuids[1:]
    assert {p.pid for p in backend.get_process_list() or ()} == {4711, 99}


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("pcie_width_now", 2**32 - 1, "pcie_width"),
        ("pcie_gen_now", 0, "pcie_gen"),
        ("limit_mw", 2**32 - 1, "power_limit_w"),
        ("slow_c", 2**32 - 1, "slow_c"),
        ("ecc_double", 2**64 - 1, "ecc_uncorrected"),
        ("energy_mj", 2**64 - 1, "energy_j"),
        ("replays", 2**32 - 1, "pcie_replays"),
        ("max_mem", 2**31, "mem_max_mhz"),
        ("rows", "0,4000000000,0,0", "remapped_rows"),
    ],
)
def test_wild_slow_facts_become_none_and_are_counted(machine: Machine, backend: NvmlBackend, key: str, value: object, name: str) -> None:
    machine.card(**{**HEALTHY, key: value})
    backend.initialize()
    (health,) = backend.get_health()
    assert getattr(health, name) is None
    assert health.anomalies == 1
    assert [(e.kind, e.data["field"]) for e in backend.events()] == [("anomaly", name)]


@pytest.mark.parametrize("total", [2**64 - 1, 0])
def test_a_size_that_no_card_has_is_unknown_and_never_0(machine: Machine, backend: NvmlBackend, total: int) -> None:
    machine.card(total=total, used=0, reserved=0)
    backend.initialize()
    assert backend.inventory().gpus[0].total_mib is None


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x1, ()),  # idle is no brake
        (0x4, ("power_cap",)),
        (0x40 | 0x8, ("hw_slowdown", "hw_thermal")),
        (0x20, ("sw_thermal",)),
        (0x80, ("power_brake",)),
        (0x1 | 0x100, ("display_clock",)),
    ],
)
def test_what_holds_the_clocks_down_is_said_in_words(machine: Machine, backend: NvmlBackend, bits: int, words: tuple[str, ...]) -> None:
    machine.card(reasons=bits)
    machine.card(reasons=None, old_reasons=bits)  # a driver before R535
    backend.initialize()
    assert [s.throttle for s in backend.get_status()] == [words, words]


def test_a_call_that_breaks_our_own_code_costs_one_card_and_one_line_in_the_log(
    machine: Machine, backend: NvmlBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uuids = [machine.card(), machine.card()]
    backend.initialize()
    real, first = pynvml.nvmlDeviceGetPowerUsage, backend._cards[0].handle

    def broken(handle: object) -> object:
        return "much" if handle is first else real(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", broken)
    for _ in range(3):
        assert [(s.uuid, s.error) for s in backend.get_status()] == [(uuids[0], "unreadable"), (uuids[1], None)]
    assert len(caplog.records) == 1


# --- MIG ---------------------------------------------------------------------------------------------------------------


def test_mig_parts_are_cards_of_their_own_after_the_whole_ones(machine: Machine, backend: NvmlBackend) -> None:
    uuids = lab(machine)
    backend.initialize()
    gpus = backend.inventory().gpus
    assert [g.index for g in gpus] == list(range(10))
    small, large = gpus[8:]
    assert (small.uuid[:12], small.parent, small.profile, small.total_mib) == ("MIG-aaaaaaaa", uuids[3], "1g.10gb", 10112)
    assert (large.uuid[:12], large.parent, large.profile, large.total_mib) == ("MIG-bbbbbbbb", uuids[3], "4g.40gb", 40960)
    status = {s.uuid: s for s in backend.get_status()}
    assert (status[small.uuid].used_mib, status[large.uuid].used_mib) == (1024, 0)
    assert status[small.uuid].temp_c == status[uuids[3]].temp_c  # one chip, one heat
    assert status[small.uuid].util_pct is None  # not told for a part
    assert status[small.uuid].power_w is None  # else a sum over the node would count it twice


def test_processes_of_a_cut_card_are_listed_with_their_part(machine: Machine, backend: NvmlBackend) -> None:
    lab(machine)
    backend.initialize()
    listed = backend.get_process_list()
    assert listed is not None
    assert [(p.uuid[:12], p.pid, p.used_mib) for p in listed if p.pid == 4711] == [("MIG-aaaaaaaa", 4711, 1000)]


def test_parts_of_a_lost_card_are_lost_too(machine: Machine, backend: NvmlBackend) -> None:
    uuids = lab(machine)
    backend.initialize()
    machine.say("fail 3 * 15")
    status = {s.uuid: s for s in backend.get_status()}
    assert {uuid[:12]: s.error for uuid, s in status.items() if s.error} == {
        uuids[3][:12]: "lost",
        "MIG-aaaaaaaa": "lost",
        "MIG-bbbbbbbb": "lost",
    }


def test_an_xid_of_a_part_names_the_part(machine: Machine, backend: NvmlBackend) -> None:
    lab(machine)
    backend.initialize()
    machine.xid(3, 13, part=(1, 0))
    found: list[HardwareEvent] = []
    wait_until(lambda: found.extend(backend.events()) or found, "the XID event")
    assert [(e.kind, (e.gpu or "")[:12], e.data) for e in found] == [("xid", "MIG-aaaaaaaa", {"xid": 13})]


# --- XIDs from two sources ---------------------------------------------------------------------------------------------


def test_the_same_xid_from_nvml_and_from_the_kernel_is_one_event(machine: Machine, backend: NvmlBackend) -> None:
    uuid = machine.card(pci="0000:3b:00")
    backend.initialize()
    from agent.backends.kernel_log import XidLine

    backend._nvml_said(uuid, 79, (0xFFFFFFFF, 0xFFFFFFFF))
    backend._kernel_said(XidLine((0, 0x3B, 0), 79, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."))
    backend._kernel_said(XidLine((0, 0x3B, 0), 31, "NVRM: Xid (PCI:0000:3b:00): 31, MMU fault"))
    assert [(e.gpu, e.data["xid"]) for e in backend.events()] == [(uuid, 79), (uuid, 31)]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[NvmlBackend, int]]:
    """A backend that reads a kernel's log, and the log to write to."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    # One record a read, as the kernel's file gives them.
    fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) | os.O_DIRECT)
    found = NvmlBackend(xid_wait_ms=50, kernel_log=str(path), root=str(tmp_path))
    yield found, writer
    found.cleanup()
    os.close(writer)


def test_the_process_that_only_the_kernel_names_comes_with_the_number_that_nvml_told_first(
    machine: Machine, kernel: tuple[NvmlBackend, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card that several jobs share, it is what tells whose program it was."""
    monkeypatch.setattr("agent.backends.nvml.WORDS_S", PATIENCE_S)
    monkeypatch.setattr("agent.backends.nvml.SAME_S", PATIENCE_S)
    backend, log = kernel
    uuid = machine.card(pci="0000:3b:00")
    backend.initialize()
    machine.xid(0, 31)
    wait_until(lambda: backend._held, "the number")
    assert backend.events() == []
    line = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python, MMU Fault"
    os.write(log, f"3,1,2,-;{line}\n".encode())
    found: list[HardwareEvent] = []
    wait_until(lambda: found.extend(backend.events()) or found, "the event")
    assert [(e.kind, e.gpu, e.data) for e in found] == [("xid", uuid, {"xid": 31, "text": line})]


def test_a_number_without_words_is_told_all_the_same(machine: Machine, kernel: tuple[NvmlBackend, int]) -> None:
    backend, _log = kernel
    uuid = machine.card()
    backend.initialize()
    machine.xid(0, 79)
    found: list[HardwareEvent] = []
    wait_until(lambda: found.extend(backend.events()) or found, "the event")
    assert [(e.gpu, e.data) for e in found] == [(uuid, {"xid": 79})]


def test_the_lines_around_a_fault_follow_it(machine: Machine, kernel: tuple[NvmlBackend, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.backends.kernel_log.AFTER_S", 0.05)
    backend, log = kernel
    uuid = machine.card(pci="0000:3b:00")
    backend.initialize()
    lines = [
        "pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    ]
    for line in lines:
        os.write(log, f"3,1,2,-;{line}\n".encode())
    found: list[HardwareEvent] = []
    wait_until(lambda: found.extend(backend.events()) or len(found) == 2, "the event and its surroundings")
    assert [(e.kind, e.gpu) for e in found] == [("xid", uuid), ("kernel_log", uuid)]
    assert found[1].data == {"lines": lines}


def test_a_line_about_a_card_that_nobody_knows_is_told_without_a_card(machine: Machine, backend: NvmlBackend) -> None:
    machine.card(pci="0000:3b:00")
    backend.initialize()
    from agent.backends.kernel_log import XidLine

    backend._kernel_said(XidLine((0, 0x5E, 0), 79, "…"))
    (event,) = backend.events()
    assert (event.gpu, event.data["xid"]) == (None, 79)


# --- a card that cannot be opened, and versions that differ --------------------------------------------------------------


def test_a_card_that_does_not_open_is_told_once_and_not_at_each_sample(machine: Machine, backend: NvmlBackend) -> None:
    machine.card()
    healthy = machine.card()
    machine.say("fail 0 nvmlDeviceGetHandleByIndex_v2 15")
    backend.initialize()
    for _ in range(3):
        assert [s.uuid for s in backend.get_status()] == [healthy]
    assert [e.kind for e in backend.events()] == ["card_unreadable"]


def test_it_comes_back_by_itself(machine: Machine, backend: NvmlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = machine.card(), machine.card()
    machine.say("fail 0 nvmlDeviceGetHandleByIndex_v2 15")
    backend.initialize()
    monkeypatch.setattr("agent.backends.nvml.LOOK_AGAIN_S", 0.0)
    machine.unsay("fail")
    assert [s.uuid for s in backend.get_status()] == [first, second]


def versions(root: Path, *, library: str | None, module: str | None) -> None:
    for old in root.glob("libnvidia-ml.so*"):
        old.unlink()
    if library is not None:
        (root / f"libnvidia-ml.so.{library}").touch()
        (root / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{library}")
    place = root / "sys" / "module" / "nvidia"
    place.mkdir(parents=True, exist_ok=True)
    if module is not None:
        (place / "version").write_text(f"{module}\n")


def test_an_upgrade_under_a_running_agent_is_seen_though_everything_still_works(
    tmp_path: Path, machine: Machine, backend: NvmlBackend
) -> None:
    machine.card()
    versions(tmp_path, library="570.86.10", module="570.86.10")
    backend.initialize()
    assert backend.inventory().advice == ()
    versions(tmp_path, library="580.65.06", module=None)
    backend.get_health()
    assert backend.inventory().advice == ("driver_mismatch",)
    assert backend.get_status()[0].used_mib == 700  # the old library is still open: jobs that run are watched
    versions(tmp_path, library="580.65.06", module="580.65.06")
    backend.get_health()
    assert backend.inventory().advice == ()


def test_versions_are_read_from_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    versions(tmp_path, library="535.183.01", module=None)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  (dvs@x)  Mon Jun  2 2025\nGCC version: …\n"
    )
    assert (library_version(), module_version(str(tmp_path))) == ("535.183.01", "570.158.01")
    assert versions_differ(str(tmp_path))
    (tmp_path / "libnvidia-ml.so.1").unlink()
    assert not versions_differ(str(tmp_path))  # what is not known differs from nothing
