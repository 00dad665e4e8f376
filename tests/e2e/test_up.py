"""`manage.py up` itself: one at a time, clear refusals, a stop that leaves jobs alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from bench.live.grid import PATIENCE_S, ROOT, Grid, port_pick, wait_for
from tests.e2e.helpers import log_of, running


def up(grid: Grid, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "manage.py", "up", *args]
    return subprocess.run(argv, cwd=ROOT, env={**grid.env, **env}, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_second_up_on_the_same_data_is_refused(grid: Grid) -> None:
    done = up(grid)
    assert done.returncode == 2
    assert f"Another `up` (process {grid.process.pid if grid.process else '?'})" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_busy_port_is_refused_in_one_sentence(grid: Grid, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = up(grid, "--no-agent", "--web-port", str(port), NEBULA_DATA=str(tmp_path / "other"))
    assert done.returncode == 2
    assert f"Port {port} on 127.0.0.1 is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_plain_http_beyond_loopback_is_refused(grid: Grid, tmp_path: Path) -> None:
    done = up(grid, NEBULA_DATA=str(tmp_path / "other"), NEBULA_BIND="0.0.0.0")
    assert done.returncode == 2
    assert "NEBULA_TLS_CERT" in done.stderr


def test_a_wrong_database_is_told_without_its_password(grid: Grid, tmp_path: Path) -> None:
    url = f"postgres://u:hunter2@/no?host={tmp_path}"
    done = up(grid, "--web-port", str(port_pick()), NEBULA_DATA=str(tmp_path / "other"), NEBULA_DATABASE_URL=url)
    assert done.returncode == 2
    assert "NEBULA_DATABASE_URL" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_ctrl_c_leaves_the_job_and_a_second_start_picks_it_up(tmp_path: Path) -> None:
    # Deep enough that no socket fits below it.
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    grid = Grid(deep, agents=1)
    go = tmp_path / "go"
    script = 'echo "$$"; i=0; while [ ! -e "$0" ]; do echo "line $i"; i=$((i + 1)); sleep 0.1; done; echo "$i lines"; exit 9'
    with grid.running():
        password = (grid.data / "admin-password").read_text()
        assert password.strip() in grid.output.read_text()
        with grid.client() as client:
            job_id = client.job_submit(argv=["/bin/sh", "-c", script, str(go)], gpu_mem="4G")["id"]
            running(client, job_id)
            wait_for(lambda: "line 3" in log_of(client, job_id), what="some output arrived")
            pid = int(log_of(client, job_id).split()[0])
        assert grid.stop() == 0
        os.kill(pid, 0)  # still there
        assert [line for line in grid.commands() if b"nebulagrid.web" in line or b"celery" in line or b"agent.main" in line] == []
        token = grid.profile().token
        grid.start()  # how long it may take is the bench's business (restart_s)
        assert grid.profile().token == token, "a working profile is left alone"
        assert (grid.data / "admin-password").read_text() == password
        with grid.client() as client:
            before = len(log_of(client, job_id))
            wait_for(lambda: len(log_of(client, job_id)) > before, what="the new agent ships the output")
            go.touch()
            ended = client.wait(job_id, timeout_s=PATIENCE_S)
            assert (ended["state"], ended["end"]["exit_code"], ended["attempt"]["epoch"]) == ("FAILED", 9, 1)
            count = int(log_of(client, job_id).split()[-2])
            assert log_of(client, job_id) == f"{pid}\n" + "".join(f"line {i}\n" for i in range(count)) + f"{count} lines\n"
    wait_for(lambda: not grid.processes(), what="nothing of the grid is left")
