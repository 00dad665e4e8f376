"""A person's job against the control plane and its agent, where root started both: it reaches none of their files.

The job runs as the account of jobs. It tries what it could read, list, change or send a signal to, and says what worked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.live.grid import PATIENCE_S, Grid, wait_for
from tests.e2e.helpers import log_of

pytestmark = [pytest.mark.root, pytest.mark.redis]

ATTACKER = """
import json, os, signal, socket, sys
aims, own = json.loads(sys.argv[1]), os.environ["NEBULA_ARTIFACTS"] + "/"
found = {"ids": [*os.getresuid(), *os.getresgid(), *os.getgroups()], "read": [], "listed": [], "written": [], "signalled": [], "memory": []}
for path in aims["files"]:
    try:
        open(path, "rb").read(1); found["read"].append(path)
    except OSError: pass
    for how in (lambda: os.chmod(path, 0o777), lambda: os.rename(path, path + ".gone"), lambda: open(path, "ab").close()):
        try:
            how(); found["written"].append(path)
        except OSError: pass
for path in aims["folders"]:
    try:
        # The way to its own folder it may see, and nothing beside it.
        if any(not own.startswith(f"{path}/{name}/") for name in os.listdir(path)): found["listed"].append(path)
    except OSError: pass
    try:
        open(path + "/planted", "w").close(); found["written"].append(path)
    except OSError: pass
for path in aims["sockets"]:
    try:
        link = socket.socket(socket.AF_UNIX); link.connect(path); found["read"].append(path)
    except OSError: pass
for pid in aims["processes"]:
    try:
        os.kill(pid, 0); found["signalled"].append(pid)
    except OSError: pass
    for name in ("environ", "mem", "maps"):
        try:
            open(f"/proc/{pid}/{name}", "rb").read(1); found["memory"].append([pid, name])
        except OSError: pass
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            os.readlink(f"/proc/{pid}/fd/{fd}"); found["memory"].append([pid, "fd"])
    except OSError: pass
