"""The web process: uvicorn with connections that have limits (nebulagrid/edge.py). ``python -m nebulagrid.web``.

uvicorn leaves accepting to the event loop, which takes whatever comes. Here each connection gets a seat before anything of it is
read, its TLS handshake included, or is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from typing import Any

import uvicorn

from nebulagrid.edge import GuardedHttp, GuardedSocket
from nebulagrid.limits import Limits
from nebulagrid.seats import Seat, Seats, address_key

log = logging.getLogger(__name__)

BACKLOG = 2048
LOOK_EVERY_S = 1.0
#: Files that the process has open besides its connections.
FILES_SPARE = 256


class Server(uvicorn.Server):
    """uvicorn's, with its own way of accepting. ``limits`` are those of all connections."""

    def __init__(self, config: uvicorn.Config, *, limits: Limits) -> None:
        super().__init__(config)
        self.limits = limits
        self.seats = Seats(most=limits.connections, most_each=limits.connections_each)
        self.listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        GuardedHttp.limits = GuardedSocket.limits = self.limits
        loop = asyncio.get_running_loop()
        await self.lifespan.startup()
        try:
            self.listeners = sockets or await _listen(self.config.host, self.config.port)
        except OSError as error:
            log.error("The web server can't listen on %s port %d: %s", self.config.host, self.config.port, error.strerror)
            raise SystemExit(1) from error
        self.servers = []
        for listener in self.listeners:
            listener.setblocking(False)
            self._spawn(loop, self._accept(listener))
        self._spawn(loop, self._look_on())
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self.listeners:
            listener.close()
        await super().shutdown()

    def _spawn(self, loop: asyncio.AbstractEventLoop, work: Any) -> asyncio.Task[Any]:
        task = loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:  # no file left, or a peer that went away in between
                log.warning("A connection could not be accepted: %s", error.strerror)
                await asyncio.sleep(0.1)
                continue
            seat = self.seats.take(address_key(peer[0]) if isinstance(peer, tuple) else "")
            if seat is None:
                connection.close()
                continue
            task = self._spawn(loop, self._begin(connection, seat))
            seat.close = task.cancel
            # A task that is cancelled before its first step runs none of its own code.
            task.add_done_callback(lambda task, connection=connection: connection.close() if task.cancelled() else None)
            await asyncio.sleep(0)  # a flood of connections leaves room for what they bring

    async def _begin(self, connection: socket.socket, seat: Seat) -> None:
        """The connection's protocol takes it over once its handshake is done."""
        loop, tls = asyncio.get_running_loop(), self.config.ssl

        def protocol() -> GuardedHttp:
            made = GuardedHttp(self.config, self.server_state, self.lifespan.state, loop)
            made.seat = seat
            return made

        try:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake_s = self.limits.header_s if tls is not None else None
            await loop.connect_accepted_socket(protocol, connection, ssl=tls, ssl_handshake_timeout=handshake_s)
        except BaseException as error:
            seat.leave()
            connection.close()
            if not isinstance(error, OSError):  # a handshake that failed, or took too long, is its peer's business
                raise

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = loop.time()
            for connection in list(self.server_state.connections):
                try:
                    connection.look(now)  # type: ignore[union-attr]
                except Exception:
                    log.exception("a connection could not be looked at")


async def _listen(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of the name. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _name, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def files_provide(connections: int) -> int:
    """Lets this process open as many files as it may, and says how many connections there can be then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = connections if soft == resource.RLIM_INFINITY else max(64, min(connections, soft - FILES_SPARE))
    if possible < connections:
        log.warning("At most %d connections, not %d: this process may open %d files (LimitNOFILE).", possible, connections, soft)
    return possible


def config_make(app: Any, *, limits: Limits, **more: Any) -> uvicorn.Config:
    """uvicorn's settings; ``more``: host, port, and the certificate's files."""
    return uvicorn.Config(
        app,
        http=GuardedHttp,
        ws=GuardedSocket,
        ws_max_size=limits.frame_bytes,
        # A frame of all cards goes to each viewer each second: packing it 200 times takes longer than sending it.
        ws_per_message_deflate=False,
        timeout_keep_alive=round(limits.idle_s),
        timeout_graceful_shutdown=2,
        lifespan="off",
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        **more,
    )


def main() -> None:
    from nebulagrid.asgi import application  # sets Django up

    # ruff: isort: split
    from django.conf import settings

    limits: Limits = settings.WEB_LIMITS
    tls = {"ssl_certfile": settings.TLS_CERT, "ssl_keyfile": settings.TLS_KEY} if settings.TLS_CERT else {}
    config = config_make(application, limits=limits, host=settings.BIND, port=settings.PORT, **tls)
    possible = files_provide(limits.connections)
    server = Server(config, limits=limits)
    server.seats.most = possible
    server.run()


if __name__ == "__main__":
    main()
