"""Django's ASGI handler with one thread switch a request and threads that stay.

Under ASGI each of Django's own middlewares goes to a thread and back twice, and so does each view; and every request
has a thread of its own, so that its database connection is made anew. Here a request's whole synchronous chain runs in
one thread of a small pool, which keeps its connection; static files never leave the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponseBase, HttpResponseNotFound
from servestatic.middleware import ServeStaticMiddleware

from nebulagrid.middleware import headers_set


async def _no_such_file(request: HttpRequest) -> HttpResponseBase:
    return HttpResponseNotFound("There is no such file.", content_type="text/plain; charset=utf-8")


class PooledHandler(ASGIHandler):
    """``settings.MIDDLEWARE`` is loaded as a synchronous chain; static files are answered before it."""

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)
        self._static = ServeStaticMiddleware(_no_such_file)
        self._pool = ThreadPoolExecutor(settings.WEB_THREADS, thread_name_prefix="http")

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.startswith(self._static.static_prefix):
            return headers_set(request, await self._static(request))
        # Language and URL configuration are context variables: each request has a copy of its own.
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, self._answer, request)

    def _answer(self, request: HttpRequest) -> Any:
        try:
            return self.get_response(request)
        finally:
            # The handler's own signal does this in another thread, whose connections these are not.
            close_old_connections()
