"""Back in time and on from there: a backup is restored while jobs run that it knows, half knows and does not know."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.live.grid import PATIENCE_S, Grid, GridError, scenario_cards, wait_for
from client.sdk import NebulaClient
from tests.e2e.helpers import FINAL_STATES, invariants, log_of, running

#: Says when it starts and stops, and stops when it is told to: a second run would leave a second line.
WITNESS = 'echo "start $$" >> "$1"; echo begin; while [ ! -e "$1.go" ]; do sleep 0.1; done; echo end; echo "stop $$" >> "$1"'


class Jobs:
    """Jobs by a letter; each takes a whole card."""

    def __init__(self, grid: Grid, folder: Path) -> None:
        self.grid, self.folder, self.ids = grid, folder, dict[str, int]()

    def submit(self, client: NebulaClient, name: str, **more: Any) -> None:
        argv = ["/bin/sh", "-c", WITNESS, "witness", str(self.folder / name)]
        self.ids[name] = client.job_submit(argv=argv, name=name, **{"gpu_count": 1, **more})["id"]

    def runs(self, client: NebulaClient, *names: str) -> None:
        for name in names:
            running(client, self.ids[name])
            wait_for(lambda name=name: (self.folder / name).exists(), what=f"{name} has started")  # type: ignore[misc]

    def release(self, *names: str) -> None:
        for name in names:
            (self.folder / f"{name}.go").touch()

    def ends(self, client: NebulaClient, *names: str) -> None:
        self.release(*names)
        for name in names:
            ended = client.wait(self.ids[name], timeout_s=PATIENCE_S)
            assert ended["state"] == "SUCCEEDED", (name, ended["end"])

    def states(self, client: NebulaClient) -> dict[str, str]:
        found = {}
        for name, pk in self.ids.items():
            job = client.job_get(pk)
            found[name] = job["end"]["reason"] if job["state"] in FINAL_STATES else job["state"]
        return found

    def witnessed(self, *names: str) -> None:
        """Each ran exactly once, from begin to end."""
        for name in names:
            words = [line.split() for line in (self.folder / name).read_text().splitlines()]
            assert [word for word, _ in words] == ["start", "stop"], (name, words)
            assert len({pid for _, pid in words}) == 1, (name, words)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_nothing_of_a_backup_is_lost_and_no_job_runs_twice(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "grid", agents=2, scenario=scenario_cards(count=2))
    jobs = Jobs(grid, tmp_path)
    backup = tmp_path / "backup.tar.gz"
    with grid.running():
        with grid.client() as client:
            # 1. Four run, three wait; then the backup.
            for name in "abxy":
                jobs.submit(client, name)
            jobs.runs(client, *"abxy")
            jobs.submit(client, "c")
            jobs.submit(client, "e")
            jobs.submit(client, "g", gpu_count=4, nodes=2)
            wait_for(lambda: all(log_of(client, jobs.ids[name]) == "begin\n" for name in "abxy"), what="their output arrived")
            grid.manage("backup", str(backup))
            assert backup.stat().st_mode & 0o777 == 0o600
            # 2. What the backup will not know: b and x end, c starts, e comes and goes, f is new.
            jobs.ends(client, "b")
            jobs.runs(client, "c")
            jobs.ends(client, "x")
            jobs.runs(client, "e")
            jobs.submit(client, "f", priority=10)
            jobs.ends(client, "e")
            jobs.runs(client, "f")
            assert jobs.states(client)["g"] == "WAITING"
        with pytest.raises(GridError, match="The control plane runs"):
            grid.manage("restore", str(backup), "--force")
        # 3. Back in time. a, c, f and y run on meanwhile; the nodes' agents are not the control plane's to restore.
        grid.stop()
        with pytest.raises(GridError, match="--force"):
            grid.manage("restore", str(backup))
        said = grid.manage("restore", str(backup), "--force")
        assert "asks 2 nodes" in said
        grid.start()
        wait_for(lambda: "no restore is open" in grid.manage("restore_status"), what="both nodes have answered", every_s=0.5)
        with grid.client() as client:
            assert jobs.states(client) == {
                "a": "RUNNING",
                "y": "RUNNING",
                "c": "RUNNING",
                "f": "RUNNING",
                "b": "exit_unknown",
                "x": "exit_unknown",
                "e": "exit_unknown",
                "g": "WAITING",
            }
            found = client.job_get(jobs.ids["f"])
            assert (found["name"], found["owner"]) == ("f", "admin@localhost")
            # 4. And on from there: a new job has a new number, what waited starts once, all output is there.
            jobs.submit(client, "n", gpu_count=0, gpu_mem=None)  # without a card: nothing that g would wait for
            assert jobs.ids["n"] > max(jobs.ids[name] for name in "abcefgxy") + 900
            jobs.ends(client, *"acfy")
            jobs.runs(client, "g")
            jobs.ends(client, "g", "n")
            jobs.witnessed(*"abcefxyn")
            assert (tmp_path / "g").read_text().count("start") == 2, "g has two parts, one on each node"
            assert client.job_get(jobs.ids["g"])["attempt"]["epoch"] > 1000
            for name in "acfyn":
                assert log_of(client, jobs.ids[name]) == "begin\nend\n", name
        assert invariants(grid) == []
        aside = list(grid.data.glob("replaced-*"))
        assert len(aside) == 1
        assert (aside[0] / "nebula.sqlite3").exists()


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_an_installation_moves_to_another_folder(tmp_path: Path) -> None:
    """The portable form, secrets included: the same people, tokens and jobs elsewhere."""
    old = Grid(tmp_path / "old", agents=0)
    backup = tmp_path / "backup.tar.gz"
    with old.running():
        with old.client() as client:
            job = client.job_submit(argv=["true"], gpu_mem="4G", name="waits")
            token = old.profile().token
        old.manage("backup", "--portable", str(backup))
    new = Grid(tmp_path / "new", agents=0)
    new.manage("restore", str(backup))
    assert (new.data / "secret-key").read_text() == (old.data / "secret-key").read_text()
    assert (new.data / "admin-password").read_text() == (old.data / "admin-password").read_text()
    with new.running(), new.client(token) as client:
        assert client.job_get(job["id"])["name"] == "waits"
    listed = subprocess.run(["tar", "tzf", str(backup)], capture_output=True, text=True, check=True).stdout.split()
    assert listed[0] == "database.jsonl"
    assert listed[-1] == "manifest.json"
