"""Calling the REST API in tests, as programs do: with a token, in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client
from pytest_django.fixtures import Settings

from quotas.models import User
from quotas.throttles import throttle_reset
from quotas.tokens import token_create


@pytest.fixture(autouse=True)
def no_redis(settings: Settings) -> Iterator[None]:
    """No Redis, and nothing counted yet: what one test called does not slow the next one down."""
    settings.LIVE_REDIS_URL = "unix:///nonexistent/redis.sock"
    throttle_reset()
    cache.clear()  # allauth counts there
    yield
    throttle_reset()


class Api:
    """``api.get("/jobs/")`` → (status, JSON). Paths are below /api/v1 unless they begin with /api."""

    def __init__(self, user: User | None = None, **headers: str) -> None:
        self.user = user
        if user is not None:
            headers["Authorization"] = f"Bearer {token_create(user=user, name='test')[1]}"
        self.client = Client(headers=headers, raise_request_exception=False)

    def call(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str) -> HttpResponse:
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        address = path if path.startswith("/api") else f"/api/v1{path}"
        answer: HttpResponse = self.client.generic(method, address, data, content_type="application/json", headers=headers)
        return answer

    def get(self, path: str, **query: Any) -> tuple[int, Any]:
        from urllib.parse import urlencode

        return _read(self.call("GET", f"{path}?{urlencode(query)}" if query else path))

    def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return _read(self.call("POST", path, body, **headers))

    def patch(self, path: str, body: Any = None) -> tuple[int, Any]:
        return _read(self.call("PATCH", path, body))


def _read(answer: HttpResponse) -> tuple[int, Any]:
    return answer.status_code, (json.loads(answer.content) if answer.content else None)


def is_error(body: Any) -> bool:
    """The one error shape, with a sentence in it."""
    return (
        isinstance(body, dict) and set(body) == {"code", "message", "fields"} and bool(body["message"]) and isinstance(body["fields"], dict)
    )
