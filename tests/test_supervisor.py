"""What keeps the control plane's processes running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.live.grid import ROOT
from nebulagrid import supervisor
from nebulagrid.embedded import redis_config, redis_ping, redis_program
from nebulagrid.supervisor import ChildSpec, Plan, Supervisor
from tests.smalldisk import bytes_fill, files_fill, small_disk
from tests.waiting import PATIENCE_S, until


def plan(run_dir: Path, child: ChildSpec) -> Plan:
    return Plan(run_dir=str(run_dir), lock_fd=0, children=[child], ready_file=str(run_dir / "ready"))


async def run_until_ready(wanted: Plan) -> None:
    found = Supervisor(wanted)
    running = asyncio.create_task(found.run())
    async with asyncio.timeout(PATIENCE_S):
        while not Path(wanted.ready_file).exists() and not running.done():
            await asyncio.sleep(0.02)
    found.stopping.set()
    assert await running == 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.05,))
    (tmp_path / "redis").mkdir()
    return tmp_path / "redis"


@pytest.mark.redis
async def test_redis_starts_without_files_that_it_can_not_read(folder: Path, tmp_path: Path) -> None:
    program = redis_program() or ""
    (folder / "appendonlydir").mkdir()
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("file torn.aof seq 1 type b\n")
    path = tmp_path / "s"
    (tmp_path / "password").write_text("open-sesame\n")
    (tmp_path / "conf").write_text(redis_config(socket_path=path, folder=folder, password="open-sesame"))
    child = ChildSpec(
        name="redis",
        argv=[program, str(tmp_path / "conf")],
        stage=0,
        probe=f"redis:{path}",
        probe_password_file=str(tmp_path / "password"),
        hints=str(folder),
    )
    await run_until_ready(plan(tmp_path, child))
    assert (tmp_path / "redis.aside" / "appendonlydir" / "appendonly.aof.manifest").exists()
    assert not redis_ping(path)


async def test_files_that_are_more_than_hints_stay(folder: Path, tmp_path: Path) -> None:
    (folder / "kept").touch()
    script = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); n = len(list(p.glob('try*'))); (p / f'try{n}').touch(); sys.exit(n < 3)"
    child = ChildSpec(name="x", argv=[sys.executable, "-c", script, str(folder)], stage=0, probe=f"redis:{tmp_path / 's'}")
    found = Supervisor(plan(tmp_path, child))
    running = asyncio.create_task(found.run())
    async with asyncio.timeout(PATIENCE_S):
        while not (folder / "try4").exists():
            await asyncio.sleep(0.02)
    found.stopping.set()
    await running
    assert (folder / "kept").exists()


@contextlib.contextmanager
def no_room_by_a_folder(run: Path) -> Iterator[Path]:
    """Stands for a full disk where nothing can be mounted: no file can be put in the places of those that tell what runs."""
    run.mkdir()
    for name in ("children.json.new", "x.pid.new", "ready"):
        (run / name).mkdir()
    yield run


@contextlib.contextmanager
def no_room_by_bytes(run: Path) -> Iterator[Path]:
    with small_disk(run, kib=64):
        full = bytes_fill(run)
        yield run
        full.unlink()


@contextlib.contextmanager
def no_room_by_files(run: Path) -> Iterator[Path]:
    with small_disk(run, files=20):
        many = files_fill(run)
        yield run
        shutil.rmtree(many)


@pytest.mark.parametrize(
    "no_room",
    [no_room_by_a_folder, pytest.param(no_room_by_bytes, marks=pytest.mark.root), pytest.param(no_room_by_files, marks=pytest.mark.root)],
)
async def test_what_it_started_it_knows_though_there_is_no_room_to_say_so(
    no_room: Callable[[Path], contextlib.AbstractContextManager[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.02,))
    monkeypatch.setattr(supervisor, "FILES_AGAIN_S", 0.02)
    started = tmp_path / "started"
    script = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"
    child = ChildSpec(name="x", argv=[sys.executable, "-I", "-S", "-c", script, str(started)], stage=0)
    file = tmp_path / "run" / "children.json"
    with no_room(tmp_path / "run") as run:
        found = Supervisor(Plan(run_dir=str(run), lock_fd=0, children=[child]))
        running = asyncio.create_task(found.run())
        await until(lambda: started.exists() and started.read_text(), "a started child")
        await asyncio.sleep(0.2)  # ten times as long as it would take to start another
        pids = started.read_text().split()
        assert len(pids) == 1
        assert not file.exists()
        if no_room is no_room_by_a_folder:
            (run / "children.json.new").rmdir()
            await until(file.exists, "the file once there is room")
            assert json.loads(file.read_text())["x"][0] == int(pids[0])
        found.stopping.set()
        assert await running == 0
    assert supervisor.process_start(int(pids[0])) is None


async def test_a_process_that_can_not_be_watched_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.02,))
    pids: list[int] = []

    def refused(pid: int) -> int:
        pids.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refused)
    found = Supervisor(Plan(run_dir=str(tmp_path), lock_fd=0, children=[ChildSpec(name="x", argv=["sleep", "600"], stage=0)]))
    running = asyncio.create_task(found.run())
    await until(lambda: len(pids) > 2, "a third try")
    found.stopping.set()
    await running
    assert [supervisor.process_start(pid) for pid in pids] == [None] * len(pids)


def test_beat_loads_no_application_and_all_that_it_asks_for_is_a_task(tmp_path: Path) -> None:
    from nebulagrid.celery import app

    look = """
import json, sys
from nebulagrid.celery import app
app.loader.init_worker()
app.finalize()
from django.apps import apps
print(json.dumps([apps.apps_ready, "jobs.models" in sys.modules, sorted(entry["task"] for entry in app.conf.beat_schedule.values())]))
"""
    env = {**os.environ, "NEBULA_ROLE": "beat", "NEBULA_DATA": str(tmp_path), "DJANGO_SETTINGS_MODULE": "nebulagrid.settings"}
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    ready, models, asked = json.loads(done.stdout)
    assert (ready, models) == (False, False)
    app.loader.import_default_modules()
    assert asked
    assert set(asked) <= set(app.tasks)
