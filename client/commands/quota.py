"""quota, quota ask, quota requests, usage: limits, asking for more, and what was used."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from client.commands.common import JsonFlag, ProfileOption, Session, columns, note, print_json, say, session_open, usage_fault
from client.i18n import _
from client.output import pairs, safe, size, table, time_local


def quota_show(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    found = session.client.quota()
    rows = _limits(found["mine"])
    for name, limits in found["projects"].items():
        rows += [(_("Project {name}").format(name=safe(name)), ""), *_limits(limits, with_reset=False)]
    if found["open_requests"]:
        rows.append((_("Open requests"), found["open_requests"]))
    session.answer(found, pairs(rows))


def _use(used: object, limit: object) -> str:
    return _("{used} of {limit}").format(used=used, limit=_("no limit") if limit is None else limit)


def _limits(quota: dict[str, Any], *, with_reset: bool = True) -> list[tuple[str, object]]:
    hours = _use(f"{quota['used_gpu_hours']:,.1f}", None if quota["gpu_hours"] is None else f"{quota['gpu_hours']:,}")
    rows: list[tuple[str, object]] = [(_("GPU hours"), hours)]
    if with_reset:
        zone = quota.get("zone") or ""
        rows.append((_("Resets"), f"{time_local(quota['resets_at'])} ({zone})" if zone else time_local(quota["resets_at"])))
    rows += [
        (_("Active jobs"), _use(quota["active_jobs"], quota["max_active_jobs"])),
        (_("GPUs held"), _use(quota["held_cards"], quota["max_cards"])),
    ]
    rows += [(_("{model} at once").format(model=safe(model)), most) for model, most in sorted((quota.get("model_cards") or {}).items())]
    return rows


def quota_ask(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=_("gpu_hours, cards, active_jobs, or model_cards:MODEL."))],
    amount: Annotated[int, typer.Argument(metavar="N", min=1, help=_("How much more, on top of the limit."))],
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help=_("The reason; - reads standard input."))] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help=_("ISO time such as 2026-08-01T00:00:00Z; default: this month's end, in its last week the next month's."),
        ),
    ] = None,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help=_("Whose lead looks at it first."))] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    if why is None:
        raise usage_fault(_("Why? Add --why TEXT: what runs, until when, what happens without it."))
    text = sys.stdin.read() if why == "-" else why
    kind, _colon, model = what.partition(":")
    session = session_open(is_json, profile)
    made = session.client.quota_request_create(what=kind, model=model, amount=amount, why=text.strip(), until=until, project=project)
    if session.is_json:
        print_json(made)
    else:
        to = _("a lead of {project}").format(project=safe(made["project"] or "")) if made["state"] == "lead" else _("the admins")
        say(_("Request {id} ({text}) is with {to} now.").format(id=made["id"], text=safe(made["text"]), to=to))


def quota_requests(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    rows = session.client.quota_request_list()
    if session.is_json:
        print_json(rows)
    elif not rows:
        say(_("There are no requests."))
    else:
        headers = ["ID", _("ASKS FOR"), _("BY"), _("STATE"), _("UNTIL")]
        lines = [[row["id"], row["text"], row["by"], row["state"], time_local(row["granted_until"] or row["until"])] for row in rows]
        say(table(headers, lines, width=columns(), right=frozenset({0}), shrink=[1, 2]))


def usage(
    month: Annotated[str | None, typer.Option("--month", metavar="YYYY-MM", help=_("Default: this month."))] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="EMAIL", help=_("Only this person (leads, staff)."))] = None,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help=_("Only this project."))] = None,
    is_csv: Annotated[bool, typer.Option("--csv", help=_("The statement as CSV, with exact figures."))] = False,
    is_storage: Annotated[bool, typer.Option("--storage", help=_("What files and output take now, against the limits."))] = False,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    if is_storage:
        _storage(session)
        return
    asked = {name: value for name, value in (("month", month), ("user", user), ("project", project)) if value}
    if is_csv:
        sys.stdout.write(session.client.statement_csv(**asked))
        return
    found = session.client.statement(**asked)
    if session.is_json:
        print_json(found)
        return
    if not found["lines"]:
        say(_("Nothing was charged in {month} ({zone}).").format(month=found["month"], zone=found["zone"]))
        return
    has_prices = found["has_prices"]
    headers = [_("PERSON"), _("PROJECT"), _("CARD"), _("JOBS"), _("GPU-HOURS"), _("FILES, GIB-H")]
    rows = [[*(line[name] for name in ("user", "project", "gpu_model", "jobs")), *_figures(line)] for line in found["lines"]]
    rows.append(["", "", _("all"), found["total"]["jobs"], *_figures(found["total"])])
    if has_prices:
        headers.append(found["currency"] or _("COSTS"))
        for row, line in zip(rows, [*found["lines"], found["total"]], strict=True):
            row.append(f"{float(line['cost_total']):,.2f}")
    say(table(headers, rows, width=columns(), right=frozenset(range(3, len(headers))), shrink=[0, 1, 2]))
    note(_("{month}, months of {zone}; what runs now is charged when it ends.").format(month=found["month"], zone=found["zone"]))


def _storage(session: Session) -> None:
    found = session.client.storage()
    rows: list[tuple[str, object]] = []
    for name, use in ((None, found["mine"]), *sorted(found["projects"].items())):
        if name is not None:
            rows.append((_("Project {name}").format(name=safe(name)), ""))
        rows.append((_("Files"), _("{size} in {count} files").format(size=size(use["file_bytes"]), count=use["file_count"])))
        rows.append((_("Output"), size(use["log_bytes"])))
        limit = use["limit_bytes"]
        rows.append((_("Together"), _use(size(use["file_bytes"] + use["log_bytes"]), None if limit is None else size(limit))))
        if name is None:
            text = found["job_text"]
            most = None if text["limit_bytes"] is None else size(text["limit_bytes"])
            rows.append((_("Commands and environments"), _use(size(text["bytes"]), most)))
    rows += [
        (safe(disk["folder"]), _("{free} MiB free of {total} MiB").format(free=disk["free_mib"], total=disk["total_mib"]))
        for disk in found["disks"]
    ]
    session.answer(found, pairs(rows))


def _figures(line: dict[str, Any]) -> list[str]:
    return [f"{float(line['gpu_hours']):,.2f}", f"{float(line['storage_gb_hours']):,.1f}"]
