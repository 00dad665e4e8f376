"""Who a job runs as on a node that maps people to Unix accounts, and what becomes of a copied agent."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.live.grid import ROOT, Grid, wait_for
from client.errors import NebulaError
from client.sdk import NebulaClient
from nebulagrid.embedded import die_with_parent
from tests.e2e.helpers import invariants, log_of, running

UID = 29_990
PREFIX = "nbt-"
PEOPLE = """
from quotas.models import User
from quotas.services import user_create
from quotas.tokens import token_create
import json
people = {name: user_create(email=name + '@lab.example') for name in ('lin', 'mal')}
print(json.dumps({name: token_create(user=user, name='test')[1] for name, user in people.items()}))
"""


@contextlib.contextmanager
def agent_process(argv: list[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NEBULA_", "DJANGO_", "PYTEST_"))}
    with output.open("ab") as file:
        process = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, preexec_fn=die_with_parent(signal.SIGKILL)
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        process.kill()


def enrolled(grid: Grid, folder: Path, **keys: str) -> Path:
    """The configuration of a new node, as `nebula-agent enroll` writes it, with these keys."""
    with grid.client() as client:
        token = client.node_enroll_token(name="mapped")["token"]
    config = folder / "etc" / "agent.toml"
    argv = [sys.executable, "-m", "agent.main", "enroll", "--endpoint", grid.url, "--token-file", "-", "--config", str(config)]
    argv += [
        "--data-dir",
        str(folder / "data"),
        "--backend",
        "simulated",
        "--scenario",
        str(grid.scenario_file),
        "--identity",
        keys.pop("identity"),
    ]
    subprocess.run(argv, cwd=ROOT, input=token + "\n", text=True, check=True, timeout=60)
    with config.open("a") as file:
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    return config


@pytest.mark.root
@pytest.mark.timeout(300)
def test_a_job_runs_as_its_owners_account_never_as_root_and_nobody_without_one_is_placed(tmp_path: Path, template: Path) -> None:
    with contextlib.suppress(KeyError):
        pytest.fail(f"uid {UID} is {pwd.getpwuid(UID).pw_name}'s on this machine: choose another number")
    env = {"NEBULA_UNIX_RANGE": f"{UID}-{UID}", "NEBULA_UNIX_PREFIX": PREFIX, "NEBULA_ALLOW_UNISOLATED": "0"}
    grid = Grid(tmp_path / "grid", agents=0, env=env, database=template, up=["--no-agent"])
    jobs = Path(tempfile.mkdtemp(prefix="nebula-jobs-"))  # pytest's own folders are closed to other accounts
    jobs.chmod(0o755)
    try:
        with grid.running():
            tokens = json.loads(grid.manage("shell", "-c", PEOPLE).strip().splitlines()[-1])
            config = enrolled(grid, tmp_path / "agent", identity="mapped", make_accounts="yes", jobs_dir=str(jobs))
            with agent_process([sys.executable, "-m", "agent.main", "run", "--config", str(config)], tmp_path / "agent.log"):
                with grid.client() as admin:
                    wait_for(lambda: [node["state"] for node in admin.node_list()] == ["READY"], what="the node is READY")
                with NebulaClient(grid.url, token=tokens["lin"]) as lin:
                    node = lin.node_get("mapped")
                    assert node["isolation"]["identity"] == "mapped", (tmp_path / "agent.log").read_text()
                    job = lin.job_submit(argv=["/bin/sh", "-c", "id -u; id -un; cat /etc/shadow || true"], gpu_mem="4G", workdir="/")
                    assert lin.wait(job["id"])["state"] == "SUCCEEDED"
                    assert log_of(lin, job["id"]).splitlines()[:2] == [str(UID), f"{PREFIX}lin"]
                    assert "root:" not in log_of(lin, job["id"])
                # The range is used up: the next person has no account, and is told so instead of run as somebody else.
                with NebulaClient(grid.url, token=tokens["mal"]) as mal, pytest.raises(NebulaError) as refused:
                    mal.job_submit(argv=["id"], gpu_mem="4G", workdir="/")
                assert (refused.value.status, refused.value.fields["reason"]) == (400, "never_account")
                assert "users_map" in str(refused.value)
            assert invariants(grid) == []
    finally:
        shutil.rmtree(jobs, ignore_errors=True)
        subprocess.run(["/usr/sbin/userdel", "--remove", f"{PREFIX}lin"], capture_output=True, check=False)


@pytest.mark.timeout(300)
def test_a_copied_agent_is_refused_and_told_of_and_the_true_one_never_notices(tmp_path: Path, template: Path) -> None:
    grid = Grid(tmp_path / "grid", agents=1, database=template)
    with grid.running(), grid.client() as client:
        [node] = client.node_list()
        stop = tmp_path / "stop"
        job = client.job_submit(argv=["/bin/sh", "-c", f"until [ -e {stop} ]; do echo tick; sleep 0.2; done"], gpu_mem="4G", workdir="/")
        running(client, job["id"])
        # Somebody got hold of configuration and credential.
        [config] = grid.data.glob("agent*/agent.toml")
        copy = tmp_path / "copy"
        copy.mkdir(mode=0o700)
        credential = next(line.split('"')[1] for line in config.read_text().splitlines() if line.startswith("credential_file"))
        (copy / "agent.credential").write_bytes(Path(credential).read_bytes())
        (copy / "agent.credential").chmod(0o600)
        kept = [line for line in config.read_text().splitlines() if not line.startswith(("credential_file", "data_dir", "jobs_dir"))]
        lines = [*kept, f'credential_file = "{copy}/agent.credential"', f'data_dir = "{copy}/data"', f'jobs_dir = "{copy}/jobs"']
        (copy / "agent.toml").write_text("\n".join(lines) + "\n")
        output = copy / "agent.log"
        with agent_process([*grid.python, "-m", "agent.main", "run", "--config", str(copy / "agent.toml")], output) as thief:

            def alarmed() -> bool:
                return client.node_get(node["name"])["claim"] is not None and "Another agent speaks for this node" in output.read_text()

            wait_for(alarmed, what="the copy is refused and noted")
            ticks = log_of(client, job["id"]).count("tick")
            wait_for(lambda: log_of(client, job["id"]).count("tick") > ticks + 20, what="the job goes on")
            assert thief.poll() is None  # it says so and waits
            assert client.job_get(job["id"])["state"] == "RUNNING"
            wait_for(lambda: _doubts(grid) == ["second_session"], what="staff are told of it")
        # A restart of the true agent is taken at once: it knows the secret of the session before.
        began = time.monotonic()
        grid.kill("agent")
        wait_for(lambda: client.node_get(node["name"])["claim"] is None, what="the true agent is back")
        assert time.monotonic() - began < 60
        # It exchanges a credential that is old, and goes on without a gap: what was copied is worth nothing then.
        grid.manage("shell", "-c", "from nodes.models import Node; Node.objects.update(credential_at=None)")
        wait_for(lambda: Path(credential + ".previous").exists(), what="the credential is exchanged")
        ticks = log_of(client, job["id"]).count("tick")
        wait_for(lambda: log_of(client, job["id"]).count("tick") > ticks + 20, what="output goes on with the new one")
        assert (copy / "agent.credential").read_bytes() != Path(credential).read_bytes()
        stop.touch()
        assert client.wait(job["id"])["state"] == "SUCCEEDED"
        assert invariants(grid) == []


def _doubts(grid: Grid) -> list[Any]:
    code = "from nodes.models import HealthEvent; print(list(HealthEvent.objects.filter(gpu=None).values_list('kind', flat=True)))"
    return list(eval(grid.manage("shell", "-c", code).strip().splitlines()[-1]))
