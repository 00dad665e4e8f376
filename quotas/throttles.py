"""How often somebody may call: a token bucket in Redis, changed by one atomic script (D17).

``throttle_allow(scope, ident)`` is all that other rooms need. Scopes and their settings, each ``burst/seconds`` (the
seconds in which an empty bucket fills up) or ``off``: anonymous (THROTTLE_ANONYMOUS), submit, estimate, agent; write and writes_day
(what changes something, nebulagrid/writes.py); text (KiB of jobs' commands and environments).
While Redis is away each process counts by itself: weaker, but never open and never closed to all.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, wraps
from ipaddress import IPv6Address, ip_address
from typing import Any

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

log = logging.getLogger(__name__)

REDIS_TIMEOUT_S = 0.25
REDIS_RETRY_S = 5.0  # after a failure Redis is left alone so long: a dead one costs one time-out, not one a request
LOCAL_BUCKETS = 20_000

# One script, so that fifty calls at once can't all read "one left". Redis' own clock: servers' clocks may differ.
_SCRIPT = """
local burst, per_s, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local known = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(known[1]) or burst
local at = tonumber(known[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * per_s)
local wait = 0
if tokens >= cost then tokens = tokens - cost else wait = (cost - tokens) / per_s end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / per_s * 1000) + 1000)
return tostring(wait)
"""


@lru_cache(maxsize=64)
def rate_parse(text: str) -> tuple[int, float] | None:
    """``"5/60"`` → (5, 60.0): burst, and the seconds to fill the empty bucket; ``"off"`` → None.

    Raises ImproperlyConfigured for anything else.
    """
    if text.strip().lower() == "off":
        return None
    burst, slash, seconds = text.partition("/")
    try:
        rate = (int(burst), float(seconds))
    except ValueError:
        rate = (0, 0.0)
    if not slash or rate[0] < 1 or not 0 < rate[1] < 1e7:
        raise ImproperlyConfigured(f"A throttle is {text!r}; expected burst/seconds such as 5/60, or off.")
    return rate


class _LocalBuckets:
    """The same bucket in this process, for when Redis is away. Bounded: the longest unused are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, *, burst: int, per_s: float, cost: int = 1) -> float:
        """Seconds to wait; 0 = allowed."""
        with self._lock:
            now = self._clock()
            tokens, at = self._buckets.pop(key, (float(burst), now))
            tokens = min(float(burst), tokens + (now - at) * per_s)
            allowed = tokens >= cost
            self._buckets[key] = (tokens - cost if allowed else tokens, now)
            while len(self._buckets) > LOCAL_BUCKETS:
                self._buckets.popitem(last=False)
            return 0.0 if allowed else (cost - tokens) / per_s

    def clear(self) -> None:
        with self._lock:
            self._buckets.clear()


_local = _LocalBuckets()
_away_until = 0.0


@lru_cache(maxsize=4)
def _script(url: str) -> Any:
    client = redis.Redis.from_url(url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S)
    return client.register_script(_SCRIPT)


def bucket_take(key: str, *, burst: int, per_s: float, cost: int = 1) -> float:
    """Takes one token of the bucket: seconds to wait; 0 = taken. One round trip to Redis; never raises because that is away."""
    global _away_until
    if time.monotonic() >= _away_until:
        try:
            wait = float(_script(settings.LIVE_REDIS_URL)(keys=[key], args=[burst, per_s, cost]))
            if wait <= 0:
                _local.take(key, burst=burst, per_s=per_s, cost=cost)  # or a Redis that is slow for a moment would give a second burst
            return wait
        except (redis.RedisError, OSError, ValueError) as error:
            _away_until = time.monotonic() + REDIS_RETRY_S
            log.warning("throttles count in this process for %.0f s: %s", REDIS_RETRY_S, error)
    return _local.take(key, burst=burst, per_s=per_s, cost=cost)


def throttle_reset() -> None:
    """Forgets what this process counted by itself, and that Redis was away. For tests."""
    global _away_until
    _away_until = 0.0
    _local.clear()


def throttle_allow(scope: str, ident: str, *, cost: int = 1) -> tuple[bool, float]:
    """Takes one call of ``ident`` in ``scope`` (see above): (allowed, seconds until it would be). ``cost``: so many calls at once, at most
    as many as the bucket holds.

    At most one round trip to Redis; never raises because Redis is away.
    """
    rate = rate_parse(getattr(settings, f"THROTTLE_{scope.upper()}"))
    if rate is None:
        return True, 0.0
    burst, seconds = rate
    # Hashed: idents are addresses and ids, and need not be readable in a dump of Redis.
    digest = hashlib.sha256(ident.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    wait = bucket_take(f"throttle:{scope}:{digest}", burst=burst, per_s=burst / seconds, cost=min(cost, burst))
    return wait <= 0, wait


def peer_address(request: HttpRequest | Request) -> str:
    """Who calls: the peer's address, or the one that our own proxies wrote; any text, if a proxy wrote that.

    X-Forwarded-For is believed only as far as ``TRUSTED_PROXIES`` of our proxies appended to it, counted from the
    right; what a client put in front makes no difference.
    """
    trusted: int = settings.TRUSTED_PROXIES
    if trusted > 0:
        hops = [hop.strip() for hop in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if hop.strip()]
        if len(hops) >= trusted:
            return str(hops[-trusted])
    return str(request.META.get("REMOTE_ADDR") or "")


def client_address(request: HttpRequest | Request) -> str:
    """``peer_address`` for counting: an IPv6 client counts as its /64, which is what one gets."""
    address = peer_address(request)
    try:
        parsed = ip_address(address.split("%")[0])
    except ValueError:
        return address[:64] or "unknown"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return str(parsed)


class AnonymousThrottle(BaseThrottle):
    """Calls without a signed-in user, by address: 5 a minute by default (D17). Others pass freely."""

    def allow_request(self, request: Request, view: Any) -> bool:
        self._wait = 0.0
        if request.user is not None and request.user.is_authenticated:
            return True
        allowed, self._wait = throttle_allow("anonymous", client_address(request))
        return allowed

    def wait(self) -> float:
        return self._wait


class SubmitThrottle(BaseThrottle):
    """A signed-in user's submits: 20 a second, burst 300 by default (D17)."""

    def allow_request(self, request: Request, view: Any) -> bool:
        allowed, self._wait = throttle_allow("submit", f"user:{request.user.pk}")
        return allowed

    def wait(self) -> float:
        return self._wait


class EstimateThrottle(BaseThrottle):
    """A signed-in user's what-ifs: each may cost seconds of CPU. 60 a minute by default."""

    def allow_request(self, request: Request, view: Any) -> bool:
        allowed, self._wait = throttle_allow("estimate", f"user:{request.user.pk}")
        return allowed

    def wait(self) -> float:
        return self._wait


def throttled_page(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """For sign-in pages: a POST of somebody unknown counts as an anonymous call; over the limit the answer is a 429 page."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method == "POST" and not request.user.is_authenticated:
            allowed, wait = throttle_allow("anonymous", client_address(request))
            if not allowed:
                return too_many_page(request, wait)
        return view(request, *args, **kwargs)

    return guarded


def too_many_page(request: HttpRequest, wait_s: float) -> HttpResponse:
    seconds = max(1, math.ceil(wait_s))
    answer = render(request, "errors/429.html", {"seconds": seconds}, status=429)
    answer["Retry-After"] = str(seconds)
    return answer
