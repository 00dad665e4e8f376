"""projects …, tokens …: who works together, and what programs sign in with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from client.commands.common import JsonFlag, ProfileOption, Session, columns, say, session_open, usage_fault
from client.errors import NebulaError
from client.i18n import _
from client.output import known, pairs, safe, table, time_local
from client.profile import secret_write

Name = Annotated[str, typer.Argument(metavar="PROJECT", help=_("The project's name."))]
Email = Annotated[str, typer.Argument(metavar="EMAIL", help=_("The member's e-mail address."))]
Role = Annotated[str, typer.Option("--role", metavar="ROLE", help=_("lead, user or viewer (default: user)."))]
DAY_S = 86_400
ROLES = ("lead", "user", "viewer")


def _role(role: str) -> str:
    if role not in ROLES:
        raise usage_fault(_("{role} is no role; there are: {roles}.").format(role=safe(role), roles=", ".join(ROLES)))
    return role


def _member(session: Session, project: str, email: str) -> dict[str, Any]:
    members: list[dict[str, Any]] = session.client.project_get(project)["members"]
    for member in members:
        if member["email"] == email.strip().lower():
            return member
    raise NebulaError("not_found", _("{email} is no member of {project}.").format(email=safe(email), project=safe(project)), status=404)


# --- projects -------------------------------------------------------------------------------------------------------------


def project_list(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    items = session.client.project_list()
    rows = [
        [item["name"], item["role"] or "-", item["members_count"], item["title"], "" if item["is_active"] else _("closed")]
        for item in items
    ]
    headers = [_("NAME"), _("YOU ARE"), _("MEMBERS"), _("TITLE"), _("NOTES")]
    session.answer(items, table(headers, rows, width=columns(), right=frozenset({2}), shrink=(3,)))


def _shown(session: Session, project: dict[str, Any]) -> None:
    rows = [
        (_("Name"), project["name"]),
        (_("Title"), known(project["title"] or None)),
        (_("You are"), project["role"] or "-"),
        (_("Open"), _("yes") if project["is_active"] else _("no: nothing new is submitted under it")),
    ]
    members = [[m["email"], m["role"], time_local(m["since"]), "" if m["is_active"] else _("switched off")] for m in project["members"]]
    text = pairs(rows) + "\n\n" + table([_("MEMBER"), _("ROLE"), _("SINCE"), _("NOTES")], members, width=columns())
    session.answer(project, text)


def project_show(name: Name, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    _shown(session, session.client.project_get(name))


def project_create(
    name: Name,
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help=_("What it is about."))] = "",
    lead: Annotated[str | None, typer.Option("--lead", metavar="EMAIL", help=_("Its first lead (default: you)."))] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    _shown(session, session.client.project_create(name, title=title, lead=lead))


def member_add(name: Name, email: Email, role: Role = "user", is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    role = _role(role)
    session = session_open(is_json, profile)
    _shown(session, session.client.member_add(name, email=email, role=role))


def member_role(
    name: Name,
    email: Email,
    role: Annotated[str, typer.Argument(metavar="ROLE", help=_("lead, user or viewer."))],
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    role = _role(role)
    session = session_open(is_json, profile)
    _shown(session, session.client.member_change(name, _member(session, name, email)["id"], role=role))


def member_remove(name: Name, email: Email, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    session.client.member_remove(name, _member(session, name, email)["id"])
    if session.is_json:
        session.answer({"project": name, "email": email, "removed": True}, "")
    else:
        say(_("{email} is no member of {project} any more.").format(email=safe(email), project=safe(name)))


# --- tokens ---------------------------------------------------------------------------------------------------------------


def token_list(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    items = session.client.token_list()
    rows = []
    for item in items:
        until = time_local(item["expires_at"]) if item["expires_at"] else _("never")
        used = time_local(item["last_used_at"]) if item["last_used_at"] else _("never")
        rows.append([item["id"], item["name"], item["prefix"], " ".join(item["scopes"]), item["project"] or "-", until, used])
    headers = [_("ID"), _("NAME"), _("PREFIX"), _("SCOPES"), _("PROJECT"), _("EXPIRES"), _("LAST USED")]
    session.answer(items, table(headers, rows, width=columns(), right=frozenset({0}), shrink=(1,)))


def token_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help=_("Tells your tokens apart, such as ci."))],
    scopes: Annotated[
        list[str] | None, typer.Option("--scope", metavar="SCOPE", help=_("read, submit or manage; repeatable (default: read, submit)."))
    ] = None,
    project: Annotated[str | None, typer.Option("--project", metavar="PROJECT", help=_("Confine it to what is this project's."))] = None,
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, max=3650, help=_("How long it lives (default: 90)."))] = 90,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help=_("Write the token there (mode 0600) instead."))
    ] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    made = session.client.token_add(name, scopes=scopes or ["read", "submit"], project=project, ttl_s=days * DAY_S)
    if token_file:
        secret_write(Path(token_file).expanduser(), made["token"] + "\n")
    if session.is_json:
        shown = {key: value for key, value in made.items() if key != "token" or not token_file}
        session.answer({**shown, "token_file": token_file}, "")
        return
    until = time_local(made["expires_at"])
    if token_file:
        say(_("The token {prefix}… is in {path}, until {when}.").format(prefix=made["prefix"], path=safe(token_file), when=until))
    else:
        say(_("Until {when}; it is shown this once:").format(when=until))
        say(made["token"])


def token_revoke(
    token: Annotated[str, typer.Argument(metavar="ID|PREFIX", help=_("As nebula-ctl tokens list shows it."))],
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    found = [item for item in session.client.token_list() if token in (str(item["id"]), item["prefix"])]
    if not found:
        raise NebulaError("not_found", _("You have no token {token} that is good now.").format(token=safe(token)), status=404)
    session.client.token_end(found[0]["id"])
    if session.is_json:
        session.answer({"id": found[0]["id"], "revoked": True}, "")
    else:
        say(_("The token {name} opens nothing any more.").format(name=safe(found[0]["name"])))
