"""This node's credential: what every request shows, exchanged for a new one now and then.

The agent makes the new one; only its hash goes to the control plane, where the old one stays good until the new one was used. The
files lie beside agent.toml: ``agent.credential``, ``….next`` while one is being exchanged, and ``….previous`` for a control plane that
came back from a backup of before the exchange.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
from pathlib import Path

from agent.config import file_write_private
from agent.http import EndpointError, authorization, credential_read

log = logging.getLogger("nebula-agent")


class Credential:
    """Shared by all of the agent's threads; only the loop's thread changes it."""

    def __init__(self, path: Path, node_id: int) -> None:
        """Raises EndpointError where there is none, or others may read it."""
        self._path, self._node_id = path, node_id
        self._value = credential_read(str(path))
        self._next: str | None = None
        self._other = self._previous_read()  # to be tried when this one is refused

    @property
    def header(self) -> str:
        return authorization(self._node_id, self._value)

    def exchange_begin(self) -> str:
        """The hash of a new one, which is kept already. Raises OSError where it can't be kept."""
        self._next = secrets.token_hex(32)
        file_write_private(self._file("next"), self._next + "\n")
        return hashlib.sha256(self._next.encode()).hexdigest()

    def exchange_end(self) -> None:
        """The control plane knows the new one: it is shown from now on."""
        if self._next is None:
            return
        file_write_private(self._file("previous"), self._value + "\n")
        os.replace(self._file("next"), self._path)
        self._other, self._value, self._next = self._value, self._next, None
        log.info("This node's credential was exchanged.")

    def refused(self) -> bool:
        """The control plane does not know it. True: there is the one of before, which is shown from now on."""
        if self._other is None:
            return False
        self._value, self._other = self._other, self._value
        return True

    def taken(self) -> None:
        """The control plane knows it: where that is the one of before, it is kept as the present one."""
        with contextlib.suppress(EndpointError, OSError):
            if credential_read(str(self._path)) != self._value:
                file_write_private(self._path, self._value + "\n")

    def _file(self, end: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{end}")

    def _previous_read(self) -> str | None:
        with contextlib.suppress(EndpointError):
            return credential_read(str(self._file("previous")))
        return None
