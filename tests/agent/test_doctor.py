"""`nebula-agent doctor`: what it finds, how it says it, and the command itself."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import doctor
from agent.backends.base import Cards
from agent.config import config_load
from agent.doctor_checks import Check, Facts, Layer, judge
from agent.doctor_words import AREAS, LEVELS, SAYS, line, speaks_chinese
from agent.main import main
from agent.protocol import REACH, GpuHealth, GpuInfo, GpuStatus, IsolationInfo, LinkInfo, RdmaInfo
from agent.status import status_lines
from agent.testing import FakeControlPlane
from tests.agent.nvml_lab import HEALTHY, MIB, Machine
from tests.agent.rank_lab import ROOT

CARD = GpuInfo(uuid="GPU-1", index=0, model="RTX 4090", vendor="nvidia", total_mib=24564, pcie_gen=4, pcie_width=16)
STATUS = GpuStatus(uuid="GPU-1", used_mib=700, util_pct=0, temp_c=40, core_mhz=210, mem_mhz=405)
HEALTH = GpuHealth(
    uuid="GPU-1",
    ecc_uncorrected=0,
    pcie_width=16,
    persistence=True,
    compute_mode="default",
    core_max_mhz=3105,
    mem_max_mhz=10501,
    slow_c=90,
    bar1_mib=32768,
)
WELL = Facts(
    config="/etc/nebulagrid/agent.toml",
    node="node01",
    endpoint="https://lab.example:443",
    running=True,
    isolation=IsolationInfo(identity="same", uid=1000, account="ann", sandbox="mounts", open=("home",)),
    skew_s=0.2,
    layers=(Layer(name="nvml", cards=Cards(gpus=(CARD,), driver_version="570.86"), status=(STATUS,), health=(HEALTH,)),),
    pci={0x10DE: 1},
    kernel_log=True,
    disk_path="/var/lib/nebulagrid",
    disk_free_mib=500_000,
    disk_total_mib=900_000,
    inodes_free_share=0.9,
    shm_mib=64_000,
    cgroup="v2",
    cgroup_note="cgroup v2 at /sys/fs/cgroup (cgroup.kill)",
    limits={"memory": True, "cpu": True, "pids": True, "devices": False},
    container="podman",
    container_gpu=True,
)


def jobs(**changes: Any) -> Facts:
    assert WELL.isolation is not None
    return replace(WELL, isolation=replace(WELL.isolation, **changes))


def with_card(*, info: GpuInfo = CARD, status: dict[str, Any] | None = None, health: dict[str, Any] | None = None) -> Facts:
    layer = replace(
        WELL.layers[0],
        cards=replace(WELL.layers[0].cards, gpus=(info,)),
        status=(replace(STATUS, **(status or {})),),
        health=(replace(HEALTH, **(health or {})),),
    )
    return replace(WELL, layers=(layer,))


def with_layer(**changes: Any) -> Facts:
    return replace(WELL, layers=(replace(WELL.layers[0], **changes),))


def trouble(facts: Facts) -> list[tuple[str, str]]:
    return [(c.level, c.code) for c in judge(facts) if c.level != "pass"]


def test_a_machine_that_is_well_has_only_passes() -> None:
    checks = judge(WELL)
    assert {c.level for c in checks} == {"pass"}
    assert {c.area for c in checks} >= {
        "config",
        "agent",
        "plane",
        "clock",
        "driver",
        "xid",
        "card",
        "disk",
        "memory",
        "cgroups",
        "container",
    }
    assert {"persistence_off_not", "pcie_narrow_not", "bar1_small_not"} <= {c.code for c in checks}


CUT = with_layer(
    cards=Cards(
        gpus=(replace(CARD, total_mib=None), replace(CARD, uuid="MIG-1", index=1, parent="GPU-1", profile="1g.10gb", total_mib=10112)),
        driver_version="570.86",
    ),
    status=(STATUS, replace(STATUS, uuid="MIG-1")),
)
CASES: list[tuple[Facts, list[tuple[str, str]]]] = [
    (replace(WELL, config=None, endpoint=None, node=None), [("warn", "config_none")]),
    (replace(WELL, config=None, endpoint=None, config_error="node_id is missing in agent.toml."), [("fail", "config_bad")]),
    (replace(WELL, running=False), [("warn", "agent_stopped")]),
    (replace(WELL, runs_jobs_as_root=True, isolation=None), [("fail", "running_as_root")]),
    *(
        (jobs(ready=False, problem=problem), [("fail", f"isolation_{problem}")])
        for problem in ("root_same", "not_root", "job_account_missing", "job_account_unknown", "job_account_system")
    ),
    (jobs(ready=False, problem="of_tomorrow"), [("fail", "isolation_problem")]),
    (jobs(uid=0, account="root", open=("home",)), [("fail", "running_as_root")]),
    (jobs(identity="mapped", account=None, uid=0, open=()), []),
    (jobs(open=("home",)), []),
    (jobs(sandbox="none", open=REACH), [("warn", f"open_{word}") for word in REACH if word != "home"]),
    (jobs(open=("home", "of_tomorrow")), [("warn", "open_other")]),
    (replace(WELL, exposed=("/srv/grid",)), [("warn", "exposed")]),
    (replace(WELL, sandbox_refused=("mounts: user namespace: Operation not permitted",)), [("warn", "sandbox_refused")]),
    (replace(WELL, plane_error="https://lab.example cannot be reached: timed out"), [("fail", "plane_unreachable")]),
    (replace(WELL, skew_s=None), [("warn", "clock_unknown")]),
    (replace(WELL, skew_s=-6.0), [("warn", "clock_skew")]),
    (replace(WELL, skew_s=4000.0), [("fail", "clock_skew")]),
    (replace(WELL, skew_s=5.0), []),
    (replace(WELL, layers=(), pci={}), []),
    (replace(WELL, layers=()), [("fail", "no_driver")]),
    (replace(WELL, layers=(), nouveau=True), [("fail", "nouveau")]),
    (replace(WELL, pci={0x10DE: 1, 0x8086: 1}), [("warn", "no_driver")]),  # graphics inside the processor
    (with_layer(silent=True, cards=Cards(), waited_s=15.0), [("fail", "layer_silent")]),
    (with_layer(error="The NVIDIA driver is not loaded.", error_kind="driver_not_loaded", cards=Cards()), [("fail", "layer_error")]),
    (with_layer(error="They differ.", error_kind="driver_mismatch", cards=Cards()), [("fail", "driver_mismatch")]),
    (with_layer(cards=replace(WELL.layers[0].cards, advice=("driver_mismatch",))), [("fail", "driver_mismatch")]),
    (with_layer(cards=Cards(), status=(), health=()), [("warn", "layer_ok")]),
    (replace(WELL, kernel_log=False), [("warn", "kernel_log_hidden")]),
    (replace(WELL, wsl=True), [("warn", "wsl")]),
    (with_layer(status=(GpuStatus(uuid="GPU-1", error="lost"),)), [("fail", "card_error")]),
    (with_layer(status=()), [("fail", "card_error")]),
    (with_card(info=replace(CARD, total_mib=None)), [("warn", "memory_unknown")]),
    (with_card(info=replace(CARD, total_mib=None, unified=True, vendor="intel")), []),
    (with_card(health={"persistence": False}), [("warn", "persistence_off")]),
    (with_card(health={"driver_model": "wddm"}), [("warn", "wddm")]),
    (with_card(health={"driver_model": "tcc"}), []),
    (with_card(health={"pcie_width": 8}), [("warn", "pcie_narrow")]),
    (with_card(health={"bar1_mib": 256}), [("warn", "bar1_small")]),
    (with_card(health={"remap_failed": True}), [("fail", "remap_failed")]),
    (with_card(health={"remap_pending": True}), [("warn", "remap_pending")]),
    (with_card(health={"ecc_uncorrected": 3}), [("warn", "ecc_uncorrected")]),
    (with_card(health={"compute_mode": "prohibited"}), [("fail", "compute_mode")]),
    (with_card(health={"nvlinks": 4, "nvlinks_up": 3}), [("warn", "nvlink_down")]),
    (with_card(health={"power_limit_w": 200, "power_default_w": 450}), [("warn", "power_limited")]),
    (with_card(status={"temp_c": 86}), [("warn", "card_hot")]),
    (with_card(status={"throttle": ("hw_thermal", "power_cap")}), [("warn", "card_throttled")]),
    (with_card(status={"throttle": ("power_cap",)}), []),  # how a card is meant to work
    (with_card(status={"util_pct": 97, "mem_mhz": 405, "core_mhz": 2500}), [("warn", "mem_clock_low")]),
    (with_card(status={"util_pct": 97, "mem_mhz": 10251, "core_mhz": 1200}), [("warn", "core_clock_low")]),
    (with_card(status={"util_pct": 97, "mem_mhz": 10251, "core_mhz": 2500}), []),
    (with_card(status={"util_pct": None, "mem_mhz": 405}), []),  # who does not tell its use is not called loaded
    (with_layer(health=()), []),  # nor is what is not told a finding
    (replace(WELL, disk_free_mib=500), [("fail", "disk_full")]),
    (replace(WELL, disk_free_mib=9000), [("warn", "disk_low")]),
    (replace(WELL, disk_free_mib=20_000, disk_total_mib=900_000), [("warn", "disk_low")]),
    (replace(WELL, disk_free_mib=None, disk_total_mib=None), []),
    (replace(WELL, inodes_free_share=0.01), [("warn", "inodes_low")]),
    (replace(WELL, shm_mib=64), [("warn", "shm_small")]),
    (replace(WELL, cgroup="none", cgroup_note="no writable cgroup"), [("warn", "no_cgroup")]),
    (
        replace(WELL, limits=dict.fromkeys(("memory", "cpu", "pids", "devices"), False)),
        [("warn", "limit_memory_off"), ("warn", "limit_cpu_off"), ("warn", "limit_pids_off")],
    ),
    (replace(WELL, container=None), [("warn", "container_none")]),
    (replace(WELL, container_gpu=False), [("warn", "container_no_gpu")]),
    (replace(WELL, rdma=(RdmaInfo(name="mlx5_0:1", state="ACTIVE"),)), []),
    (replace(WELL, rdma=(RdmaInfo(name="mlx5_0:1", state="DOWN"),)), [("warn", "rdma_down")]),
    (replace(WELL, rdma=(RdmaInfo(name="mlx5_0:1", state="ACTIVE"),), memlock_mib=8), [("warn", "memlock_low")]),
]


@pytest.mark.parametrize(("facts", "expected"), CASES, ids=[f"{i}-{(e or [('', 'well')])[0][1]}" for i, (_, e) in enumerate(CASES)])
def test_each_trouble_is_found_and_nothing_else(facts: Facts, expected: list[tuple[str, str]]) -> None:
    assert trouble(facts) == expected


def test_a_card_in_mig_parts_is_well_without_memory_of_its_own() -> None:
    assert trouble(CUT) == []


def test_two_cards_without_a_told_way_between_them() -> None:
    other = replace(CARD, uuid="GPU-2", index=1)
    cards = Cards(gpus=(CARD, other), driver_version="570.86")
    status = (STATUS, replace(STATUS, uuid="GPU-2"))
    assert trouble(with_layer(cards=cards, status=status)) == [("warn", "topology_unknown")]
    known = replace(cards, links=(LinkInfo(a="GPU-1", b="GPU-2", kind="system"),))
    assert trouble(with_layer(cards=known, status=status)) == []


def test_everything_it_can_find_has_words_in_both_languages() -> None:
    checks = [check for facts, _ in [(WELL, []), (CUT, []), *CASES] for check in judge(facts)]
    for check in checks:
        for chinese in (False, True):
            text = line(check, chinese=chinese)
            assert "{" not in text
            assert "None" not in text or check.params.get("total_mib", 0) is None
            assert bool(re.search(r"[\u4e00-\u9fff]", text)) is chinese
    source = "".join((ROOT / "agent" / name).read_text() for name in ("doctor_checks.py", "advice.py"))
    codes = set(re.findall(r'code="(\w+)"', source)) | set(re.findall(r'\badd\("(\w+)"', source))
    assert len(codes) > 30, "the pattern no longer finds the codes"
    assert codes <= set(SAYS)
    assert {c.code for c in checks} | {"topology_unknown"} == set(SAYS)  # and no sentence that nobody says
    assert {c.area for c in checks} | {"topology"} == set(AREAS)
    assert set(LEVELS) == {"pass", "warn", "fail"}


@pytest.mark.parametrize(
    ("env", "chinese"),
    [({}, False), ({"LANG": "zh_CN.UTF-8"}, True), ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, False), ({"LC_MESSAGES": "zh_SG"}, True)],
)
def test_it_speaks_the_terminals_language(env: dict[str, str], chinese: bool) -> None:
    assert speaks_chinese(env) is chinese


def test_a_name_can_not_steer_the_terminal() -> None:
    text = line(Check(level="pass", area="card", code="card_ok", gpu=0, params={"model": "X\x1b[2J\nY", "total_mib": 1}))
    assert "\x1b" not in text
    assert "\n" not in text


# --- looking ------------------------------------------------------------------------------------------------------------


def test_accelerators_are_counted_on_the_bus(tmp_path: Path) -> None:
    for name, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030000"),
        ("0000:01:00.1", "0x10de", "0x040300"),  # its sound device
        ("0000:02:00.0", "0x10de", "0x030200"),
        ("0000:c1:00.0", "0x19e5", "0x120000"),
        ("0000:00:1f.0", "0x8086", "0x060100"),
        ("0000:03:00.0", "0x1a03", "0x030000"),  # the board's own graphics
    ):
        place = tmp_path / "sys/bus/pci/devices" / name
        place.mkdir(parents=True)
        (place / "vendor").write_text(vendor + "\n")
        (place / "class").write_text(kind + "\n")
    assert doctor.pci_accelerators(str(tmp_path)) == {0x10DE: 2, 0x19E5: 1}


def config_of(folder: Path, plane: FakeControlPlane, **more: object) -> Path:
    path = folder / "agent.toml"
    values = {"endpoint": plane.url, "node_id": 7, "name": "node07", "data_dir": str(folder / "data"), **more}
    path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items()))
    return path


@pytest.mark.parametrize("ahead_s", [0, 30])
def test_the_clock_is_compared_with_the_control_planes(tmp_path: Path, ahead_s: int) -> None:
    with FakeControlPlane() as plane:
        config = config_load(config_of(tmp_path, plane), {})
        error, skew = doctor.plane_ask(config, clock=lambda: time.time() + ahead_s)
    assert error is None
    assert skew is not None
    assert abs(skew - ahead_s) < 3


def test_a_control_plane_that_is_away_is_said_in_a_sentence(tmp_path: Path) -> None:
    with FakeControlPlane() as plane:
        config = config_load(config_of(tmp_path, plane), {})
    error, skew = doctor.plane_ask(config)
    assert error is not None
    assert "cannot be reached" in error
    assert skew is None


# --- what a job can reach ---------------------------------------------------------------------------------------------------


def test_it_fails_while_a_job_could_run_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is asked of this machine, not by what was told to the judge."""
    with FakeControlPlane() as plane:
        config = config_load(config_of(tmp_path, plane), {})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = doctor.isolation_look(config)
    assert found is not None
    assert [(c.level, c.code) for c in judge(replace(WELL, isolation=found.info)) if c.area == "isolation"] == [
        ("fail", "isolation_root_same")
    ]


