"""HTTP and WebSocket connections with limits on bytes and time, so that the web process needs no server in front of it.

uvicorn's own protocols hold whatever a peer sends until it is complete, for however long that takes. Here headers are bounded in
bytes, number and time, bodies must keep a minimum pace, connections that do nothing are closed, and so are those that read no
answers. How large a body may be depends on who sends it: nebulagrid/handler.py says that.

The server looks at each connection once a second (``look``), which is cheaper than a timer for each of them.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from nebulagrid.headers import error_json, headers_due
from nebulagrid.limits import Limits
from nebulagrid.seats import Seat

#: So much is given to the parser at a time: it may run past a limit by less than this.
PIECE = 16 * 1024
#: Requests that were sent before the answer of the first.
PIPELINED_MOST = 16
#: After a refusal the rest of what a peer sends is thrown away, so that it can read why: for so long, and so much of it.
PARTING_S, PARTING_BYTES = 2.0, 1024 * 1024
#: What is closed and still has something to send.
CLOSING_S = 5.0
#: Answers to pings of a peer that reads none of them.
SOCKET_BACKLOG = 8 * 1024 * 1024


class Stall:
    """Since when a peer has taken nothing of what there is for it."""

    __slots__ = ("_left", "_since")

    def __init__(self) -> None:
        self._left, self._since = 0, 0.0

    def seconds(self, transport: Any, now: float) -> float:
        left = transport.get_write_buffer_size()
        if not self._left or left < self._left:
            self._since = now
        self._left = left
        return now - self._since if left else 0.0


class Refused(Exception):
    """Raised inside of the parser's callbacks, which end its work."""


