"""Headers that each answer has, whoever gives it: a view, a static file, a socket that is refused, the web server itself.

They keep a browser from doing what no page of ours needs. Pages widen the content policy as far as they have to
(nebulagrid/middleware.py); everything else may load nothing at all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from django.conf import settings

log = logging.getLogger(__name__)

Pairs = list[tuple[bytes, bytes]]

PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
_ALWAYS: Pairs = [
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"permissions-policy", PERMISSIONS.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def headers_due() -> Pairs:
    """All of them, with HSTS where people come by HTTPS."""
    if not settings.HSTS_S:
        return _ALWAYS
    return [*_ALWAYS, (b"strict-transport-security", b"max-age=%d" % settings.HSTS_S)]


def headers_complete(given: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """``given``, and whatever of ours is not in it."""
    present = list(given)
    names = {name.lower() for name, _value in present}
    return [*present, *(pair for pair in headers_due() if pair[0] not in names)]


def error_json(code: str, message: str) -> bytes:
    """The API's error shape, for answers that no view gives."""
    return json.dumps({"code": code, "message": message, "fields": {}}, ensure_ascii=False).encode()


class SecureAnswers:
    """The outermost ASGI application. It completes the headers of each answer, those of refused sockets included, and answers what
    would otherwise end as a bare error of the server."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        has_begun = False

        async def send_completed(message: Any) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message = {**message, "headers": headers_complete(message.get("headers", ()))}
            await send(message)

        try:
            await self.app(scope, receive, send_completed)
        except Exception:
            if has_begun:
                raise
            log.exception("a request ended in an error outside of any view")
            body = error_json("internal", "The control plane failed to answer; what went wrong is in its log.")
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
            await send_completed({"type": "http.response.start", "status": HTTPStatus.INTERNAL_SERVER_ERROR, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _websocket(self, scope: Any, receive: Any, send: Any) -> None:
        is_accepted = False
        can_answer = "websocket.http.response" in scope.get("extensions", {})

        async def send_completed(message: Any) -> None:
            nonlocal is_accepted
            if message["type"] == "websocket.accept":
                is_accepted = True
                message = {**message, "headers": headers_complete(message.get("headers", ()))}
            elif message["type"] == "websocket.close" and not is_accepted and can_answer:
                headers = headers_complete([(b"content-length", b"0"), (b"connection", b"close")])
                await send({"type": "websocket.http.response.start", "status": HTTPStatus.FORBIDDEN, "headers": headers})
                message = {"type": "websocket.http.response.body", "body": b""}
            await send(message)

        await self.app(scope, receive, send_completed)
