"""Wrong passwords, counted by account whichever door they were tried at, so that a stranger neither guesses one nor locks anybody out.

Each try is taken from one of three counts before the password is looked at:

1. The device has signed in to this account before (a signed cookie says so): a count of its own.
2. The account was signed in to from this address before: a count of the pair's own. Programs have no cookies.
3. Everybody else shares one count of the account, whatever address they come from. When it is used up, an address that has not tried
   this account within a day still has one try: the account's owner on a new machine gets in while strangers wait. An address is then
   its network (/24, IPv6 /48): the addresses within one are had for nothing.

A count without tries left is answered the same way whether the account exists or not. Without Redis each process counts by itself, and
addresses that are known are forgotten: then the third count holds for those.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any

import redis
from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse

from quotas.throttles import REDIS_TIMEOUT_S, bucket_take, client_address, rate_parse

log = logging.getLogger(__name__)

COOKIE = "device"
SALT = "quotas.guesses.device"
DEVICE_LIVES_S = 400 * 86_400
#: Of one browser; who has more accounts there starts anew with the oldest.
DEVICE_ACCOUNTS = 5
PAIR_LIVES_S = 90 * 86_400
DAY_S = 86_400.0


class TooManyGuesses(Exception):
    """Too many wrong passwords for this account; ``wait_s`` until the next one may be tried."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"try again in {wait_s:.0f} s")
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A try that was let through."""

    account: str
    address: str

    def succeeded(self) -> None:
        """From now on this address is known for the account."""
        _redis_do(lambda client: client.set(_known_key(self.account, self.address), 1, ex=PAIR_LIVES_S))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def account_key(email: str) -> str:
    return _digest("account", email.strip().lower()[:254])


def _known_key(account: str, address: str) -> str:
    return f"guesses:known:{_digest(account, address)}"


def network_of(address: str) -> str:
    """What an address's owner has more of for nothing."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(IPv6Address(int(found) >> 80 << 80))
    return address.rpartition(".")[0]


def guess_begin(request: HttpRequest, email: str) -> Guess:
    """Call it before a password is looked at, at every door. Raises TooManyGuesses."""
    account, address = account_key(email), client_address(request)
    guess = Guess(account=account, address=address)
    rate, own = rate_parse(settings.THROTTLE_PASSWORD), rate_parse(settings.THROTTLE_PASSWORD_KNOWN)
    device = devices_of(request).get(account)
    if device is not None:
        _take(f"device:{_digest(account, device)}", own)
        return guess
    if _redis_do(lambda client: client.exists(_known_key(account, address))):
        _take(f"pair:{_digest(account, address)}", own)
        return guess
    # One try a day is the network's own; taking it first would let each network have one more than the account allows.
    try:
        _take(f"account:{account}", rate)
    except TooManyGuesses:
        if rate is not None and bucket_take(f"guesses:first:{_digest(account, network_of(address))}", burst=1, per_s=1 / DAY_S) > 0:
            raise
    else:
        bucket_take(f"guesses:first:{_digest(account, network_of(address))}", burst=1, per_s=1 / DAY_S)
    return guess


def _take(key: str, rate: tuple[int, float] | None) -> None:
    """Raises TooManyGuesses."""
    if rate is None:
        return
    burst, seconds = rate
    wait = bucket_take(f"guesses:{key}", burst=burst, per_s=burst / seconds)
    if wait > 0:
        raise TooManyGuesses(wait)


@lru_cache(maxsize=4)
def _client(url: str) -> Any:
    return redis.Redis.from_url(url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S)


def _redis_do(work: Any) -> Any:
    try:
        return work(_client(settings.LIVE_REDIS_URL))
    except (redis.RedisError, OSError) as error:
        log.debug("known addresses are not at hand: %s", error)
        return None


# --- devices ------------------------------------------------------------------------------------------------------------


def devices_of(request: HttpRequest) -> dict[str, str]:
    """Account → the device's name there; only what we signed ourselves."""
    try:
        found = signing.loads(request.COOKIES.get(COOKIE, "")[:2000], salt=SALT, max_age=DEVICE_LIVES_S)
    except (signing.BadSignature, ValueError, TypeError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(account): str(device) for account, device in found.items()}


def device_remember(request: HttpRequest, response: HttpResponse, email: str) -> None:
    """This browser has signed in to the account: it keeps a proof of that, which opens nothing."""
    known, account = devices_of(request), account_key(email)
    device = known.pop(account, "") or secrets.token_urlsafe(12)
    kept = dict(list({**known, account: device}.items())[-DEVICE_ACCOUNTS:])
    response.set_cookie(
        COOKIE,
        signing.dumps(kept, salt=SALT, compress=True),
        max_age=DEVICE_LIVES_S,
        httponly=True,
        secure=settings.SESSION_COOKIE_SECURE,
        samesite="Lax",
    )
