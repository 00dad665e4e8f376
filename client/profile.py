"""Where the endpoint and the token are kept: one small file, mode 0600, replaced atomically.

Path: --profile, else NEBULA_CONFIG, else $XDG_CONFIG_HOME/nebulagrid/profile.json. Content: ``endpoint``, ``token`` and
perhaps ``ca_file``, as JSON (quickest to read) or, where the name ends in .toml, as TOML.
NEBULA_ENDPOINT, NEBULA_TOKEN (or NEBULA_TOKEN_FILE) and NEBULA_CA_FILE override it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.errors import ProfileError
from client.i18n import _


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    endpoint: str
    token: str
    ca_file: str | None = None

    def __repr__(self) -> str:  # a token in a traceback is a token in a log
        return f"Profile(endpoint={self.endpoint!r}, token='…', ca_file={self.ca_file!r})"


def profile_path(given: str | None, environ: Mapping[str, str]) -> Path:
    named = given or environ.get("NEBULA_CONFIG")
    if named:
        return Path(named).expanduser()
    base = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "nebulagrid" / "profile.json"


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        if text.lstrip().startswith("{"):
            data = json.loads(text)
        else:
            import tomllib

            data = tomllib.loads(text)
    except ValueError as error:
        message = _("The profile {path} is neither JSON nor TOML ({why}); sign in again with nebula-ctl login.")
        raise ProfileError("bad_profile", message.format(path=path, why=error)) from error
    for name in ("endpoint", "token", "ca_file"):
        if not isinstance(data.get(name, ""), str):
            raise ProfileError("bad_profile", _("{name} in the profile {path} must be a text.").format(name=name, path=path))
    return dict(data)


def profile_read(path: Path) -> dict[str, str]:
    """What the file says; {} when there is none. Raises ProfileError."""
    try:
        return _parse(path, path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or _("it is not UTF-8 text")
        raise ProfileError("bad_profile", _("The profile {path} can't be read: {why}.").format(path=path, why=why)) from error


def profile_is_exposed(path: Path) -> bool:
    """True when others than its owner may read the file."""
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
    except OSError:
        return False


def profile_load(given: str | None, environ: Mapping[str, str]) -> Profile:
    """The profile in force. Raises ProfileError (not_signed_in, bad_profile, token_for_other_endpoint)."""
    path = profile_path(given, environ)
    token = environ.get("NEBULA_TOKEN") or _token_from_file(environ.get("NEBULA_TOKEN_FILE"))
    endpoint = environ.get("NEBULA_ENDPOINT")
    kept = {} if endpoint and token and given is None else profile_read(path)
    ca_file = environ.get("NEBULA_CA_FILE") or kept.get("ca_file") or None
    if endpoint and not token and kept.get("token") and endpoint.rstrip("/") != kept.get("endpoint", "").rstrip("/"):
        # Without this, one variable would be enough to send the kept token to any address.
        message = _(
            "NEBULA_ENDPOINT names {endpoint}, but the token in {path} belongs to {kept};"
            " set NEBULA_TOKEN too, or sign in with nebula-ctl login."
        )
        raise ProfileError("token_for_other_endpoint", message.format(endpoint=endpoint, path=path, kept=kept.get("endpoint")))
    endpoint = endpoint or kept.get("endpoint")
    token = token or kept.get("token")
    if not endpoint or not token:
        message = _("You are not signed in ({path} has no endpoint and token); run nebula-ctl login --endpoint URL --token-file FILE.")
        raise ProfileError("not_signed_in", message.format(path=path))
    return Profile(endpoint=endpoint, token=token, ca_file=ca_file)


def _token_from_file(name: str | None) -> str | None:
    if not name:
        return None
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ProfileError("bad_token_file", _("The token file {path} can't be read: {why}.").format(path=name, why=why)) from error


def profile_save(path: Path, profile: Profile) -> None:
    """Write aside with mode 0600, then rename: a reader sees the old or the new file, and never a readable token."""
    data = {"endpoint": profile.endpoint, "token": profile.token}
    if profile.ca_file:
        data["ca_file"] = profile.ca_file
    if path.suffix == ".toml":
        # A JSON string without \\u pairs is a TOML basic string.
        text = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in data.items())
    else:
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    secret_write(path, text)


def secret_write(path: Path, text: str) -> None:
    """``text`` in a file of mode 0600, atomically; makes its folder (0700). Raises ProfileError."""
    path = Path(os.path.realpath(path))  # a linked profile stays a link
    if path.exists() and not path.is_file():  # renaming over a device would remove the device
        raise ProfileError("write_failed", _("{path} can't be written: {why}.").format(path=path, why=_("it is not a regular file")))
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside.unlink(missing_ok=True)  # left by a killed process of the same id
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    except OSError as error:
        message = _("{path} can't be written: {why}.")
        raise ProfileError("write_failed", message.format(path=path, why=error.strerror or error)) from error


def profile_remove(path: Path) -> bool:
    """True when there was one."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ProfileError("write_failed", _("{path} can't be removed: {why}.").format(path=path, why=error.strerror or error)) from error
    return True
