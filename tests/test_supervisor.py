"""What keeps the control plane's processes running."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.live.grid import ROOT
from nebulagrid import supervisor
from nebulagrid.embedded import redis_argv, redis_ping, redis_program
from nebulagrid.supervisor import ChildSpec, Plan, Supervisor
from tests.waiting import PATIENCE_S


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
    child = ChildSpec(
        name="redis", argv=redis_argv(program=program, socket_path=path, folder=folder), stage=0, probe=f"redis:{path}", hints=str(folder)
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
