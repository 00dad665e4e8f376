"""Cards that stay too hot lose their jobs to others and come back once they have cooled; off as shipped."""

from __future__ import annotations

import pytest
from django.conf import LazySettings

from agent.protocol import GpuStatus
from jobs.services.faults import faults_apply
from nodes import telemetry
from nodes.models import CardCare, Gpu, Incident
from nodes.trends import trends_tick
from tests.factories import attempt_make, node_make, xid_rules_ship

pytestmark = [pytest.mark.django_db, pytest.mark.redis]
BEGAN = 1_800_000_000.0


@pytest.fixture
def gpu(live_redis: object, settings: LazySettings) -> Gpu:
    settings.HOT_MOVE_C, settings.HOT_MOVE_S = 85, 90
    xid_rules_ship()
    return node_make("n1", cards=1).gpus.get()


def look(gpu: Gpu, turn: int, temp_c: int | None) -> None:
    now = BEGAN + 30 * turn
    status = GpuStatus(uuid=gpu.uuid, temp_c=temp_c, util_pct=90)
    telemetry.sync_store(node_id=gpu.node_id, session="s", seq=turn, at=now, statuses=[status])
    trends_tick(now=now)
    gpu.refresh_from_db()


def test_heat_for_the_whole_time_moves_its_jobs_and_a_shorter_one_does_not(gpu: Gpu) -> None:
    job = attempt_make(gpus=(gpu,)).job
    for turn in range(3):
        look(gpu, turn, 85)
        assert gpu.state == "HEALTHY"
    look(gpu, 3, 86)
    assert (gpu.state, gpu.state_reason) == ("ISOLATED", "hot")
    incident = Incident.objects.get()
    assert (incident.kind, incident.code, incident.params) == ("heat", "hot", {"temp_c": 86, "limit_c": 85})
    assert faults_apply(now=gpu.state_at) == [job.pk]
    job.refresh_from_db()
    assert job.state == "STOPPING"


def test_it_is_tested_once_it_has_cooled_for_as_long(gpu: Gpu) -> None:
    for turn in range(4):
        look(gpu, turn, 90)
    for turn in range(4, 9):
        look(gpu, turn, 75)  # cooler, not cool
    assert gpu.state == "ISOLATED"
    for turn in range(9, 12):
        look(gpu, turn, 70)
        assert gpu.state == "ISOLATED"
    look(gpu, 12, 60)
    assert (gpu.state, gpu.state_reason) == ("SUSPECT", "cooled")
    assert CardCare.objects.get().wants == "test"
    assert Incident.objects.count() == 1


@pytest.mark.parametrize("dip", [84, 60])
def test_a_look_below_begins_anew_and_one_that_tells_nothing_does_not(gpu: Gpu, dip: int) -> None:
    for turn in range(3):
        look(gpu, turn, 90)
    look(gpu, 3, dip)
    for turn in range(4, 7):
        look(gpu, turn, 90)
    assert gpu.state == "HEALTHY"
    look(gpu, 7, None)
    assert gpu.state == "HEALTHY"
    look(gpu, 8, 90)
    assert gpu.state == "ISOLATED"


def test_a_card_that_a_person_isolated_is_not_brought_back_by_cooling(gpu: Gpu) -> None:
    for turn in range(4):
        look(gpu, turn, 90)
    Gpu.objects.update(state_reason="a new fan is on its way")
    for turn in range(4, 10):
        look(gpu, turn, 40)
    assert gpu.state == "ISOLATED"


def test_as_shipped_heat_moves_nobody(gpu: Gpu, settings: LazySettings) -> None:
    settings.HOT_MOVE_C = 0
    for turn in range(6):
        look(gpu, turn, 99)
    assert gpu.state == "HEALTHY"
