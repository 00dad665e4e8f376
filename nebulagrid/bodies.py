"""How large a request's body may be, and how much of all bodies together is kept while they come in.

Whoever shows no credential sends little. A larger body is refused before it is read, unless its sender is known: then its route says
how much it may have. What is being received is in memory and in temporary files: there is room for so much in all (NEBULA_WEB_BODIES_MIB),
and no sender gets more than half of it.
"""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.db import close_old_connections
from django.http import HttpRequest
from django.http.cookie import parse_cookie

from nebulagrid.headers import error_json
from nodes.auth import node_authenticate
from quotas.tokens import credential_open

MIB = 1024 * 1024
#: What anybody may send: a form to sign in, an enrolment, a report of an agent that changed little.
SMALL = 64 * 1024
#: Above the limits of all views, which say in their own words what is too much.
LARGE = 8 * MIB
AGENTS, ARTIFACTS, API = "/api/agent/", "/api/agent/v1/artifacts/", "/api/"

Headers = dict[bytes, str]


class BodyRefused(Exception):
    """No more of this body is read."""

    def __init__(self, status: HTTPStatus, code: str, message: str, *, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        self.body = error_json(code, message)


def too_large(most: int) -> BodyRefused:
    return BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"A body has at most {most} bytes here.")


def no_room() -> BodyRefused:
    text = "Too much is being received at this moment; try again in a moment."
    return BodyRefused(HTTPStatus.SERVICE_UNAVAILABLE, "busy", text, headers=((b"retry-after", b"5"),))


def body_most(path: str) -> int:
    """For a sender who is known."""
    if path.startswith(ARTIFACTS):
        return settings.ARTIFACT_CAP_MIB * MIB + LARGE
    return LARGE


def unknown_sender(path: str, headers: Headers) -> BodyRefused:
    """For a large body without a credential. What a wrong one is answered with, an agent tries again; 413 it would give up for."""
    if not path.startswith(API):
        return too_large(SMALL)
    scheme = "Node" if path.startswith(AGENTS) else 'Bearer realm="NebulaGrid"'
    text = f"A body of more than {SMALL} bytes is taken only with a valid credential."
    return BodyRefused(HTTPStatus.UNAUTHORIZED, "unauthenticated", text, headers=((b"www-authenticate", scheme.encode()),))


def sender_find(path: str, headers: Headers) -> str | None:
    """Whose credential comes with the request; None if there is none that is valid. One or two SQL queries."""
    authorization = headers.get(b"authorization", "")
    try:
        if path.startswith(AGENTS):
            node = node_authenticate(authorization)
            return None if node is None else f"node {node.pk}"
        scheme, _space, secret = authorization.partition(" ")
        if scheme.lower() == "bearer":
            found = credential_open(secret.strip())
            return None if found is None else f"user {found[0].pk}"
        key = parse_cookie(headers.get(b"cookie", "")).get(settings.SESSION_COOKIE_NAME)
        if not key:
            return None
        request = HttpRequest()
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
        user = get_user(request)
        return f"user {user.pk}" if user.is_authenticated and user.is_active else None
    finally:
        close_old_connections()


class BodyRoom:
    """Bytes of bodies that are being received or worked on."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: Counter[str] = Counter()

    def take(self, sender: str, size: int) -> None:
        """Raises BodyRefused where there is no room now."""
        if self.held.total() + size > self.most or self.held[sender] + size > self.most // 2:
            raise no_room()
        self.held[sender] += size

    def give_back(self, sender: str, size: int) -> None:
        self.held[sender] -= size
        if self.held[sender] <= 0:
            del self.held[sender]
