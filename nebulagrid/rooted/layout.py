"""Where the files of an installation that root starts are, and whose.

    top      NEBULA_DATA, root's: the administrator's profile and password, run/ of the supervisor
    base     top itself, or a folder below /var/lib/nebulagrid where the accounts can't get to top; root's, 0711
      control/   the control plane's data folder: its account's, 0700
      agents/    configuration, credential and store of this machine's agents: root's, 0700
      jobs/      a folder for each rank: root's, 0711, what is in it is the job's

Nobody but root can rename anything in base, so the agents, which are root, never find another's folder in the place of theirs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nebulagrid.rooted.accounts import Account, account_of
from nebulagrid.rooted.errors import RootedError

#: Below the first of these that is root's alone: data that can't be where they were wanted, and code.
STATES = (Path("/var/lib/nebulagrid"), Path("/var/lib/nebulagrid-host"))
CONTROL, AGENTS, JOBS = "control", "agents", "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    top: Path
    base: Path

    @property
    def control(self) -> Path:
        return self.base / CONTROL

    @property
    def agents(self) -> Path:
        return self.base / AGENTS

    @property
    def jobs(self) -> Path:
        return self.base / JOBS

    @property
    def run(self) -> Path:
        return self.top / "run"

    @property
    def profile(self) -> Path:
        return self.top / "cli.json"

    @property
    def password(self) -> Path:
        return self.top / "admin-password"

    @property
    def is_moved(self) -> bool:
        return self.base != self.top


def top_of(env: Mapping[str, str], checkout: Path) -> Path:
    """NEBULA_DATA as the settings read it: else ``var`` of the checkout; a symbolic link is followed once, here."""
    return Path(os.path.realpath(env.get("NEBULA_DATA") or checkout / "var"))


def layout_find(top: Path, states: tuple[Path, ...] = STATES) -> Layout:
    """Where the data are or will be. Makes nothing. Raises RootedError."""
    if way_is_roots(top):
        return Layout(top=top, base=top)
    return Layout(top=top, base=state_folder(states) / place_name(top))


def place_name(path: Path) -> str:
    """A name for what belongs to this path: readable, and different for different paths."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(path.parts[-2:])).strip("-").lower()[:40] or "data"
    return f"{words}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def state_folder(states: tuple[Path, ...] = STATES) -> Path:
    """The first of ``states`` that is root's or can be made so. Raises RootedError."""
    for path in states:
        if way_is_roots(path) and (not path.exists() or _is_roots(path)):
            return path
    raise RootedError(
        f"Neither of {' and '.join(map(str, states))} belongs to root alone, so nothing can be kept there: look who owns them."
    )


def way_is_roots(path: Path) -> bool:
    """Whether every folder above belongs to root, who alone can rename what is in it, and lets every account pass."""
    return all(_is_roots(folder) and folder.stat().st_mode & 0o001 for folder in path.parents if folder.exists())


def _is_roots(folder: Path) -> bool:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
        return False
    # In a sticky folder such as /tmp others make files, but none of them renames root's.
    return not found.st_mode & 0o022 or bool(found.st_mode & stat.S_ISVTX)


def owner_check(layout: Layout, control: Account) -> None:
    """Raises RootedError where the folder is another account's, or others may write to it: what root writes there, they could redirect."""
    for folder in {layout.top, layout.base}:
        if not folder.exists():
            continue
        found = folder.stat()
        uid = found.st_uid
        if uid != 0:
            owner = account_of(uid)
            name = owner.name if owner else f"uid {uid}"
            how = "start its service with --no-agent" if uid == control.uid else "start it as that one"
            raise RootedError(
                f"{folder} belongs to {name}, and root keeps no data in another's folder: {how}, or set NEBULA_DATA to another."
            )
        if found.st_mode & 0o022:
            raise RootedError(
                f"Others than root may write to {folder} (mode {stat.S_IMODE(found.st_mode):04o}), and could have put anything in it: look "
                f"what it holds and close it (chmod go-w {folder}), or set NEBULA_DATA to another folder."
            )


def layout_make(layout: Layout, control: Account) -> None:
    """All folders, with owners and modes. Safe to repeat. Raises RootedError."""
    try:
        layout.top.mkdir(parents=True, exist_ok=True, mode=0o755)
        if layout.is_moved:
            layout.base.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            layout.base.parent.chmod(0o755)
            layout.base.mkdir(exist_ok=True, mode=0o711)
        owner_check(layout, control)
        layout.top.chmod(0o700 if layout.is_moved else 0o711)
        for folder, mode in (
            (layout.base, 0o711),
            (layout.agents, 0o700),
            (layout.jobs, 0o711),
            (layout.control, 0o700),
            (layout.run, 0o700),
        ):
            if folder == layout.base and not layout.is_moved:
                continue
            with contextlib.suppress(FileExistsError):  # what is there is looked at
                folder.mkdir(mode=mode)
            if folder != layout.control:  # that one is its account's
                _roots_check(folder, layout)
            folder.chmod(mode)
        if layout.is_moved:
            for folder in (layout.control, layout.agents, layout.jobs):
                _link(layout.top / folder.name, folder)
    except OSError as error:
        raise RootedError(f"{error.filename or layout.top} can't be made: {error.strerror}. Set NEBULA_DATA to another folder.") from error


def _roots_check(folder: Path, layout: Layout) -> None:
    """Raises RootedError unless it is a folder of root's: the mode, and all that root keeps in it, would go to another one."""
    place = folder
    if folder.is_symlink() and folder.readlink() in {state / place_name(layout.top) / folder.name for state in STATES}:
        place = folder.readlink()  # of a start before somebody opened the way to top
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
        what = "a link" if stat.S_ISLNK(found.st_mode) else "no folder" if not stat.S_ISDIR(found.st_mode) else f"of uid {found.st_uid}"
        raise RootedError(f"{place} has to be a folder of root's, and it is {what}: look what it is and move it away, then start again.")


def _link(link: Path, target: Path) -> None:
    """So that whoever looks in the old place finds it."""
    if link.is_symlink() and link.readlink() != target:
        link.unlink()
    if not link.is_symlink():
        link.symlink_to(target)
