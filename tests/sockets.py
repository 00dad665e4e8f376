"""A WebSocket client for ASGI applications. channels.testing has one, but importing it needs daphne, which we don't use."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from asgiref.testing import ApplicationCommunicator

from tests.waiting import PATIENCE_S


class Socket(ApplicationCommunicator):
    """One connection. ``headers`` are as a browser or an agent sends them; Host is the caller's to give."""

    def __init__(self, app: Any, path: str, **headers: str) -> None:
        parts = urlsplit(path)
        scope = {
            "type": "websocket",
            "path": parts.path,
            "query_string": parts.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "subprotocols": [],
        }
        super().__init__(app, scope)

    async def connect(self) -> int | None:
        """None when accepted, else the code it was closed with."""
        await self.send_input({"type": "websocket.connect"})
        answer = await self.receive_output(PATIENCE_S)
        return None if answer["type"] == "websocket.accept" else int(answer.get("code", 1000))

    async def say(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        await self.send_input({"type": "websocket.receive", "text": text})

    async def hear(self) -> str:
        answer = await self.receive_output(PATIENCE_S)
        assert answer["type"] == "websocket.send", answer
        return str(answer["text"])

    async def ask(self, message: Any) -> Any:
        await self.say(message)
        return json.loads(await self.hear())

    async def leave(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(PATIENCE_S)
