"""Of NebulaClient: what programs that run again and again use, such as CI: wait, apply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from client import shapes
from client.sdk_secrets import Caller


class ApplyCalls:
    def job_poll(self: Caller, job_id: int, *, state: str | None = None, timeout_s: float = 25) -> shapes.Job:
        """The job once it has ended (or, with ``state``, is in another state), or as it is after at most 25 s: a long poll."""
        params = {"timeout": max(0, min(25, int(timeout_s))), "state": state}
        return cast(shapes.Job, self._call("GET", f"/jobs/{int(job_id)}/wait", params=params))

    def job_apply(self: Caller, wanted: Mapping[str, Any], *, is_dry: bool = False, is_retry: bool = False) -> shapes.Applied:
        """See to it that this job is there, however often it is called.

        ``wanted`` has job_submit's fields and, if two jobs of one name are meant, an ``id`` of one's own. Answers with what was done
        (created | unchanged | replaced | renewed), the job, and what differs. ``is_retry``: a job that failed or was cancelled is made
        again. Raises NebulaError: invalid_state (409) if it runs with other content, and what job_submit raises.
        """
        body = {"job": dict(wanted), "dry_run": is_dry, "retry": is_retry}
        return cast(shapes.Applied, self._call("POST", "/jobs/apply", body=body, is_repeatable=True))
