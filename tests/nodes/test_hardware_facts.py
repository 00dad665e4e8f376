"""What agents tell of their hardware beyond the light status: slow facts, throttling, and a driver that no longer fits."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import translation

from agent.protocol import GpuHealth, GpuStatus, SyncRequest
from nodes import telemetry
from nodes.inventory import inventory_apply
from nodes.models import Node
from nodes.serializers import gpu_json, node_json
from nodes.services import node_cordon, node_resume
from nodes.sync import node_sync
from tests.factories import gpu_make, inventory, node_make, user_make

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


@pytest.mark.django_db
class TestCordonOfADriverThatDoesNotFit:
    def apply(self, node: Node, *advice: str) -> Node:
        inventory_apply(node=node, inventory=dataclasses.replace(inventory("GPU-a"), advice=advice), now=NOW)
        return Node.objects.get(pk=node.pk)

    def test_it_takes_no_new_work_and_is_back_by_itself_when_it_fits(self):
        node = node_make()
        assert self.apply(node, "no_cgroup").cordoned is False
        node = self.apply(node, "no_cgroup", "driver_mismatch")
        assert (node.cordoned, node.cordon_reason, node.cordoned_by) == (True, "driver_mismatch", None)
        assert self.apply(node, "driver_mismatch").cordoned is True
        node = self.apply(node, "no_cgroup")
        assert (node.cordoned, node.cordon_reason) == (False, "")

    def test_an_admins_cordon_stays_theirs(self):
        node = node_cordon(node=node_make(), by=user_make(), reason="new fan")
        assert self.apply(node, "driver_mismatch").cordon_reason == "new fan"
        node = self.apply(node)
        assert (node.cordoned, node.cordon_reason) == (True, "new fan")

    def test_a_node_that_an_admin_resumed_all_the_same_stays_resumed_while_nothing_changes(self):
        node = self.apply(node_make(), "driver_mismatch")
        node = node_resume(node=node, by=user_make())
        sync = SyncRequest(session="s", boot_id="b", seq=1)
        node_sync(node=node, sync=sync, now=NOW)
        assert Node.objects.get(pk=node.pk).cordoned is False

    def test_the_reason_is_said_in_the_readers_language_and_an_admins_as_it_is(self):
        node = self.apply(node_make(), "driver_mismatch")
        assert "reboot the node" in node_json(node, [], {})["cordon_reason"]
        with translation.override("zh-hans"):
            assert "重启" in node_json(node, [], {})["cordon_reason"]
        node = node_cordon(node=node, by=user_make(), reason="<b>new fan</b>")
        assert node_json(node, [], {})["cordon_reason"] == "<b>new fan</b>"


@pytest.mark.django_db
@pytest.mark.redis
@pytest.mark.usefixtures("live_redis")
class TestSlowFacts:
    def tell(self, node: Node, *health: GpuHealth, at: datetime = NOW, statuses: tuple[GpuStatus, ...] = ()) -> None:
        telemetry.sync_store(node_id=node.pk, session="s", seq=1, at=at.timestamp(), statuses=statuses, health=health)

    def test_each_card_keeps_its_last_word_though_a_sync_tells_of_few(self):
        now = datetime.now(UTC)
        node = node_make()
        a, b = gpu_make(node, uuid="GPU-a"), gpu_make(node, uuid="GPU-b")
        self.tell(node, GpuHealth(uuid="GPU-a", pcie_width=8), GpuHealth(uuid="GPU-b", ecc=True, ecc_uncorrected=0), at=now)
        self.tell(node, GpuHealth(uuid="GPU-a", pcie_width=16), at=now)
        self.tell(node, at=now)
        found = telemetry.gpus_health([a, b])
        assert found[a.pk] == {"pcie_width": 16, "told_at": pytest.approx(now.timestamp(), abs=0.01)}
        assert (found[b.pk]["ecc"], found[b.pk]["ecc_uncorrected"]) == (True, 0)
        assert "retired_pages" not in found[b.pk]  # not told is not 0

    def test_old_words_and_those_of_a_node_that_left_are_gone(self):
        node = node_make()
        card = gpu_make(node, uuid="GPU-a")
        self.tell(node, GpuHealth(uuid="GPU-a", pcie_width=8), at=datetime.now(UTC) - timedelta(minutes=16))
        assert telemetry.gpus_health([card]) == {}
        self.tell(node, GpuHealth(uuid="GPU-a", pcie_width=8), at=datetime.now(UTC))
        assert set(telemetry.gpus_health([card])) == {card.pk}
        telemetry.node_forget(node.pk)
        assert telemetry.gpus_health([card]) == {}

    @pytest.mark.parametrize(("told", "expected"), [((), []), (("hw_thermal",), ["hw_thermal"]), (None, None)])
    def test_throttling_that_is_not_told_is_not_called_none(self, told, expected):
        node = node_make()
        card = gpu_make(node, uuid="GPU-a")
        self.tell(node, statuses=(GpuStatus(uuid="GPU-a", util_pct=3, throttle=told),), at=datetime.now(UTC))
        assert gpu_json(card, telemetry.gpus_latest([card])[card.pk])["throttle"] == expected