print("FOUND " + json.dumps(found))
"""


@pytest.fixture(scope="module")
def grid(template: Path) -> Iterator[Grid]:
    folder = Path(tempfile.mkdtemp(prefix="nebula-attack-"))
    folder.chmod(0o755)
    # The copy is root's: it is handed over at the start, as an installation of before would be.
    found = Grid(folder, database=template, as_root=True)
    try:
        with found.running():
            yield found
    finally:
        shutil.rmtree(folder)


def finished(grid: Grid, argv: list[str]) -> str:
    with grid.client() as client:
        job = client.job_submit(argv=argv, gpu_count=0, workdir="/")
        ended = client.wait(job["id"], timeout_s=PATIENCE_S)
        assert ended["state"] == "SUCCEEDED", (ended, log_of(client, job["id"]))
        return log_of(client, job["id"])


def aims(grid: Grid) -> dict[str, Any]:
    control, agent = grid.data / "control", grid.data / "agents" / "agent"
    files = [grid.data / "cli.json", grid.data / "admin-password", grid.data / "run" / "plan.json", grid.data / "run" / "up.lock"]
    files += [control / name for name in ("secret-key", "redis-password", "nebula.sqlite3", "run/redis.conf")]
    files += [agent / name for name in ("agent.toml", "agent.credential", "agent.db")]
    for path in files:
        assert path.exists(), f"{path} is no aim any more"
    return {
        "files": [str(path) for path in files],
        "folders": [
            str(path) for path in (grid.data, control, grid.data / "agents", agent, grid.data / "jobs", grid.data / "run", "/root")
        ],
        "sockets": [str(control / "run" / "redis.sock")],
        "processes": [grid.pid(name) for name in ("redis", "web", "worker", "beat", "agent")] + [grid.process.pid if grid.process else 1],
    }


def test_a_job_is_nobody_of_the_house_and_reaches_nothing_of_it(grid: Grid) -> None:
    text = finished(grid, ["/usr/bin/python3", "-c", ATTACKER, json.dumps(aims(grid))])
    found = json.loads(text.split("FOUND ", 1)[1])
    ids = set(found.pop("ids"))
    assert min(ids) >= 1000
    web = Path(f"/proc/{grid.pid('web')}").stat()
    assert ids.isdisjoint({0, web.st_uid, web.st_gid})
    assert found == {"read": [], "listed": [], "written": [], "signalled": [], "memory": []}
    assert not list(grid.data.rglob("planted"))


def test_another_jobs_folder_and_memory_are_closed(grid: Grid) -> None:
    with grid.client() as client:
        victim = client.job_submit(argv=["/bin/sh", "-c", "echo mine > $NEBULA_ARTIFACTS/mine; echo $$; echo up; sleep 300"], gpu_count=0)
        wait_for(lambda: "up" in log_of(client, victim["id"]), what="the other job runs")
        pid = int(log_of(client, victim["id"]).split()[-2])
        try:
            folder = next((grid.data / "jobs" / "agent").glob(f"{victim['id']}.*"))
            aim = {
                "files": [str(folder / "artifacts" / "mine"), str(grid.data / "agents" / "agent" / "ranks" / folder.name / "output.log")],
                "folders": [str(folder), str(folder.parent)],
                "sockets": [],
                "processes": [pid],
            }
            text = finished(grid, ["/usr/bin/python3", "-c", ATTACKER, json.dumps(aim)])
        finally:
            client.job_cancel(victim["id"])
    found = json.loads(text.split("FOUND ", 1)[1])
    assert (found["read"], found["written"], found["signalled"], found["memory"]) == ([], [], [], [])
    assert [path for path in found["listed"] if path == str(folder)] == []


def test_each_process_is_who_it_should_be(grid: Grid) -> None:
    owners = {name: Path(f"/proc/{grid.pid(name)}").stat().st_uid for name in ("redis", "web", "worker", "beat", "agent")}
    assert owners.pop("agent") == 0
    assert len(set(owners.values())) == 1
    assert 0 not in owners.values()
    environ = Path(f"/proc/{grid.pid('web')}/environ").read_bytes().split(b"\0")
    assert b"USER=nebulagrid" in environ
    for line in Path(f"/proc/{grid.pid('web')}/status").read_text().splitlines():
        if line.startswith(("CapPrm", "CapEff")):
            assert int(line.split()[1], 16) == 0


def test_root_finds_no_file_of_its_own_among_the_data(grid: Grid) -> None:
    for command in (["check_invariants"], ["showmigrations", "jobs"]):
        grid.manage(*command)
    theirs = (grid.data / "control").stat().st_uid
    assert {path.lstat().st_uid for path in (grid.data / "control").rglob("*")} == {theirs}


def test_a_backup_is_readable_to_root_who_asked_for_it_and_can_be_checked(grid: Grid) -> None:
    path = grid.folder / "backups"
    path.mkdir(mode=0o700)
    said = grid.manage("backup", f"{path}/")
    (made,) = path.iterdir()
    assert str(made) in said
    assert (made.stat().st_uid, made.stat().st_mode & 0o777) == (0, 0o600)
    assert "whole and undamaged" in grid.manage("restore", "--check", str(made))


def test_what_the_first_page_of_the_readme_says_runs_from_the_checkout(grid: Grid) -> None:
    """Typed as it is there, in a checkout whose interpreter the account of jobs may not be able to read."""
    done = grid.ctl("submit", "--name", "hello", "--gpu-mem", "4G", "--", ".venv/bin/python", "examples/train_digits.py", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    with grid.client() as client:
        job = next(iter(client.jobs(owner="all")))
        ended = client.wait(job["id"], timeout_s=PATIENCE_S)
        text = log_of(client, job["id"])
    assert ended["state"] == "SUCCEEDED", text
    assert "test accuracy" in text
    if as_job_unreadable(Path(sys.executable)):
        assert text.startswith("[nebulagrid] This machine's jobs can't reach")


def as_job_unreadable(path: Path) -> bool:
    program = ["/bin/sh", "-c", 'test -x "$0"', str(path)]
    return subprocess.run(program, user="nebulagrid-jobs", group="nebulagrid-jobs", extra_groups=[], check=False).returncode != 0


def test_it_says_what_is_isolated(grid: Grid) -> None:
    text = grid.output.read_text()
    assert "Jobs on this machine run as nebulagrid-jobs" in text
    assert "***" not in text


def test_ctrl_c_and_a_second_start_find_the_job_that_runs(grid: Grid) -> None:
    go = grid.folder / "go"
    with grid.client() as client:
        job = client.job_submit(argv=["/bin/sh", "-c", 'echo up; until [ -e "$0" ]; do sleep 0.1; done; exit 7', str(go)], gpu_count=0)
        wait_for(lambda: "up" in log_of(client, job["id"]), what="it runs")
    token = grid.profile().token
    assert grid.stop() == 0
    with pytest.raises(OSError, match="No such process"):
        os.kill(grid.pid("redis"), 0)
    grid.start()
    assert grid.profile().token == token
    go.touch()
    with grid.client() as client:
        ended = client.wait(job["id"], timeout_s=PATIENCE_S)
    assert (ended["state"], ended["end"]["exit_code"], ended["attempt"]["epoch"]) == ("FAILED", 7, 1)


def test_children_end_with_a_supervisor_that_is_killed(grid: Grid) -> None:
    """Last: a change of account takes a signal at the parent's death away, unless it is asked for afterwards."""
    pids = [grid.pid(name) for name in ("redis", "web", "worker", "beat", "agent")]
    assert grid.process is not None
    grid.process.kill()
    grid.process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), what="all of them ended", deadline_s=30)
    grid.start()
