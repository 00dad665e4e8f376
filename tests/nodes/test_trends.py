"""Looks at all cards every 30 s: what runs of figures tell, once an episode, and what it does to scores and pages."""

from __future__ import annotations

import pytest

from agent.protocol import GpuHealth, GpuStatus
from nodes import telemetry
from nodes.models import CardCare, Gpu, HealthEvent
from nodes.trends import trends_tick
from tests.factories import node_make, xid_rules_ship

pytestmark = [pytest.mark.django_db, pytest.mark.redis]
HOT = {"util_pct": 95, "temp_c": 90, "core_mhz": 1500, "mem_mhz": 10_000, "throttle": ("hw_thermal",)}
COOL = {"util_pct": 95, "temp_c": 60, "core_mhz": 2500, "mem_mhz": 10_000}


@pytest.fixture
def gpu(live_redis) -> Gpu:
    xid_rules_ship()
    return node_make("n1", cards=1).gpus.get()


def look(gpu: Gpu, turn: int, **figures) -> None:
    """What a sync tells at the 30 s step ``turn``, and the look of that step."""
    now = 1_800_000_000.0 + 30 * turn
    telemetry.sync_store(
        node_id=gpu.node_id,
        session="s",
        seq=turn,
        at=now,
        statuses=[GpuStatus(uuid=gpu.uuid, **figures)],
        health=[GpuHealth(uuid=gpu.uuid, core_max_mhz=2600, mem_max_mhz=10_500)] if turn == 0 else (),
    )
    trends_tick(now=now)
    trends_tick(now=now + 5)  # a second call within the step does nothing


def kinds() -> list[str]:
    return list(HealthEvent.objects.order_by("pk").values_list("kind", flat=True))


def test_a_card_that_slows_down_for_heat_is_told_once_scored_lower_and_recovers(gpu):
    for turn in range(5):
        look(gpu, turn, **HOT)
    assert kinds() == ["throttle"]
    gpu.refresh_from_db()
    assert (gpu.health_score, gpu.state) == (70, "HEALTHY")
    for turn in range(5, 9):
        look(gpu, turn, **COOL)
    assert kinds() == ["throttle", "trend_over"]
    gpu.refresh_from_db()
    assert gpu.health_score == 100


def test_silence_ends_no_episode(gpu):
    for turn in range(3):
        look(gpu, turn, **HOT)
    for turn in range(3, 8):
        trends_tick(now=1_800_000_000.0 + 30 * turn)
    assert kinds() == ["throttle"]
    gpu.refresh_from_db()
    assert gpu.health_score == 70


def test_memory_that_grows_with_nobody_on_the_card_is_an_event_and_no_more(gpu):
    for turn in range(5):
        look(gpu, turn, used_mib=1000 + 200 * turn, **COOL)
    assert kinds() == ["leak"]
    gpu.refresh_from_db()
    assert (gpu.health_score, gpu.state) == (100, "HEALTHY")


def test_faults_of_the_week_lower_the_score_and_those_of_programs_and_drills_do_not(gpu):
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(1_800_000_000, UTC)
    for eid, data in enumerate([{"xid": 62}, {"xid": 13}, {"xid": 79, "drill": True}]):
        HealthEvent.objects.create(node=gpu.node, gpu=gpu, session="s", eid=eid, kind="xid", data=data, at=at)
    look(gpu, 0, **COOL)
    gpu.refresh_from_db()
    assert gpu.health_score == 85


def test_a_quiet_look_writes_nothing_to_the_database(gpu, django_assert_num_queries):
    look(gpu, 0, **COOL)
    with django_assert_num_queries(4) as found:
        look(gpu, 1, **COOL)
    assert {query["sql"].split()[0] for query in found.captured_queries} == {"SELECT"}


def memory(gpu: Gpu, turn: int, **facts) -> Gpu:
    telemetry.sync_store(
        node_id=gpu.node_id, session="s", seq=turn, at=1_800_000_000.0 + 30 * turn, statuses=[GpuStatus(uuid=gpu.uuid, **COOL)],
        health=[GpuHealth(uuid=gpu.uuid, **facts)],
    )  # fmt: skip
    trends_tick(now=1_800_000_000.0 + 30 * turn)
    gpu.refresh_from_db()
    return gpu


def test_memory_errors_take_a_card_out_once_and_used_up_spare_rows_for_good(gpu, settings):
    assert memory(gpu, 0, ecc_uncorrected=0, remap_failed=False).state == "HEALTHY"
    found = memory(gpu, 1, ecc_uncorrected=2)
    assert (found.state, found.state_reason, CardCare.objects.get().wants) == ("SUSPECT", "ecc_uncorrected", "reset")
    Gpu.objects.update(state="HEALTHY", state_reason="")  # as after a passed self-test
    assert memory(gpu, 2, ecc_uncorrected=2).state == "HEALTHY"
    assert memory(gpu, 3, ecc_uncorrected=1).state == "SUSPECT"  # counted anew since a reset
    assert memory(gpu, 4, remap_failed=True).state == "ISOLATED"
    assert kinds() == ["memory_fault"] * 3


def test_memory_errors_are_only_noted_where_the_setting_says_so(gpu, settings):
    settings.ECC_UNCORRECTED = "note"
    assert memory(gpu, 0, ecc_uncorrected=2).state == "HEALTHY"
