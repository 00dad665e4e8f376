"""What a failed job's output died of: looked for once, when the job ends, and kept in ``Job.end_known``."""

from __future__ import annotations

from typing import Any

from jobs.known_errors import BY_CODE, Found, error_of, output_tail
from jobs.last_lines import last_lines
from jobs.lifecycle import EndReason, JobState
from jobs.models import Job, Rank
from nodes.text import text_clean

#: Of a job of many, the outputs that are looked into: at most so many times the end of a file.
KNOWN_RANKS = 8


def may_be_known(job: Job) -> bool:
    return job.state == JobState.FAILED and job.end_reason in (EndReason.NONZERO_EXIT, EndReason.GPU_MEMORY)


def known_error(job: Job) -> Found | None:
    """What its output died of, if that is known; of the rank that is to blame first. Reads the ends of files and writes what they say
    where nobody has looked yet: the end of a job came a moment ago, or before there was such a column."""
    if not may_be_known(job):
        return None
    if job.end_known is None:
        known_error_note(job.pk)
        job.refresh_from_db(fields=["end_known"])
    kept = job.end_known or {}
    error = BY_CODE.get(str(kept.get("code")))
    return Found(error=error, line=str(kept.get("line", ""))) if error is not None else None


def last_words(job: Job) -> list[str]:
    """The last lines of a failed job's output, as they were kept with its known error: call ``known_error`` first. No query."""
    kept = (job.end_known or {}).get("last") if may_be_known(job) else None
    return [str(line) for line in kept] if isinstance(kept, list) else []


def known_error_note(pk: int) -> None:
    """Looks once; a second call changes nothing. Call outside of transactions: it reads files."""
    job = Job.objects.filter(pk=pk, end_known__isnull=True).only("state", "end_reason", "end_params", "epoch").first()
    if job is None or not may_be_known(job):
        return
    blamed = job.end_params.get("rank")
    ranks = Rank.objects.filter(attempt__job=job, attempt__epoch=job.epoch).values_list("index", "key")
    keys = [key for _index, key in sorted(ranks, key=lambda rank: (rank[0] != blamed, rank[0]))]
    found = error_of(keys[:KNOWN_RANKS])
    kept: dict[str, Any] = {} if found is None else {"code": found.error.code, "line": text_clean(found.line)}  # PostgreSQL keeps no NUL
    if keys:
        kept["last"] = last_lines(output_tail(keys[0]))
    Job.objects.filter(pk=pk, end_known__isnull=True).update(end_known=kept)
