"""WebSockets: an agent's, which carries "sync" only, and people's, which carries what they may see.

Deny by default. Who may watch what and whose token it is, the rooms above know: nebulagrid/asgi.py hands both in with
``configure``; until then nothing may be watched and no token opens anything.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from channels.auth import AuthMiddlewareStack
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.urls import path, re_path

from nodes import rechecks
from nodes.auth import node_authenticate
from nodes.live import TOPIC, agent_group, group_of

log = logging.getLogger(__name__)

Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]

CLOSE_UNAUTHENTICATED = 4401
CLOSE_FORBIDDEN = 4403
CLOSE_NOT_FOUND = 4404
TOPICS_MAX = 200
MESSAGE_MAX = 16 * 1024
_BEARER = re.compile(r"Bearer ([\x21-\x7e]{1,4096})", re.IGNORECASE)  # a token, or a short JWT


def _nobody(token: str) -> Any | None:
    return None


def _nothing(user: Any, topic: str) -> bool:
    return False


_watchers: Counter[str] = Counter()


def watchers(topic: str) -> int:
    """How many connections of this process watch the topic."""
    return _watchers[topic]


_user_for_token: Callable[[str], Any | None] = _nobody
_may_watch: Callable[[Any, str], bool] = _nothing


def configure(*, user_for_token: Callable[[str], Any | None], may_watch: Callable[[Any, str], bool]) -> None:
    """Both are called in a thread, where SQL is allowed. ``user_for_token`` answers None for a token that opens nothing;
    ``may_watch`` is asked for topics that are well-formed."""
    global _user_for_token, _may_watch
    _user_for_token, _may_watch = user_for_token, may_watch


def header(scope: Scope, name: str) -> str:
    """A request header's value; empty if it is missing or there twice (then nobody can say which one counts)."""
    found = [value for key, value in scope["headers"] if key.lower() == name.encode()]
    return found[0].decode("latin-1") if len(found) == 1 else ""


