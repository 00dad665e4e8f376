"""Cards are known by UUID for ever; what an inventory changes and what it must not."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.protocol import Inventory, LinkInfo, RdmaInfo, SyncRequest
from jobs.scheduler import need
from nodes.errors import NodeRefused
from nodes.incidents import incident_open
from nodes.inventory import inventory_apply, nominal_mib
from nodes.models import CardCare, Gpu, GpuLink, GpuState, HealthEvent, Node, NodeState
from nodes.services import node_confirm
from quotas.models import AuditEntry
from tests.factories import attempt_make, gpu_info, gpu_make, inventory, node_make, user_make

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def test_the_nominal_size_is_the_cores_for_every_total():
    different = [mib for mib in range(1, 200 * 1024) if nominal_mib(mib) != need.nominal_mib(mib)]
    assert different == []


@pytest.mark.parametrize(
    ("total", "nominal"), [(24_564, 24_576), (16_376, 16_384), (81_559, 81_920), (24_576, 24_576), (5_000, 5_120), (1, 1_024)]
)
def test_the_nominal_size_is_the_one_on_the_box(total, nominal):
    assert nominal_mib(total) == nominal


@pytest.mark.django_db
class TestInventory:
    def apply(self, node: Node, what: Inventory, *, now: datetime = NOW) -> bool:
        is_settled = inventory_apply(node=node, inventory=what, now=now)
        node.refresh_from_db()
        return is_settled

    @pytest.mark.parametrize("index", [2**62, -1])
    def test_an_index_that_no_column_holds_keeps_no_card_out(self, index):
        node = node_make()
        assert self.apply(node, dataclasses.replace(inventory(), gpus=(gpu_info("GPU-a", index),)))
        assert 0 <= node.gpus.get().index < 2**31

    def test_a_card_that_was_replaced_is_retired_and_the_new_one_waits_for_its_test(self):
        node = node_make()
        self.apply(
            node,
            replace(inventory(), gpus=(gpu_info("GPU-old", pci_bus_id="0000:3b:00.0"), gpu_info("GPU-b", 1, pci_bus_id="0000:5e:00.0"))),
        )
        self.apply(node, replace(inventory(), gpus=(gpu_info("GPU-b", 1, pci_bus_id="0000:5e:00.0"),)))
        old = Gpu.objects.get(uuid="GPU-old")
        incident = incident_open(gpu=old, code="missing", params={}, now=NOW)
        new = gpu_info("GPU-new", pci_bus_id="0000:3B:00.0")
        assert self.apply(node, replace(inventory(), gpus=(new, gpu_info("GPU-b", 1, pci_bus_id="0000:5e:00.0"))), now=LATER)
        old.refresh_from_db()
        incident.refresh_from_db()
        assert (old.state, old.state_reason, incident.phase, incident.closed_at) == ("RETIRED", "replaced", "CLOSED", LATER)
        assert list(incident.entries.values_list("code", flat=True))[-1] == "replaced"
        found = Gpu.objects.get(uuid="GPU-new")
        assert (found.state, found.state_reason, CardCare.objects.get(gpu=found).wants) == ("SUSPECT", "new_card", "test")
        assert Gpu.objects.get(uuid="GPU-b").state == "HEALTHY"
        # Put back, it is as little known as any other.
        back = gpu_info("GPU-old", 2, pci_bus_id="0000:86:00.0")
        self.apply(node, replace(inventory(), gpus=(new, gpu_info("GPU-b", 1, pci_bus_id="0000:5e:00.0"), back)), now=LATER)
        old.refresh_from_db()
        assert (old.state, old.state_reason, CardCare.objects.get(gpu=old).wants) == ("SUSPECT", "new_card", "test")

    def test_a_card_that_still_holds_something_is_not_retired_yet(self):
        node = node_make()
        self.apply(node, replace(inventory(), gpus=(gpu_info("GPU-old", pci_bus_id="0000:3b:00.0"),)))
        attempt_make(gpus=(Gpu.objects.get(),))
        assert not self.apply(node, replace(inventory(), gpus=(gpu_info("GPU-new", pci_bus_id="0000:3b:00.0"),)))
        assert Gpu.objects.get(uuid="GPU-old").state == "MISSING"
        Gpu.objects.update(live_slices=0, held_mib=0)
        assert self.apply(node, replace(inventory(), gpus=(gpu_info("GPU-new", pci_bus_id="0000:3b:00.0"),)))
        assert Gpu.objects.get(uuid="GPU-old").state == "RETIRED"

    def test_it_makes_cards_and_facts(self):
        node = node_make()
        what = inventory("GPU-a", "GPU-b", driver_version="570.1", rdma=True, advice=("no_cgroup",))
        assert self.apply(node, what)
        assert list(node.gpus.values_list("uuid", "index", "total_mib", "nominal_mib", "state")) == [
            ("GPU-a", 0, 24_564, 24_576, "HEALTHY"),
            ("GPU-b", 1, 24_564, 24_576, "HEALTHY"),
        ]
        assert (node.driver_version, node.has_rdma, node.advice, node.cpu_cores) == ("570.1", True, ["no_cgroup"], 8)

    def test_the_same_inventory_again_writes_nothing(self):
        node = node_make()
        what = inventory("GPU-a", "GPU-b", links=(LinkInfo(a="GPU-b", b="GPU-a", kind="nvlink", count=4),))
        self.apply(node, what)
        with CaptureQueriesContext(connection) as queries:
            inventory_apply(node=node, inventory=what, now=LATER)
        assert {query["sql"].split()[0] for query in queries} == {"SELECT"}

    def test_a_vanished_card_is_missing_and_the_others_keep_their_rows(self):
        node = node_make()
        self.apply(node, inventory("GPU-0", "GPU-1", "GPU-2", "GPU-3"))
        before = dict(node.gpus.values_list("uuid", "pk"))
        job = attempt_make(gpus=(node.gpus.get(uuid="GPU-2"),)).job
        # The card at index 1 drops out: those behind it move up.
        self.apply(node, inventory("GPU-0", "GPU-2", "GPU-3"), now=LATER)
        assert dict(node.gpus.values_list("uuid", "pk")) == before
        assert dict(node.gpus.values_list("uuid", "state")) == {
            "GPU-0": "HEALTHY",
            "GPU-1": "MISSING",
            "GPU-2": "HEALTHY",
            "GPU-3": "HEALTHY",
        }
        assert node.gpus.get(uuid="GPU-1").state_at == LATER
        assert [node.gpus.get(uuid=uuid).index for uuid in ("GPU-2", "GPU-3")] == [1, 2]
        assert job.attempts.get().ranks.get().slices.get().gpu.uuid == "GPU-2"

    def test_a_card_that_is_back_is_healthy_again(self):
        node = node_make()
        for what, state in ((inventory("GPU-a"), "HEALTHY"), (inventory(), "MISSING"), (inventory("GPU-a"), "HEALTHY")):
            self.apply(node, what)
            assert node.gpus.get().state == state

    @pytest.mark.parametrize("state", [GpuState.ISOLATED, GpuState.MAINTENANCE, GpuState.SUSPECT])
    def test_a_card_that_was_out_of_service_comes_back_out_of_service(self, state):
        node = node_make()
        gpu = gpu_make(node, uuid="GPU-a", state=state)
        self.apply(node, inventory())
        gpu.refresh_from_db()
        assert gpu.state == GpuState.MISSING
        self.apply(node, inventory("GPU-a"))
        gpu.refresh_from_db()
        assert (gpu.state, gpu.state_reason) == (state, "")

    def test_seeing_an_isolated_card_does_not_heal_it(self):
        node = node_make()
        gpu = gpu_make(node, uuid="GPU-a", state=GpuState.ISOLATED, state_reason="xid 79")
        self.apply(node, inventory("GPU-a"))
        gpu.refresh_from_db()
        assert (gpu.state, gpu.state_reason) == (GpuState.ISOLATED, "xid 79")

    def test_a_node_without_cards_picks_up_two_later(self):
        node = node_make()
        self.apply(node, inventory())
        self.apply(node, inventory("GPU-a", "GPU-b"))
        assert node.gpus.count() == 2

    def test_a_card_moves_to_the_node_that_has_it_now(self):
        old, new = node_make(inventory_sha256="x"), node_make()
        gpu, mate = gpu_make(old, uuid="GPU-a"), gpu_make(old, uuid="GPU-b")
        GpuLink.objects.create(a=gpu, b=mate, kind="nvlink")
        self.apply(old, inventory("GPU-b"))
        assert self.apply(new, inventory("GPU-a"))
        gpu.refresh_from_db()
        old.refresh_from_db()
        assert (gpu.node, gpu.state) == (new, GpuState.HEALTHY)
        assert not GpuLink.objects.exists()
        # If it goes back without the old node having changed in between, that node's inventory must be looked at anew.
        assert old.inventory_sha256 == ""

    def test_a_silent_nodes_card_moves_too(self):
        gpu = gpu_make(node_make(state=NodeState.UNKNOWN), uuid="GPU-a")
        new = node_make()
        assert self.apply(new, inventory("GPU-a"))
        gpu.refresh_from_db()
        assert gpu.node == new

    def test_two_working_nodes_do_not_pull_one_uuid_back_and_forth(self):
        old, new = node_make(), node_make()
        gpu = gpu_make(old, uuid="GPU-a")
        assert self.apply(new, inventory("GPU-a")) is False
        gpu.refresh_from_db()
        assert gpu.node == old

    def test_a_card_with_live_slices_stays_until_they_are_settled(self):
        gpu = gpu_make(node_make(state=NodeState.UNKNOWN), uuid="GPU-a")
        attempt_make(gpus=(gpu,))
        new = node_make()
        assert self.apply(new, inventory("GPU-a")) is False
        gpu.refresh_from_db()
        assert gpu.node != new
        Gpu.objects.filter(pk=gpu.pk).update(live_slices=0, held_mib=0)
        assert self.apply(new, inventory("GPU-a"))

    def test_a_card_does_not_shrink_below_what_is_held_on_it(self):
        node = node_make()
        gpu = gpu_make(node, uuid="GPU-a", index=0)
        attempt_make(gpus=(gpu,), mib=20_000)
        small = inventory("GPU-a", gpus=(gpu_info("GPU-a", mib=16_376),))
        assert self.apply(node, small) is False
        gpu.refresh_from_db()
        assert gpu.total_mib == 24_564
        Gpu.objects.filter(pk=gpu.pk).update(live_slices=0, held_mib=0)
        assert self.apply(node, small)
        gpu.refresh_from_db()
        assert (gpu.total_mib, gpu.nominal_mib) == (16_376, 16_384)

    @pytest.mark.parametrize("total", [None, 0, -1])
    def test_memory_that_is_not_told_is_none_never_zero(self, total):
        node = node_make()
        self.apply(node, inventory("GPU-a", gpus=(gpu_info("GPU-a", mib=total),)))
        assert list(node.gpus.values_list("total_mib", "nominal_mib")) == [(None, None)]

    def test_links_follow_the_inventory(self):
        node = node_make()
        nvlink = LinkInfo(a="GPU-b", b="GPU-a", kind="nvlink", count=4)
        self.apply(node, inventory("GPU-a", "GPU-b", "GPU-c", links=(nvlink, LinkInfo(a="GPU-a", b="GPU-c", kind="system"))))
        assert set(GpuLink.objects.values_list("a__uuid", "b__uuid", "kind", "count")) == {
            ("GPU-a", "GPU-b", "nvlink", 4),
            ("GPU-a", "GPU-c", "system", 1),
        }
        changed = dataclasses.replace(nvlink, count=2)
        strangers = LinkInfo(a="GPU-a", b="GPU-elsewhere", kind="nvlink")
        self.apply(node, inventory("GPU-a", "GPU-b", "GPU-c", links=(changed, strangers)))
        assert list(GpuLink.objects.values_list("a__uuid", "b__uuid", "kind", "count")) == [("GPU-a", "GPU-b", "nvlink", 2)]

    def test_the_host_the_ways_and_the_parts_of_cards_are_kept(self):
        node = node_make()
        ports = (RdmaInfo(name="mlx5_0:1", state="ACTIVE", rate_gbps=200, layer="InfiniBand"), RdmaInfo(name="mlx5_1:1"))
        whole = gpu_info("GPU-a", mib=None, pcie_hops=1, numa=0)
        part = gpu_info("MIG-a", 1, mib=9_984, parent="GPU-a", profile="1g.10gb")
        xgmi = LinkInfo(a="GPU-a", b="MIG-a", kind="nvlink", via="xgmi")
        what = inventory(gpus=(whole, part), rdma=True, rdma_ports=ports, numa_nodes=2, backends=("nvml",), links=(xgmi,))
        self.apply(node, what)
        assert node.rdma_ports == [
            {"name": "mlx5_0:1", "state": "ACTIVE", "rate_gbps": 200, "layer": "InfiniBand"},
            {"name": "mlx5_1:1", "state": "", "rate_gbps": None, "layer": ""},
        ]
        assert (node.numa_nodes, node.backends, node.is_metrics_only) == (2, ["nvml"], False)
        assert list(node.gpus.values_list("uuid", "parent", "profile", "pcie_hops")) == [
            ("GPU-a", "", "", 1),
            ("MIG-a", "GPU-a", "1g.10gb", None),
        ]
        assert GpuLink.objects.get().via == "xgmi"
        with CaptureQueriesContext(connection) as queries:
            inventory_apply(node=node, inventory=what, now=LATER)
        assert {query["sql"].split()[0] for query in queries} == {"SELECT"}

    def test_a_cards_text_is_cut_to_what_the_row_holds(self):
        node = node_make()
        self.apply(node, inventory("GPU-a", gpus=(gpu_info("GPU-a", model="m" * 500), gpu_info("u" * 200, 1)), hostname="h" * 500))
        assert [len(gpu.model) for gpu in node.gpus.all()] == [120]
        assert len(node.hostname) == 253


# --- what can't be, and what staff confirm ------------------------------------------------------------------------------


@pytest.mark.django_db
class TestDoubts:
    @pytest.fixture(autouse=True)
    def quiet(self, published, no_redis):
        pass

    def take(self, node, *cards, **fields):
        fresh = Node.objects.get(pk=node.pk)
        settled = inventory_apply(node=fresh, inventory=replace(inventory(**fields), gpus=cards), now=NOW)
        return settled, {gpu.uuid: gpu for gpu in Gpu.objects.filter(node=node)}

    def test_a_card_of_a_million_gib_is_shown_and_never_scheduled_and_staff_are_told(self):
        node = node_make()
        _, cards = self.take(node, gpu_info("GPU-a", mib=10**9), gpu_info("GPU-b", 1), cpu_cores=10**9, memory_mib=10**9)
        assert (cards["GPU-a"].total_mib, cards["GPU-b"].total_mib) == (None, 24_564)
        node.refresh_from_db()
        assert (node.cpu_cores, node.memory_mib) == (None, None)
        event = HealthEvent.objects.get(kind="implausible")
        assert event.data == {"what": "card_mib", "value": 10**9, "limit": 2**20}

    def test_of_300_000_cards_as_many_as_a_machine_has_are_taken(self):
        node = node_make()
        many = {"hostname": "h", "gpus": [{"uuid": f"G{n}", "index": n, "model": "m", "vendor": "v"} for n in range(300_000)]}
        message = SyncRequest.from_json({"session": "s", "boot_id": "b", "seq": 1, "inventory": many})
        with CaptureQueriesContext(connection) as queries:
            inventory_apply(node=node, inventory=message.inventory, now=NOW)
        assert Gpu.objects.filter(node=node).count() == 256
        assert len(queries) < 20
        assert HealthEvent.objects.get(kind="implausible").data["what"] == "cards"

    def test_where_staff_confirm_new_cards_wait_and_other_sizes_too(self, settings):
        settings.CONFIRM_INVENTORY = True
        node = node_make(isolation=None)
        _, cards = self.take(node, gpu_info("GPU-a"))
        assert cards["GPU-a"].state == "HEALTHY"  # of a node that was not seen before: its enrolment was the confirmation
        _, cards = self.take(node, gpu_info("GPU-a", mib=49_140), gpu_info("GPU-b", 1))
        waiting = {uuid: (gpu.state, gpu.state_reason, gpu.total_mib) for uuid, gpu in cards.items()}
        assert waiting == {"GPU-a": ("MAINTENANCE", "unconfirmed", 49_140), "GPU-b": ("MAINTENANCE", "unconfirmed", 24_564)}
        staff = user_make("staff@lab.example", is_staff=True)
        node_confirm(node=node, by=staff, what="inventory", now=NOW)
        assert set(Gpu.objects.filter(node=node).values_list("state", "state_reason")) == {("HEALTHY", "")}
        assert AuditEntry.objects.get(action="node.inventory_confirmed").params == {"cards": 2}
        with pytest.raises(NodeRefused, match="inventory_none"):
            node_confirm(node=node, by=staff, what="inventory", now=NOW)

    def test_a_size_that_changes_under_a_job_waits_for_its_end(self, settings):
        settings.CONFIRM_INVENTORY = True
        node = node_make(cards=1)
        gpu = node.gpus.get()
        attempt_make(gpus=(gpu,))
        settled, cards = self.take(node, gpu_info(gpu.uuid, mib=49_140))
        assert (settled, cards[gpu.uuid].total_mib, cards[gpu.uuid].state) == (False, 24_564, "HEALTHY")

    def test_without_the_setting_new_cards_are_put_to_use(self):
        node = node_make(cards=1)
        _, cards = self.take(node, gpu_info(node.gpus.get().uuid), gpu_info("GPU-b", 1))
        assert {gpu.state for gpu in cards.values()} == {"HEALTHY"}
