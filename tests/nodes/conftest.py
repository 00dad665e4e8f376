from __future__ import annotations

import pytest

from nodes import live, telemetry


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
