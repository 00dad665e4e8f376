"""The token bucket: exact under fifty calls at once, and not to be tricked by a header."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from pytest_django.fixtures import Settings

from quotas import throttles
from quotas.throttles import client_address, rate_parse, throttle_allow
from tests.rest import no_redis  # noqa: F401
from tests.waiting import PATIENCE_S


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Redis that is slow for a moment is no reason to count without it."""
    monkeypatch.setattr(throttles, "REDIS_TIMEOUT_S", PATIENCE_S)
    throttles._script.cache_clear()
    yield
    throttles._script.cache_clear()


def passed(count: int, ident: str = "10.0.0.1") -> int:
    with ThreadPoolExecutor(50) as pool:
        return sum(allowed for allowed, _ in pool.map(lambda _: throttle_allow("anonymous", ident), range(count)))


@pytest.mark.redis
@pytest.mark.usefixtures("patient")
def test_of_fifty_at_once_five_pass(redis_url: str, settings: Settings) -> None:
    settings.LIVE_REDIS_URL, settings.THROTTLE_ANONYMOUS = redis_url, "5/3600"
    assert passed(50, "of-fifty") == 5
    assert passed(50, "another") == 5


@pytest.mark.redis
@pytest.mark.usefixtures("patient")
def test_the_bucket_is_shared_by_processes_and_fills_again(redis_url: str, settings: Settings) -> None:
    settings.LIVE_REDIS_URL, settings.THROTTLE_ANONYMOUS = redis_url, "2/0.2"
    assert passed(2, "fills") == 2
    throttles._local.clear()  # what this process counted by itself plays no part
    allowed, wait = throttle_allow("anonymous", "fills")
    while not allowed:
        assert 0 < wait <= 0.1  # 0.2 s ÷ 2 calls
        allowed, wait = throttle_allow("anonymous", "fills")


@pytest.mark.redis
@pytest.mark.usefixtures("patient")
def test_a_redis_that_falls_silent_gives_no_second_burst(redis_url: str, settings: Settings) -> None:
    settings.LIVE_REDIS_URL, settings.THROTTLE_ANONYMOUS = redis_url, "5/3600"
    assert passed(4, "silent") == 4
    settings.LIVE_REDIS_URL = "unix:///nonexistent/redis.sock"
    assert passed(50, "silent") == 1


@pytest.mark.redis
@pytest.mark.usefixtures("patient")
def test_a_bucket_leaves_redis_when_it_is_full_again(redis_url: str, settings: Settings) -> None:
    settings.LIVE_REDIS_URL, settings.THROTTLE_AGENT = redis_url, "5/60"
    throttle_allow("agent", "leaves")
    client = redis.Redis.from_url(redis_url)
    (key,) = client.keys("throttle:agent:*")
    assert 0 < client.pttl(key) <= 61_000
    assert b"leaves" not in key
    client.close()


def test_without_redis_each_process_counts_by_itself(settings: Settings) -> None:
    settings.THROTTLE_ANONYMOUS = "5/3600"
    assert passed(50) == 5
    assert passed(50, "10.0.0.2") == 5


def test_the_local_bucket_fills_at_its_rate() -> None:
    now = [0.0]
    buckets = throttles._LocalBuckets(clock=lambda: now[0])
    waits = [buckets.take("a", burst=5, per_s=5 / 60) for _ in range(6)]
    assert waits == [0, 0, 0, 0, 0, 12.0]  # 60 s ÷ 5
    now[0] = 12.0
    assert buckets.take("a", burst=5, per_s=5 / 60) == 0
    assert buckets.take("a", burst=5, per_s=5 / 60) == 12.0
    now[0] = 10_000.0
    assert [buckets.take("a", burst=5, per_s=5 / 60) for _ in range(6)].count(0) == 5  # never above the burst


def test_the_local_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttles, "LOCAL_BUCKETS", 10)
    buckets = throttles._LocalBuckets()
    for number in range(100):
        buckets.take(str(number), burst=1, per_s=0.001)
    assert len(buckets._buckets) == 10


def test_rates() -> None:
    assert rate_parse("5/60") == (5, 60.0)
    assert rate_parse("off") is None
    for bad in ("", "5", "0/60", "5/0", "-1/5", "x/y", "5/60/7", "5/inf", "5/nan"):
        with pytest.raises(ImproperlyConfigured):
            rate_parse(bad)


def test_off_lets_everybody_pass(settings: Settings) -> None:
    settings.THROTTLE_ANONYMOUS = "off"
    assert passed(50) == 50


@pytest.mark.parametrize(
    ("proxies", "peer", "forwarded", "address"),
    [
        (0, "10.0.0.1", None, "10.0.0.1"),
        (0, "10.0.0.1", "6.6.6.6", "10.0.0.1"),  # forged: nobody of ours wrote it
        (1, "10.0.0.1", "1.2.3.4", "1.2.3.4"),
        (1, "10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),  # the client's own part is in front
        (2, "10.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.9", "1.2.3.4"),
        (2, "10.0.0.1", "1.2.3.4", "10.0.0.1"),  # shorter than our chain: it came around a proxy
        (1, "10.0.0.1", "", "10.0.0.1"),
        (0, "2001:db8:1:2:3:4:5:6", None, "2001:db8:1:2::"),  # one client has a whole /64
        (0, "::ffff:10.0.0.7", None, "10.0.0.7"),
        (1, "10.0.0.1", "x" * 500, "x" * 64),
        (0, "", None, "unknown"),  # a Unix socket
    ],
)
def test_who_calls(settings: Settings, proxies: int, peer: str, forwarded: str | None, address: str) -> None:
    settings.TRUSTED_PROXIES = proxies
    headers = {} if forwarded is None else {"HTTP_X_FORWARDED_FOR": forwarded}
    assert client_address(RequestFactory().get("/", REMOTE_ADDR=peer, **headers)) == address
