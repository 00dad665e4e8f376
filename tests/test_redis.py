"""The Redis that comes with the installation: it lets nobody in without its password, which no command line shows."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery
from channels_redis.pubsub import RedisPubSubChannelLayer

from nebulagrid import settings as nebula_settings
from nebulagrid.embedded import EmbeddedError, redis_config, redis_ping
from nebulagrid.secretfile import secret_provide


def parts(url: str) -> tuple[Path, str]:
    found = urlsplit(url)
    return Path(found.path), found.password or ""


@pytest.mark.redis
def test_who_has_no_password_gets_nothing(redis_url: str) -> None:
    path, password = parts(redis_url)
    assert len(password) >= 32
    assert redis_ping(path, password=password)
    assert not redis_ping(path)
    assert not redis_ping(path, password="guessed")
    with redis.Redis(unix_socket_path=str(path)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.keys("*")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.redis
def test_the_password_is_on_no_command_line(redis_url: str) -> None:
    password = parts(redis_url)[1].encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            try:
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            assert password not in line


@pytest.mark.redis
async def test_nudges_and_groups_get_through_with_it(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nebula_settings, "REDIS_URL", redis_url)
    with Celery(broker=nebula_settings.redis_db(0, celery=True)) as app:
        app.send_task("nothing", retry=False)
    with redis.Redis.from_url(nebula_settings.redis_db(0)) as client:
        assert client.llen("celery") == 1
        client.flushdb()
    layer: Any = RedisPubSubChannelLayer(hosts=[nebula_settings.redis_db(2)])
    channel = await layer.new_channel()
    await layer.group_add("viewers", channel)
    await layer.group_send("viewers", {"type": "frame"})
    assert await layer.receive(channel) == {"type": "frame"}
    await layer.flush()


def test_a_secret_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "data" / "redis-password"
    text = secret_provide(path)
    assert len(text) >= 60
    assert secret_provide(path) == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    assert [found.name for found in path.parent.iterdir()] == ["redis-password"]


def test_a_folder_with_quotes_and_blanks_is_quoted_and_one_with_a_line_break_refused(tmp_path: Path) -> None:
    text = redis_config(socket_path=tmp_path / "s", folder=Path('/a "b" \\c'), password="x")
    assert 'dir "/a \\"b\\" \\\\c"\n' in text
    with pytest.raises(EmbeddedError, match="another path"):
        redis_config(socket_path=tmp_path / "s", folder=Path("/a\nport 6379"), password="x")
