"""What goes over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.protocol import GpuStatus, HostStatus, Inventory, IsolationInfo, Observed, ProtocolError, SyncRequest


def test_the_report_of_eight_busy_cards_and_eight_ranks_is_under_two_kilobytes() -> None:
    """All that a sync tells every 5 s: the cards, the host, and what runs."""
    status = tuple(
        GpuStatus(
            uuid=f"GPU-{i:08x}-aaaa-4bbb-8ccc-0123456789ab",
            used_mib=23456,
            reserved_mib=512,
            util_pct=100,
            mem_util_pct=87,
            temp_c=81,
            power_w=448,
            fan_pct=73,
            core_mhz=2520,
            mem_mhz=10501,
            throttle=("power_cap",) if i == 0 else (),
            foreign_mib=1024 if i == 7 else 0,
        )
        for i in range(8)
    )
    observed = tuple(Observed(rank=f"{i}.1.0", epoch=1, state="RUNNING", started_at=1700000000.123) for i in range(8))
    host = HostStatus(cpu_pct=100, memory_mib=2_064_384, disk_free_mib=15_260_000, disk_total_mib=15_360_000)
    sync = SyncRequest(session="0" * 36, boot_id="0" * 36, seq=123456, gpus=status, observed=observed, host=host)
    wire = sync.to_json(columns=True)
    assert len(json.dumps(wire, separators=(",", ":"))) < 2000
    assert SyncRequest.from_json(wire) == SyncRequest.from_json(sync.to_json()) == sync


def test_statuses_in_columns_are_read_as_strictly_as_one_by_one() -> None:
    def read(cards: Any) -> SyncRequest:
        return SyncRequest.from_json({"session": "s", "boot_id": "b", "seq": 1, "cards": cards})

    found = read({"uuid": ["A", "B"], "temp_c": [61, None], "throttle": [None, ["hw_thermal"]], "later": [1]})
    assert found.gpus == (GpuStatus(uuid="A", temp_c=61, throttle=None), GpuStatus(uuid="B", throttle=("hw_thermal",)))
    for cards, words in (
        ({"temp_c": [61]}, "uuid is missing"),
        ({"uuid": ["A", "B"], "temp_c": [61]}, "temp_c has 1 values"),
        ({"uuid": ["A"], "temp_c": ["61"]}, "temp_c[0] must be int"),
        ({"uuid": "A"}, "object of lists"),
        (["A"], "object of lists"),
    ):
        with pytest.raises(ProtocolError) as refused:
            read(cards)
        assert words in str(refused.value)


def test_what_a_job_can_reach_is_read_as_it_was_sent() -> None:
    sent = IsolationInfo(identity="same", uid=1000, account="ann", sandbox="mounts", open=("signals", "home"), limits={"pids": True})
    inventory = Inventory(hostname="gpu01", isolation=sent)
    assert Inventory.from_json(json.loads(json.dumps(inventory.to_json()))) == inventory
    assert Inventory.from_json({"hostname": "gpu01"}).isolation is None, "an older agent tells nothing"
