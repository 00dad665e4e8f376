"""What the browser tests of jobs share."""

from __future__ import annotations

import contextlib

from bench.live.grid import wait_for
from client.sdk import NebulaClient

LIVE = "WAITING,STARTING,RUNNING,STOPPING"


def jobs_end(client: NebulaClient) -> None:
    """Cancel what still lives and wait for its end."""
    for job in client.jobs(state=LIVE, owner="all"):
        with contextlib.suppress(Exception):  # it may have ended by itself
            client.job_cancel(job["id"])
    wait_for(lambda: not list(client.jobs(state=LIVE, owner="all")), what="all jobs of the test are over", deadline_s=60)
