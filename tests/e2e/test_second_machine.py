"""A second machine joins over HTTPS, runs its share of a job, is cut off for a minute and comes back.

It is a network namespace with a cable to us; everything else is as on an installation, its timers too. What needs no
second machine (cut downloads, bad wishes) is in tests/test_install.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.live.grid import PATIENCE_S, ROOT, Grid, port_pick, wait_for
from client.sdk import NebulaClient
from tests.conftest import REQUIRED
from tests.e2e.helpers import invariants, log_of, running
from tests.e2e.netns import Machine, machine, missing

#: Rank 0 listens, rank 1 calls it: the two really meet. Then both count until they are told to stop.
GANG = """
import os, socket, sys, time
rank, port, folder = int(os.environ["NODE_RANK"]), int(os.environ["MASTER_PORT"]), sys.argv[1]
if rank == 0:
    server = socket.create_server((os.environ["MASTER_ADDR"], port))
    other, _ = server.accept()
    print("heard", other.recv(100).decode(), flush=True)
else:
    while True:
        try:
            call = socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=5)
            break
        except OSError:
            time.sleep(0.1)
    call.sendall(b"rank 1")
with open(f"{folder}/rank-{rank}", "a") as file:
    print("start", os.getpid(), file=file, flush=True)
    while not os.path.exists(f"{folder}/stop"):
        print("tick", time.time(), file=file, flush=True)
        time.sleep(0.2)
    print("stop", os.getpid(), file=file, flush=True)
