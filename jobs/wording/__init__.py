"""Codes and numbers into sentences, in the reader's language. Prose is never stored; this package and jobs/refusals.py make it.

Every function answers with the bare code when it does not know it or when a number is missing: a sentence never fails
a request. Memory is shown as GiB, MiB stays in the API's numbers (D36).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.wording import waits
from jobs.wording.ends import ENDS, EVENTS, end_reason_text, requeued
from jobs.wording.numbers import Params, Sentence, duration, gib, said
from jobs.wording.starts import about, start_text, with_time
from jobs.wording.waits import quota_sentence
from nodes.wording import advice_text

if TYPE_CHECKING:
    from jobs.models import Job, JobEvent

__all__ = [
    "REASONS",
    "Params",
    "Sentence",
    "about",
    "advice_text",
    "duration",
    "end_reason_text",
    "end_text",
    "event_code_text",
    "event_text",
    "gib",
    "quota_sentence",
    "reason_text",
    "said",
    "start_text",
    "why_text",
]

#: Everything that may stand as the reason of a wait.
REASONS: dict[str, Sentence] = {**waits.REASONS, "requeued": requeued}


def reason_text(code: str, params: Params | None = None) -> str:
    """Why a job waits, or why it can never run. With ``until_at`` or ``starts_at`` in the params also until about when."""
    return with_time(said(REASONS, code, params), params or {})


def end_text(job: Job) -> str:
    """How a job ended; empty while it hasn't."""
    return end_reason_text(job.end_reason, job.end_params, exit_code=job.exit_code) if job.end_reason else ""


def why_text(job: Job) -> tuple[str, Params, str]:
    """(code, params, sentence) of why a job is where it is: waiting for, doing, or ended by what."""
    if job.end_reason and job.is_final:
        return job.end_reason, job.end_params, end_text(job)
    code, params = (job.wait_code, job.wait_params) if job.state == "WAITING" else (job.state.lower(), {})
    return code, params, reason_text(code, params)


def event_text(event: JobEvent) -> str:
    """One line of a job's history."""
    return event_code_text(event.code, event.params)


def event_code_text(code: str, params: Params | None = None) -> str:
    if code in EVENTS:
        return said(EVENTS, code, params)
    # A move's event may carry the end reason itself as its code.
    return end_reason_text(code, params) if code in ENDS else reason_text(code, params)
