"""logs and wait: watching a job. Ctrl-C ends the watching, never the job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from client import follow
from client.commands.common import JobId, JsonFlag, ProfileOption, Session, note, print_json, session_open
from client.errors import ExitCode, NebulaError
from client.i18n import _, labelled
from client.output import safe
from client.shapes import Job
from client.terminal import TerminalFilter

#: ``--tail N`` looks back this far for N lines.
TAIL_MOST_BYTES = 16 * 1024 * 1024


def logs(
    job_id: JobId,
    is_follow: Annotated[bool, typer.Option("--follow", "-f", help=_("Go on until the job ends; exit 0 only if it succeeds."))] = False,
    rank: Annotated[int, typer.Option("--rank", metavar="N", min=0, help=_("Which part of a job on several nodes."))] = 0,
    attempt: Annotated[int | None, typer.Option("--attempt", metavar="N", min=1, help=_("Which attempt (default: the latest)."))] = None,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help=_("Only the last N lines, then what follows."))] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    if is_follow:
        follow_to_end(session, job_id, rank=rank, attempt=attempt, tail=tail)
    elif tail is not None:
        chunk = _tail(session, job_id, rank=rank, attempt=attempt, lines=tail)
        if session.is_json:
            print_json(chunk)
        else:
            _write(iter([chunk["text"]]))
    elif session.is_json:
        print_json(_whole(session, job_id, rank=rank, attempt=attempt))
    else:
        write_raw(session.client.job_log_download(job_id, attempt=attempt, rank=rank))


def wait(
    job_id: JobId,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help=_("Give up after this time; the job goes on."))
    ] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    try:
        job = session.client.wait(job_id, timeout_s=timeout_s)
    except KeyboardInterrupt:
        note(_("Stopped waiting; job {id} goes on.").format(id=job_id))
        raise
    session.answer(job, end_line(job))
    if job["state"] != "SUCCEEDED":
        raise typer.Exit(ExitCode.FAILED)


def end_line(job: Job) -> str:
    """``Job 42 FAILED: exit code 3``"""
    end = job["end"]
    text = safe(end["text"] or end["reason"]) if end else ""
    return labelled(_("Job {id} {state}").format(id=job["id"], state=job["state"]), text)


def follow_to_end(session: Session, job_id: int, *, rank: int = 0, attempt: int | None = None, tail: int | None = None) -> None:
    """Output to standard output, words about it to standard error. Exits 1 unless the job succeeded."""
    client = session.client
    first = None
    if tail is not None:
        try:
            first = _tail(session, job_id, rank=rank, attempt=attempt, lines=tail)
        except NebulaError as error:
            if error.status != 404:  # no output yet, or no such job: the following tells which
                raise
    chunks = follow.log_chunks(
        client,
        job_id,
        rank=rank,
        attempt=attempt,
        offset=0,
        patience_s=600,
        on_notice=lambda text: note(safe(text)),
        first=first,
    )
    try:
        if session.is_json:
            for chunk in chunks:
                print_json({"type": "log", **chunk}, is_line=True)
        else:
            _write(chunk["text"] for chunk in chunks)
        job = client.job_get(job_id)
    except KeyboardInterrupt:
        note(_("Stopped following; job {id} goes on. Cancel it with: nebula-ctl cancel {id}").format(id=job_id))
        raise
    if session.is_json:
        print_json({"type": "job", "job": job}, is_line=True)
    else:
        note(end_line(job))
    if job["state"] in {"FAILED", "CANCELLED"}:  # following an old attempt of a live job ends without a verdict
        raise typer.Exit(ExitCode.FAILED)


def _write(texts: Iterator[str]) -> None:
    """To a pipe as it is; to a terminal without control sequences."""
    if not sys.stdout.isatty():
        for text in texts:
            sys.stdout.write(text)
            sys.stdout.flush()
        return
    gate = TerminalFilter()
    try:
        for text in texts:
            sys.stdout.write(gate.feed(text))
            sys.stdout.flush()
    finally:
        sys.stdout.write(gate.end())
        sys.stdout.flush()


def write_raw(chunks: Iterator[bytes]) -> None:
    """The bytes themselves to a pipe; on a terminal their reading as UTF-8, filtered."""
    if sys.stdout.isatty():
        import codecs

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        _write(decoder.decode(chunk) for chunk in chunks)
        return
    sys.stdout.flush()
    raw = getattr(sys.stdout, "buffer", None)
    for chunk in chunks:
        if raw is not None:
            raw.write(chunk)
        else:
            sys.stdout.write(chunk.decode("utf-8", "replace"))
    sys.stdout.flush()


def _whole(session: Session, job_id: int, *, rank: int, attempt: int | None) -> Any:
    """All there is now, as one chunk. The length of the first answer is the end: a busy job must not keep us here."""
    chunk: dict[str, Any] = dict(session.client.job_logs(job_id, attempt=attempt, rank=rank, offset=0))
    while chunk["next_offset"] < chunk["length"]:
        more = session.client.job_logs(job_id, attempt=chunk["attempt"], rank=rank, offset=chunk["next_offset"])
        if more["next_offset"] <= chunk["next_offset"]:
            break
        chunk.update(next_offset=more["next_offset"], is_complete=more["is_complete"], text=chunk["text"] + more["text"])
    return chunk


def _tail(session: Session, job_id: int, *, rank: int, attempt: int | None, lines: int) -> Any:
    """A chunk with the last ``lines`` lines (fewer when they are longer than 16 MiB together); its offset is where they begin."""
    want = max(4096, lines * 200)
    while True:
        chunk: dict[str, Any] = dict(session.client.job_logs(job_id, attempt=attempt, rank=rank, tail=min(want, TAIL_MOST_BYTES)))
        start, text = chunk["offset"], chunk["text"]
        while chunk["next_offset"] < chunk["length"]:  # a page may be shorter than what was asked for
            more = session.client.job_logs(job_id, attempt=chunk["attempt"], rank=rank, offset=chunk["next_offset"])
            if more["next_offset"] <= chunk["next_offset"]:
                break
            text += more["text"]
            chunk["next_offset"], chunk["is_complete"] = more["next_offset"], more["is_complete"]
        # One line break more than lines: the first of the lines is then known to be whole.
        if text.count("\n") > lines or start == 0 or want >= TAIL_MOST_BYTES:
            kept = _last_lines(text, lines)
            # A replacement sign stands for bytes that nobody can count any more: then the piece's own start is the truth.
            exact = chunk["next_offset"] - len(kept.encode("utf-8", "surrogatepass"))
            chunk.update(text=kept, offset=start if "\ufffd" in text else exact)
            return chunk
        want *= 4


def _last_lines(text: str, lines: int) -> str:
    if lines == 0:
        return ""
    position = len(text) - 1 if text.endswith("\n") else len(text)
    for _count in range(lines):
        position = text.rfind("\n", 0, position)
        if position < 0:
            return text
    return text[position + 1 :]
