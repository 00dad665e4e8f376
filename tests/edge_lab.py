"""A web server with limits of a test's choice, and peers that behave badly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from nebulagrid.limits import Limits
from nebulagrid.web import Server, config_make
from tests.waiting import PATIENCE_S, wait_until

#: Those that are open; whoever serves them closes them at the end.
peers: list[Peer] = []


@contextlib.contextmanager
def served(app: Any, limits: Limits) -> Iterator[tuple[Server, int]]:
    """The server in a thread of its own, and its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = Server(config_make(app, limits=limits, host="127.0.0.1", port=0), limits=limits)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="edge")
    thread.start()
    try:
        wait_until(lambda: server.started, "the server listens")
        yield server, listener.getsockname()[1]
    finally:
        peers_close()
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def peers_close() -> None:
    while peers:
        peers.pop().close()


class Peer:
    """One connection. What can't be sent any more is no error: the server may have closed it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        peers.append(self)

    def send(self, data: bytes) -> bool:
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def answer(self) -> bytes:
        """All that comes until the server closes the connection."""
        found = bytearray()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while data := self.socket.recv(65536):
                found += data
        return bytes(found)

    def status(self) -> int:
        """Of the first answer; 0 = closed without one."""
        first = self.answer().split(b"\r\n", 1)[0].split()
        return int(first[1]) if len(first) > 1 else 0

    def close(self) -> None:
        self.socket.close()


def asked(port: int, path: str = "/", *, method: str = "GET", body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One ordinary request on a connection of its own."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body=body or None, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()