print("done", rank, flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := missing():
        if "netns" in REQUIRED:
            pytest.fail(f"The netns lane is required (NEBULA_REQUIRE) and can't run: {why}.", pytrace=False)
        pytest.skip(f"netns lane: {why}")


class Site:
    """A control plane that serves HTTPS with its own CA, and the machine beside it."""

    def __init__(self, folder: Path, other: Machine) -> None:
        self.folder, self.other = folder, other
        port = port_pick()
        self.url = f"https://{other.here}:{port}"
        self.grid = Grid(folder / "grid", agents=1, port=port)
        self.grid.manage("tls_init", "--host", other.here)
        for line in (self.grid.data / "tls" / "env").read_text().splitlines():
            name, _, value = line.partition("=")
            self.grid.env[name] = value.strip("'")
        self.prefix, self.config, self.data = (folder / "second" / name for name in ("opt", "etc", "data"))
        self.scenario = folder / "second.json"
        self.scenario.write_text(json.dumps({"devices": [{"count": 1, "model": "Simulated A100", "total_mib": 40960}]}))

    def line(self, client: NebulaClient) -> dict[str, Any]:
        """What `nebula-ctl node add second` prints, for programs."""
        done = self.grid.ctl("node", "add", "second", "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def folders(self) -> list[str]:
        return ["--prefix", str(self.prefix), "--config-dir", str(self.config), "--data-dir", str(self.data)]

    def command(self, line: str) -> str:
        """The line as pasted, with folders of our own: the two machines share one disk."""
        more = [*self.folders(), "--backend", "simulated", "--scenario", str(self.scenario), "--python", sys.executable]
        # sudo has no business in a test; the machine is root's anyway.
        return line.removeprefix("sudo ").replace(" --token-file -", f" {' '.join(more)} --token-file -")

    def paste(self, line: str, token: str) -> subprocess.CompletedProcess[str]:
        work = self.folder / f"home-{secrets.token_hex(2)}"
        work.mkdir()
        # Typed into an interactive shell, a here-string is no argument of any process; so the script comes by stdin here.
        return self.other.run(["/bin/bash"], input=f"{self.command(line)} <<<{token}\n", cwd=work, env=clean_env())

    def uninstall(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.other.run(["/bin/bash", str(ROOT / "deploy/install.sh"), "--uninstall", "--force", *self.folders()], env=clean_env())


def clean_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("NEBULA_", "DJANGO_", "PYTEST_"))}


class ProcessWatch:
    """Looks at every process's command line and environment, again and again, for a word that must be in none."""

    def __init__(self, word: str) -> None:
        self.word, self.found, self.looks = word.encode(), list[str](), 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ProcessWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.looks += 1
            for place in Path("/proc").iterdir():
                if not place.name.isdigit():
                    continue
                for name in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        text = (place / name).read_bytes()
                        if self.word in text:
                            self.found.append(f"{place.name} {name}: {text[:200]!r}")
            self._stop.wait(0.02)


@contextlib.contextmanager
def site(folder: Path) -> Iterator[Site]:
    with machine() as other:
        found = Site(folder, other)
        try:
            with found.grid.running():
                yield found
        finally:
            found.uninstall()


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def node(client: NebulaClient, name: str) -> Any:
    return client.node_get(name)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Where every account may pass through, as on a real machine; pytest's own folders are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="nebula-second-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def gang_start(client: NebulaClient, folder: Path) -> Any:
    # Not our own interpreter, which may lie where only root can read it.
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    job = client.job_submit(argv=[python, "-c", GANG, str(folder)], gpu_count=2, nodes=2, gpu_mem="8G", name="gang")
    found = running(client, job["id"])
    wait_for(lambda: all((folder / f"rank-{i}").exists() for i in (0, 1)), what="both ranks count")
    return found


def ticks(folder: Path, rank: int) -> int:
    return (folder / f"rank-{rank}").read_text().count("tick")


def gang_stop(client: NebulaClient, folder: Path, job_id: int) -> None:
    (folder / "stop").touch()
    ended = client.wait(job_id, timeout_s=PATIENCE_S)
    assert ended["state"] == "SUCCEEDED", ended["end"]
    assert ended["attempt"]["epoch"] == 1, "it was started a second time"
    for rank in (0, 1):
        words = [line.split()[0] for line in (folder / f"rank-{rank}").read_text().splitlines()]
        assert (words.count("start"), words.count("stop")) == (1, 1)
    assert "heard rank 1\ndone 0\n" in log_of(client, job_id)


def silence_s(grid: Grid, name: str) -> float:
    """From the last sync to the verdict, by the server's own record."""
    code = (
        "from nodes.models import Node; from nodes.telemetry import node_last_seen;"
        f"n = Node.objects.get(name={name!r}); print(n.state, n.state_at.timestamp() - node_last_seen(n.pk).at)"
    )
    state, seconds = grid.manage("shell", "--no-imports", "-v", "0", "-c", code).split()
    assert state == "UNKNOWN"
    return float(seconds)


def cut_off(site: Site, client: NebulaClient, job_id: int, folder: Path, *, until_s: float, expected_s: float) -> None:
    """Pulls the cable; the node becomes UNKNOWN when it should, the job runs on, and nothing is started again."""
    began = time.monotonic()
    before = ticks(folder, 0), ticks(folder, 1)
    site.other.unplug()
    wait_for(
        lambda: node(client, "second")["state"] == "UNKNOWN", what="the silent node is UNKNOWN", deadline_s=expected_s + 60, every_s=0.2
    )
    assert silence_s(site.grid, "second") == pytest.approx(expected_s, abs=1.0)
    wait_for(lambda: time.monotonic() - began >= until_s, what="the cable stays out", deadline_s=until_s + 5)
    job = client.job_get(job_id)
    assert job["state"] == "RUNNING"
    assert job["attempt"]["epoch"] == 1
    assert min(ticks(folder, rank) - before[rank] for rank in (0, 1)) >= 3 * until_s, "a rank stood still"
    site.other.plug()
    wait_for(lambda: node(client, "second")["state"] == "READY", what="the node is back")
    assert {rank["observed"] for rank in wait_for(lambda: _all_run(client, job_id), what="both ranks are seen running")} == {"RUNNING"}


def _all_run(client: NebulaClient, job_id: int) -> Any:
    ranks = client.job_get(job_id)["attempt"]["ranks"]
    return ranks if all(rank["observed"] == "RUNNING" for rank in ranks) else None


def _joins(there: Site, client: NebulaClient) -> None:
    # 1. A token that nobody gave out: a clear refusal, and nothing left on the machine.
    told = there.line(client)
    refused = there.paste(told["command"], "nge_" + "x" * 43)
    assert refused.returncode != 0
    assert "did not enrol this node (401)" in refused.stderr
    assert "nothing was left behind" in refused.stderr
    assert tree(there.folder / "second") == []
    # 2. Another CA than the pinned one, or another script than the hashed one: nothing is run or sent.
    ca = told["command"].split("--ca-sha256 ")[1].split()[0]
    other_ca = there.paste(told["command"].replace(ca, "0" * 64), told["token"])
    assert other_ca.returncode != 0
    assert "somebody may be in between" in other_ca.stderr
    script = told["command"].split('sha256sum)" = "')[1].split()[0]
    other_script = there.paste(told["command"].replace(script, "0" * 64), told["token"])
    assert other_script.returncode != 0
    said = (other_script.stdout + other_script.stderr).strip()
    assert said == "nebulagrid: nothing was installed", "a script with another hash was run"
    assert tree(there.folder / "second") == []
    # 3. The real line. The token is in no process's command line or environment, from the begin to the end.
    with ProcessWatch(told["token"]) as watch:
        done = there.paste(told["command"], told["token"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert watch.found == []
    assert watch.looks > 20
    wait_for(lambda: node(client, "second")["state"] == "READY", what="the second machine is READY")
    assert node(client, "second")["address"] == there.other.there
    for secret in (there.config / "agent.credential", there.config / "agent.toml"):
        assert secret.stat().st_mode & 0o777 == 0o600
    # 4. The token is used up: no other machine gets in with it.
    again = there.other.run(
        [str(there.prefix / "current/bin/nebula-agent"), "enroll", "--endpoint", there.url, "--config", str(there.folder / "third.toml"),
         "--ca-file", str(there.config / "ca.pem"), "--token-file", "-"],
        input=told["token"], env=clean_env(),
    )  # fmt: skip
    assert again.returncode == 1
    assert "Tokens have one use" in again.stderr


def _upgrades_while_the_job_runs(there: Site, job_id: int, folder: Path) -> None:
    """The same line again makes a new version beside the old one and keeps the machine's identity; the job goes on."""
    before = (there.config / "agent.credential").read_text(), (there.prefix / "current").readlink(), ticks(folder, 1)
    with there.grid.client() as client:
        told = there.line(client)
        done = there.paste(told["command"], told["token"])
        assert done.returncode == 0, done.stdout + done.stderr
        assert "has joined already" in done.stdout
        assert (there.config / "agent.credential").read_text() == before[0]
        assert (there.prefix / "current").readlink() != before[1]
        wait_for(lambda: _all_run(client, job_id), what="both ranks are seen running")
        wait_for(lambda: ticks(folder, 1) > before[2], what="the job went on")
    refused = there.other.run(["/bin/bash", str(ROOT / "deploy/install.sh"), "--uninstall", *there.folders()], env=clean_env())
    assert "jobs run on this node" in refused.stderr


@pytest.mark.root
@pytest.mark.soak
@pytest.mark.timeout(500)
def test_a_second_machine_joins_works_is_cut_off_for_a_minute_and_heals(open_folder: Path) -> None:
    tmp_path = open_folder
    with site(tmp_path) as there:
        with there.grid.client() as client:
            _joins(there, client)
            folder = tmp_path / "gang"
            folder.mkdir()
            folder.chmod(0o777)  # the second machine's jobs run as an account of their own
            job = gang_start(client, folder)
            assert {rank["node"] for rank in job["attempt"]["ranks"]} == {node["name"] for node in client.node_list()}
            cut_off(there, client, job["id"], folder, until_s=60, expected_s=15)
            _upgrades_while_the_job_runs(there, job["id"], folder)
            gang_stop(client, folder, job["id"])
        assert invariants(there.grid) == []
        there.uninstall()
        assert tree(there.prefix) == tree(there.config) == []