def test_an_agent_that_runs_is_believed_and_an_older_one_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeControlPlane() as plane:
        config = config_load(config_of(tmp_path, plane), {})
    config.data_dir.mkdir()
    monkeypatch.setattr(doctor, "_is_running", lambda config: True)
    info = IsolationInfo(identity="same", uid=1234, account="eve", sandbox="landlock", open=("paths", "home"))
    status = config.data_dir / "status.json"
    status.write_text(json.dumps({"pid": os.getpid(), "isolation": info.to_json()}))
    found = doctor.isolation_look(config)
    assert found is not None
    assert found.info == info
    assert not doctor.runs_jobs_as_root(config)
    status.write_text(json.dumps({"pid": os.getpid()}))
    assert doctor.isolation_look(config) is None
    assert doctor.runs_jobs_as_root(config) is (os.geteuid() == 0)


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    with FakeControlPlane() as plane:
        config = config_load(config_of(tmp_path, plane), {})
    before = sorted(tmp_path.rglob("*"))
    assert doctor.isolation_look(config) is not None
    assert sorted(tmp_path.rglob("*")) == before


def test_status_says_who_jobs_run_as_and_what_they_reach() -> None:
    def line_of(**fields: Any) -> str:
        found = {"node": "n", "node_id": 1, "endpoint": "e", "running": True, "ranks": [], "isolation": {"uid": 1000, **fields}}
        return next(text for text in status_lines(found, now=0.0) if text.startswith("Jobs"))

    assert line_of(identity="same", account="ann", sandbox="mounts", open=["signals", "home"]) == (
        "Jobs      run as ann, sandbox mounts; open to them: signals, home"
    )
    assert line_of(identity="mapped", sandbox="mounts") == (
        "Jobs      each runs as its owner's account, sandbox mounts; open to them: nothing of others"
    )
    assert "root_same" in line_of(identity="same", ready=False, problem="root_same")


