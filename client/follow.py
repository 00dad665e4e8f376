"""Watching a job to its end: its state and its output. Polls: the API's truth is the offset, not a push.

INVARIANT of log_chunks: the pieces of one attempt are contiguous; each begins at the byte where the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from client.errors import NebulaError, Unreachable, WaitTimeout
from client.i18n import _
from client.shapes import FINAL, Job, LogChunk

if TYPE_CHECKING:
    from client.sdk import NebulaClient

T = TypeVar("T")

CHUNK_BYTES = 262_144
FIRST_POLL_S = 0.1
#: Output is looked for this often at most; a quiet job is asked about every 2 s.
LAST_POLL_S = 2.0
#: The control plane keeps a question open for so long at most; the transport's own limit is 30 s.
LONG_POLL_S = 20.0
#: A final job whose log never becomes complete (its node is gone for good) is given up after this.
LINGER_S = 60.0


class _Patience:
    """Lets calls fail for a while: a restart of the control plane must not end a watch."""

    def __init__(self, client: NebulaClient, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s

    def call(self, action: Callable[[], T]) -> T:
        """``action`` until it answers. Raises Unreachable once it has failed for the patience, any other NebulaError at once
        (a certificate that is not trusted, a 404, …)."""
        failing_since: float | None = None
        while True:
            try:
                return action()
            except NebulaError as error:
                is_away = isinstance(error, Unreachable) or (error.status is not None and error.status >= 500) or error.status == 429
                if not is_away or getattr(error.__cause__, "is_final", False):
                    raise
                now = self._client.clock()
                failing_since = now if failing_since is None else failing_since
                if now - failing_since >= self._patience_s:
                    raise
                self._client.sleep(1.0)


def job_wait(
    client: NebulaClient, job_id: int, *, timeout_s: float | None, patience_s: float, on_change: Callable[[Job], None] | None
) -> Job:
    """See NebulaClient.wait."""
    patience = _Patience(client, patience_s)
    deadline = None if timeout_s is None else client.clock() + timeout_s
    pause_s, state = FIRST_POLL_S, ""
    while True:
        began = client.clock()
        most_s = LONG_POLL_S if deadline is None else max(0.0, min(LONG_POLL_S, deadline - began))
        job = patience.call(partial(_poll, client, job_id, state=state, timeout_s=most_s))
        if job["state"] != state:
            state, pause_s = job["state"], FIRST_POLL_S
            if on_change is not None:
                on_change(job)
        if state in FINAL:
            return job
        left_s = None if deadline is None else deadline - client.clock()
        if left_s is not None and left_s <= 0:
            message = _("Job {id} is still {state} after {seconds:g} s; it goes on.")
            raise WaitTimeout("wait_timeout", message.format(id=job_id, state=state, seconds=timeout_s), {"state": state})
        # After a long poll there is nothing to wait for; a control plane that answers at once is not asked without a pause.
        rest_s = pause_s - (client.clock() - began)
        if rest_s > 0:
            client.sleep(rest_s if left_s is None else min(rest_s, left_s))
        pause_s = min(pause_s * 1.3, LAST_POLL_S)


def _poll(client: NebulaClient, job_id: int, *, state: str, timeout_s: float) -> Job:
    """The first look asks for nothing but the job, so that its state is told at once."""
    return client.job_poll(job_id, state=state, timeout_s=timeout_s) if state else client.job_get(job_id)


def log_chunks(
    client: NebulaClient,
    job_id: int,
    *,
    rank: int,
    attempt: int | None,
    offset: int,
    patience_s: float,
    on_notice: Callable[[str], None] | None,
    first: LogChunk | None = None,
) -> Iterator[LogChunk]:
    """See NebulaClient.follow_logs; yields only pieces with text. Raises NebulaError(log_gap).

    ``first``: a piece that is already there (the tail); it is yielded, and the following begins at its end.
    """
    patience = _Patience(client, patience_s)
    say = on_notice or (lambda text: None)
    current, position = attempt, offset
    if first is not None and first["attempt"]:
        current, position = first["attempt"], first["next_offset"]
        if first["text"]:
            yield first
    pause_s, final_since = FIRST_POLL_S, None
    while True:
        # 1. What is there from here on? The job is read after the log, so a final state means the log had all its time.
        chunk = patience.call(partial(_chunk, client, job_id, attempt=current, rank=rank, offset=position))
        if chunk is not None:
            if current is None:
                current = chunk["attempt"]
            if chunk["offset"] != position:
                message = _("The output of job {id} has no byte {want}; the control plane answered from {got} on.")
                raise NebulaError("log_gap", message.format(id=job_id, want=position, got=chunk["offset"]))
            if chunk["next_offset"] > position:
                position = chunk["next_offset"]
                pause_s, final_since = FIRST_POLL_S, None
                yield chunk
                continue
        # 2. Nothing new. Is it over, or is there another attempt?
        job = patience.call(lambda: client.job_get(job_id))
        latest = job["attempt"]["epoch"] if job["attempt"] else None
        is_read = chunk is not None and chunk["is_complete"] and position >= chunk["length"]
        if attempt is None and latest is not None and current is not None and latest > current:
            if is_read or (final_since is not None and client.clock() - final_since >= LINGER_S):
                say(_("Attempt {old} of job {id} ended; attempt {new} follows.").format(old=current, new=latest, id=job_id))
                current, position, final_since, pause_s = current + 1, 0, None, FIRST_POLL_S
                continue
            final_since = client.clock() if final_since is None else final_since
        elif job["state"] in FINAL or (attempt is not None and latest is not None and latest > attempt):
            if is_read or latest is None:
                return
            final_since = client.clock() if final_since is None else final_since
            if client.clock() - final_since >= LINGER_S:
                say(_("Job {id} ended, but the end of its output has not arrived; it may be incomplete.").format(id=job_id))
                return
        client.sleep(pause_s)
        pause_s = min(pause_s * 1.3, LAST_POLL_S)


def _chunk(client: NebulaClient, job_id: int, *, attempt: int | None, rank: int, offset: int) -> LogChunk | None:
    """None while the job has no attempt, hence no output. A job that does not exist raises."""
    try:
        chunk = client.job_logs(job_id, attempt=attempt, rank=rank, offset=offset, limit=CHUNK_BYTES)
    except NebulaError as error:
        if error.status != 404 or attempt is not None:
            raise
        # Placed in between: the next look finds the attempt. What stays missing is missing.
        if client.job_get(job_id)["attempt"] is None:
            return None
        chunk = client.job_logs(job_id, attempt=None, rank=rank, offset=offset, limit=CHUNK_BYTES)
    return chunk if chunk["attempt"] else None
