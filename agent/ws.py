"""The WebSocket that says "sync now". A hint only: without it every order arrives with the next 5 s sync."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
from collections.abc import Callable
from typing import Any

from agent.http import Endpoint, pin_plain, socket_open, tls_context

log = logging.getLogger("nebula-agent")

RETRY_S = (1.0, 60.0)
#: The control plane sends nothing for hours; pings tell a dead connection from a quiet one.
PING_S = 20.0


class Listener:
    """One thread that waits on the socket; ``wake`` is called from it."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        authorization: str | Callable[[], str],
        wake: Callable[[], None],
        ca_file: str | None = None,
        pin_sha256: str | None = None,
    ) -> None:
        scheme = "wss" if endpoint.tls else "ws"
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        self._url = f"{scheme}://{host}:{endpoint.port}{endpoint.path}/api/agent/v1/ws"
        self._authorization, self._wake = authorization, wake
        self._endpoint, self._pin = endpoint, pin_plain(pin_sha256)
        self._context = tls_context(ca_file=ca_file, pin_sha256=pin_sha256) if endpoint.tls else None
        self._stopping = threading.Event()
        self._socket: Any = None
        self._thread = threading.Thread(target=self._run, name="ws", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        connection = self._socket
        if connection is not None:
            # Only a shutdown of the socket itself wakes the thread that waits on it.
            with contextlib.suppress(Exception):
                connection.sock.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        import websocket  # imported here: the agent is useful before and without it

        retry_s = RETRY_S[0]
        while not self._stopping.is_set():
            try:
                self._listen()
                retry_s = RETRY_S[0]  # it was open
            except (OSError, websocket.WebSocketException) as error:
                log.debug("No WebSocket to the control plane: %s", str(error)[:200])
            finally:
                self._socket = None
            self._stopping.wait(random.uniform(0.1, retry_s))
            retry_s = min(RETRY_S[1], retry_s * 2)

    def _listen(self) -> None:
        """Open, then wait until it closes. Raises when it cannot be opened."""
        from websocket import ABNF, WebSocketException, WebSocketTimeoutException, create_connection

        # Opened by ourselves: the certificate, its pin included, is checked before the credential is sent.
        sock = socket_open(self._endpoint, context=self._context, pin_sha256=self._pin)
        shown = self._authorization if isinstance(self._authorization, str) else self._authorization()
        try:
            sock.settimeout(10)
            connection = create_connection(self._url, timeout=10, header=[f"Authorization: {shown}"], socket=sock, suppress_origin=True)
        except BaseException:
            sock.close()
            raise
        self._socket = connection
        try:
            connection.settimeout(PING_S)
            self._wake()  # whatever was said while nobody listened
            pinged = False
            while not self._stopping.is_set():
                try:
                    opcode, data = connection.recv_data(control_frame=True)
                except WebSocketTimeoutException:
                    if pinged:
                        raise
                    connection.ping()
                    pinged = True
                    continue
                pinged = False
                if opcode == ABNF.OPCODE_CLOSE:
                    return
                if opcode == ABNF.OPCODE_TEXT and b"sync" in data:
                    self._wake()
        except (OSError, WebSocketException) as error:
            log.debug("The WebSocket to the control plane ended: %s", str(error)[:200])
        finally:
            with contextlib.suppress(Exception):
                connection.close(timeout=1)
