"""Connections with limits: headers, bodies, frames, time and number. Against a small application of the test's own."""

from __future__ import annotations

import base64
import os
import struct
import threading
from typing import Any

import pytest

from nebulagrid.headers import SecureAnswers, headers_due
from nebulagrid.limits import Limits
from tests.edge_lab import Peer, asked, served
from tests.waiting import PATIENCE_S, wait_until

SHORT = Limits(header_bytes=4096, headers=20, header_s=0.5, body_s=0.5, body_rate=10_000, idle_s=0.5, stall_s=0.5, frame_bytes=1024)
PATIENT = Limits(header_bytes=4096, headers=20, frame_bytes=1024, connections=8, connections_each=4)


class App:
    """Reads the body, then answers with its length. ``/large`` answers with more than a socket holds; ``/late`` when it may."""

    def __init__(self) -> None:
        self.requests, self.gave_up = 0, threading.Event()
        self.may_answer = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self.socket(scope, receive, send)
            return
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gave_up.set()
                return
            size += len(message["body"])
            if not message["more_body"]:
                break
        self.requests += 1
        if scope["path"] == "/error":
            raise ValueError("outside of any view")
        body = b"x" * (64 * 1024 * 1024) if scope["path"] == "/large" else str(size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})

    async def socket(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/closed":
            await send({"type": "websocket.close", "code": 4401})
            return
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": f"{len(message.get('text') or '')}"})


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


def test_an_ordinary_request_and_a_second_one_on_its_connection() -> None:
    with served(App(), PATIENT) as (_server, port):
        peer = Peer(port)
        peer.send(HEAD + b"Content-Length: 3\r\n\r\nabc")
        peer.send(HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nab\r\n0\r\n\r\n")
        found = peer.answer()
    assert found.count(b"HTTP/1.1 200 OK") == 2
    assert found.rstrip().endswith(b"2")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"X-One: " + b"a" * 80_000_000, 431),
        (b"".join(b"X-%d: a\r\n" % n for n in range(40)) + b"\r\n", 431),
        (b"X-One: " + b"a" * 5000 + b"\r\n\r\n", 431),
        (b"no colon at all\r\n\r\n", 400),
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 100_000, 400),
        (b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nTrailer: " + b"a" * 100_000, 400),
    ],
    ids=["one header of 80 MB", "many headers", "5000 bytes", "no header", "two lengths", "chunk extension", "trailer"],
)
def test_what_is_too_much_is_refused_with_the_servers_own_words_and_all_headers(sent: bytes, status: int) -> None:
    app = App()
    with served(app, PATIENT) as (_server, port):
        peer = Peer(port)
        peer.send(HEAD)
        peer.send(sent)
        found = peer.answer()
        assert found.startswith(b"HTTP/1.1 %d " % status), found[:200]
        for name, value in headers_due():
            assert name + b": " + value in found
        assert asked(port)[0] == 200  # and everybody else is served
    assert app.requests == 1


def test_a_long_address_counts_as_header() -> None:
    with served(App(), PATIENT) as (_server, port):
        peer = Peer(port)
        peer.send(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.status() == 431


def test_many_requests_ahead_of_the_first_answer_are_too_many() -> None:
    with served(App(), PATIENT) as (_server, port):
        peer = Peer(port)
        peer.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 5000)
        assert b"429 Too Many Requests" in peer.answer()


def test_half_sent_headers_and_bodies_and_quiet_connections_are_closed() -> None:
    app = App()
    with served(app, SHORT) as (server, port):
        nothing = Peer(port)
        half = Peer(port)
        half.send(HEAD + b"X-One: ")
        body = Peer(port)
        body.send(HEAD + b"Content-Length: 1000000\r\n\r\nabc")
        quiet = Peer(port)
        quiet.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        newlines = Peer(port)
        newlines.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        sending = threading.Thread(target=lambda: [None for _ in iter(lambda: newlines.send(b"\r\n"), False)])
        sending.start()
        assert half.status() == 408
        assert body.status() == 408
        assert app.gave_up.wait(PATIENCE_S), "who waits for the rest of a body hears that it will not come"
        assert nothing.answer().startswith(b"HTTP/1.1 408")
        assert quiet.status() == 200
        newlines.answer()
        sending.join(PATIENCE_S)
        assert not sending.is_alive()
        wait_until(lambda: server.seats.total == 0, "every seat is free")


