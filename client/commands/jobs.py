"""list, show, cancel, hold, release, why, events, artifacts …: jobs as rows and as records."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from client.commands.common import JobId, JobIds, JsonFlag, ProfileOption, columns, note, print_json, say, session_open, usage_fault
from client.commands.estimate import start_short, why_say
from client.commands.watch import end_line, write_raw
from client.errors import NebulaError, exit_code_for
from client.i18n import _
from client.output import duration, elapsed, gib, known, labels_text, model_short, pairs, safe, size, table, time_local, time_short
from client.shapes import Job


def job_list(
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE[,STATE]", help=_("Only these states, such as RUNNING,WAITING."))
    ] = None,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help=_("Only this project."))] = None,
    q: Annotated[str | None, typer.Option("--search", "-q", metavar="TEXT", help=_("Only jobs whose name has this text."))] = None,
    is_all: Annotated[bool, typer.Option("--all", help=_("Everybody's jobs (staff)."))] = False,
    ordering: Annotated[str | None, typer.Option("--ordering", metavar="FIELD", help=_("Sort by this field; - in front reverses."))] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=200, help=_("Jobs a page."))] = 50,
    page: Annotated[int, typer.Option("--page", metavar="N", min=1, help=_("Which page."))] = 1,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    owner = "all" if is_all else "me"
    states = state.upper() if state else None
    answer = session.client.job_list(state=states, owner=owner, project=project, q=q, ordering=ordering, page=page, page_size=limit)
    if session.is_json:
        print_json(answer)
        return
    jobs: list[Job] = answer["results"]
    if not jobs:
        say(
            _("No jobs match.")
            if answer["count"] == 0
            else _("Page {page} is empty; there are {count} jobs.").format(page=page, count=answer["count"])
        )
        return
    now = datetime.now(UTC)
    # A column: its header, its values, whether it stands to the right, and its turn to give up room (None = it keeps it).
    Column = tuple[str, list[Any], bool, int | None]
    shown: list[Column] = [("ID", [job["id"] for job in jobs], True, None)]
    if is_all:
        shown.append((_("OWNER"), [job["owner"] for job in jobs], False, 2))
    shown += [
        (_("NAME"), [job["name"] for job in jobs], False, 1),
        (_("STATE"), [job["state"] for job in jobs], False, None),
        (_("GPUS"), [job["gpu_count"] for job in jobs], True, None),
        (_("MEMORY"), [_mem(job) for job in jobs], True, None),
    ]
    if any(places := [_place(job) for job in jobs]):
        shown.append((_("NODE"), places, False, 3))
    shown += [
        (_("SUBMITTED"), [time_short(job["submitted_at"], now) for job in jobs], False, None),
        (_("RUN TIME"), [_run(job, now) for job in jobs], True, None),
    ]
    if any(starts := [start_short(job, now) for job in jobs]):
        shown.append((_("START"), starts, False, None))
    shown.append((_("NOTE"), [_note(job) for job in jobs], False, 0))
    headers = [header for header, *_rest in shown]
    rows = list(zip(*(values for _header, values, *_rest in shown), strict=True))
    right = frozenset(at for at, column in enumerate(shown) if column[2])
    shrink = [at for _turn, at in sorted((column[3], at) for at, column in enumerate(shown) if column[3] is not None)]
    say(table(headers, rows, width=columns(), right=right, shrink=shrink))
    if len(jobs) < answer["count"]:
        note(_("{shown} of {count} jobs; more with --page {page}.").format(shown=len(jobs), count=answer["count"], page=page + 1))


def _mem(job: Job) -> str:
    if job["gpu_count"] == 0:
        return "-"
    return _("whole") if job["gpu_mem_mib"] is None else gib(job["gpu_mem_mib"])


def _place(job: Job) -> str:
    """``node01``, ``node01 +1``: where its running or last attempt is; empty before there is one."""
    attempt = job["attempt"]
    nodes = list(dict.fromkeys(attempt.get("nodes") or [])) if attempt is not None else []
    return "" if not nodes else nodes[0] if len(nodes) == 1 else f"{nodes[0]} +{len(nodes) - 1}"


def _run(job: Job, now: datetime) -> str:
    return elapsed(job["started_at"], job["ended_at"], now)


def _note(job: Job) -> str:
    if job["state"] == "WAITING" and job["wait"]:
        return job["wait"]["text"] or job["wait"]["code"]
    if job["end"] and job["state"] != "SUCCEEDED":
        return job["end"]["text"] or job["end"]["reason"]
    return _("cancel wanted") if job["want_cancel"] and job["end"] is None else ""


def job_show(job_id: JobId, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    job = session.client.job_get(job_id)
    session.answer(job, _record(job, datetime.now(UTC)))


def _record(job: Job, now: datetime) -> str:
    wait, end, attempt = job["wait"], job["end"], job["attempt"]
    wants = [_("{count} × {memory}").format(count=job["gpu_count"], memory=_mem(job)) if job["gpu_count"] else _("none (CPU only)")]
    asked = job["constraints"] or {}
    wants += [f"{key} {value}" for key, value in sorted(asked.items()) if key in {"arch", "model", "vendor"}]
    if job.get("exclusive"):
        wants.append(_("nobody beside it"))
    if job["nodes"] > 1:
        wants.append(_("on {count} nodes").format(count=job["nodes"]))
    again = _("yes ({count} so far)").format(count=job["requeues"]) if job["requeue"] else _("no")
    rows: list[tuple[str, object]] = [
        (_("Job"), f"{job['id']} {job['name']}"),
        (_("State"), job["state"]),
        (_("Waits because"), _wait_words(wait) if wait and job["state"] == "WAITING" else None),
        (_("Held because"), (job["held_why"] or "-") if job["held"] else None),
        (_("Ended"), (end["text"] or end["reason"]) if end else None),
        (_("Exit code"), end["exit_code"] if end else None),
        (_("Owner"), job["owner"]),
        (_("Project"), job["project"]),
        (_("Command"), shlex.join(job["argv"])),
        (_("Folder"), known(job["workdir"])),
        (_("Environment"), _environment(job["env"])),
        (_("GPUs"), ", ".join(wants)),
        (_("Node must have"), _node_needs(job)),
        (_("Time limit"), _("none") if job["time_limit_s"] is None else duration(job["time_limit_s"])),
        (_("Priority"), job["priority"] or None),
        (_("Queue"), job.get("queue") or None),
        (_("Quality of service"), job.get("qos") or None),
        (_("Requeue"), again),
        (_("Node lost"), job["on_node_loss"]),
        (_("Checkpoint"), job["checkpoint"] or None),
        (_("Submitted"), time_local(job["submitted_at"])),
        (_("Started"), time_local(job["started_at"]) if job["started_at"] else None),
        (_("Finished"), time_local(job["ended_at"]) if job["ended_at"] else None),
        (_("Run time"), _run(job, now) if job["started_at"] else None),
        (_("Attempt"), attempt["epoch"] if attempt else None),
    ]
    lines = [pairs(rows)]
    for rank in attempt.get("ranks", []) if attempt else []:
        cards = ", ".join(_card(gpu) for gpu in rank["gpus"]) or _("no GPUs")
        lines.append(
            _("Rank {index} on {node}: {state}, {cards}, {bytes} of output").format(
                index=rank["index"], node=safe(rank["node"]), state=rank["observed"], cards=cards, bytes=size(rank["log_bytes"])
            )
        )
    return "\n".join(lines)


def _node_needs(job: Job) -> str | None:
    """What each node of the job must have; a control plane of an earlier version says nothing of it."""
    asked: Any = job["constraints"] or {}
    cpu_milli, memory_mib = job.get("cpu_milli"), job.get("host_mem_mib")
    parts = [
        _("CUDA {version} or newer").format(version=asked["cuda_min"]) if asked.get("cuda_min") else None,
        _("driver {version} or newer").format(version=asked["driver_min"]) if asked.get("driver_min") else None,
        labels_text(asked["labels"]) if asked.get("labels") else None,
        None if cpu_milli is None else _("{count} CPU cores").format(count=f"{cpu_milli / 1000:g}"),
        None if memory_mib is None else _("{size} of main memory").format(size=gib(memory_mib)),
    ]
    return ", ".join(part for part in parts if part) or None


def _environment(env: dict[str, str | None]) -> str | None:
    """The values are their owner's; others see the names alone."""
    return " ".join(name if value is None else shlex.quote(f"{name}={value}") for name, value in sorted(env.items())) or None


