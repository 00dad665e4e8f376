"""kill -9 of everything, one after the other, while jobs run: none lost, none run twice, every byte of output kept."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.live.grid import Grid, wait_for
from client.sdk import NebulaClient
from tests.e2e.helpers import FINAL_STATES, invariants, log_of, running

#: Appends a line when it starts and one when it stops: a second run would show, and so would a lost one.
WITNESS = """
echo "start $$" >> "$1"
i=0
while [ $i -lt "$2" ]; do echo "line $i"; i=$((i + 1)); sleep 0.1; done
echo "stop $$" >> "$1"
exit "$3"
"""


def witness_submit(client: NebulaClient, file: Path, *, tenths: int, code: int = 0) -> int:
    argv = ["/bin/sh", "-c", WITNESS, "witness", str(file), str(tenths), str(code)]
    return int(client.job_submit(argv=argv, gpu_mem="4G", name=file.name)["id"])


def lines_of(tenths: int) -> str:
    return "".join(f"line {i}\n" for i in range(tenths))


def ran_once(file: Path) -> bool:
    """One start and one stop, of the same process."""
    words = [line.split() for line in file.read_text().splitlines()]
    return [word for word, _ in words] == ["start", "stop"] and len({pid for _, pid in words}) == 1


def wait_ended(grid: Grid, ids: Sequence[int], *, deadline_s: float) -> dict[int, Any]:
    """All of them, once final. The control plane may be away at times."""
    jobs: dict[int, Any] = {}

    def all_final() -> bool:
        with contextlib.suppress(Exception), grid.client() as client:
            for job in client.jobs(owner="all"):
                jobs[job["id"]] = job
        return all(jobs.get(pk, {}).get("state") in FINAL_STATES for pk in ids)

    try:
        wait_for(all_final, what="all jobs ended", deadline_s=deadline_s, every_s=0.5)
    except Exception as error:
        open_jobs = {pk: (jobs[pk]["state"], jobs[pk]["wait"]) if pk in jobs else None for pk in ids}
        left = {pk: found for pk, found in open_jobs.items() if not found or found[0] not in FINAL_STATES}
        raise AssertionError(f"{error}: {left}\n{grid.tail()}") from error
    return {pk: jobs[pk] for pk in ids}


def test_a_killed_agent_adopts_its_job(grid: Grid, client: NebulaClient, finished: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "witness"
    job_id = witness_submit(client, file, tenths=60, code=7)
    job = running(client, job_id)
    node = job["attempt"]["ranks"][0]["node"]
    name = "agent" if node == min(n["name"] for n in client.node_list()) else "agent-2"
    wait_for(lambda: "line 5" in log_of(client, job_id), what="some output arrived")
    pid = int(file.read_text().split()[1])
    grid.wait_restarted(name, grid.kill(name))
    assert Path(f"/proc/{pid}").exists(), "the job went down with its agent"
    ended = finished(job_id)
    assert ended["state"] == "FAILED"
    assert (ended["end"]["reason"], ended["end"]["exit_code"]) == ("nonzero_exit", 7)
    assert ended["attempt"]["epoch"] == 1
    assert ran_once(file)
    assert log_of(client, job_id) == lines_of(60)
    assert invariants(grid) == []


def _kill_in_turn(grid: Grid, names: Sequence[str], *, pause_s: float) -> None:
    for name in names:
        kind, _, how = name.partition(":")
        old = grid.kill(kind)
        if how == "emptied":
            for file in (grid.data / "redis").rglob("*"):
                if file.is_file():
                    file.unlink(missing_ok=True)
        grid.wait_restarted(kind, old)
        if kind == "web":
            wait_for(grid.answers, what="the web server answers again", deadline_s=60)
        time.sleep(pause_s)  # not a wait for luck: the jobs shall meet each fault while the system is at work again


def _all_ran_once(grid: Grid, files: dict[int, Path], jobs: dict[int, Any], tenths: int) -> None:
    assert {pk: job["state"] for pk, job in jobs.items() if job["state"] != "SUCCEEDED"} == {}
    assert {pk: file.read_text() for pk, file in files.items() if not ran_once(file)} == {}
    with grid.client() as client:
        assert {pk for pk in files if log_of(client, pk) != lines_of(tenths)} == set()
        assert {job["attempt"]["epoch"] for job in jobs.values()} == {1}


def test_no_kill_of_the_control_plane_loses_or_doubles_a_job(grid: Grid, client: NebulaClient, tmp_path: Path) -> None:
    files: dict[int, Path] = {}
    for number in range(8):
        file = tmp_path / f"witness-{number}"
        files[witness_submit(client, file, tenths=50)] = file
    for pk in list(files)[:4]:
        running(client, pk)
    _kill_in_turn(grid, ["worker", "redis:emptied", "web", "beat"], pause_s=0.2)
    file = tmp_path / "witness-after"
    after = client.job_submit(argv=["/bin/sh", "-c", WITNESS, "witness", str(file), "50", "0"], gpu_mem="4G")
    files[after["id"]] = file
    _all_ran_once(grid, files, wait_ended(grid, list(files), deadline_s=80), 50)
    assert invariants(grid) == []


def test_a_killed_shim_does_not_take_the_exit_code_with_it(grid: Grid, client: NebulaClient, tmp_path: Path) -> None:
    file = tmp_path / "witness"
    job_id = witness_submit(client, file, tenths=30, code=3)
    running(client, job_id)
    wait_for(lambda: file.exists() and file.read_text(), what="the program started")
    os.kill(shim_of(int(file.read_text().split()[1])), signal.SIGKILL)
    job = wait_ended(grid, [job_id], deadline_s=60)[job_id]
    assert job["state"] == "FAILED"
    assert file.read_text().count("start") == 1, "it ran twice"
    assert job["attempt"]["epoch"] == 1
    assert (job["end"]["reason"], job["end"]["exit_code"]) in {("nonzero_exit", 3), ("exit_unknown", None)}


def shim_of(pid: int) -> int:
    """The parent of a job's program."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_thirty_jobs_outlive_the_death_of_every_process(grid: Grid, client: NebulaClient, tmp_path: Path) -> None:
    """Acceptance 5 in full: 30 jobs, and agent, worker, beat, web, Redis (also emptied) and shims killed in turn."""
    tenths = 300
    files: dict[int, Path] = {}
    for number in range(30):
        file = tmp_path / f"witness-{number}"
        files[witness_submit(client, file, tenths=tenths)] = file
    for pk in list(files)[:10]:
        running(client, pk)
    _kill_in_turn(grid, ["agent", "worker", "redis", "beat", "web", "redis:emptied", "agent-2", "worker", "web", "agent"], pause_s=2.0)
    victims = [pk for pk in files if files[pk].exists() and "stop" not in files[pk].read_text()][:3]
    for pk in victims:
        os.kill(shim_of(int(files[pk].read_text().split()[1])), signal.SIGKILL)
    jobs = wait_ended(grid, list(files), deadline_s=300)
    spared = [pk for pk in files if pk not in victims]
    _all_ran_once(grid, {pk: files[pk] for pk in spared}, {pk: jobs[pk] for pk in spared}, tenths)
    for pk in victims:
        assert files[pk].read_text().count("start") == 1, "a job whose shim was killed ran twice"
        assert jobs[pk]["state"] in FINAL_STATES
    assert invariants(grid) == []


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_up_itself_may_be_killed_and_the_next_one_picks_all_up(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "grid", agents=1)
    file = tmp_path / "witness"
    with grid.running():
        with grid.client() as client:
            job_id = witness_submit(client, file, tenths=150, code=5)
            running(client, job_id)
        children = {name: grid.pid(name) for name in ("redis", "web", "worker", "beat", "agent")}
        assert grid.process is not None
        grid.process.kill()
        grid.process.wait()
        # The kernel tells the children of a killed `up` to stop.
        wait_for(lambda: not any(map(_is_alive, children.values())), what="the children ended", deadline_s=20)
        assert _is_alive(int(file.read_text().split()[1])), "the job went down with up"
        grid.start()
        with grid.client() as client:
            ended = client.wait(job_id, timeout_s=60)
            assert (ended["state"], ended["end"]["exit_code"]) == ("FAILED", 5)
            assert log_of(client, job_id) == lines_of(150)
        assert ran_once(file)
        grid.manage("check_invariants")


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False