class NodeConsumer(AsyncWebsocketConsumer):
    """An agent's connection. It never carries state: losing it costs at most one sync interval."""

    group: str | None = None

    async def connect(self) -> None:
        node = await database_sync_to_async(node_authenticate)(header(self.scope, "authorization"))
        if node is None:
            await self.close(code=CLOSE_UNAUTHENTICATED)
            return
        self.group = agent_group(node.pk)
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.accept()
        # What was nudged between the agent's last sync and now was sent to nobody.
        await self.send(text_data="sync")

    async def disconnect(self, code: int) -> None:
        if self.group is not None:
            await self.channel_layer.group_discard(self.group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """An agent says nothing here; what it has to say comes with a sync."""

    async def agent_sync(self, message: dict[str, Any]) -> None:
        await self.send(text_data="sync")


class LiveConsumer(AsyncWebsocketConsumer):
    """A person's connection. ``{"subscribe": ["job.42", "pool"]}`` and ``{"unsubscribe": […]}`` are answered with
    ``{"topics": [all now], "refused": [those of this message that may not be had]}``; a topic that doesn't exist and
    one that may not be seen are the same. Own ``user.<id>`` is subscribed from the start. Who may not be here any more is
    sent away within seconds (nodes/rechecks.py)."""

    topics: set[str]
    entry: rechecks.Entry
    #: As of the last look; None = what was subscribed since is to be looked at once more.
    rights: rechecks.Rights | None = None

    async def connect(self) -> None:
        self.topics = set()
        user = self.scope.get("user")
        if user is None or not user.is_authenticated or not user.is_active:
            await self.close(code=CLOSE_UNAUTHENTICATED)
            return
        self.user = user
        token = self.scope.get("token", "")
        if token:
            self.entry = rechecks.Entry(user=user.pk, token=token)
        else:
            self.entry = rechecks.Entry(user=user.pk, session_key=self.scope["session"].session_key or "", password=user.password)
        rechecks.watch(self, user_for_token=_user_for_token)  # whoever hears that he is in is looked at from then on
        await self.accept()
        if await database_sync_to_async(self._may_have)(f"user.{user.pk}"):
            await self._add(f"user.{user.pk}")

    async def rechecked(self, user: Any | None, rights: rechecks.Rights) -> None:
        if user is None:
            # First nothing is told any more: a browser that takes nothing can make the farewell take long.
            for topic in list(self.topics):
                await self._discard(topic)
            rechecks.forget(self)
            await self.close(code=CLOSE_UNAUTHENTICATED)
            return
        self.user, before, self.rights = user, self.rights, rights
        if rights == before:
            return
        try:
            gone = [topic for topic in sorted(self.topics) if not await database_sync_to_async(self._may_have)(topic)]
            for topic in gone:
                await self._discard(topic)
        except BaseException:
            self.rights = None  # not done: the next round looks again
            raise
        if gone:
            await self.send(text_data=json.dumps({"topics": sorted(self.topics), "refused": gone}))

    async def disconnect(self, code: int) -> None:
        rechecks.forget(self)
        for topic in list(getattr(self, "topics", ())):
            await self._discard(topic)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        wanted = self._parse(text_data)
        if wanted is None:
            await self._error(
                "bad_message", f'Expected {{"subscribe": ["job.42"]}} of at most {MESSAGE_MAX} characters and {TOPICS_MAX} topics.'
            )
            return
        subscribe, unsubscribe = wanted
        for topic in unsubscribe:
            await self._discard(topic)
        refused = []
        for topic in subscribe:
            if topic in self.topics:
                continue
            if len(self.topics) < TOPICS_MAX and await database_sync_to_async(self._may_have)(topic):
                await self._add(topic)
            else:
                refused.append(topic)
        await self.send(text_data=json.dumps({"topics": sorted(self.topics), "refused": refused}))

    async def live_message(self, message: dict[str, Any]) -> None:
        await self.send(text_data=message["text"])

    def _may_have(self, topic: str) -> bool:
        """Causes SQL queries."""
        return bool(TOPIC.fullmatch(topic) and _may_watch(self.user, topic))

    @staticmethod
    def _parse(text: str | None) -> tuple[list[str], list[str]] | None:
        if text is None or len(text) > MESSAGE_MAX:
            return None
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(message, dict) or not ({"subscribe", "unsubscribe"} & message.keys()):
            return None
        lists = [message.get("subscribe", []), message.get("unsubscribe", [])]
        if not all(isinstance(found, list) and len(found) <= TOPICS_MAX and all(isinstance(t, str) for t in found) for found in lists):
            return None
        return lists[0], lists[1]

    async def _error(self, code: str, text: str) -> None:
        await self.send(text_data=json.dumps({"error": {"code": code, "message": text}}))

    async def _add(self, topic: str) -> None:
        await self.channel_layer.group_add(group_of(topic), self.channel_name)
        self.topics.add(topic)
        self.rights = None
        _watchers[topic] += 1

    async def _discard(self, topic: str) -> None:
        if topic in self.topics:
            self.topics.discard(topic)
            _watchers[topic] -= 1
            if not _watchers[topic]:
                del _watchers[topic]
            await self.channel_layer.group_discard(group_of(topic), self.channel_name)


class LiveDoor:
    """Who is it? A Bearer token (CLI, SDK), else the session's cookie, and then only from our own pages: a browser
    sends the cookie from any page, and WebSockets have no CSRF token."""

    def __init__(self, app: App) -> None:
        self.by_token = app
        self.by_session = AuthMiddlewareStack(app)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        authorization = header(scope, "authorization")
        if authorization:
            match = _BEARER.fullmatch(authorization)
            user = await database_sync_to_async(_user_for_token)(match[1]) if match else None
            await self.by_token({**scope, "user": user, "token": match[1] if match else ""}, receive, send)
        elif is_own_origin(scope, trusted=settings.CSRF_TRUSTED_ORIGINS, hosts=settings.ALLOWED_HOSTS):
            await self.by_session(scope, receive, send)
        else:
            log.warning("live connection from a foreign page refused: %r", header(scope, "origin")[:100])
            await receive()
            await send({"type": "websocket.close", "code": CLOSE_FORBIDDEN})


def is_own_origin(scope: Scope, *, trusted: Iterable[str], hosts: Iterable[str]) -> bool:
    """Origin names the very host and port that the request went to (an allowed one), or is a trusted one."""
    origin = header(scope, "origin").lower()
    if not origin:
        return False
    if origin in {text.lower().rstrip("/") for text in trusted}:
        return True
    host = header(scope, "host").lower()
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, list(hosts)) and urlsplit(origin).netloc == host


async def nothing_here(scope: Scope, receive: Any, send: Any) -> None:
    """Any other address: refused before the handshake, without a word in the log."""
    await receive()
    await send({"type": "websocket.close", "code": CLOSE_NOT_FOUND})


websocket_urlpatterns = [
    path("api/agent/v1/ws", NodeConsumer.as_asgi()),
    path("ws/live", LiveDoor(LiveConsumer.as_asgi())),  # type: ignore[arg-type]
    re_path(r"", nothing_here),  # type: ignore[arg-type]
]
