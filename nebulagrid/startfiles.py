"""The private files that a start writes: the administrator's password and profile, the agents' configurations.

Under one plain account `up` keeps them itself (`OwnFiles`). Where root started it, they are root's, and `up`, which is a system account
by then, asks root for them over a socket (`rooted/line.py`, the same methods).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from agent.config import config_text, file_write_private
from client.errors import ProfileError
from client.profile import Profile, profile_read, profile_save


class StartFiles(Protocol):
    #: Where people find it.
    password_path: Path
    #: Where the caller is, and where the programs of the installation are for them: what is printed is to be typed there.
    folder: Path
    programs: Path

    def has_password(self) -> bool: ...
    def password_write(self, text: str) -> None: ...
    def profile_path(self, *, named: bool) -> Path | None:
        """``named``: the one that NEBULA_CONFIG names, None = it names none; else the installation's own."""

    def profile_read(self, *, named: bool) -> dict[str, str]:
        """{} where there is none, or none that can be read."""

    def profile_write(self, profile: Mapping[str, str | None], *, named: bool) -> None: ...
    def agent_read(self, name: str) -> dict[str, Any]:
        """``node_id``, ``installation``, ``agent_id`` and ``credential_sha256`` as they are kept; {} where there are none."""

    def agent_write(self, name: str, values: Mapping[str, str | int], credential: str | None) -> Path:
        """The configuration's path. ``credential`` None = the one that is kept stays."""


class OwnFiles:
    """All of them in the data folder, which is ours."""

    def __init__(self, data: Path, *, named: str | None = None) -> None:
        self.password_path = data / "admin-password"
        self.folder, self.programs = Path.cwd(), Path(sys.executable).parent
        self._data, self._own, self._named = data, data / "cli.json", Path(named).absolute() if named else None

    def has_password(self) -> bool:
        return self.password_path.exists()

    def password_write(self, text: str) -> None:
        file_write_private(self.password_path, text)

    def profile_path(self, *, named: bool) -> Path | None:
        return self._named if named else self._own

    def profile_read(self, *, named: bool) -> dict[str, str]:
        path = self.profile_path(named=named)
        with contextlib.suppress(ProfileError):
            return profile_read(path) if path is not None else {}
        return {}

    def profile_write(self, profile: Mapping[str, str | None], *, named: bool) -> None:
        path = self.profile_path(named=named)
        if path is not None:
            profile_save(path, Profile(endpoint=profile["endpoint"] or "", token=profile["token"] or "", ca_file=profile.get("ca_file")))

    def agent_read(self, name: str) -> dict[str, Any]:
        return agent_read(self._data / name)

    def agent_write(self, name: str, values: Mapping[str, str | int], credential: str | None) -> Path:
        return agent_write(self._data / name, values, credential)


def agent_read(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, KeyError):
        written = tomllib.loads((folder / "agent.toml").read_text())
        kept: dict[str, Any] = {name: written.get(name) for name in ("installation", "agent_id")}
        kept["node_id"] = int(written["node_id"])
        kept["credential_sha256"] = hashlib.sha256((folder / "agent.credential").read_text().strip().encode()).hexdigest()
        return kept
    return {}


def agent_write(folder: Path, values: Mapping[str, str | int], credential: str | None) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    if credential is not None:
        file_write_private(folder / "agent.credential", credential + "\n")
    config = folder / "agent.toml"
    places = {"credential_file": os.fspath(folder / "agent.credential"), "data_dir": os.fspath(folder)}
    file_write_private(config, config_text({**values, **places}))
    return config
