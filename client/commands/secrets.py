"""secrets: list, set, delete. A value comes from standard input or a file, never from the command line, where others could read it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from client.commands.common import JsonFlag, ProfileOption, columns, say, session_open, usage_fault
from client.i18n import _
from client.output import safe, table, time_local

Name = Annotated[str, typer.Argument(metavar="NAME", help=_("The secret's name."))]
ProjectOption = Annotated[str | None, typer.Option("--project", metavar="NAME", help=_("Of a project that you lead (default: your own)."))]
MOST = 64 * 1024


def secret_list(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    items = session.client.secret_list()
    never = _("never")
    rows = [
        [item["name"], item["project"] or _("yours"), time_local(item["set_at"]), time_local(used) if (used := item["used_at"]) else never]
        for item in items
    ]
    text = table([_("NAME"), _("WHOSE"), _("SET"), _("LAST USED")], rows, width=columns())
    session.answer(items, text if items else _("You have no secrets; set one: nebula-ctl secrets set NAME < FILE"))


def secret_set(
    name: Name,
    file: Annotated[str, typer.Option("--file", metavar="FILE", help=_("Where the value is; - (default) = standard input."))] = "-",
    project: ProjectOption = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    secret = session.client.secret_set(name, _value(name, file), project=project)
    text = _("The secret {name} is set. A job gets it with: --secret {name} (a file) or --secret {name}=VARIABLE")
    session.answer(secret, text.format(name=safe(secret["name"])))


def _value(name: str, file: str) -> str:
    """One line break at the end is not of the value: editors and echo put it there."""
    if file == "-" and sys.stdin.isatty():
        from getpass import getpass

        return getpass(_("Value of {name} (not shown): ").format(name=safe(name)))
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MOST + 1)
        else:
            with Path(file).expanduser().open("rb") as source:
                data = source.read(MOST + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or _("it is not UTF-8 text")
        raise usage_fault(_("The value can't be read from {path}: {why}.").format(path=safe(file), why=why)) from None
    if len(data) > MOST:
        raise usage_fault(_("{path} is larger than {most} bytes; a secret has at most 32 KiB.").format(path=safe(file), most=MOST))
    return text.removesuffix("\n").removesuffix("\r")


def secret_delete(name: Name, project: ProjectOption = None, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    session.client.secret_delete(name, project=project)
    if session.is_json:
        session.answer({"name": name, "deleted": True}, "")
    else:
        say(_("The secret {name} is deleted; no job gets it from now on.").format(name=safe(name)))
