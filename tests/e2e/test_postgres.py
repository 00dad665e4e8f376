"""The spine once more on a PostgreSQL and a Redis of somebody else's, as an installation of more than one lab room has them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.live.grid import Grid, wait_for
from nebulagrid.embedded import postgres_bin, postgres_temporary, redis_temporary
from tests.e2e.conftest import CARDS
from tests.e2e.helpers import invariants

pytestmark = [pytest.mark.soak, pytest.mark.redis, pytest.mark.skipif(postgres_bin() is None, reason="postgres lane: no PostgreSQL")]


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    with postgres_temporary() as database, redis_temporary() as redis:
        found = Grid(tmp_path, agents=2, scenario=CARDS, env={"NEBULA_DATABASE_URL": database, "NEBULA_REDIS_URL": redis})
        with found.running():
            yield found


def test_jobs_run_once_on_postgresql_through_killed_processes(grid: Grid, tmp_path: Path) -> None:
    assert not (grid.data / "nebula.sqlite3").exists()
    witness = tmp_path / "witness"
    with grid.client() as client:
        ids = [
            client.job_submit(
                argv=["sh", "-c", f"echo start >> {witness}.{number}; sleep 2; echo stop >> {witness}.{number}"], gpu_mem="4G"
            )["id"]
            for number in range(20)
        ]
        for name in ("web", "worker", "agent", "beat"):
            old = grid.kill(name, signal.SIGKILL)
            grid.wait_restarted(name, old)
            wait_for(grid.answers, what="the web server answers")
        wait_for(
            lambda: not list(client.jobs(state="WAITING,STARTING,RUNNING,STOPPING")), what="all jobs ended", deadline_s=120, every_s=0.5
        )
        assert {client.job_get(pk)["state"] for pk in ids} == {"SUCCEEDED"}
    for number in range(20):
        assert Path(f"{witness}.{number}").read_text() == "start\nstop\n"
    assert invariants(grid) == []
