"""How `up`, a system account by now, has root write what is root's: one JSON object a message, each answered.

Root writes to the few places that it knows itself. The other side names none, except an agent's folder by a plain word.
"""

from __future__ import annotations

import array
import json
import os
import re
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Names the socket's descriptor to `up`.
VARIABLE = "NEBULA_ROOT_LINE"
_MOST = 4 << 20
_NAME = re.compile(r"agent(-[a-z0-9][a-z0-9-]{0,60})?")
#: What root starts as the account's: nothing else, since the supervisor makes names of files of these.
_CHILDREN = frozenset({"redis", "web", "worker", "beat", "feeder"})
_PROBE = re.compile(r"redis:/[^\x00-\x1f]{1,4000}|https?:[0-9A-Za-z.:_%-]{1,255}:[0-9]{1,5}")
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
_READY_MOST = 200


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
    #: Whose configuration was written in this session.
    written: set[str] = field(default_factory=set)


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
        if not isinstance(asked, dict):
            return None
        what = str(asked.pop("what", ""))
        try:
            answer: dict[str, Any] = {"is": _do(what, asked, files, agent_values, prepared, hello)}
        except (OSError, LineError, KeyError, TypeError, AttributeError, ValueError) as error:
            answer = {"refused": getattr(error, "strerror", None) or str(error)}
        _send(link, answer)
        if what == "finish" and "is" in answer:
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
        path = str(files.agent_write(name, {**values, **decided}, asked["credential"]))
        prepared.written.add(name)
        return path
    if what == "finish":
        children, agents, ready = _children(asked["children"]), _agents(asked["agents"], prepared.written), _ready(asked["ready"])
        prepared.children, prepared.agents, prepared.ready = children, agents, ready
        return None
    raise LineError(f"{what[:80]!r} is nothing to ask for.")


#: What the control plane says of an agent; who its jobs run as, and where its files are, root says.
_AGENT_KEYS = frozenset({"endpoint", "node_id", "name", "backend", "scenario", "agent_id", "installation", "ca_file"})


# --- what is to be started --------------------------------------------------------------------------------------------


def _agents(given: Any, written: set[str]) -> list[str]:
    """Root runs these: no other configuration than one that it wrote itself a moment ago."""
    names = _strings(given, "agents")
    for name in names:
        if not _NAME.fullmatch(name) or name not in written:
            raise LineError(f"{name[:80]!r} is no agent whose configuration was written in this start.")
    if len(set(names)) != len(names):
        raise LineError("An agent is named twice.")
    return names


def _children(given: Any) -> list[dict[str, Any]]:
    """Fields of a `ChildSpec`. Who it runs as, and in which folder, is not among them; its environment is never root's."""
    if not isinstance(given, list) or not all(isinstance(child, dict) for child in given):
        raise LineError("The children are no list of objects.")
    children = [_child(child) for child in given]
    if len({child["name"] for child in children}) != len(children):
        raise LineError("A child is named twice.")
    return children


def _child(given: dict[str, Any]) -> dict[str, Any]:
    name, argv, env = str(given["name"]), _strings(given["argv"], "argv"), given["env"]
    if name not in _CHILDREN:
        raise LineError(f"{name[:80]!r} is none of {', '.join(sorted(_CHILDREN))}.")
    if not argv or not argv[0].startswith("/"):
        raise LineError(f"The program of {name} is not given by its full path.")
    if not isinstance(env, dict) or any(not key or "=" in key for key in env):
        raise LineError(f"The environment of {name} can't be used.")
    _strings([*env, *env.values()], "environment's names and values")
    stage, until_s = given["stage"], given.get("until_s", 4.0)
    if type(stage) is not int or not 0 <= stage <= 9:
        raise LineError(f"The stage of {name} is no number from 0 to 9.")
    if type(until_s) not in (int, float) or not 0 <= until_s <= 60:
        raise LineError(f"The time that {name} has to stop is no number from 0 to 60.")
    child = {"name": name, "argv": argv, "env": env, "is_whole_env": True, "stage": stage, "until_s": until_s}
    if (number := given.get("stop_signal", int(signal.SIGTERM))) not in _STOP_SIGNALS:
        raise LineError(f"The signal that stops {name} is none that stops a process.")
    child["stop_signal"] = int(number)
    if (probe := given.get("probe")) is not None:
        if not isinstance(probe, str) or not _PROBE.fullmatch(probe):
            raise LineError(f"The probe of {name} can't be used.")
        child["probe"] = probe
    for key in ("probe_password_file", "hints"):
        if (path := given.get(key)) is not None:
            if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
                raise LineError(f"The {key} of {name} is no full path.")
            child[key] = path
    return child


def _ready(given: Any) -> list[str]:
    """Lines for root's terminal, which must not obey the other side."""
    return ["".join(sign for sign in line if sign.isprintable())[:1000] for line in _strings(given, "ready", nul=True)[:_READY_MOST]]


def _strings(given: Any, what: str, *, nul: bool = False) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(text, str) and (nul or "\0" not in text) for text in given):
        raise LineError(f"The {what} are no list of texts.")
    return given
