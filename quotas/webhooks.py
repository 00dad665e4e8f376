"""One POST to an address that a person typed in: guarded so that it can't be turned against our own network (SSRF).

What holds, each with a test: HTTPS only, to public addresses (quotas/special_networks.py) and the ports of ``NEBULA_WEBHOOK_PORTS``
only, unless ``NEBULA_WEBHOOK_ALLOW`` names the network; every address that the name resolves to must be allowed, and none of them is
told to anybody; the connection goes to the very address that was checked (a name that resolves to another one a moment later
changes nothing), with the certificate checked against the name; redirects are not followed; proxies of the environment are not used;
the whole exchange ends after ``TOTAL_S``; no more than ``ANSWER_MAX`` of the answer is read.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from django.conf import settings
from django.utils.translation import gettext_noop

from quotas.errors import DomainError
from quotas.special_networks import Address, inner_address, is_public

TOTAL_S = 10.0
ANSWER_MAX = 16 * 1024
URL_MAX = 2000
#: (host, port) → addresses as text. Raises OSError.
Resolver = Callable[[str, int], Sequence[str]]


class WebhookRefused(DomainError):
    """No message may go to this address."""

    default_code = "webhook_refused"
    sentences = {
        "webhook_url": gettext_noop("Write an address such as https://hooks.example.org/abc, of at most {limit} visible characters."),
        "webhook_scheme": gettext_noop("Messages go by HTTPS; {scheme} is used only to networks that NEBULA_WEBHOOK_ALLOW names."),
        "webhook_userinfo": gettext_noop("Leave user name and password out of the address; put a token into its path or query."),
        # One sentence for names that are not known and for names inside of our network: who types them learns nothing about those.
        "webhook_private": gettext_noop(
            "{host} is not known as a public address. Check the name; an administrator can allow a network with NEBULA_WEBHOOK_ALLOW."
        ),
        "webhook_port": gettext_noop("Port {port} can't be used; messages go to port {ports}."),
    }


class WebhookFailed(Exception):
    """It was not delivered. ``status``: of the answer, if one came; ``is_final``: another try would change nothing."""

    def __init__(self, text: str, *, status: int | None = None, is_final: bool = False, retry_after_s: int | None = None) -> None:
        # A receiver's own words: what no database takes (NUL, half a surrogate pair) would keep us from writing down that it failed.
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
        super().__init__(text)
        self.text, self.status, self.is_final, self.retry_after_s = text[:200], status, is_final, retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes
    retry_after: str = ""


def url_check(url: str) -> SplitResult:
    """The parts of an address that may be tried at all; no name is resolved. Raises WebhookRefused."""
    if not 8 < len(url) <= URL_MAX or not url.isprintable() or any(sign.isspace() or sign == "\\" for sign in url):
        raise WebhookRefused("webhook_url", params={"limit": URL_MAX})
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
        if host:
            host.encode("idna")
    except (ValueError, UnicodeError) as error:
        raise WebhookRefused("webhook_url", params={"limit": URL_MAX}) from error
    if parts.scheme not in ("https", "http") or not host:
        raise WebhookRefused("webhook_url", params={"limit": URL_MAX})
    if "@" in parts.netloc:
        raise WebhookRefused("webhook_userinfo")
    if not (parts.path + parts.query).isascii():
        raise WebhookRefused("webhook_url", params={"limit": URL_MAX})
    return parts


def is_allowed(address: Address) -> bool:
    """Whether the administrator named a network that has this address."""
    return any(
        address in network
        for text in settings.WEBHOOK_ALLOW
        if (network := ipaddress.ip_network(text, strict=False)).version == address.version
    )


def resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to connect. ``is_named``: in a network that the administrator named, so that its answers are nobody else's business."""

    address: str
    is_named: bool


