from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from nodes import live, telemetry
from tests.waiting import PATIENCE_S


@pytest.fixture
def live_redis(redis_url: str, settings, monkeypatch) -> Iterator[redis.Redis]:
    """An empty Redis that telemetry talks to; a client to look into it."""
    settings.LIVE_REDIS_URL = f"{redis_url}?db=1"
    monkeypatch.setattr(telemetry, "_rest_until", 0.0)
    # The client and whose it is together: else the tests after this one would talk to this Redis under another's address.
    for name, value in {"CONNECT_S": PATIENCE_S, "ANSWER_S": PATIENCE_S, "_client": None, "_client_of": None}.items():
        monkeypatch.setattr(telemetry, name, value)
    client = redis.Redis.from_url(settings.LIVE_REDIS_URL, decode_responses=True)
    client.flushdb()
    yield client
    client.close()


@pytest.fixture
def no_redis(settings, monkeypatch, tmp_path) -> None:
    """Redis is away: nobody listens at its socket."""
    settings.LIVE_REDIS_URL = f"unix://{tmp_path}/none.sock?db=1"
    monkeypatch.setattr(telemetry, "_rest_until", 0.0)


@pytest.fixture
def published(monkeypatch) -> list[tuple[str, dict]]:
    """What was given to the channel layer, as (group, message), instead of being sent."""
    sent: list[tuple[str, dict]] = []
    monkeypatch.setattr(live, "_offer", lambda group, message: sent.append((group, message)))
    return sent