def _card(gpu: Any) -> str:
    amount = _("whole card") if gpu["exclusive"] else gib(gpu["mib"])
    mark = f" ({_('simulated')})" if gpu["simulated"] else ""
    return f"{safe(model_short(gpu['model']))} #{gpu['index']} {safe(gpu['short'])} {amount}{mark}"


def _wait_words(wait: Any) -> str:
    text = wait["text"] or wait["code"]
    return text if wait["position"] is None else _("{text} (position {position})").format(text=text, position=wait["position"])


def job_cancel(ids: JobIds, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    def words(job: Job) -> str:
        if job["end"] is not None:
            return end_line(job)
        return _("Job {id}: cancel wanted ({state}); it is being stopped politely.").format(id=job["id"], state=job["state"])

    _each(ids, is_json, profile, lambda client, job_id: client.job_cancel(job_id), words)


def job_hold(
    ids: JobIds,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help=_("The reason, for those who read the queue."))] = "",
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    def words(job: Job) -> str:
        return _("Job {id} is held; let it start with: nebula-ctl release {id}").format(id=job["id"])

    _each(ids, is_json, profile, lambda client, job_id: client.job_hold(job_id, why=why), words)


def job_release(ids: JobIds, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    _each(
        ids, is_json, profile, lambda client, job_id: client.job_release(job_id), lambda job: _("Job {id} may start.").format(id=job["id"])
    )


def _each(ids: list[int], is_json: bool, profile: str | None, action: Callable[[Any, int], Job], words: Callable[[Job], str]) -> None:
    """One refused job must not keep the others from being done; the first refusal's exit code counts.

    --json: the job alone for one number, else a list; a refused one is {"id", "error"} in it.
    """
    session = session_open(is_json, profile)
    done: list[Any] = []
    failed: NebulaError | None = None
    for job_id in dict.fromkeys(ids):
        try:
            job = action(session.client, job_id)
        except NebulaError as error:
            if len(ids) == 1 or error.status is None:  # nothing answers: the others would fail the same way
                raise
            failed = failed or error
            done.append({"id": job_id, "error": error.as_json()})
            if not session.is_json:
                note(_("Job {id}: {why}").format(id=job_id, why=safe(error.message)))
        else:
            done.append(job)
            if not session.is_json:
                say(words(job))
    if session.is_json:
        print_json(done[0] if len(ids) == 1 else done)
    if failed is not None:
        raise typer.Exit(exit_code_for(failed))


def job_why(
    job_id: JobId,
    has_alternatives: Annotated[
        bool, typer.Option("--alternatives/--no-alternatives", help=_("Of a waiting job, also say what would start sooner."))
    ] = True,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    why_say(session_open(is_json, profile), job_id, has_alternatives=has_alternatives)


def job_events(job_id: JobId, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    events = list(session.client.job_events(job_id))
    rows = []
    for event in events:
        move = f"{event['from_state'] or '·'} → {event['to_state']}" if event["to_state"] else ""
        rows.append([time_local(event["at"]), move, event["text"] or event["code"], known(event["by"])])
    session.answer(events, table([_("TIME"), _("MOVE"), _("WHAT"), _("BY")], rows, width=columns(), shrink=(2, 3)))


def artifact_list(job_id: JobId, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    items = session.client.job_artifacts(job_id)
    headers = [_("ATTEMPT"), _("RANK"), _("BYTES"), _("NAME")]
    rows = [[a["attempt"], a["rank"], a["size"], a["name"]] for a in items]
    text = table(headers, rows, width=columns(), right=frozenset({0, 1, 2}))
    session.answer(items, text if items else _("Job {id} left no files in $NEBULA_ARTIFACTS.").format(id=job_id))


def artifact_get(
    job_id: JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help=_("The file's name."))],
    rank: Annotated[int, typer.Option("--rank", metavar="N", min=0, help=_("Which part of a job on several nodes."))] = 0,
    attempt: Annotated[int | None, typer.Option("--attempt", metavar="N", min=1, help=_("Which attempt (default: the latest)."))] = None,
    target: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help=_("Where to write it (default: its name, here); - = standard output.")),
    ] = None,
    is_force: Annotated[bool, typer.Option("--force", help=_("Replace an existing file."))] = False,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    chunks = session.client.job_artifact_download(job_id, rank=rank, name=name, attempt=attempt)
    if target == "-":
        write_raw(chunks)
        return
    # The name was chosen by a job: only its last part is used, so that it can't leave this folder.
    path = Path(target or Path(name).name or "artifact").expanduser()
    if path.is_dir():
        path = path / (Path(name).name or "artifact")
    if path.exists() and not is_force:
        raise usage_fault(_("{path} exists; replace it with --force, or name another with --output FILE.").format(path=safe(path)))
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    count = 0
    try:
        with aside.open("xb") as file:
            for chunk in chunks:
                count += file.write(chunk)
        aside.replace(path)
    except OSError as error:
        raise NebulaError(
            "write_failed", _("{path} can't be written: {why}.").format(path=safe(path), why=error.strerror or error)
        ) from error
    finally:
        aside.unlink(missing_ok=True)
    session.answer({"path": str(path), "size": count}, _("{path}: {size}").format(path=safe(path), size=size(count)))
