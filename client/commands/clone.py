"""clone: a job like an earlier one, with what its earlier runs say of its size."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from client.commands.common import JobId, JsonFlag, ProfileOption, note, print_json, say, session_open
from client.i18n import _
from client.output import gib


def job_clone(
    job_id: JobId,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help=_("Another name."))] = None,
    gpu_mem: Annotated[str | None, typer.Option("--gpu-mem", metavar="SIZE", help=_("Other memory on each GPU, such as 12G."))] = None,
    gpu_count: Annotated[int | None, typer.Option("--gpu-count", metavar="N", min=0, help=_("Another number of GPUs."))] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="H:MM:SS", help=_("Another time limit."))] = None,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help=_("Another project."))] = None,
    is_right_size: Annotated[
        bool, typer.Option("--right-size", help=_("Ask for the memory that the last runs of this name suggest."))
    ] = False,
    is_shown: Annotated[bool, typer.Option("--show", help=_("Show what would be submitted, and submit nothing."))] = False,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    found = session.client.job_clone_body(job_id)
    advice = found["advice"]
    if is_shown:
        if not session.is_json and advice:
            note(_advice_line(advice))
        print_json(found if session.is_json else found["body"])
        return
    changes: dict[str, Any] = {"name": name, "gpu_mem": gpu_mem, "gpu_count": gpu_count, "time": time, "project": project}
    job = session.client.job_clone(job_id, right_size=is_right_size, **{key: value for key, value in changes.items() if value is not None})
    if session.is_json:
        print_json(job)
        return
    if advice and gpu_mem is None and not is_right_size:
        note(_advice_line(advice) + " " + _("Next time: --right-size."))
    if is_right_size and not advice:
        note(_("The runs so far suggest no other size; it asks for what it asked for."))
    say(_("Job {id} is submitted, like job {source}.").format(id=job["id"], source=job_id))


def _advice_line(advice: dict[str, Any]) -> str:
    values = {name: gib(advice[f"{name}_mib"]) for name in ("peak", "asked", "suggested")}
    text = _("Your last {n} runs of this name peaked at {peak} on one card; you ask for {asked}. {suggested} would do.")
    return text.format(n=advice["runs"], **values)
