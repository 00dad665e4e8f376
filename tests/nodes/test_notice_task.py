"""The sender of notices: one at a time, whatever beat asks for."""

from __future__ import annotations

from typing import Any

import pytest

from nodes import tasks

pytestmark = pytest.mark.redis


def test_one_sender_at_a_time_and_a_broken_one_blocks_nobody(live_redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def send() -> None:
        sent.append(1)
        if len(sent) == 1:
            tasks.notices_send()  # beat was faster than a receiver
            raise RuntimeError("no disk")

    monkeypatch.setattr("nodes.tasks.deliver.deliveries_send", send)
    with pytest.raises(RuntimeError):
        tasks.notices_send()
    assert sent == [1]
    tasks.notices_send()
    assert sent == [1, 1]
    assert live_redis.get(tasks.SENDER_KEY) is None
