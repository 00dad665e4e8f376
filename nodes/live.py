"""Tell watchers and agents that something changed, from synchronous code. Hints: losing one costs seconds at most.

Topics: ``user.<id>``, ``job.<id>``, ``node.<id>``, ``pool`` for people, and ``agent.<id>`` for a node's own agent.

One background thread owns an event loop and with it the channel layer's connection: ``async_to_sync`` for each call
would open a new Redis connection each time. The queue is bounded; what does not fit is dropped, never waited for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from channels.layers import get_channel_layer
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, transaction

log = logging.getLogger(__name__)

TOPIC = re.compile(r"(?:user|job|node)\.[1-9][0-9]{0,18}|pool")
QUEUE_MAX = 2000
SEND_TIMEOUT_S = 2.0
#: What people watch is gathered for so long, and the same words are said once. An agent's nudge goes out at once.
GATHER_S = 0.05
#: After a failed send the queue is emptied and the layer left alone for so long.
REST_S = 0.5


class _Publisher:
    """The thread, its loop and its queue. One a process: a forked child has no threads and makes its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        # Offered by any thread, taken by the loop: one wake-up for many, as each is a system call.
        self._offered: deque[tuple[str, dict[str, Any]]] = deque()
        self._is_woken = False
        self.queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(QUEUE_MAX)
        self.sent = self.dropped = 0
        self._warned_at = 0.0
        self._gathered: dict[tuple[str, str], dict[str, Any]] = {}
        self.thread = threading.Thread(target=self._run, name="live-publisher", daemon=True)
        self.thread.start()

    def offer(self, group: str, message: dict[str, Any]) -> None:
        self._offered.append((group, message))
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._take)

    def stop(self) -> None:
        """End the thread and close the layer's connection. What is still queued is dropped."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)

    def _take(self) -> None:
        self._is_woken = False  # before the look: what is offered after it wakes us again
        while self._offered:
            group, message = self._offered.popleft()
            if message["type"] == "agent.sync":
                self._put(group, message)
            else:
                self._gather(group, message)

    def _gather(self, group: str, message: dict[str, Any]) -> None:
        """A job that starts and ends says "job 42 changed" half a dozen times within a blink: watchers need it once."""
        if not self._gathered:
            self.loop.call_later(GATHER_S, self._flush)
        self._gathered.setdefault((group, message["text"]), message)

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for (group, _), message in gathered.items():
            self._put(group, message)

    def _put(self, group: str, message: dict[str, Any]) -> None:
        try:
            self.queue.put_nowait((group, message))
        except asyncio.QueueFull:
            self.dropped += 1

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(self._send_all())
        try:
            self.loop.run_forever()
        finally:
            # Asked to end while a send fails, asyncio.wait_for answers with that failure instead: ask until it is heard.
            while not task.done():
                task.cancel()
                self.loop.run_until_complete(asyncio.wait([task], timeout=REST_S))
            self.loop.close()  # channels_redis closes its connection here

    async def _send_all(self) -> None:
        while True:
            group, message = await self.queue.get()
            try:
                layer = get_channel_layer()
                if layer is not None:
                    await asyncio.wait_for(layer.group_send(group, message), SEND_TIMEOUT_S)
                    self.sent += 1
            except Exception as error:  # whatever the layer raises: a hint is lost, nothing else
                self.dropped += 1 + self.queue.qsize()
                while not self.queue.empty():
                    self.queue.get_nowait()
                if time.monotonic() - self._warned_at > 60:
                    self._warned_at = time.monotonic()
                    log.warning("live updates are not sent: %s: %s", type(error).__name__, error)
                await asyncio.sleep(REST_S)


_publisher: _Publisher | None = None
_lock = threading.Lock()


def publish(topic: str, payload: dict[str, Any]) -> None:
    """Send ``{"topic": topic, **payload}`` to the watchers of a topic, after the commit if in a transaction.

    It is made into JSON once, here; consumers forward the text. Never raises, never blocks.
    """
    if not TOPIC.fullmatch(topic):
        log.error("not a topic: %r", topic)
        return
    try:
        text = json.dumps({"topic": topic, **payload}, cls=DjangoJSONEncoder, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        log.error("payload of %s is not JSON: %s", topic, error)
        return
    _after_commit(group_of(topic), {"type": "live.message", "text": text})


def users_tell(user_ids: Iterable[int]) -> None:
    """Each of these users has news: the bell of open pages counts anew."""
    for pk in user_ids:
        publish(f"user.{pk}", {"notices": True})


def nudge_node(node_id: int) -> None:
    """Ask the node's agent to sync now, after the commit if in a transaction. Never raises, never blocks."""
    _after_commit(agent_group(node_id), {"type": "agent.sync"})


def group_of(topic: str) -> str:
    return f"live.{topic}"


def agent_group(node_id: int) -> str:
    """The group of a node's own agent. Not ``node.<id>``: people may watch that one, and an agent must not get their messages."""
    return f"agent.{node_id}"


def _after_commit(group: str, message: dict[str, Any]) -> None:
    if connection.in_atomic_block:
        transaction.on_commit(lambda: _offer(group, message), robust=True)
    else:
        _offer(group, message)


def _offer(group: str, message: dict[str, Any]) -> None:
    global _publisher
    try:
        if _publisher is None or _publisher.pid != os.getpid():
            with _lock:
                if _publisher is None or _publisher.pid != os.getpid():
                    _publisher = _Publisher()
        _publisher.offer(group, message)
    except RuntimeError as error:  # no thread could be started, or the loop is closing with the process
        log.warning("live update dropped: %s", error)


def close() -> None:
    """End the background thread, if there is one. The next publish starts another."""
    global _publisher
    with _lock:
        old, _publisher = _publisher, None
    if old is not None and old.pid == os.getpid():
        old.stop()
