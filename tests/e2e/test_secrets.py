"""A canary goes the whole way into jobs and is found nowhere else: acceptance of the secrets, on the real processes."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.live.grid import PATIENCE_S, ROOT, Grid, wait_for
from client.errors import NebulaError
from client.sdk import NebulaClient
from tests.e2e.helpers import log_of, running

CANARY = "canary-7Zq+Ω/kX9 wren"
SPELLINGS = tuple(
    spelled.encode()
    for spelled in (
        CANARY,
        CANARY.encode().hex(),
        base64.b64encode(CANARY.encode()).decode().rstrip("="),
        base64.b64encode(f"x:{CANARY}".encode()).decode()[4:-4],
        json.dumps(CANARY)[1:-1],
    )
)
#: Shows by a hash that it has the value, prints it in several ways, once in two pieces, and goes on when told to.
PROGRAM = """
import base64, hashlib, os, sys, time
value = os.environ["CANARY"]
place = os.path.join(os.environ["NEBULA_SECRETS"], "canary")
assert open(place).read() == value
print("mode", oct(os.stat(place).st_mode & 0o777), oct(os.stat(os.path.dirname(place)).st_mode & 0o777))
print("sha256", hashlib.sha256(value.encode()).hexdigest())
print("raw", value, "hex", value.encode().hex(), "base64", base64.b64encode(value.encode()).decode(), flush=True)
sys.stdout.write("pieces " + value[:9]); sys.stdout.flush()
time.sleep(0.6)
sys.stdout.write(value[9:] + " end\\n"); sys.stdout.flush()
print("folder", os.environ["NEBULA_SECRETS"], flush=True)
go = sys.argv[1]
while not os.path.exists(go):
    time.sleep(0.05)
print("last " + value[:7], end="")
"""


def traces(data: bytes) -> list[bytes]:
    return [spelled for spelled in SPELLINGS if spelled in data]


def files_with(folder: Path, *, but: Callable[[Path], bool] = lambda path: False) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and not but(path) and traces(path.read_bytes()):
                found.append(str(path))
    return found


def command_lines_with() -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(place.name) != os.getpid() and traces((place / "cmdline").read_bytes()):
                found.append(place.name)
    return found


def browser(grid: Grid) -> httpx.Client:
    """Signed in as the administrator."""
    found = httpx.Client(base_url=grid.url, follow_redirects=True, timeout=PATIENCE_S)
    form = found.get("/accounts/login/").text
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
    assert token is not None
    password = (grid.data / "admin-password").read_text().strip()
    fields = {"csrfmiddlewaretoken": token[1], "login": "admin@localhost", "password": password}
    assert found.post("/accounts/login/", data=fields, headers={"Referer": grid.url}).url.path == "/"
    return found


def pages_of(job: int) -> Iterator[str]:
    for tab in ("", "log/", "events/", "files/", "request/", "curves/"):
        yield f"/jobs/{job}/{tab}"
    yield f"/jobs/new/?from=job:{job}"
    for route in ("", "/why", "/events", "/logs", "/logs/download", "/artifacts"):
        yield f"/api/v1/jobs/{job}{route}"


def pages_of_all() -> Iterator[str]:
    yield from ("/jobs/", "/secrets/", "/audit/", "/audit/?as=csv", "/audit/?as=jsonl")
    yield from ("/api/v1/jobs/", "/api/v1/secrets/", "/api/v1/audit/", "/api/v1/audit/export?as=csv", "/metrics")


def test_a_canary_is_found_nowhere_but_in_the_job(grid: Grid, client: NebulaClient, finished: Callable[..., Any], tmp_path: Path) -> None:
    # 1. Set by standard input; never on a command line.
    program = Path(sys.executable).with_name("nebula-ctl")
    env = {**grid.env, "NEBULA_CONFIG": str(grid.profile_file)}
    done = subprocess.run(
        [program, "secrets", "set", "canary"], env=env, cwd=ROOT, input=f"{CANARY}\n".encode(), capture_output=True, check=True
    )
    assert traces(done.stdout + done.stderr) == []
    # 2. A job that has it as a file and as a variable and prints it; one that can't even start.
    go = tmp_path / "go"
    wanted = {"secrets": ["canary", "canary=CANARY"], "workdir": str(ROOT), "gpu_mem": "4G"}
    job = running(client, client.job_submit(argv=[sys.executable, "-c", PROGRAM, str(go)], **wanted)["id"])["id"]
    failing = client.job_submit(argv=["/no/such/program"], **wanted)["id"]
    # While it runs, agents come and go: the value was given once and is not needed again.
    wait_for(lambda: "folder" in log_of(client, job), what="the job has printed")
    folder = Path(re.search(r"folder (\S+)", log_of(client, job))[1])  # type: ignore[index]
    assert (folder / "canary").read_text() == CANARY
    assert sorted(path.name for path in folder.iterdir()) == ["canary"], "the variables' file is gone once the program has them"
    assert command_lines_with() == []
    assert files_with(grid.data, but=lambda path: path.name == "output.log") == [], "store, orders, database, logs"
    old = grid.kill("agent")
    grid.wait_restarted("agent", old)
    wait_for(grid.nodes_are_ready, what="the agents are back")
    assert (folder / "canary").exists(), "a new agent leaves a living rank its secrets"
    go.touch()
    # 3. The output came through with the value masked in every spelling, and is whole to its last byte.
    assert finished(job)["state"] == "SUCCEEDED"
    text = log_of(client, job)
    stars = "*" * len(CANARY.encode())
    assert "mode 0o600 0o700" in text
    assert f"raw {stars} hex {'*' * len(CANARY.encode().hex())} base64 " in text
    assert f"pieces {stars} end\n" in text
    assert text.endswith(f"last {CANARY[:7]}"), "an end that is no secret is not held back"
    assert finished(failing)["state"] == "FAILED"
    # 4. Nothing of it anywhere once the ranks are forgotten.
    wait_for(lambda: not list(grid.data.glob("agent*/ranks/*/output.log")), what="the agents have forgotten the ranks")
    assert not folder.exists()
    assert files_with(grid.data) == []
    assert files_with(grid.folder) == []
    assert files_with(Path("/dev/shm")) == []
    with contextlib.closing(browser(grid)) as pages:
        for page in (*pages_of(job), *pages_of(failing), *pages_of_all()):
            assert traces(pages.get(page).content) == [], page
    grid.manage("backup", "--portable", str(tmp_path / "portable"))
    assert traces(gzip.decompress((tmp_path / "portable").read_bytes())) == []
    # 5. Gone means gone: a job that still names it fails with a sentence, one that comes new is refused.
    held = client.job_submit(argv=["true"], hold=True, **wanted)["id"]
    client.secret_delete("canary")
    client.job_release(held)
    ended = finished(held)
    assert ended["state"] == "FAILED"
    assert "canary is not there any more" in json.dumps(client.job_get(held)) + log_of(client, held) + json.dumps(
        list(client.job_events(held))
    )
    with pytest.raises(NebulaError, match="There is no secret canary") as refused:
        client.job_submit(argv=["true"], **wanted)
    assert refused.value.status == 400
