"""What the agent makes of its cards and its host: inventory, advice, slow facts, and how much of it a sync carries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import host
from agent.advice import card_findings, cards_advice
from agent.backends.base import Cards
from agent.cards import CardView, HealthDesk, SteadyAdvice, node_facts, power_headroom_pct
from agent.hardware import _cards_load
from agent.jobenv import environment
from agent.probe import Sample, cards_to
from agent.protocol import GpuGrant, GpuHealth, GpuInfo, GpuStatus, LinkInfo, RankSpec, RdmaInfo

CARD = GpuInfo(uuid="GPU-1", index=0, model="RTX 4090", vendor="nvidia", total_mib=24564, pcie_gen=4, pcie_width=16)
WELL = GpuHealth(
    uuid="GPU-1",
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    pcie_gen=1,  # idle
    pcie_width=16,
    nvlinks=4,
    nvlinks_up=4,
    persistence=True,
    compute_mode="default",
    power_limit_w=450,
    power_default_w=450,
    bar1_mib=32768,
)


# --- advice -------------------------------------------------------------------------------------------------------------


def test_a_card_that_is_well_gives_no_advice_and_neither_does_one_that_tells_nothing() -> None:
    assert card_findings(CARD, WELL) == []
    assert card_findings(CARD, GpuHealth(uuid="GPU-1")) == []


@pytest.mark.parametrize(
    ("changes", "code", "grave"),
    [
        ({"remap_failed": True}, "remap_failed", True),
        ({"remap_pending": True}, "remap_pending", False),
        ({"ecc_uncorrected": 2}, "ecc_uncorrected", False),
        ({"compute_mode": "exclusive_process"}, "compute_mode", False),
        ({"compute_mode": "prohibited"}, "compute_mode", True),
        ({"persistence": False}, "persistence_off", False),
        ({"pcie_width": 8}, "pcie_narrow", False),
        ({"bar1_mib": 256}, "bar1_small", False),
        ({"nvlinks_up": 3}, "nvlink_down", False),
        ({"power_limit_w": 300}, "power_limited", False),
    ],
)
def test_what_is_to_be_put_right(changes: dict[str, Any], code: str, grave: bool) -> None:
    assert [(f.code, f.grave) for f in card_findings(CARD, replace(WELL, **changes))] == [(code, grave)]


@pytest.mark.parametrize(
    "changes", [{"pcie_gen": 1}, {"nvlinks_up": 0}, {"power_limit_w": 430}, {"power_limit_w": 500}, {"bar1_mib": 16384}]
)
def test_what_is_no_reason_to_worry(changes: dict[str, Any]) -> None:
    assert card_findings(CARD, replace(WELL, **changes)) == []


def test_a_node_says_each_thing_once_and_the_grave_ones_first() -> None:
    other = replace(CARD, uuid="GPU-2", index=1)
    health = {
        "GPU-1": replace(WELL, persistence=False),
        "GPU-2": replace(WELL, uuid="GPU-2", persistence=False, remap_failed=True),
        "GPU-gone": replace(WELL, uuid="GPU-gone", pcie_width=1),
    }
    assert cards_advice((CARD, other), health) == ("remap_failed", "persistence_off")


def test_advice_comes_and_goes_with_two_readings_in_a_row() -> None:
    steady, cards = SteadyAdvice(), Cards(gpus=(CARD,))

    def reading(**changes: Any) -> tuple[str, ...]:
        return steady.take(cards, {"GPU-1": replace(WELL, **changes)})

    assert reading(persistence=False) == ("persistence_off",)  # at the start what is seen is said
    assert reading(persistence=False, pcie_width=8) == ("persistence_off",)
    assert reading(persistence=False) == ("persistence_off",)  # a link that was narrow for a moment is nothing
    assert reading(persistence=False, pcie_width=8) == ("persistence_off",)
    assert set(reading(persistence=False, pcie_width=8)) == {"persistence_off", "pcie_narrow"}
    assert "pcie_narrow" in reading(persistence=False)
    assert reading(persistence=False) == ("persistence_off",)
    same = {"GPU-1": replace(WELL, pcie_width=4)}
    for _ in range(5):
        assert "pcie_narrow" not in steady.take(cards, same)  # the same reading again is no second one


def facts(**changes: Any) -> Any:
    return node_facts(**{"cards": Cards(gpus=(CARD,)), "version": "1", "address": None, "has_cgroups": True, **changes})


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("driver_mismatch", "driver_mismatch"),
        ("no_library", "nvml_missing"),
        ("driver_not_loaded", "driver_missing"),
        ("no_permission", "driver_no_permission"),
        ("scenario", "no_hardware_layer"),
        (None, "no_hardware_layer"),
    ],
)
def test_a_layer_that_does_not_open_is_advice_by_its_reason(kind: str | None, code: str) -> None:
    assert code in facts(backend_error="It does not open.", backend_error_kind=kind).advice


def test_the_inventory_holds_cards_layer_and_host() -> None:
    found = facts(cards=Cards(gpus=(CARD,), backends=("nvml", "ascend"), advice=("driver_mismatch",)), advice=("pcie_narrow",))
    assert found.backends == ("nvml", "ascend")
    assert {"driver_mismatch", "pcie_narrow"} <= set(found.advice)
    assert found.cpu_cores is not None
    assert found.memory_mib is not None
    assert found.memory_mib > 100


def test_cards_that_do_not_tell_how_they_are_joined_are_advice() -> None:
    two = (CARD, replace(CARD, uuid="GPU-2", index=1))
    assert "topology_unknown" in facts(cards=Cards(gpus=two)).advice
    assert "topology_unknown" not in facts(cards=Cards(gpus=two, links=(LinkInfo(a="GPU-1", b="GPU-2", kind="system"),))).advice
    assert "topology_unknown" not in facts(cards=Cards(gpus=(CARD,))).advice


def test_what_was_advised_before_a_restart_is_not_advised_after_it() -> None:
    """The cards of the last run stand in while the driver does not answer; its mismatch may be long over."""
    kept = json.dumps(cards_to(Cards(gpus=(CARD,), backends=("nvml",), advice=("driver_mismatch",))))
    assert _cards_load(kept) == Cards(gpus=(CARD,), backends=("nvml",))
    assert _cards_load("{}") is None  # of another version
    assert _cards_load(None) is None


# --- the host -----------------------------------------------------------------------------------------------------------


def test_rdma_ports_are_read_with_state_rate_and_layer(tmp_path: Path) -> None:
    def port(device: str, number: str, **files: str) -> None:
        place = tmp_path / "sys/class/infiniband" / device / "ports" / number
        place.mkdir(parents=True)
        for name, text in files.items():
            (place / name).write_text(text + "\n")

    assert host.rdma_ports(str(tmp_path)) == ()
    assert not host.has_rdma(str(tmp_path))
    port("mlx5_0", "1", state="4: ACTIVE", rate="200 Gb/sec (4X HDR)", link_layer="InfiniBand")
    port("mlx5_1", "1", state="1: DOWN", rate="25 Gb/sec (1X EDR)", link_layer="Ethernet")
    port("strange0", "2")
    assert host.rdma_ports(str(tmp_path)) == (
        RdmaInfo(name="mlx5_0:1", state="ACTIVE", rate_gbps=200, layer="InfiniBand"),
        RdmaInfo(name="mlx5_1:1", state="DOWN", rate_gbps=25, layer="Ethernet"),
        RdmaInfo(name="strange0:2"),
    )
    assert host.has_rdma(str(tmp_path))


def test_numa_nodes_are_counted(tmp_path: Path) -> None:
    assert host.numa_nodes(str(tmp_path)) is None
    for name in ("node0", "node1", "node_states"):
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
    assert host.numa_nodes(str(tmp_path)) == 2


# --- slow facts ------------------------------------------------------------------------------------------------------


def test_slow_facts_are_due_when_they_change_and_every_five_minutes() -> None:
    desk = HealthDesk()
    assert desk.due({"GPU-1": WELL}, 0.0) == (WELL,)
    assert desk.due({"GPU-1": WELL}, 5.0) == (WELL,)  # not taken yet: the sync may have failed
    desk.taken((WELL,), 5.0)
    moved = replace(WELL, pcie_gen=4, energy_j=5, pcie_replays=1)  # moves all the time
    assert desk.due({"GPU-1": moved}, 35.0) == ()
    changed = replace(moved, ecc_uncorrected=1)
    assert desk.due({"GPU-1": changed}, 65.0) == (changed,)
    desk.taken((changed,), 65.0)
    assert desk.due({"GPU-1": changed}, 400.0) == ()  # nothing was read since
    newer = replace(changed, energy_j=9)
    assert desk.due({"GPU-1": newer}, 400.0) == (newer,)


def test_of_several_kinds_of_cards_each_keeps_its_slow_facts() -> None:
    view = CardView(start_of=lambda pid: None)
    other = GpuInfo(uuid="NPU-1", index=1, model="Ascend 910B3", vendor="ascend")

    def take(health: tuple[GpuHealth, ...] | None, *gpus: GpuInfo) -> None:
        view.take(Sample(at=0.0, cards=Cards(gpus=gpus), health=health), holders={}, pids_of=lambda rank: ())

    take((WELL,), CARD, other)
    take((GpuHealth(uuid="NPU-1"),), CARD, other)
    assert set(view.health) == {"GPU-1", "NPU-1"}
    take(None, CARD, other)
    assert set(view.health) == {"GPU-1", "NPU-1"}
    take((WELL,), CARD)
    assert set(view.health) == {"GPU-1"}


# --- which cards a program sees -----------------------------------------------------------------------------------------


def seen(*uuids: str, gpus: tuple[GpuInfo, ...]) -> dict[str, str]:
    spec = RankSpec(job=1, index=0, argv=("x",), gpus=tuple(GpuGrant(uuid=uuid, mib=1) for uuid in uuids))
    return environment(rank="1.1.0", spec=spec, gpus=gpus, cuda_visible="index", artifacts="/a", agent_env={})


def test_a_mig_part_is_given_by_name_and_does_not_shift_the_cards_numbers() -> None:
    whole = replace(CARD, uuid="GPU-a", pci_bus_id="00000000:01:00.0", total_mib=None)
    part = replace(whole, uuid="MIG-p", index=2, parent="GPU-a", total_mib=10112)
    other = replace(CARD, uuid="GPU-b", index=1, pci_bus_id="00000000:41:00.0")
    gpus = (whole, other, part)
    assert seen("GPU-b", gpus=gpus)["CUDA_VISIBLE_DEVICES"] == "1"
    assert seen("MIG-p", gpus=gpus)["CUDA_VISIBLE_DEVICES"] == "MIG-p"


def test_each_vendor_has_its_own_variable_and_its_own_counting() -> None:
    gpus = (
        replace(CARD, uuid="GPU-n", pci_bus_id="00000000:01:00.0"),
        GpuInfo(uuid="NPU-a", index=1, model="Ascend", vendor="ascend"),
        GpuInfo(uuid="NPU-b", index=2, model="Ascend", vendor="ascend"),
        GpuInfo(uuid="GPU-r", index=3, model="MI300X", vendor="amd"),
        GpuInfo(uuid="GPU-i", index=4, model="Arc", vendor="intel"),
    )
    env = seen("NPU-b", "NPU-a", gpus=gpus)
    assert (env["ASCEND_RT_VISIBLE_DEVICES"], env["CUDA_VISIBLE_DEVICES"]) == ("1,0", "")
    assert "HIP_VISIBLE_DEVICES" not in env
    assert seen("GPU-r", gpus=gpus)["HIP_VISIBLE_DEVICES"] == "0"
    assert seen("GPU-i", gpus=gpus)["ZE_AFFINITY_MASK"] == "0"
    assert "ASCEND_RT_VISIBLE_DEVICES" not in seen("GPU-n", gpus=gpus)


# --- the way to the processor, and power --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "hops"),
    [
        ("pci0000:00/0000:3b:00.0", 0),
        ("pci0000:3a/0000:3a:00.0/0000:3b:00.0", 0),  # behind a port of the processor
        ("pci0000:3a/0000:3a:00.0/0000:39:00.0/0000:39:04.0/0000:3b:00.0", 1),
        ("pci0000:3a/0000:3a:00.0/0000:37:00.0/0000:37:08.0/0000:39:00.0/0000:39:04.0/0000:3b:00.0", 2),
        ("pci10000:00/10000:e0:06.0/0000:3b:00.0", 0),  # a domain of its own behind the processor's storage controller
    ],
)
def test_switches_between_a_card_and_the_processor_are_counted(tmp_path: Path, way: str, hops: int) -> None:
    device = tmp_path / "sys/devices" / way
    device.mkdir(parents=True)
    names = tmp_path / "sys/bus/pci/devices"
    names.mkdir(parents=True)
    (names / "0000:3b:00.0").symlink_to(device)
    assert host.pcie_hops("00000000:3B:00.0", str(tmp_path)) == hops
    assert host.pcie_hops("00000000:3C:00.0", str(tmp_path)) is None
    assert host.pcie_hops(None, str(tmp_path)) is None


def test_power_that_is_left_is_a_share_of_what_the_cards_may_draw() -> None:
    cards = (CARD, replace(CARD, uuid="GPU-2", index=1), replace(CARD, uuid="MIG-1", index=2, parent="GPU-2"))
    limits = {uuid: replace(WELL, uuid=uuid, power_limit_w=450) for uuid in ("GPU-1", "GPU-2")}

    def left(*watts: int | None, health: dict[str, GpuHealth] = limits, feed_w: int | None = None) -> int | None:
        status = {f"GPU-{i}": GpuStatus(uuid=f"GPU-{i}", power_w=watt) for i, watt in enumerate(watts, 1)}
        return power_headroom_pct(cards, status, health, feed_w=feed_w)

    assert left(300, 150) == 50  # 450 of 900 W
    assert left(300, 150, feed_w=600) == 25
    assert left(400, 400, feed_w=600) == 0
    assert left(300, None) is None  # who knows
    assert left(300) is None
    assert left(300, 150, health={}) is None
    assert left(300, 150, health={}, feed_w=1000) == 55
    assert power_headroom_pct((), {}, {}) is None
