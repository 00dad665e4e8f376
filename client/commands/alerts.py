"""alerts …: what rules say of cards, nodes, jobs and passes; acknowledging; muting."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from client.commands.common import JsonFlag, ProfileOption, columns, session_open, usage_fault
from client.i18n import _
from client.output import safe, table, time_local, time_short

STATES = ("active", "open", "acknowledged", "resolved", "all")
LEVELS = ("warning", "critical")
SPAN = re.compile(r"([1-9][0-9]{0,5})(m|h|d)")
UNITS = {"m": 60, "h": 3600, "d": 86_400}
Alert = Annotated[int, typer.Argument(metavar="ALERT", min=1, help=_("The alert's number."))]


def alert_list(
    state: Annotated[
        str, typer.Option("--state", metavar="STATE", help=_("active (the default), open, acknowledged, resolved, all."))
    ] = "active",
    level: Annotated[str | None, typer.Option("--level", metavar="LEVEL", help=_("warning or critical."))] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help=_("Only this machine's."))] = None,
    rule: Annotated[str | None, typer.Option("--rule", metavar="RULE", help=_("Only this rule's, such as hot."))] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    for name, value, known in (("--state", state, STATES), ("--level", level, LEVELS)):
        if value is not None and value not in known:
            raise usage_fault(_("{name} {value!r}: there are {known}.").format(name=name, value=value, known=", ".join(known)))
    session = session_open(is_json, profile)
    found = session.client.alert_list(state=state, level=level, node=node, rule=rule)
    now = datetime.now(UTC)
    rows = [[f"#{row['id']}", row["level"], _state(row), time_short(row["opened_at"], now), safe(row["text"])] for row in found]
    headers = ["", _("LEVEL"), _("STATE"), _("SINCE"), _("WHAT")]
    session.answer(found, table(headers, rows, width=columns(), shrink=(4,)) if rows else _("No alert."))


def _state(row: Any) -> str:
    return _("{state}, muted").format(state=row["state"]) if row["muted"] else str(row["state"])


def alert_ack(
    number: Alert,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help=_("What you do about it."))] = "",
    undo: Annotated[bool, typer.Option("--undo", help=_("Take it back."))] = False,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    row = session.client.alert_reopen(number) if undo else session.client.alert_acknowledge(number, note=note)
    text = _("Alert #{number} is open again.") if undo else _("Alert #{number} is acknowledged.")
    session.answer(row, text.format(number=row["id"]))


def alert_mute(
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help=_("Why nobody is to be told. Required."))],
    rule: Annotated[str | None, typer.Option("--rule", metavar="RULE", help=_("A rule, such as hot."))] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help=_("A machine."))] = None,
    gpu: Annotated[int | None, typer.Option("--gpu", metavar="INDEX", min=0, help=_("One card of that machine."))] = None,
    span: Annotated[str | None, typer.Option("--for", metavar="TIME", help=_("30m, 4h or 2d; without it until it is lifted."))] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    if rule is None and node is None:
        raise usage_fault(_("Name what to mute: --rule RULE, --node NODE, or both; --gpu INDEX for one card of the machine."))
    if gpu is not None and node is None:
        raise usage_fault(_("--gpu is an index on a machine: name it with --node NODE."))
    seconds = _seconds(span)
    session = session_open(is_json, profile)
    uuid = None
    if gpu is not None and node is not None:
        cards = [card for card in session.client.node_get(node)["gpus"] if card["index"] == gpu]
        if not cards:
            raise usage_fault(_("{node} has no card {gpu}.").format(node=node, gpu=gpu))
        uuid = cards[-1]["uuid"]
    mute = session.client.alert_mute(reason=reason, rule=rule, node=node, gpu=uuid, for_s=seconds)
    until = time_local(mute["until"]) if mute["until"] else _("it is lifted")
    session.answer(mute, _("Mute #{number}: {what}, until {until}.").format(number=mute["id"], what=safe(mute["text"]), until=until))


def _seconds(span: str | None) -> int | None:
    if span is None:
        return None
    found = SPAN.fullmatch(span)
    if found is None:
        raise usage_fault(_("--for {value!r}: write a number with m, h or d, such as 4h.").format(value=span))
    return int(found[1]) * UNITS[found[2]]


def alert_mutes(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    found = [mute for mute in session.client.alert_mute_list() if mute["active"]]
    rows = [
        [
            f"#{mute['id']}",
            time_local(mute["until"]) if mute["until"] else "-",
            safe(mute["by"] or "-"),
            safe(mute["text"]),
            safe(mute["reason"]),
        ]
        for mute in found
    ]
    headers = ["", _("UNTIL"), _("BY"), _("WHAT"), _("REASON")]
    session.answer(found, table(headers, rows, width=columns(), shrink=(3, 4)) if rows else _("Nothing is muted."))


def alert_unmute(
    number: Annotated[int, typer.Argument(metavar="MUTE", min=1, help=_("The mute's number."))],
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    mute = session.client.alert_unmute(number)
    session.answer(mute, _("Mute #{number} is lifted.").format(number=mute["id"]))
