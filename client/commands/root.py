"""What stands before the command."""

from __future__ import annotations

from typing import Annotated

import typer

from client import __version__
from client.commands import common
from client.i18n import _


def root(
    is_json: common.JsonFlag = False,
    profile: common.ProfileOption = None,
    is_version: Annotated[bool, typer.Option("--version", help=_("Print the version."))] = False,
) -> None:
    common.defaults.is_json, common.defaults.profile = is_json, profile
    if is_version:
        common.say(f"nebula-ctl {__version__}")
        raise typer.Exit
