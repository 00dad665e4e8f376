"""The CI examples against the running API with nothing but a token: they submit, wait, fetch output and file, whatever happens."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.live.grid import ROOT, Grid, wait_for
from client.sdk import NebulaClient

CI = ROOT / "examples" / "ci"


class Door(ThreadingHTTPServer):
    """In front of the control plane: refuses the first submits with a 429 as the control plane words it, and tells when somebody waits."""

    daemon_threads = True

    def __init__(self, port: int, *, refuse: int) -> None:
        super().__init__(("127.0.0.1", 0), Forward)
        self.port, self.refuse = port, refuse
        self.refused: list[str] = []
        self.waits = threading.Event()
        self.paths: list[str] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A control plane that is killed leaves its callers without an answer: here too."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Door

    def log_message(self, format: str, *args: Any) -> None: ...

    def handle_one(self) -> None:
        door = self.server
        door.paths.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "POST" and len(door.refused) < door.refuse:
            door.refused.append(self.path)
            self.send_response(429)
            answer = b'{"code": "throttled", "message": "Too many calls.", "fields": {}}'
            self.send_header("Retry-After", "1")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        if "/wait" in self.path:
            door.waits.set()
        self.close_connection = True
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", door.port, timeout=60)) as inner:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            inner.request(self.command, self.path, body, {**headers, "Host": f"127.0.0.1:{door.port}"})
            answered = inner.getresponse()
            data = answered.read()  # a break in here breaks the caller's connection too: nothing was sent yet
        self.send_response(answered.status)
        for name, value in answered.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = handle_one


@pytest.fixture
def door(grid: Grid) -> Iterator[Door]:
    with Door(grid.port, refuse=1) as door:
        thread = threading.Thread(target=door.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield door
        door.shutdown()


@pytest.fixture
def token(grid: Grid) -> str:
    """What CI gets: read and submit, nothing else."""
    with grid.client() as client:
        return str(client._call("POST", "/tokens/", body={"name": "ci", "scopes": ["read", "submit"]})["token"])


def gitlab() -> str:
    job = yaml.safe_load((CI / "gitlab-ci.yml").read_text())["gpu-test"]
    return "\n".join([*job["before_script"], *job["script"]])


def github() -> str:
    steps = yaml.safe_load((CI / "github-actions.yml").read_text())["jobs"]["gpu-test"]["steps"]
    return "\n".join(step["run"] for step in steps if "run" in step)


def jenkins() -> str:
    (body,) = re.findall(r"sh '''(.*?)'''", (CI / "Jenkinsfile").read_text(), re.DOTALL)
    return str(body)


class Runner:
    """A checkout, a token and the variables of one run; nothing of ours is in its environment."""

    def __init__(self, folder: Path, *, door: Door, token: str) -> None:
        self.folder = folder
        tools = folder / "tools"
        tools.mkdir()
        (tools / "pip").write_text("#!/bin/sh\n")  # nebula-ctl is there already; the network may not be
        (tools / "pip").chmod(0o755)
        (folder / "examples").symlink_to(ROOT / "examples")
        path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        run = {
            "CI_JOB_ID": folder.name,
            "GITHUB_REPOSITORY": "lab/digits",
            "GITHUB_RUN_ID": folder.name,
            "CI_KEY": f"jenkins-{folder.name}",
        }
        self.env = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "NEBULA_ENDPOINT": door.url, "NEBULA_TOKEN": token, **run}

    def start(self, script: str, **more: str) -> subprocess.Popen[str]:
        """Stops at the first error, as runners do."""
        argv = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.Popen(argv, cwd=self.folder, env=self.env | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def runner(tmp_path: Path, door: Door, token: str) -> Runner:
    return Runner(tmp_path, door=door, token=token)


@pytest.mark.parametrize(
    ("example", "file"),
    [
        (gitlab, "report.json"),
        pytest.param(github, "report.json", marks=pytest.mark.soak),
        pytest.param(jenkins, "files/report.json", marks=pytest.mark.soak),
    ],
)
def test_an_example_gets_through_a_429_and_a_restart_in_mid_wait(
    grid: Grid, client: NebulaClient, door: Door, token: str, runner: Runner, example: Callable[[], str], file: str
) -> None:
    # The job waits for its node, so that what happens to the control plane happens in the middle of it.
    for node in client.node_list():
        client.node_drain(node["name"], reason="not yet")
    before = {job["id"] for job in client.jobs(q="digits")}
    script = runner.start(example())
    asked = re.compile(r"/jobs/[0-9]+(/wait|/logs\?|$)")
    wait_for(lambda: any(asked.search(path) for path in door.paths) or script.poll() is not None, what="the script waits")
    grid.wait_restarted("web", grid.kill("web"))
    wait_for(grid.answers, what="the control plane is back")
    for node in client.node_list():
        client.node_resume(node["name"])
    output, _ = script.communicate(timeout=60)
    assert script.returncode == 0, output
    assert door.refused, "the 429 was never met"
    assert "trained on " in output
    assert token not in output
    json.loads((runner.folder / file).read_text())
    (made,) = {job["id"] for job in client.jobs(q="digits")} - before
    assert client.job_get(made)["state"] == "SUCCEEDED"
    # Run again, as a runner does that lost its connection: the same job, not a second one.
    again = runner.start(example())
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 0, output
    assert {job["id"] for job in client.jobs(q="digits")} - before == {made}


def test_a_job_that_fails_fails_the_step_and_a_refusal_is_told(runner: Runner) -> None:
    wanted = runner.folder / "job.json"
    wanted.write_text(json.dumps({"name": "fails", "argv": ["sh", "-c", "echo no luck; exit 3"], "gpu_count": 0}))
    failed = runner.start("examples/ci/nebula-run.sh job.json")
    output, _ = failed.communicate(timeout=60)
    assert (failed.returncode, "no luck" in output) == (1, True), output
    wanted.write_text(json.dumps({"argv": ["true"], "gpu_mem": "900G"}))
    refused = runner.start("examples/ci/nebula-run.sh job.json", CI_KEY="another")
    output, _ = refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert "No GPU can ever hold this" in output