class GuardedHttp(HttpToolsProtocol):
    """``reading``: what is expected next: ``header`` (some of it may be there), ``body``, or ``next`` after a whole request."""

    limits = Limits()  # of all connections; the server sets it before the first one

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.seat: Seat | None = None
        self.reading = "header"
        self.since = 0.0
        self._head = 0  # bytes of the headers that are being read
        self._got = 0  # of the body
        self._barren = 0  # bytes since the last one of the body: chunk extensions, trailers
        self._waited_s = 0.0  # for the body, while we were ready to read
        self._looked_at: float | None = None
        self._stall = Stall()
        self._refusal: tuple[HTTPStatus, str, str] | None = None
        self._parting: float | None = None
        self._closing: float | None = None
        self._thrown_away = 0

    # --- what uvicorn calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()
        if self.seat is not None:
            self.seat.close = transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.seat is not None:
            self.seat.leave()

    def data_received(self, data: bytes) -> None:
        if self._parting is not None:
            self._thrown_away += len(data)
            if self._thrown_away > PARTING_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        for at in range(0, len(data), PIECE):
            if not self._feed(data[at : at + PIECE]):
                return

    def _feed(self, piece: bytes) -> bool:
        """Whether the parser goes on with this connection."""
        before, got = self.reading, self._got
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            return False
        except httptools.HttpParserError:
            self._refuse(*(self._refusal or (HTTPStatus.BAD_REQUEST, "bad_request", "This is no valid HTTP request.")))
            return False
        if self.reading == "header":
            self._head = self._head + len(piece) if before == "header" else len(piece) if before == "next" else 0
            if self._head > self.limits.header_bytes:
                self._refuse(*self._too_large())
                return False
        elif self.reading == "body":
            self._barren = self._barren + len(piece) if before == "body" and self._got == got else 0
            if self._barren > self.limits.header_bytes:
                self._refuse(HTTPStatus.BAD_REQUEST, "bad_request", "There is too much between the pieces of this body.")
                return False
        return not self.transport.is_closing()

    def _too_large(self) -> tuple[HTTPStatus, str, str]:
        text = f"A request has at most {self.limits.header_bytes} bytes of headers here, in at most {self.limits.headers} lines."
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", text

    # --- what the parser calls --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.reading == "next":
            self.since = self.loop.time()
        self.reading = "header"

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the body these are trailers, which nobody reads.
        if self.reading == "body":
            return
        if len(self.headers) >= self.limits.headers:
            self._refusal = self._too_large()
            raise Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.header_bytes:
            self._refusal = self._too_large()
            raise Refused
        if len(self.pipeline) >= PIPELINED_MOST:
            text = f"At most {PIPELINED_MOST} requests may be sent before the first is answered."
            self._refusal = (HTTPStatus.TOO_MANY_REQUESTS, "busy", text)
            raise Refused
        self.reading, self._got, self._barren, self._waited_s, self._head = "body", 0, 0, 0.0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._got += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.reading, self.since = "next", self.loop.time()
        super().on_message_complete()
        if self.seat is not None and self._is_at_work():
            self.seat.work()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.since = self.loop.time()
        if self.seat is not None and not self._is_at_work():
            self.seat.rest()

    def _is_at_work(self) -> bool:
        """Whether a whole request is here and not answered. One whose body is still on its way is none: it holds no seat for good."""
        if self.pipeline:
            return True  # the newest of them may be half there, the one that they wait for is whole
        return self.reading != "body" and self.cycle is not None and not self.cycle.response_complete

    def handle_websocket_upgrade(self) -> None:
        if self.seat is not None:
            self.seat.work()
        super().handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        if isinstance(protocol, GuardedSocket):
            protocol.seat = self.seat
        self.seat = None

    # --- time ---------------------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Called about once a second."""
        passed = now - (self._looked_at if self._looked_at is not None else now)
        self._looked_at = now
        limits, is_answered = self.limits, self.cycle is None or self.cycle.response_complete
        if self._parting is not None and now - self._parting > PARTING_S:
            self.transport.abort()
        elif self.transport.is_closing():
            self._closing = self._closing or now
            if now - self._closing > CLOSING_S:
                self.transport.abort()
        elif self._stall.seconds(self.transport, now) > limits.stall_s:
            self.transport.abort()
        elif self.reading == "header" and is_answered and now - self.since > limits.header_s:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "too_slow", f"The headers did not arrive within {limits.header_s:g} s.")
        elif self.reading == "next" and is_answered and now - self.since > limits.idle_s:
            self.transport.close()
        elif self.reading == "body" and not self.flow.read_paused:
            self._waited_s += passed
            if self._waited_s > limits.body_s + self._got / limits.body_rate:
                text = f"The body came slower than {limits.body_rate} bytes a second."
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, "too_slow", text)

    # --- refusals -----------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, "bad_request", msg)

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        """The server's own answer, and the end of the connection. An answer that is being sent is cut off."""
        cycle = self.cycle
        if self._parting is not None or self.transport.is_closing():
            return
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()
            return
        body = error_json(code, message)
        own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        lines = [STATUS_LINE[status.value]]
        for name, value in [*self.server_state.default_headers, *own, *headers_due()]:
            lines += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*lines, b"\r\n", body]))
        self._parting = self.loop.time()
        if cycle is not None and not cycle.response_complete:
            # The application waits for a body that will not come; what it answers to that goes nowhere.
            cycle.disconnected = True
            cycle.message_event.set()
        if self.seat is not None:
            self.seat.rest()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()


class GuardedSocket(WebSocketsSansIOProtocol):
    """Frames are bounded by ``ws_max_size``, which uvicorn holds against a frame's announced length before it reads the rest."""

    limits = Limits()

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.seat: Seat | None = None
        self.since = self.loop.time()
        self._stall = Stall()
        self._closing: float | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.seat is not None:
            self.seat.leave()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > SOCKET_BACKLOG:
            self.transport.abort()

    def look(self, now: float) -> None:
        if self.transport.is_closing():
            self._closing = self._closing or now
            if now - self._closing > CLOSING_S:
                self.transport.abort()
            return
        is_late = not self.handshake_complete and now - self.since > self.limits.header_s
        if is_late or self._stall.seconds(self.transport, now) > self.limits.stall_s:
            self.transport.abort()
