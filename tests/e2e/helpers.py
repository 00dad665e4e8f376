"""What several end-to-end tests ask of a running grid."""

from __future__ import annotations

import contextlib
from typing import Any

from bench.live.grid import Grid, GridError, wait_for
from client.errors import NebulaError
from client.sdk import NebulaClient
from jobs.lifecycle import FINAL

FINAL_STATES = {state.value for state in FINAL}


def log_of(client: NebulaClient, job_id: int) -> str:
    """What the job has printed; nothing while it waits."""
    try:
        return b"".join(client.job_log_download(job_id)).decode()
    except NebulaError as error:
        if error.status != 404:
            raise
        client.job_get(job_id)  # there is such a job; it has no attempt yet
        return ""


def running(client: NebulaClient, job_id: int) -> Any:
    """The job once it runs; it must not end before."""

    def job() -> Any:
        found = client.job_get(job_id)
        assert found["state"] not in FINAL_STATES, found["end"]
        return found if found["state"] == "RUNNING" else None

    return wait_for(job, what=f"job {job_id} runs")


def invariants(grid: Grid) -> list[str]:
    """What `manage.py check_invariants` objects to once the dust has settled; [] = clean."""
    found: list[str] = []

    def is_clean() -> bool:
        nonlocal found
        try:
            grid.manage("check_invariants")
        except GridError as error:
            found = str(error).splitlines()
            return False
        found = []
        return True

    with contextlib.suppress(GridError):
        wait_for(is_clean, what="invariants are clean", deadline_s=60, every_s=1.0)
    return found