# --- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path / "state")
    found.write()
    monkeypatch.setenv("NEBULA_NVML_STATE", str(found.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    monkeypatch.setenv("LC_ALL", "C")
    return found


def test_it_finds_what_is_wrong_with_real_cards_and_fails(tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.card(**HEALTHY)
    machine.card(**{**HEALTHY, "pcie_width_now": 8, "bar1": 256 * MIB, "rows": "0,9,0,1"})
    with FakeControlPlane() as plane:
        code = main(["doctor", "--json", "--config", str(config_of(tmp_path, plane, backend="nvml"))])
    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert found["ok"] is False
    about_1 = {(c["level"], c["code"]) for c in found["checks"] if c["gpu"] == 1}
    assert about_1 == {("pass", "card_ok"), ("fail", "remap_failed"), ("warn", "pcie_narrow"), ("warn", "bar1_small")}
    assert {c["code"] for c in found["checks"] if c["gpu"] == 0} == {"card_ok"}
    assert {c["code"] for c in found["checks"]} >= {"config_ok", "agent_stopped", "plane_ok", "clock_ok", "layer_ok", "persistence_off_not"}
    (narrow,) = (c for c in found["checks"] if c["code"] == "pcie_narrow")
    assert narrow["text"] == "Its link has 8 of 16 lanes."
    assert narrow["advice"]


def test_a_driver_that_does_not_open_is_a_failure_with_its_remedy(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.card()
    machine.say("init 18")
    with FakeControlPlane() as plane:
        assert main(["doctor", "--config", str(config_of(tmp_path, plane, backend="nvml"))]) == 1
    said = capsys.readouterr().out
    (mismatch,) = (text for text in said.splitlines() if "differ in version" in text)
    assert mismatch.startswith("FAIL")
    assert "reboot" in mismatch


def test_a_driver_that_hangs_does_not_hang_the_doctor(tmp_path: Path, machine: Machine) -> None:
    machine.card()
    machine.say("hang nvmlDeviceGetUtilizationRates 600000")
    with FakeControlPlane() as plane:
        config = config_load(config_of(tmp_path, plane, backend="nvml"), {})
    (layer,) = doctor.layers_read(config, wait_s=0.5)
    assert (layer.name, layer.silent) == ("nvml", True)


def test_simulated_cards_pass_and_the_status_is_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    with FakeControlPlane() as plane:
        assert main(["doctor", "--config", str(config_of(tmp_path, plane, backend="simulated"))]) == 0
    said = capsys.readouterr().out
    assert "simulated：驱动 simulated，2 块卡。" in said
    assert said.rstrip().endswith("0 项失败。")


def test_without_a_configuration_it_looks_at_the_machine_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEBULA_AGENT_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("LC_ALL", "C")
    main(["doctor"])
    said = capsys.readouterr().out
    assert "has not joined" in said
    assert "disk" in said


def test_a_configuration_that_is_wrong_is_one_failed_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "agent.toml").write_text("endpoint = \n")
    assert main(["doctor", "--json", "--config", str(tmp_path / "agent.toml")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert next(c["code"] for c in found["checks"] if c["level"] == "fail") == "config_bad"
