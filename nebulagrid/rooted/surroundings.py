"""What a process of the control plane's account is started with: environment and folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nebulagrid.rooted.accounts import Account, unreadable
from nebulagrid.rooted.errors import RootedError

#: Settings that are paths; a relative one counts from where root is.
_PATHS = ("NEBULA_TLS_CERT", "NEBULA_TLS_KEY", "NEBULA_TLS_CA")


def environment(account: Account, env: Mapping[str, str], *, data: Path) -> dict[str, str]:
    """Root's, as the account's. Settings in files that only root may read are handed over as values. Raises RootedError."""
    found = account.environ(env, home=str(data))
    found["NEBULA_DATA"] = str(data)
    found.pop("NEBULA_CONFIG", None)  # root's own
    for name in _PATHS:
        if found.get(name):
            found[name] = str(Path.cwd() / found[name])
    files = {
        name: Path(found[name]).absolute()
        for name in found
        if name.startswith("NEBULA_") and name.endswith("_FILE") and name != "NEBULA_TOKEN_FILE" and found[name]
    }
    closed = set(unreadable(account, [path for path in files.values() if path.exists()]))
    for name, path in files.items():
        if path not in closed:
            found[name] = str(path)
            continue
        try:
            found[name.removesuffix("_FILE")] = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RootedError(f"{name} names {path}, which can't be read: {error}.") from error
        del found[name]
    return found
