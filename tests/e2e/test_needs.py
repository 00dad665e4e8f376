"""What a job asks of its machine, on the real processes: it lands where it is to be had, and waits for what others hold of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bench.live.grid import Grid, wait_for
from client.errors import NebulaError
from client.sdk import NebulaClient
from tests.e2e.helpers import running


@pytest.fixture
def labelled(client: NebulaClient) -> Iterator[str]:
    """The second node, with a label."""
    name = max(node["name"] for node in client.node_list())
    client.node_label(name, {"rack": "三楼"})
    yield name
    client.node_label(name, {"rack": None})


def test_a_job_lands_on_the_node_that_has_what_it_asks_for(grid: Grid, client: NebulaClient, labelled: str) -> None:
    memory = client.node_get(labelled)["memory_mib"]
    assert memory
    asks = ["--gpu-mem", "4G", "--mem", f"{memory * 6 // 10}M", "--cpus", "0.1", "--cuda", "12.2", "--label", "rack=三楼"]

    def submit() -> int:
        done = grid.ctl("submit", "--json", "--workdir", "/", *asks, "--", "sleep", "600")
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["id"])

    first = submit()
    assert [rank["node"] for rank in running(client, first)["attempt"]["ranks"]] == [labelled]
    second = submit()  # its cards have room; the host has not
    wait_for(lambda: (client.job_get(second)["wait"] or {}).get("code") == "host_memory", what="it waits for host memory")
    assert labelled in client.job_why(second)["text"]
    client.job_cancel(first)
    assert [rank["node"] for rank in running(client, second)["attempt"]["ranks"]] == [labelled]
    with pytest.raises(NebulaError) as refused:
        client.job_submit(argv=["true"], constraints={"cuda_min": "99.1", "labels": {"rack": "三楼"}})
    assert refused.value.code == "never_fits"
    assert "CUDA 99.1 or newer; here are: 12.4" in refused.value.message
