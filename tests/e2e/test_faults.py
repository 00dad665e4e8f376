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

from bench.live.grid import PATIENCE_S, Grid, wait_for
from client.sdk import NebulaClient
from tests.e2e.helpers import FINAL_STATES, invariants, log_of, running

#: Appends a line when it starts and one when it stops: a second run would show, and so would a lost one. It prints until it is told
#: to stop, and then notes how many lines that were.
WITNESS = """
echo "start $$" >> "$1"
i=0
while [ ! -e "$2" ]; do echo "line $i"; i=$((i + 1)); sleep 0.1; done
echo "stop $$ $i" >> "$1"
exit "$3"
"""


def witness_submit(client: NebulaClient, file: Path, *, code: int = 0) -> int:
    """A job that ends, with ``code``, once there is a file ``go`` beside ``file``."""
    argv = ["/bin/sh", "-c", WITNESS, "witness", str(file), str(file.with_name("go")), str(code)]
    return int(client.job_submit(argv=argv, gpu_mem="4G", name=file.name)["id"])


def printed_by(file: Path) -> str:
    """All that the witness printed, by its own word."""
    (count,) = [int(line.split()[2]) for line in file.read_text().splitlines() if line.startswith("stop")]
    return "".join(f"line {i}\n" for i in range(count))


def ran_once(file: Path) -> bool:
    """One start and one stop, of the same process."""
    words = [line.split()[:2] for line in file.read_text().splitlines()]
    return [word for word, _ in words] == ["start", "stop"] and len({pid for _, pid in words}) == 1


def pid_of(file: Path) -> int:
    """The process of a witness that runs."""
    wait_for(lambda: file.exists() and file.read_text().endswith("\n"), what=f"{file.name} has started")
    return int(file.read_text().split()[1])


def wait_ended(grid: Grid, ids: Sequence[int], *, deadline_s: float = 2 * PATIENCE_S) -> dict[int, Any]:
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
    job_id = witness_submit(client, file, code=7)
    job = running(client, job_id)
    node = job["attempt"]["ranks"][0]["node"]
    name = "agent" if node == min(n["name"] for n in client.node_list()) else "agent-2"
    wait_for(lambda: "line 5" in log_of(client, job_id), what="some output arrived")
    pid = pid_of(file)
    grid.wait_restarted(name, grid.kill(name))
    before = len(log_of(client, job_id))
    wait_for(lambda: len(log_of(client, job_id)) > before, what="the new agent ships the output")
    assert _is_alive(pid), "the job went down with its agent"
    file.with_name("go").touch()
    ended = finished(job_id)
    assert ended["state"] == "FAILED"
    assert (ended["end"]["reason"], ended["end"]["exit_code"]) == ("nonzero_exit", 7)
    assert ended["attempt"]["epoch"] == 1
    assert ran_once(file)
    assert log_of(client, job_id) == printed_by(file)
    assert invariants(grid) == []


def _kill_in_turn(grid: Grid, names: Sequence[str], *, pause_s: float) -> None:
    for name in names:
        kind, _, how = name.partition(":")
        old = grid.kill(kind)
        if how == "emptied":
            # The next Redis may be at work in there already: what goes meanwhile is passed by.
            for folder, _, files in os.walk(grid.data / "redis"):
                for file in files:
                    Path(folder, file).unlink(missing_ok=True)
        grid.wait_restarted(kind, old)
        if kind == "web":
            wait_for(grid.answers, what="the web server answers again")
        time.sleep(pause_s)  # not a wait for luck: the jobs shall meet each fault while the system is at work again


def _all_ran_once(grid: Grid, files: dict[int, Path], jobs: dict[int, Any]) -> None:
    assert {pk: job["state"] for pk, job in jobs.items() if job["state"] != "SUCCEEDED"} == {}
    assert {pk: file.read_text() for pk, file in files.items() if not ran_once(file)} == {}
    with grid.client() as client:
        assert {pk for pk in files if log_of(client, pk) != printed_by(files[pk])} == set()
        assert {job["attempt"]["epoch"] for job in jobs.values()} == {1}


def test_no_kill_of_the_control_plane_loses_or_doubles_a_job(grid: Grid, client: NebulaClient, tmp_path: Path) -> None:
    files: dict[int, Path] = {}
    for number in range(8):
        file = tmp_path / f"witness-{number}"
        files[witness_submit(client, file)] = file
    for pk in list(files)[:4]:
        running(client, pk)
    _kill_in_turn(grid, ["worker", "redis:emptied", "web", "beat"], pause_s=0.2)
    file = tmp_path / "witness-after"
    files[witness_submit(client, file)] = file
    (tmp_path / "go").touch()
    _all_ran_once(grid, files, wait_ended(grid, list(files)))
    assert invariants(grid) == []


def test_a_killed_shim_does_not_take_the_exit_code_with_it(grid: Grid, client: NebulaClient, tmp_path: Path) -> None:
    file = tmp_path / "witness"
    job_id = witness_submit(client, file, code=3)
    running(client, job_id)
    os.kill(shim_of(pid_of(file)), signal.SIGKILL)
    file.with_name("go").touch()
    job = wait_ended(grid, [job_id])[job_id]
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
    files: dict[int, Path] = {}
    for number in range(30):
        file = tmp_path / f"witness-{number}"
        files[witness_submit(client, file)] = file
    for pk in list(files)[:10]:
        running(client, pk)
    _kill_in_turn(grid, ["agent", "worker", "redis", "beat", "web", "redis:emptied", "agent-2", "worker", "web", "agent"], pause_s=2.0)
    victims = [pk for pk in files if files[pk].exists() and "stop" not in files[pk].read_text()][:3]
    for pk in victims:
        os.kill(shim_of(pid_of(files[pk])), signal.SIGKILL)
    (tmp_path / "go").touch()
    jobs = wait_ended(grid, list(files))
    spared = [pk for pk in files if pk not in victims]
    _all_ran_once(grid, {pk: files[pk] for pk in spared}, {pk: jobs[pk] for pk in spared})
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
            job_id = witness_submit(client, file, code=5)
            running(client, job_id)
        children = {name: grid.pid(name) for name in ("redis", "web", "worker", "beat", "agent")}
        assert grid.process is not None
        grid.process.kill()
        grid.process.wait()
        # The kernel tells the children of a killed `up` to stop.
        wait_for(lambda: not any(map(_is_alive, children.values())), what="the children ended")
        assert _is_alive(pid_of(file)), "the job went down with up"
        grid.start()
        file.with_name("go").touch()
        with grid.client() as client:
            ended = client.wait(job_id, timeout_s=PATIENCE_S)
            assert (ended["state"], ended["end"]["exit_code"]) == ("FAILED", 5)
            assert log_of(client, job_id) == printed_by(file)
        assert ran_once(file)
        grid.manage("check_invariants")


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False
