"""The agent's configuration: one TOML file, each key also as NEBULA_AGENT_<KEY> (keys: docs/agent.md)."""

from __future__ import annotations

import json
import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent.http import Endpoint, EndpointError, endpoint_parse
from agent.installation import name_is_plain

if os.name == "nt":
    _BASE = Path(os.environ.get("PROGRAMDATA", "C:/ProgramData"), "nebulagrid")
    DEFAULT_PATH, DEFAULT_DATA = _BASE / "agent.toml", _BASE / "agent"
else:
    DEFAULT_PATH, DEFAULT_DATA = Path("/etc/nebulagrid/agent.toml"), Path("/var/lib/nebulagrid/agent")

#: ``auto`` = all that this machine has, several at once if need be.
BACKENDS = ("auto", "nvml", "level_zero", "ascend", "amd", "simulated", "none")
_CHOICES: dict[str, tuple[str, ...]] = {
    "backend": BACKENDS,
    "cuda_visible": ("index", "uuid"),
    "identity": ("same", "shared", "mapped"),
    "mode": ("jobs", "metrics"),
    "driver_model": ("off", "read"),
    "log_format": ("line", "json"),
    "make_accounts": ("no", "yes"),
}
_KEYS = (
    "endpoint",
    "node_id",
    "name",
    "credential_file",
    "data_dir",
    "backend",
    "scenario",
    "cuda_visible",
    "identity",
    "job_account",
    "make_accounts",
    "jobs_dir",
    "hidden_dirs",
    "code_from",
    "code_at",
    "ca_file",
    "pin_sha256",
    "agent_id",
    "installation",
    "address",
    "power_feed_w",
    "mode",
    "driver_model",
    "log_format",
    "pids_max",
    "memory_default_pct",
)
#: Limits of a rank where nothing else is said.
PIDS_MAX, MEMORY_DEFAULT_PCT = 4096, 80
#: Keys that are whole numbers above 0.
_WHOLE = ("node_id", "power_feed_w", "pids_max", "memory_default_pct")
#: Key → environment variable where it is not NEBULA_AGENT_ + KEY.
_ENV = {"data_dir": "NEBULA_AGENT_DATA"}


class ConfigError(ValueError):
    """The agent's configuration cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    path: Path
    endpoint: Endpoint
    node_id: int
    name: str
    credential_file: Path
    data_dir: Path
    agent_id: str
    installation: str | None = None  # written by enrolment; None = an older one, whose agent makes its own (installation.py)
    backend: str = "auto"  # one of BACKENDS; of a running agent what auto came to: "nvml", "nvml+ascend", …
    scenario: Path | None = None
    cuda_visible: Literal["index", "uuid"] = "index"
    identity: Literal["same", "shared", "mapped"] = "same"
    make_accounts: Literal["no", "yes"] = "no"  # identity = "mapped": whether accounts that the control plane made up are made here
    job_account: str | None = None  # identity = "shared": the Unix account of all jobs
    jobs_dir: Path | None = None  # a folder for each rank, owned by its job; None = beside data_dir
    hidden_dirs: tuple[Path, ...] = ()  # folders that jobs must not see besides the agent's own
    code_places: tuple[tuple[Path, Path], ...] = ()  # (what jobs can't reach, where it is placed for them)
    ca_file: Path | None = None
    pin_sha256: str | None = None
    mode: Literal["jobs", "metrics"] = "jobs"  # metrics = nothing is launched here
    log_format: Literal["line", "json"] = "line"  # json: one object a line, for machines that collect logs
    driver_model: Literal["off", "read"] = "off"  # whether Windows' driver model (WDDM, TCC) is asked for
    power_feed_w: int | None = None  # what the machine's power supplies give its cards together; None = the sum of the cards' limits
    pids_max: int = PIDS_MAX  # processes and threads of one rank
    memory_default_pct: int = MEMORY_DEFAULT_PCT  # of the host's memory: what a rank that asked for none may use
    address: str | None = None  # the address that other nodes reach this one at; None = found by itself


def config_path(option: str | None, env: Mapping[str, str] = os.environ) -> Path:
    """--config, else NEBULA_AGENT_CONFIG, else /etc/nebulagrid/agent.toml."""
    return Path(option or env.get("NEBULA_AGENT_CONFIG") or DEFAULT_PATH)


def values_read(path: Path, env: Mapping[str, str] = os.environ, *, must_exist: bool = True) -> dict[str, Any]:
    """The keys of the file with the environment's values over them, unchecked. Raises ConfigError."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        values = {}
        if must_exist and "NEBULA_AGENT_NODE_ID" not in env:
            text = f"There is no configuration at {path}: run `nebula-agent enroll` first, or name another file with --config."
            raise ConfigError(text) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error}.") from error
    unknown = sorted(set(values) - set(_KEYS))
    if unknown:
        raise ConfigError(f"The configuration {path} has the unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}.")
    for key in _KEYS:
        found = env.get(_ENV.get(key, f"NEBULA_AGENT_{key.upper()}"))
        if found:
            values[key] = found
    return values


