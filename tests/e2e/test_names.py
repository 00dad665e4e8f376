"""Names are users' text: quotes, shells' signs and other scripts go the whole way and come back as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.live.grid import Grid
from client.sdk import NebulaClient

NAMES = ("az'", "$(touch x)", "a;b", "../x", '"', "训练 ☠")


def test_no_name_does_anything(grid: Grid, client: NebulaClient, finished: Callable[..., Any], tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", 'printf "%s" "$NEBULA_JOB_NAME"']
    jobs = {name: client.job_submit(name=name, argv=argv, gpu_count=0, workdir=str(tmp_path))["id"] for name in NAMES}
    for name, number in jobs.items():
        job = finished(number)
        assert (job["state"], job["name"]) == ("SUCCEEDED", name)
        assert b"".join(client.job_log_download(number)).decode() == name
    assert list(tmp_path.iterdir()) == []
    assert [node["state"] for node in client.node_list()] == ["READY", "READY"]
    for name in ("line\nbreak", "\u202eevil", "x" * 10_000):
        done = grid.ctl("submit", "--name", name, "--gpu-count", "0", "--", "true")
        assert done.returncode == 2, done.stdout
