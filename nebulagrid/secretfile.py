"""Secrets of the installation that are made at their first use and kept in files of mode 0600. Standard library only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def secret_provide(path: Path) -> str:
    """The content of ``path``; a new random text where there is no such file. Its folder is made, closed to others."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Two processes may start at once: each writes aside, the first link wins, and both read that one.
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(50))
    try:
        os.link(aside, path)
    except FileExistsError:
        pass
    finally:
        aside.unlink()
    return path.read_text().strip()
