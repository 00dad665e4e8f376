"""incidents …: faults of cards, from their detection to their review."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from client.commands.common import JsonFlag, ProfileOption, columns, session_open, usage_fault
from client.i18n import _
from client.output import duration, pairs, safe, table, time_local, time_short

PHASES = ("DETECTED", "DIAGNOSING", "RECOVERING", "REVIEW", "CLOSED")
Number = Annotated[int, typer.Argument(metavar="INCIDENT", min=1, help=_("The incident's number."))]
TEXT_LEAST = 3
#: Of the power log, the newest.
POWER_SHOWN = 10


def incident_list(
    phase: Annotated[str, typer.Option("--phase", metavar="PHASE", help=_("open (the default), all, or one of the phases."))] = "open",
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help=_("Only this machine's."))] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    if phase not in ("open", "all") and phase.upper() not in PHASES:
        text = _("{phase!r} is no phase; there are: open, all, {phases}.")
        raise usage_fault(text.format(phase=phase, phases=", ".join(name.lower() for name in PHASES)))
    session = session_open(is_json, profile)
    found = session.client.incident_list(phase=None if phase == "all" else phase, node=node)
    now = datetime.now(UTC)
    rows = [_row(row, now) for row in found]
    headers = ["", _("NODE:#"), _("PHASE"), _("DETECTED"), _("BACK IN"), _("WHAT")]
    text = table(headers, rows, width=columns(), right=frozenset({4}), shrink=(5,)) if rows else _("No incident.")
    session.answer(found, text)


def _row(row: Any, now: datetime) -> list[object]:
    return [f"#{row['id']}", f"{row['node']}:{row['gpu']}", row["phase"], time_short(row["opened_at"], now), _took(row), _what(row)]


def _took(row: Any) -> str:
    return duration(row["recovered_s"])


def _what(row: Any) -> str:
    return (_("drill: {text}") if row["drill"] else "{text}").format(text=safe(row["text"]))


def incident_show(number: Number, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    row = session.client.incident_get(number)
    lines = [
        pairs(
            [
                (_("Incident"), f"#{row['id']}"),
                (_("What"), _what(row)),
                (_("Card"), f"{row['node']}:{row['gpu']} ({row['uuid']})"),
                (_("Phase"), row["phase"]),
                (_("Detected"), time_local(row["opened_at"])),
                (_("Recovered"), f"{time_local(row['recovered_at'])} ({_took(row)})" if row["recovered_at"] else None),
                (_("Closed"), time_local(row["closed_at"]) if row["closed_at"] else None),
                (_("Review"), row["review"] or None),
            ]
        )
    ]
    lines += ["", _("What happened:")]
    for line in row["timeline"]:
        by = f" ({safe(line['by'])})" if line["by"] else ""
        lines.append(f"  {time_local(line['at'])}  {safe(line['text'])}{by}")
    kernel = row["evidence"].get("kernel") or []
    if kernel:
        lines += ["", _("From the kernel's log:"), *(f"  {safe(line)}" for line in kernel)]
    power = row["evidence"].get("power") or []
    if power:
        lines += ["", _("Before it happened:"), *(f"  {_figures(figures)}" for figures in power[-POWER_SHOWN:])]
    session.answer(row, "\n".join(lines))


def _figures(row: Any) -> str:
    at, watts, temp, core = row
    units = ((watts, "W"), (temp, "°C"), (core, "MHz"))
    told = "  ".join("-" if value is None else f"{value} {unit}" for value, unit in units)
    return f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M:%S %Z}  {told}"


def _text(text: str) -> str:
    if len(text.strip()) < TEXT_LEAST:
        raise usage_fault(_("Say what it was and what came of it: --text 'riser replaced, passed its self-test'."))
    return text


def incident_note(
    number: Number,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help=_("What you found or did."))],
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    text = _text(text)
    session = session_open(is_json, profile)
    session.answer(session.client.incident_note(number, text=text), _("Noted."))


def incident_close(
    number: Number,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help=_("The review: what it was and what came of it."))],
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    text = _text(text)
    session = session_open(is_json, profile)
    row = session.client.incident_close(number, text=text)
    session.answer(row, _("Incident #{number} is closed.").format(number=row["id"]))
