"""apply: jobs as files. The same file once more changes nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.commands.common import JsonFlag, ProfileOption, note, print_json, say, session_open, usage_fault
from client.i18n import _
from client.output import safe

if TYPE_CHECKING:
    from client.shapes import Applied

MOST = 2 * 1024 * 1024
JOBS_MOST = 200


def apply(
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE", help=_("The jobs, as YAML or JSON; - = standard input."))],
    is_dry: Annotated[bool, typer.Option("--dry-run", help=_("Only show what would be done."))] = False,
    is_retry: Annotated[bool, typer.Option("--retry", help=_("Make jobs that failed or were cancelled again."))] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help=_("Show its output until it ends (one job); exit 0 only if it succeeds."))
    ] = False,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    wanted = jobs_read(_text(file), place=file)
    if follow and (len(wanted) != 1 or is_dry):
        raise usage_fault(
            _("--follow is for one job and not with --dry-run; {place} has {count}.").format(place=safe(file), count=len(wanted))
        )
    session = session_open(is_json, profile)
    done = []
    for job in wanted:
        found = session.client.job_apply(job, is_dry=is_dry, is_retry=is_retry)
        done.append(found)
        if not session.is_json:
            for line in lines_of(found, name=str(job.get("name") or job.get("id") or ""), is_dry=is_dry):
                (note if follow else say)(line)
    if session.is_json and not follow:
        print_json(done)
    if follow:
        from client.commands.watch import follow_to_end

        follow_to_end(session, done[0]["job"]["id"])


def lines_of(done: Applied, *, name: str, is_dry: bool) -> list[str]:
    """What was done, and a line for each difference."""
    number = done["job"]["id"] if done["job"] else None
    name = safe(done["job"]["name"] if done["job"] else name)
    texts = {
        ("created", False): _("Job {id} ({name}) is submitted."),
        ("unchanged", False): _("Job {id} ({name}) is as it was: {state}."),
        ("replaced", False): _("Job {id} ({name}) is submitted in place of job {old}, which waited."),
        ("renewed", False): _("Job {id} ({name}) is submitted; the one before had ended."),
        ("created", True): _("{name} would be submitted."),
        ("unchanged", True): _("Job {id} ({name}) would stay as it is: {state}."),
        ("replaced", True): _("Job {id} ({name}) waits and would give way to a new one."),
        ("renewed", True): _("Job {id} ({name}) has ended; a new one would be submitted."),
    }
    state = done["job"]["state"] if done["job"] else ""
    lines = [texts[done["action"], is_dry].format(id=number, name=name or _("a job"), state=state, old=done["replaces"])]
    for change in done["diff"]:
        before, after = (_("nothing") if value is None else safe(_shown(value)) for value in (change["before"], change["after"]))
        lines.append(f"  {safe(change['field'])}: {before} → {after}")
    return lines


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text(file: str) -> str:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MOST + 1)
        else:
            with Path(file).expanduser().open("rb") as source:
                data = source.read(MOST + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or _("it is not UTF-8 text")
        raise usage_fault(_("{path} can't be read: {why}.").format(path=safe(file), why=why)) from error
    if len(data) > MOST:
        raise usage_fault(_("{path} is larger than {most} bytes.").format(path=safe(file), most=MOST))
    return text


def jobs_read(text: str, *, place: str) -> list[dict[str, Any]]:
    """The jobs of a file: one, a list, or documents with --- between them. Raises UsageFault with line and column.

    Plain words are texts: ``yes``, ``1:30:00`` and dates stay what was written. Variables may be numbers.
    """
    import yaml

    try:
        found: list[Any] = [document for document in yaml.load_all(text, Loader=_loader()) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = safe(str(getattr(error, "problem", None) or _("it is not YAML")))
        if mark is None:
            raise usage_fault(_("{path} can't be read: {why}.").format(path=safe(place), why=what)) from error
        message = _("{path} can't be read, line {line}, column {column}: {what}.")
        raise usage_fault(message.format(path=safe(place), line=mark.line + 1, column=mark.column + 1, what=what)) from error
    except RecursionError:
        raise usage_fault(_("{path} is nested too deeply.").format(path=safe(place))) from None
    jobs = [job for document in found for job in (document if isinstance(document, list) else [document])]
    if not 1 <= len(jobs) <= JOBS_MOST:
        raise usage_fault(
            _("{path} has {count} jobs; one file holds 1 to {most}.").format(path=safe(place), count=len(jobs), most=JOBS_MOST)
        )
    for job in jobs:
        if not isinstance(job, dict) or not all(isinstance(key, str) for key in job):
            raise usage_fault(_("{path}: a job is a list of NAME: VALUE lines.").format(path=safe(place)))
        if isinstance(env := job.get("env"), dict):
            job["env"] = {key: str(value) if type(value) in (int, float) else value for key, value in env.items()}
    return jobs


def _loader() -> Any:
    """YAML 1.2's idea of plain words, no aliases that blow up, no key twice, no Python objects."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, list[Any]] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise yaml.composer.ComposerError(None, None, _("aliases are not understood"), self.peek_event().start_mark)  # type: ignore[no-untyped-call]
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _value in node.value:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, _("{key} is there twice").format(key=key.value), key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)\Z"), list("tf"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"), list("-+0123456789"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+\.[0-9]+\Z"), list("-+0123456789"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:null|~|)\Z"), ["n", "~", ""])
    return Loader
