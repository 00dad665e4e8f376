"""The door for root: `manage.py` calls `begin` before anything else is loaded, and comes back only where root may go on."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from nebulagrid.rooted.accounts import CONTROL_NAME, CONTROL_VARIABLE, Account, account_of, account_read
from nebulagrid.rooted.errors import RootedError
from nebulagrid.rooted.layout import layout_find, top_of

CHECKOUT = Path(__file__).resolve().parents[2]
#: Commands that write into the checkout or nothing: they stay root's, with a data folder that goes with them.
OF_THE_SOURCE = frozenset(
    {"", "compilemessages", "help", "makemessages", "makemigrations", "optimizemigration", "squashmigrations", "startapp", "version"}
)
#: These are of the source as long as there is no data.
OF_EITHER = frozenset({"check", "diffsettings", "spectacular"})


def begin(argv: list[str]) -> None:
    """Run ``manage.py ARGV`` as the control plane's account and end; returns where it is no business of the data."""
    command = next((word for word in argv[1:] if not word.startswith("-")), "")
    top = top_of(os.environ, CHECKOUT)
    try:
        if command in OF_THE_SOURCE or (command in OF_EITHER and not _has_data(top)):
            return _throw_away()
        if command == "up":
            from nebulagrid.rooted.up import up

            sys.exit(up(argv, top))
        if command == "demo_clean":
            from nebulagrid.rooted.clean import clean

            sys.exit(clean(top))
        from nebulagrid.rooted.command import run

        sys.exit(run(command, argv, top))
    except RootedError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


def owner_of(top: Path) -> Account | None:
    """Who keeps data in ``top`` as an account of its own, without root's layout; None = nobody."""
    if top.exists() and (uid := top.stat().st_uid) != 0:
        return account_of(uid) or Account(name=f"uid {uid}", uid=uid, gid=top.stat().st_gid, groups=(), home="/")
    return None


def _has_data(top: Path) -> bool:
    if owner_of(top) is not None:
        return True
    account = account_read(os.environ.get(CONTROL_VARIABLE) or CONTROL_NAME)
    return account is not None and layout_find(top).control.exists()


def _throw_away() -> None:
    """Loading the settings makes a key, and looking at migrations makes a database: not as root, and not where the data are."""
    folder = tempfile.mkdtemp(prefix="nebula-source-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NEBULA_DATA"] = folder