def target_check(parts: SplitResult, *, resolver: Resolver = resolve) -> Target:
    """One lookup of the name. Raises WebhookRefused; WebhookFailed if the name can't be resolved now."""
    host = (parts.hostname or "").encode("idna").decode()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = [ipaddress.ip_address(text.partition("%")[0]) for text in resolver(host, port)]
    except (OSError, ValueError, UnicodeError) as error:
        raise WebhookFailed(f"{host}: the name can't be resolved") from error
    if not found:
        raise WebhookFailed(f"{host}: the name can't be resolved")
    named = [is_allowed(inner_address(address)) for address in found]
    if any(not is_named and not is_public(address) for address, is_named in zip(found, named, strict=True)):
        raise WebhookRefused("webhook_private", params={"host": host})
    if not all(named):
        if parts.scheme != "https":
            raise WebhookRefused("webhook_scheme", params={"scheme": parts.scheme})
        if port not in settings.WEBHOOK_PORTS:
            ports = ", ".join(str(known) for known in settings.WEBHOOK_PORTS)
            raise WebhookRefused("webhook_port", params={"port": port, "ports": ports})
    return Target(address=str(found[0]), is_named=named[0])


def webhook_post(url: str, body: bytes, headers: Mapping[str, str], *, resolver: Resolver = resolve, total_s: float = TOTAL_S) -> Answer:
    """POST ``body``, once. Raises WebhookRefused for an address that may not be reached, WebhookFailed for any other end than an
    answer below 300. Takes ``total_s`` at most, but for the lookup of the name."""
    parts = url_check(url)
    found = target_check(parts, resolver=resolver)
    until = time.monotonic() + total_s
    connection = _connection(parts, found.address, total_s)
    # A server that sends a byte now and then keeps every single read alive: the socket is cut at the end of the whole time.
    watchdog = threading.Timer(total_s, _cut, args=(connection,))
    watchdog.daemon = True
    watchdog.start()
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body=body, headers={"Connection": "close", "User-Agent": "NebulaGrid", **headers})
        response = connection.getresponse()
        answer = Answer(status=response.status, body=response.read(ANSWER_MAX), retry_after=response.getheader("Retry-After") or "")
    except (OSError, http.client.HTTPException, ValueError) as error:
        is_late = time.monotonic() >= until - 0.05
        raise WebhookFailed(f"no answer within {total_s:g} s" if is_late else _trouble(error)) from error
    finally:
        watchdog.cancel()
        connection.close()
    if time.monotonic() >= until:
        raise WebhookFailed(f"no whole answer within {total_s:g} s", status=answer.status)
    if 300 <= answer.status < 400:
        raise WebhookFailed("the address redirects; name the final one", status=answer.status, is_final=True)
    if answer.status >= 400:
        # Too early, too many and time-out pass; what else a receiver refuses, it refuses again.
        is_final = answer.status < 500 and answer.status not in (408, 425, 429)
        wait = int(answer.retry_after) if re.fullmatch(r"[0-9]{1,5}", answer.retry_after) else None
        text = "" if found.is_named else answer.body[:120].decode(errors="replace")
        raise WebhookFailed(f"HTTP {answer.status}: {text}".strip(), status=answer.status, is_final=is_final, retry_after_s=wait)
    return answer


def _trouble(error: Exception) -> str:
    """What went wrong, without what it tells of the network: who listens where is not for everybody to try out."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "no TLS connection"
    return "no connection" if isinstance(error, OSError) else "its answer is no HTTP"


def _cut(connection: http.client.HTTPConnection) -> None:
    # The plain socket's own: that of TLS takes its state away from under the thread that reads.
    with contextlib.suppress(OSError, TypeError):
        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


class _Pinned(http.client.HTTPConnection):
    """To a given address; what the server hears (Host) is the name."""

    def __init__(self, host: str, *, port: int, address: str, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self.address = address

    def connect(self) -> None:
        self.sock = socket.create_connection((self.address, self.port), self.timeout)


class _PinnedTLS(_Pinned):
    default_port = 443

    def connect(self) -> None:
        super().connect()
        context = ssl.create_default_context()
        secured = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = secured  # before the handshake: it may be the one that never ends
        secured.do_handshake()


def _connection(parts: SplitResult, address: str, timeout: float) -> http.client.HTTPConnection:
    host = (parts.hostname or "").encode("idna").decode()
    if parts.scheme == "https":
        return _PinnedTLS(host, port=parts.port or 443, address=address, timeout=timeout)
    return _Pinned(host, port=parts.port or 80, address=address, timeout=timeout)
