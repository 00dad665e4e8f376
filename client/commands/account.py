"""login, logout, whoami."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from client.commands.common import (
    JsonFlag,
    ProfileOption,
    client_for,
    note,
    print_json,
    profile_named,
    say,
    session_open,
    usage_fault,
    wants_json,
)
from client.i18n import _
from client.output import pairs, safe, time_local
from client.profile import Profile, profile_path, profile_read, profile_remove, profile_save


def login(
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help=_("The control plane, such as https://nebula.lab.example."))
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help=_("File with your API token; - reads standard input."))
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help=_("The token itself; others can see it in the process list."))
    ] = None,
    email: Annotated[
        str | None, typer.Option("--email", metavar="EMAIL", help=_("Sign in with a password, asked for without echo."))
    ] = None,
    ca_file: Annotated[str | None, typer.Option("--ca-file", metavar="FILE", help=_("The lab's own certificate authority (PEM)."))] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    path = profile_path(profile_named(profile), os.environ)
    if endpoint is None:
        # Signing in again at the same place needs no address. A broken old profile must not stand in the way of a new one.
        endpoint = os.environ.get("NEBULA_ENDPOINT") or profile_read(path).get("endpoint")
        ca_file = ca_file or profile_read(path).get("ca_file")
    if not endpoint:
        raise usage_fault(_("Which control plane? Add --endpoint URL, such as --endpoint http://127.0.0.1:8000."))
    if sum(way is not None for way in (token_file, token, email)) != 1:
        raise usage_fault(_("Sign in with exactly one of --token-file FILE (- for standard input), --email EMAIL and --token TOKEN."))
    ca_file = str(Path(ca_file).expanduser().absolute()) if ca_file else None
    if email is not None:
        with client_for(endpoint, None, ca_file=ca_file) as anonymous:
            created = anonymous.token_create(email=email, password=_password(email), name=f"nebula-ctl on {platform.node()}"[:60])
        secret = created["token"]
    elif token is not None:
        note(_("Warning: a token on the command line is visible in the process list and the shell's history; use --token-file."))
        secret = token.strip()
    else:
        secret = _token_read(token_file or "-")
    with client_for(endpoint, secret, ca_file=ca_file) as client:
        me = client.me()  # a token that does not work is not kept
        profile_save(path, Profile(endpoint=client.endpoint, token=secret, ca_file=ca_file))
    if wants_json(is_json):
        print_json({"endpoint": client.endpoint, "email": me["email"], "is_staff": me["is_staff"], "profile": str(path)})
    else:
        message = _("Signed in to {endpoint} as {email}; the token is kept in {path} (readable by you alone).")
        say(message.format(endpoint=client.endpoint, email=safe(me["email"]), path=safe(path)))


def _token_read(name: str) -> str:
    try:
        text = sys.stdin.readline() if name == "-" else Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or _("it is not UTF-8 text")
        raise usage_fault(_("The token file {path} can't be read: {why}.").format(path=safe(name), why=why)) from error
    if not text.strip():
        raise usage_fault(_("There is no token in {place}.").format(place=_("standard input") if name == "-" else safe(name)))
    return text.strip()


def _password(email: str) -> str:
    if not sys.stdin.isatty():
        text = sys.stdin.readline().rstrip("\n")
    else:
        from getpass import getpass

        text = getpass(_("Password of {email}: ").format(email=safe(email)))
    if not text:
        raise usage_fault(_("There is no password; type it at the prompt, or give it as the first line of standard input."))
    return text


def logout(
    is_revoke: Annotated[bool, typer.Option("--revoke", help=_("Make the token useless everywhere, too."))] = False,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    path = profile_path(profile_named(profile), os.environ)
    is_revoked = session_open(is_json, profile).client.token_revoke() if is_revoke else False
    was_there = profile_remove(path)
    if wants_json(is_json):
        print_json({"profile": str(path), "removed": was_there, "revoked": is_revoked})
    elif not was_there:
        say(_("You were not signed in: there is no {path}.").format(path=safe(path)))
    elif is_revoked:
        say(_("Signed out: {path} is removed and the token revoked.").format(path=safe(path)))
    else:
        say(_("Signed out: {path} is removed. The token itself stays valid until it expires or is revoked.").format(path=safe(path)))


def whoami(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    me = session.client.me()
    quota = me["quota"]

    def use(used: object, limit: object) -> str:
        return _("{used} of {limit}").format(used=used, limit=_("no limit") if limit is None else limit)

    projects = [str(p.get("name", p)) if isinstance(p, dict) else str(p) for p in me["projects"]]
    hours = use(f"{quota['used_gpu_hours']:.1f}", None if quota["gpu_hours"] is None else f"{quota['gpu_hours']:.1f}")
    rows = [
        (_("Signed in as"), me["email"] + (f" ({_('staff')})" if me["is_staff"] else "")),
        (_("Endpoint"), session.client.endpoint),
        (_("Projects"), ", ".join(projects) or _("none")),
        (_("GPU hours"), hours + (f" ({_('resets {when}').format(when=time_local(quota['resets_at']))})" if quota["resets_at"] else "")),
        (_("Active jobs"), use(quota["active_jobs"], quota["max_active_jobs"])),
        (_("GPUs held"), use(quota["held_cards"], quota["max_cards"])),
    ]
    session.answer(me, pairs(rows))
