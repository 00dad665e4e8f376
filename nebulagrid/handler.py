"""Django's ASGI handler with one thread switch a request and threads that stay.

Django writes a request's body to a temporary file before anything looks at it. So bodies are bounded here, while they come
in: whoever has no credential can't fill the disk.

Under ASGI each of Django's own middlewares goes to a thread and back twice, and so does each view; and every request
has a thread of its own, so that its database connection is made anew. Here a request's whole synchronous chain, with
the signals around it, runs in one thread of a small pool, which keeps its connection; static files never leave the event
loop. Half of the web process's time went into Django's own way. Which pool, nebulagrid/lanes.py says: agents, their output, people
and the health check don't wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import io
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.db import close_old_connections
from django.http import FileResponse, HttpRequest, HttpResponseBase, HttpResponseNotFound, JsonResponse
from django.urls import set_script_prefix
from django.utils import translation
from django.utils.translation import gettext as _
from servestatic.middleware import ServeStaticMiddleware

from jobs.waits import Deferred
from nebulagrid.bodies import MIB, SMALL, BodyRefused, BodyRoom, Headers, body_most, no_room, sender_find, too_large, unknown_sender
from nebulagrid.lanes import Lane, LaneFull, lane_of
from nebulagrid.middleware import headers_set
from quotas.throttles import client_address

#: A body that is refused is thrown away for so long, and so much of it.
PARTING_S, PARTING_BYTES = 2.0, 1024 * 1024


async def _no_such_file(request: HttpRequest) -> HttpResponseBase:
    return HttpResponseNotFound("There is no such file.", content_type="text/plain; charset=utf-8")


async def _refuse(send: Any, receive: Any, refusal: BodyRefused) -> None:
    """Says why, then throws away what still comes for a moment: a connection that is closed over unread bytes is reset, and its
    peer may never read the answer."""
    length = str(len(refusal.body)).encode()
    own = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refusal.status, "headers": [*own, *refusal.headers]})
    await send({"type": "http.response.body", "body": refusal.body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PARTING_S):
            thrown_away = 0
            while thrown_away < PARTING_BYTES:
                message = await receive()
                thrown_away += len(message.get("body", b""))
                if not message.get("more_body"):
                    break
    await send({"type": "http.response.body", "body": b""})


def _busy(request: HttpRequest) -> HttpResponseBase:
    with translation.override(translation.get_language_from_request(request)):
        message = _("Too many requests are waiting already; try again in a moment.")
    body = {"code": "busy", "message": message, "fields": {}}
    return JsonResponse(body, status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "2"})


class PooledHandler(ASGIHandler):
    """``settings.MIDDLEWARE`` is loaded as a synchronous chain; static files are answered before it."""

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)
        self._static = ServeStaticMiddleware(_no_such_file)
        self._room = BodyRoom(settings.WEB_LIMITS.bodies_mib * MIB)
        self._lanes = {
            "health": Lane("health", 1),
            "agents": Lane("agents", settings.WEB_AGENT_THREADS),
            "output": Lane("output", settings.WEB_OUTPUT_THREADS),
            "people": Lane("people", settings.WEB_THREADS, share=max(1, settings.WEB_THREADS - 1)),
        }

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        headers: Headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        announced = headers.get(b"content-length", "")
        size = int(announced) if announced.isdigit() and len(announced) < 19 else 0
        came = held = 0
        sender: str | None = None
        refusal: BodyRefused | None = None

        async def room_take(wanted: int) -> None:
            """For so many bytes of this body in all. Raises BodyRefused."""
            nonlocal held, sender
            if wanted <= max(held, SMALL):
                return
            if sender is None:
                sender = await self._sender(scope, headers)
            if sender is None:
                raise unknown_sender(path, headers)
            if wanted > body_most(path):
                raise too_large(body_most(path))
            self._room.take(sender, wanted - held)
            held = wanted

        async def receive_bounded() -> Any:
            nonlocal came, refusal
            message = await receive()
            came += len(message.get("body", b""))
            try:
                await room_take(came)
            except BodyRefused as error:
                refusal = error
                return {"type": "http.disconnect"}  # Django throws away what it has, and answers nothing
            return message

        try:
            try:
                await room_take(size)
            except BodyRefused as error:
                refusal = error
            else:
                await self._serve(scope, receive_bounded, send)
            if refusal is not None:
                await _refuse(send, receive, refusal)
        finally:
            if sender is not None and held:
                self._room.give_back(sender, held)

    async def _sender(self, scope: Any, headers: Headers) -> str | None:
        caller, path = str((scope.get("client") or ("",))[0]), scope["path"]
        try:
            return await self._lanes[lane_of(path)].run(caller, lambda: sender_find(path, headers))
        except LaneFull:
            raise no_room() from None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError(f"This handler serves HTTP only, not {scope['type']}.")
        await self.handle(scope, receive, send)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        # 1. All of the request.
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        # 2. The answer, closed already unless it is still to be read while it is sent.
        try:
            response = await self._answer(scope, body)
            while isinstance(response, Deferred):
                # A new answer from the first middleware on: who waited may have lost the right to know.
                if not await self._wait(response, receive):
                    return
                response = await self._answer(scope, io.BytesIO())  # what waits is a GET: it had no body
            if not response.streaming:
                await self.send_response(response, send)
                return
            # 3. A long answer ends with whoever reads it.
            try:
                await self._stream(response, receive, send)
            finally:
                await self._lanes[lane_of(scope["path"])].thread(response.close)
        finally:
            body.close()

    async def _wait(self, response: Deferred, receive: Any) -> bool:
        """Whether who asked is still there when the wait is over."""
        waiting = asyncio.create_task(response.wait())
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        is_there = not leaving.done()
        for task in (leaving, waiting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, RequestAborted):
                await task
        return is_there

    async def _stream(self, response: HttpResponseBase, receive: Any, send: Any) -> None:
        sending = asyncio.create_task(self.send_response(response, send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, sending):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, RequestAborted):
                await task

    async def _answer(self, scope: Any, body: Any) -> HttpResponseBase:
        # Language and URL configuration are context variables: each request has a copy of its own.
        context = contextvars.copy_context()
        context.run(set_script_prefix, get_script_prefix(scope))
        request, refusal = context.run(self.create_request, scope, body)
        if request is None:
            return refusal
        if request.path_info.startswith(self._static.static_prefix):
            return headers_set(request, await self._static(request))
        try:
            return await self._lanes[lane_of(request.path)].run(client_address(request), lambda: context.run(self._respond, scope, request))
        except LaneFull:
            return headers_set(request, _busy(request))

    def _respond(self, scope: Any, request: HttpRequest) -> HttpResponseBase:
        """In a thread of the pool, from the first signal to the last."""
        signals.request_started.send(sender=self.__class__, scope=scope)
        try:
            response: Any = self.get_response(request)
            response._handler_class = self.__class__
            if isinstance(response, FileResponse):
                response.block_size = self.chunk_size
            if not response.streaming:
                response.close()
            return response
        finally:
            close_old_connections()