def config_load(path: Path, env: Mapping[str, str] = os.environ) -> Config:
    """Read and check everything. Raises ConfigError with one sentence."""
    values = values_read(path, env)
    for key, value in values.items():
        if key not in _WHOLE and not isinstance(value, str):
            raise ConfigError(f"{key} in {path} must be a string, got {value!r}.")
    for key in ("endpoint", "node_id"):
        if not values.get(key):
            raise ConfigError(f"{key} is missing in {path}: run `nebula-agent enroll`.")
    for key, choices in _CHOICES.items():
        if key in values and values[key] not in choices:
            raise ConfigError(f"{key} is {values[key]!r}; it must be one of {', '.join(choices)}.")
    whole: dict[str, int] = {}
    for key in _WHOLE:
        if key in values:
            try:
                whole[key] = int(values[key])
                if whole[key] < 1 or isinstance(values[key], bool):
                    raise ValueError
            except (ValueError, TypeError):
                raise ConfigError(f"{key} is {values[key]!r}; it must be a whole number above 0.") from None
    if whole.get("memory_default_pct", 0) > 100:
        raise ConfigError(f"memory_default_pct is {whole['memory_default_pct']}; it must be between 1 and 100.")
    node_id = whole["node_id"]
    try:
        endpoint = endpoint_parse(values["endpoint"])
    except EndpointError as error:
        raise ConfigError(str(error)) from error
    pin = str(values.get("pin_sha256", "")).lower().replace(":", "")
    if pin and (len(pin) != 64 or not set(pin) <= set("0123456789abcdef")):
        raise ConfigError("pin_sha256 must be 64 hexadecimal digits: the SHA-256 of the server's certificate in DER form.")
    agent_id = values.get("agent_id") or f"node{node_id}"
    if len(agent_id) > 60 or agent_id.startswith((".", "-")) or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in agent_id):
        raise ConfigError(f"agent_id is {agent_id[:70]!r}; it may hold at most 60 letters, digits, '-', '_' and '.'.")
    installation = values.get("installation") or None
    if installation is not None and not name_is_plain(installation):
        raise ConfigError(f"installation is {installation[:50]!r}; it may hold at most 40 letters, digits, '-' and '_'.")
    base = path.parent
    return Config(
        path=path,
        endpoint=endpoint,
        node_id=node_id,
        name=values.get("name") or socket.gethostname(),
        credential_file=_path(values.get("credential_file"), base) or base / "agent.credential",
        data_dir=_path(values.get("data_dir"), base) or DEFAULT_DATA,
        agent_id=agent_id,
        installation=installation,
        backend=values.get("backend", "auto"),
        scenario=_path(values.get("scenario"), base),
        cuda_visible=values.get("cuda_visible", "index"),
        identity=values.get("identity", "same"),
        job_account=values.get("job_account") or None,
        make_accounts=values.get("make_accounts", "no"),
        jobs_dir=_path(values.get("jobs_dir"), base),
        hidden_dirs=tuple(folder for text in values.get("hidden_dirs", "").split(":") if (folder := _path(text, base)) is not None),
        code_places=_places(values),
        ca_file=_path(values.get("ca_file"), base),
        pin_sha256=pin or None,
        address=values.get("address") or None,
        mode=values.get("mode", "jobs"),
        driver_model=values.get("driver_model", "off"),
        log_format=values.get("log_format", "line"),
        power_feed_w=whole.get("power_feed_w"),
        pids_max=whole.get("pids_max", PIDS_MAX),
        memory_default_pct=whole.get("memory_default_pct", MEMORY_DEFAULT_PCT),
    )


def _path(value: str | None, base: Path) -> Path | None:
    """A path as written; a relative one counts from the configuration file's folder."""
    return (base / Path(value).expanduser()).absolute() if value else None


def _places(values: Mapping[str, Any]) -> tuple[tuple[Path, Path], ...]:
    """Pairs of `code_from` and `code_at`. Raises ConfigError."""
    lists = [[Path(text) for text in values.get(key, "").split(":") if text] for key in ("code_from", "code_at")]
    if len(lists[0]) != len(lists[1]) or not all(path.is_absolute() for paths in lists for path in paths):
        raise ConfigError("code_from and code_at must name as many folders, by their full paths, joined by ':'.")
    return tuple(zip(*lists, strict=True))


def config_text(values: Mapping[str, str | int]) -> str:
    """TOML of plain strings and whole numbers, in the order of the documentation."""
    # A JSON string is a TOML basic string as long as nothing beyond ASCII is escaped, hence ensure_ascii=False.
    return "".join(f"{key} = {json.dumps(values[key], ensure_ascii=False)}\n" for key in _KEYS if key in values)


def file_write_private(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace a file in one step, with this mode from its first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), mode)
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