def test_a_body_that_keeps_the_pace_may_take_its_time() -> None:
    app = App()
    limits = Limits(body_s=1, body_rate=100)
    with served(app, limits) as (_server, port):
        peer = Peer(port)
        peer.send(HEAD + b"Content-Length: 3000\r\nConnection: close\r\n\r\n")
        done = threading.Event()
        for _ in range(30):  # three seconds at ten times the pace
            peer.send(b"x" * 100)
            done.wait(0.1)
        assert peer.status() == 200


def test_who_reads_no_answer_is_closed() -> None:
    with served(App(), SHORT) as (server, port):
        peer = Peer(port)
        peer.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: server.seats.total == 1, "it is there")
        wait_until(lambda: server.seats.total == 0, "it is closed though its answer was never read")
        peer.close()


def test_whoever_opens_many_connections_takes_seats_from_himself() -> None:
    app = App()
    with served(app, PATIENT) as (server, port):
        half = [Peer(port) for _ in range(20)]
        for peer in half:
            peer.send(HEAD)
        for peer in half[:16]:
            assert peer.answer() == b""  # the longest resting ones made room
        assert server.seats.total == 4
        assert asked(port)[0] == 200
        for peer in half:
            peer.close()


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["at once", "after a whole request"])
def test_half_sent_bodies_make_room_for_whoever_sends_a_whole_request(first: bytes) -> None:
    with served(App(), PATIENT) as (server, port):
        for _ in range(5):
            for peer in [Peer(port) for _ in range(PATIENT.connections_each)]:
                peer.send(first + HEAD + b"Content-Length: 60000\r\nExpect: 100-continue\r\n\r\n")
                found = b""
                while b"100 Continue" not in found:  # its headers are complete, and the application waits for the body
                    data = peer.socket.recv(65536)
                    assert data, "it is let in, too"
                    found += data
            assert server.seats.total == PATIENT.connections_each
            assert asked(port)[0] == 200


def test_connections_that_are_being_worked_on_make_no_room() -> None:
    class Late(App):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            import asyncio

            while not self.may_answer.is_set():
                self.requests = max(self.requests, 1)
                await asyncio.sleep(0.01)
            await super().__call__(scope, receive, send)

    app = Late()
    with served(app, PATIENT) as (server, port):
        at_work = [Peer(port) for _ in range(4)]
        for peer in at_work:
            peer.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        wait_until(lambda: not server.seats._resting and server.seats.total == 4, "all four are at work")
        assert Peer(port).answer() == b""
        app.may_answer.set()
        assert [peer.status() for peer in at_work] == [200] * 4


def handshake(path: str = "/") -> bytes:
    key = base64.b64encode(os.urandom(16))
    lines = [b"GET %s HTTP/1.1" % path.encode(), b"Host: localhost", b"Connection: Upgrade", b"Upgrade: websocket"]
    return b"\r\n".join([*lines, b"Sec-WebSocket-Key: " + key, b"Sec-WebSocket-Version: 13", b"", b""])


def test_a_frame_is_judged_by_its_announced_length() -> None:
    with served(SecureAnswers(App()), PATIENT) as (server, port):
        peer = Peer(port)
        peer.send(handshake())
        first = peer.socket.recv(65536)
        assert first.startswith(b"HTTP/1.1 101")
        assert b"x-content-type-options: nosniff" in first.lower()
        peer.send(bytes([0x81, 0x80 | 3]) + bytes(4) + b"abc")
        assert peer.socket.recv(100) == b"\x81\x013"
        peer.send(bytes([0x81, 0x80 | 127]) + struct.pack("!Q", 16 * 1024 * 1024) + bytes(4))  # and nothing of it
        assert peer.answer()[:4] == b"\x88" + peer_close_length(1009)
        wait_until(lambda: server.seats.total == 0, "its seat is free")


def peer_close_length(code: int) -> bytes:
    """Length byte and code of a close frame whose reason is what the library says."""
    reason = b"frame with 16777216 bytes exceeds limit of 1024 bytes"
    return bytes([2 + len(reason)]) + struct.pack("!H", code)


def test_a_refused_socket_and_an_error_outside_of_views_have_all_headers_too() -> None:
    with served(SecureAnswers(App()), PATIENT) as (_server, port):
        peer = Peer(port)
        peer.send(handshake("/closed"))
        found = peer.answer()
        assert found.startswith(b"HTTP/1.1 403")
        status, headers, body = asked(port, "/error")
        assert status == 500
        assert b'"code": "internal"' in body
        for name, value in headers_due():
            assert name + b": " + value in found.lower().replace(b"deny", b"DENY")
            assert headers[name.decode()] == value.decode()
