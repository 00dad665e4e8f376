"""How `up`, a system account by now, has root write what is root's: one JSON object a message, each answered.

Root writes to the few places that it knows itself. The other side names none, except an agent's folder by a plain word.
"""

from __future__ import annotations

import array
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Names the socket's descriptor to `up`.
VARIABLE = "NEBULA_ROOT_LINE"
_MOST = 4 << 20
_NAME = re.compile(r"agent(-[a-z0-9][a-z0-9-]{0,60})?")


class LineError(RuntimeError):
    """The other side is gone, or says what it may not."""


def _send(link: socket.socket, value: Any) -> None:
    data = json.dumps(value).encode()
    # The first byte is never that of a lock ("L"): a message is shorter than its 1.2 GB.
    link.sendall(len(data).to_bytes(4, "big") + data)


def _receive(link: socket.socket) -> Any:
    size = int.from_bytes(_exactly(link, 4), "big")
    if size > _MOST:
        raise LineError(f"A message of {size} bytes.")
    return json.loads(_exactly(link, size))


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise LineError("The other side is gone.")
        data += part
    return data


# --- the account's side ---------------------------------------------------------------------------------------------


class RootFiles:
    """`startfiles.StartFiles` of an installation that root started."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        said = self._ask("hello")
        self.password_path = Path(said["password_path"])
        self._paths = {True: said["named_path"], False: said["own_path"]}
        self.folder, self.programs = Path(said["folder"]), Path(said["bin"])

    @classmethod
    def from_environment(cls) -> RootFiles | None:
        number = os.environ.pop(VARIABLE, None)
        return cls(socket.socket(fileno=int(number))) if number else None

    def _ask(self, what: str, **values: Any) -> Any:
        _send(self._link, {"what": what, **values})
        answer = _receive(self._link)
        if "refused" in answer:
            raise OSError(0, answer["refused"])
        return answer.get("is")

    def has_password(self) -> bool:
        return bool(self._ask("has_password"))

    def password_write(self, text: str) -> None:
        self._ask("password_write", text=text)

    def profile_path(self, *, named: bool) -> Path | None:
        path = self._paths[named]
        return Path(path) if path else None

    def profile_read(self, *, named: bool) -> dict[str, str]:
        return dict(self._ask("profile_read", named=named))

    def profile_write(self, profile: Mapping[str, str | None], *, named: bool) -> None:
        self._ask("profile_write", profile=dict(profile), named=named)

    def agent_read(self, name: str) -> dict[str, Any]:
        return dict(self._ask("agent_read", name=name))

    def agent_write(self, name: str, values: Mapping[str, str | int], credential: str | None) -> Path:
        return Path(self._ask("agent_write", name=name, values=dict(values), credential=credential))

    def finish(self, *, children: list[dict[str, Any]], agents: list[str], ready: list[str], lock: int) -> None:
        """Everything is prepared: root starts it. The lock goes along as an open file."""
        self._link.sendmsg([b"L"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [lock]))])
        self._ask("finish", children=children, agents=agents, ready=ready)


# --- root's side ----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Prepared:
    children: list[dict[str, Any]] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    lock: int = -1


def serve(link: socket.socket, files: Any, *, agent_values: Mapping[str, str], hello: Mapping[str, str]) -> Prepared | None:
    """Answer until everything is prepared; None where the other side ended before. ``files``: root's `OwnFiles`, its agents elsewhere.

    ``agent_values`` is what root decides of each agent's configuration, whatever it is told.
    """
    prepared = Prepared()
    while True:
        try:
            first, ancillary, _, _ = link.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return None
        if not first:
            return None
        if first == b"L":
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    prepared.lock = array.array("i", data[:4])[0]
            continue
        try:
            size = int.from_bytes(first + _exactly(link, 3), "big")
            if size > _MOST:
                return None
            asked = json.loads(_exactly(link, size))
        except (LineError, ValueError):
            return None
        what = asked.pop("what", "")
        try:
            answer: dict[str, Any] = {"is": _do(what, asked, files, agent_values, prepared, hello)}
        except (OSError, LineError, KeyError, TypeError, AttributeError) as error:
            answer = {"refused": getattr(error, "strerror", None) or str(error)}
        _send(link, answer)
        if what == "finish":
            return prepared


def _do(what: str, asked: dict[str, Any], files: Any, agent_values: Mapping[str, str], prepared: Prepared, hello: Mapping[str, str]) -> Any:
    if what == "hello":
        return {
            **hello,
            "password_path": str(files.password_path),
            "named_path": str(files.profile_path(named=True) or ""),
            "own_path": str(files.profile_path(named=False)),
        }
    if what == "has_password":
        return files.has_password()
    if what == "password_write":
        return files.password_write(str(asked["text"]))
    if what == "profile_read":
        return files.profile_read(named=bool(asked["named"]))
    if what == "profile_write":
        profile = {name: asked["profile"].get(name) for name in ("endpoint", "token", "ca_file")}
        return files.profile_write(profile, named=bool(asked["named"]))
    if what in ("agent_read", "agent_write"):
        name = str(asked["name"])
        if not _NAME.fullmatch(name):
            raise LineError(f"{name[:80]!r} is no name of an agent.")
        if what == "agent_read":
            return files.agent_read(name)
        values = {key: value for key, value in asked["values"].items() if key in _AGENT_KEYS}
        decided = {key: value.replace("{name}", name) for key, value in agent_values.items()}
        return str(files.agent_write(name, {**values, **decided}, asked["credential"]))
    if what == "finish":
        prepared.children, prepared.agents, prepared.ready = asked["children"], asked["agents"], asked["ready"]
        return None
    raise LineError(f"{what[:80]!r} is nothing to ask for.")


#: What the control plane says of an agent; who its jobs run as, and where its files are, root says.
_AGENT_KEYS = frozenset({"endpoint", "node_id", "name", "backend", "scenario", "agent_id", "installation", "ca_file"})
