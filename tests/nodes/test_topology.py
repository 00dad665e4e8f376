"""The table of how cards are joined, the host's ports and the slow facts of cards, on the page and over REST."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import translation
from rest_framework.test import APIClient

from nodes import telemetry
from nodes.fact_words import health_facts, ports_text
from nodes.models import Gpu, GpuLink, Node
from nodes.topology import topology
from tests.factories import gpu_make, node_make, user_make

pytestmark = pytest.mark.django_db


def join(a: Gpu, b: Gpu, kind: str, *, count: int = 1, via: str = "") -> GpuLink:
    return GpuLink.objects.create(a=a, b=b, kind=kind, count=count, via=via)


def cards(node: Node, count: int) -> list[Gpu]:
    return [gpu_make(node, uuid=f"GPU-{node.pk}-{i}", index=i) for i in range(count)]


def codes(found: Any) -> list[str]:
    return [" ".join(cell.code for cell in row.cells) for row in found.rows]


def test_the_table_says_what_nvidia_smi_says() -> None:
    a, b, c, d = cards(node_make(), 4)
    links = [
        join(a, b, "nvlink", count=4),
        join(a, c, "pcie_switch", via="pxb"),
        join(b, c, "pcie_switch", via="pix"),
        join(a, d, "system"),
        join(b, d, "numa"),
    ]
    found = topology([a, b, c, d], links)
    assert found is not None
    assert codes(found) == ["X NV4 PXB SYS", "NV4 X PIX NODE", "PXB PIX X –", "SYS NODE – X"]
    assert [code for code, _text in found.legend] == ["NVn", "PIX", "PXB", "NODE", "SYS"]
    assert "several PCIe switches" in dict(found.legend).values()


def test_xgmi_is_not_called_nvlink() -> None:
    a, b = cards(node_make(), 2)
    found = topology([a, b], [join(a, b, "nvlink", via="xgmi")])
    assert found is not None
    assert codes(found) == ["X XGMI", "XGMI X"]
    assert [text for _code, text in found.legend] == ["XGMI (Infinity Fabric)"]


def test_parts_of_cards_and_missing_ones_are_not_in_the_table_and_one_card_makes_none() -> None:
    node = node_make()
    a, b = cards(node, 2)
    link = join(a, b, "system")
    part = gpu_make(node, uuid="MIG-1", index=2, parent=a.uuid)
    gone = gpu_make(node, uuid="GPU-gone", index=3, state="MISSING")
    found = topology([a, b, part, gone], [link])
    assert found is not None
    assert found.gpus == [a, b]
    assert topology([a, part], []) is None
    assert topology([a, b], []) is None  # nothing is told
    assert topology([a] * 17, []) is None


def test_a_nodes_page_shows_the_table_the_ports_and_a_part_its_card(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "client", lambda: None)
    port = {"name": "mlx5_0:1", "state": "ACTIVE", "rate_gbps": 200, "layer": "InfiniBand"}
    node = node_make("node01", numa_nodes=2, has_rdma=True, rdma_ports=[port])
    a, b = cards(node, 2)
    join(a, b, "nvlink", count=12)
    part = gpu_make(node, uuid="MIG-1", index=2, parent=a.uuid, profile="1g.10gb")
    client.force_login(user_make())
    page = client.get("/nodes/node01/").content.decode()
    assert re.search(r"<td[^>]*data-near[^>]*>NV12</td>", page)
    assert "mlx5_0:1 ACTIVE, 200\N{NO-BREAK SPACE}Gbit/s InfiniBand" in page
    assert "MIG 1g.10gb" in page
    assert 'href="/nodes/node01/gpu0/">gpu0</a>' in client.get(f"/nodes/node01/gpu{part.index}/").content.decode()
    assert "MIG parts" in client.get("/nodes/node01/gpu0/").content.decode()


def test_the_api_tells_links_ports_and_parts_with_one_query_for_all_nodes(django_assert_max_num_queries: Any) -> None:
    for name in ("a", "b", "c"):
        one, two = cards(node_make(name, rdma_ports=[{"name": "mlx5_0:1", "state": "", "rate_gbps": None, "layer": ""}]), 2)
        join(one, two, "pcie_switch", via="pix")
    api = APIClient()
    api.force_authenticate(user_make())
    with django_assert_max_num_queries(6):
        rows = api.get("/api/v1/nodes/").json()["results"]
    assert [row["links"] for row in rows] == [[{"a": 0, "b": 1, "kind": "pcie_switch", "lanes": 1, "via": "pix"}]] * 3
    assert rows[0]["rdma_ports"][0]["name"] == "mlx5_0:1"
    assert {"pcie_hops": None, "numa": None, "parent": None}.items() <= rows[0]["gpus"][0].items()


def test_slow_facts_that_are_not_told_are_left_out() -> None:
    card = Gpu(pcie_width=16)
    assert health_facts(card, None) == []
    assert health_facts(card, {"ecc": None}) == []
    told = {"ecc": True, "ecc_uncorrected": 0, "pcie_gen": 1, "pcie_width": 8, "remapped_rows": 2, "remap_pending": True, "anomalies": 0}
    found = dict(health_facts(card, {**told, "power_limit_w": 300, "power_default_w": 450}))
    assert found == {
        "ECC": "on",
        "Errors not corrected": "0",  # it says so itself
        "Rows remapped": "2, a reset is due",
        "PCIe now": "1.0 ×8 of ×16",
        "Power limit": "300 of 450\N{NO-BREAK SPACE}W",
    }
    with translation.override("zh-hans"):
        assert dict(health_facts(card, {"ecc": False})) == {"ECC": "停用"}


def test_a_port_that_tells_little_is_shown_by_what_it_tells() -> None:
    assert ports_text([{"name": "mlx5_1:1", "state": "", "rate_gbps": None, "layer": ""}]) == ["mlx5_1:1"]
