"""What a person's job reaches of a real installation under one plain account: nothing of the control plane, the agents or other jobs."""

from __future__ import annotations

import json
import sys

from bench.live.grid import Grid, wait_for
from tests.e2e.helpers import log_of, running

#: Tries everything that it is told of, and prints what it could do.
JOB = """
import json, os, socket, sys
told = json.load(open(sys.argv[1]))
found = {"read": [], "listed": [], "connected": [], "planted": []}
for path in told["files"]:
    try:
        open(path, "rb").close()
        found["read"].append(path)
    except OSError:
        pass
for path in told["sockets"]:
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(path)
        found["connected"].append(path)
    except OSError:
        pass
for path in told["folders"]:
    try:
        found["listed"] += [f"{path}/{name}" for name in os.listdir(path)]
    except OSError:
        pass
    try:
        open(f"{path}/planted", "x").close()
        found["planted"].append(path)
    except OSError:
        pass
own = os.path.dirname(os.environ["NEBULA_ARTIFACTS"])
found["listed"] = [path for path in found["listed"] if not own.startswith(path)]
print("FOUND", json.dumps(found), flush=True)
"""


def test_a_persons_job_opens_nothing_of_the_installation(grid: Grid) -> None:
    place = grid.folder / "open-to-all"
    place.mkdir(exist_ok=True)
    with grid.client() as client:
        client.secret_set("sealed", "by a key that lies in the data folder")
        other = client.job_submit(argv=["/bin/sh", "-c", 'echo mine > "$NEBULA_ARTIFACTS/model"; exec sleep 600'], name="neighbour")
        running(client, other["id"])
        jobs_root = grid.data.with_name(f"{grid.data.name}-jobs")
        wait_for(lambda: list(jobs_root.glob(f"*/{other['id']}.*/artifacts/model")), what="the neighbour's file is there")
        paths = [path for root in (grid.data, jobs_root) for path in root.rglob("*")]
        files = [str(path) for path in paths if path.is_file() and not path.is_symlink()]
        for name in ("cli.json", "secret-key", "secrets-key", "nebula.sqlite3", "agent.credential", "agent.db", "model"):
            assert any(path.endswith(f"/{name}") for path in files), name
        sockets = [str(path) for path in paths if path.is_socket()]
        assert any(path.endswith("redis.sock") for path in sockets)
        folders = [str(grid.data), str(jobs_root), *(str(path) for path in paths if path.is_dir())]
        (place / "told.json").write_text(json.dumps({"files": files, "sockets": sockets, "folders": folders}))
        (place / "job.py").write_text(JOB)
        job = client.job_submit(
            argv=[sys.executable, "-I", str(place / "job.py"), str(place / "told.json")], name="curious", workdir=str(place)
        )
        wait_for(lambda: client.job_get(job["id"])["state"] in ("SUCCEEDED", "FAILED"), what="the job has looked")
        (line,) = [line for line in log_of(client, job["id"]).splitlines() if line.startswith("FOUND ")]
        found = json.loads(line.removeprefix("FOUND "))
        assert found == {"read": [], "listed": [], "connected": [], "planted": []}
        client.job_cancel(other["id"])
        client.secret_delete("sealed")
