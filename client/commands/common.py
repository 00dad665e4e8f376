"""What every command shares: its session, --json, --profile, and how it speaks."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from client.errors import UsageFault
from client.i18n import _
from client.output import safe
from client.profile import profile_is_exposed, profile_load, profile_path
from client.sdk import NebulaClient
from client.transport import endpoint_parse, transport_for_command

TIMEOUT_S = 30.0

JsonFlag = Annotated[bool, typer.Option("--json", help=_("Print JSON; errors too, on standard error."))]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", metavar="FILE", help=_("The file with endpoint and token (default: NEBULA_CONFIG)."))
]
JobId = Annotated[int, typer.Argument(metavar="JOB", min=1, help=_("The job's number."))]
JobIds = Annotated[list[int], typer.Argument(metavar="JOB...", min=1, help=_("Numbers of jobs."))]


@dataclass(slots=True)
class Defaults:
    """What stands before the command: ``nebula-ctl --json --profile FILE list``."""

    is_json: bool = False
    profile: str | None = None


defaults = Defaults()


@dataclass(frozen=True, slots=True)
class Session:
    client: NebulaClient
    is_json: bool

    def answer(self, data: Any, text: str) -> None:
        """The result: ``data`` under --json, else ``text``."""
        print_json(data) if self.is_json else say(text)


def wants_json(is_json: bool) -> bool:
    return is_json or defaults.is_json


def profile_named(profile: str | None) -> str | None:
    return profile or defaults.profile


#: Clients of this command line; closed at its end.
_opened: list[NebulaClient] = []


def clients_close() -> None:
    while _opened:
        _opened.pop().close()


def client_for(endpoint: str, token: str | None, *, ca_file: str | None) -> NebulaClient:
    place = endpoint_parse(endpoint)
    transport = transport_for_command(place, timeout_s=TIMEOUT_S, ca_file=ca_file)
    client = NebulaClient(endpoint, token, transport=transport, on_retry=_tell_retry)
    _opened.append(client)
    return client


def session_open(is_json: bool, profile: str | None) -> Session:
    """The signed-in client of the profile in force. Raises ProfileError, NebulaError."""
    given = profile_named(profile)
    kept = profile_load(given, os.environ)
    path = profile_path(given, os.environ)
    if profile_is_exposed(path):
        note(_("Warning: others on this machine can read your token in {path}; run: chmod 600 {path}").format(path=safe(path)))
    return Session(client_for(kept.endpoint, kept.token, ca_file=kept.ca_file), wants_json(is_json))


def _tell_retry(seconds: float, why: str) -> None:
    if seconds >= 1:  # shorter ones are over before they are read
        note(_("{why} Trying again in {seconds:.0f} s.").format(why=safe(why), seconds=seconds))


def say(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """A line beside the result: standard error, so that pipes stay clean."""
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_json(data: Any, *, is_line: bool = False) -> None:
    """Stable JSON: the API's keys. ``is_line``: one object a line, flushed, for streams."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=None if is_line else 2) + "\n")
    if is_line:
        sys.stdout.flush()


def columns() -> int:
    """Width of the terminal. What goes into a pipe or a file is not cut, unless ``COLUMNS`` says how wide it may be."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return sys.maxsize
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def usage_fault(message: str) -> UsageFault:
    return UsageFault("usage", message)
