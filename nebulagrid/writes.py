"""How much one person may change in a while: a bucket for a minute and one for a day, for pages and REST together.

Whatever changes something leaves rows: a value, an event, an entry of the audit log. Submits and estimates have buckets of their own.
"""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from nebulagrid.audited import audited
from quotas.throttles import throttle_allow

SAFE = ("GET", "HEAD", "OPTIONS")
#: Counted by a bucket of their own: submits.
ELSEWHERE = frozenset({"jobs/new/"})


def write_wait(user: Any, route: str, method: str) -> float:
    """Seconds until this user may do this; 0 = now, and it is counted. At most two round trips to Redis, none for what changes nothing."""
    if method in SAFE or route in ELSEWHERE or not user.is_authenticated:
        return 0.0
    if "-reads" in audited().get((method, route), ()):
        return 0.0
    for scope in ("write", "writes_day"):
        allowed, wait = throttle_allow(scope, f"user:{user.pk}")
        if not allowed:
            return wait
    return 0.0


class WriteThrottle(BaseThrottle):
    """``write_wait`` for REST views without a throttle of their own."""

    def allow_request(self, request: Request, view: Any) -> bool:
        match = request.resolver_match
        self._wait = write_wait(request.user, match.route if match is not None else "", request.method or "")
        return self._wait <= 0

    def wait(self) -> float:
        return self._wait
