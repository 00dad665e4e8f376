"""How bytes reach the control plane: httpx for programs, http.client for one-shot commands.

Importing httpx costs about 115 ms, http.client about 25 ms (2-core Debian 12); a command that sends one request would
spend most of its time importing, so nebula-ctl uses the standard library unless the environment names a proxy. Both
pass the same tests. Neither follows redirects: a token must not travel to an address that nobody chose.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from client.errors import NebulaError
from client.i18n import _

if TYPE_CHECKING:
    import http.client
    import ssl
    from contextlib import AbstractContextManager

    import httpx

CHUNK = 65_536


class ConnectionFailed(Exception):
    """No complete answer. ``is_final`` = another try can't help (an untrusted certificate, say)."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class Response:
    """An answer read to its end. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer whose body is still arriving. A body cut short raises ConnectionFailed."""

    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class Transport(Protocol):
    """What NebulaClient needs of a transport. ``path`` begins with / and carries the query. Raises ConnectionFailed."""

    def request(self, *, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Response: ...

    def stream(
        self, *, path: str, headers: Mapping[str, str], method: str = "GET", body: bytes | None = None
    ) -> AbstractContextManager[Stream]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A checked address of a control plane; ``prefix`` is a path before /api, usually empty."""

    scheme: str
    host: str
    port: int | None
    prefix: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port is None else f':{self.port}'}{self.prefix}"


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def endpoint_parse(text: str) -> Endpoint:
    """D35: https anywhere, plain http on this machine only. Raises NebulaError (bad_endpoint, insecure_endpoint)."""
    cleaned = text.strip()
    try:
        parts = urlsplit(cleaned)
        port, host = parts.port, parts.hostname
    except ValueError:
        parts, port, host = urlsplit(""), None, None
    is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in {"http", "https"} or not host or not is_plain or any(c.isspace() or not c.isprintable() for c in cleaned):
        message = _(
            "{endpoint!r} is not the address of a control plane; write it like https://nebula.lab.example or http://127.0.0.1:8000."
        )
        raise NebulaError("bad_endpoint", message.format(endpoint=cleaned))
    if parts.scheme == "http" and not is_loopback(host):
        message = _(
            "Plain http to {host} would send your token readable to the network; use https://{host}, or a tunnel"
            " (ssh -L 8000:127.0.0.1:8000 {host}) and http://127.0.0.1:8000."
        )
        raise NebulaError("insecure_endpoint", message.format(host=host))
    return Endpoint(parts.scheme, host, port, parts.path.rstrip("/"))


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Verified TLS always; ``ca_file`` replaces the system's authorities. Raises NebulaError(bad_ca_file)."""
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        message = _("The CA file {path} can't be used: {why}.")
        raise NebulaError("bad_ca_file", message.format(path=ca_file, why=getattr(error, "strerror", None) or error)) from error


def has_proxy(environ: Mapping[str, str]) -> bool:
    return any(environ.get(name) or environ.get(name.upper()) for name in ("https_proxy", "all_proxy"))


def transport_for_command(endpoint: Endpoint, *, timeout_s: float, ca_file: str | None) -> Transport:
    """The quick one, unless only httpx can do it (a proxy)."""
    if endpoint.scheme == "https" and has_proxy(os.environ):
        return HttpxTransport(endpoint, timeout_s=timeout_s, ca_file=ca_file)
    return StdlibTransport(endpoint, timeout_s=timeout_s, ca_file=ca_file)


def _failure(endpoint: Endpoint, error: BaseException, timeout_s: float) -> ConnectionFailed:
    """Words for what the network did; walks the causes because httpx wraps them."""
    import socket
    import ssl

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            message = _("The certificate of {url} is not trusted ({why}); name the lab's authority with --ca-file, or ask its admin.")
            return ConnectionFailed(message.format(url=endpoint.url, why=seen.verify_message), is_final=True)
        if isinstance(seen, ssl.SSLError):
            return ConnectionFailed(_("No TLS with {url}: {why}.").format(url=endpoint.url, why=seen.reason or seen), is_final=True)
        if isinstance(seen, ConnectionRefusedError):
            message = _("Nothing answers at {url} (connection refused); is the control plane running?")
            return ConnectionFailed(message.format(url=endpoint.url))
        if isinstance(seen, socket.gaierror):
            return ConnectionFailed(_("The name {host} is not known on this machine; check the endpoint.").format(host=endpoint.host))
        if isinstance(seen, TimeoutError):
            return ConnectionFailed(_("{url} did not answer within {seconds:g} s.").format(url=endpoint.url, seconds=timeout_s))
        seen = seen.__cause__ or seen.__context__
    if "Timeout" in type(error).__name__:
        return ConnectionFailed(_("{url} did not answer within {seconds:g} s.").format(url=endpoint.url, seconds=timeout_s))
    return ConnectionFailed(_("The connection to {url} broke: {why}.").format(url=endpoint.url, why=str(error) or type(error).__name__))


class StdlibTransport:
    """One connection at a time on http.client; for one thread. Reads reuse it, writes always take a fresh one: on a
    kept one that the server has just closed nobody can tell whether a write arrived."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, ca_file: str | None) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._tls = tls_context(ca_file) if endpoint.scheme == "https" else None
        self._kept: http.client.HTTPConnection | None = None

    def _open(self) -> http.client.HTTPConnection:
        import http.client

        place = self._endpoint
        if self._tls is not None:
            return http.client.HTTPSConnection(place.host, place.port, timeout=self._timeout_s, context=self._tls)
        return http.client.HTTPConnection(place.host, place.port, timeout=self._timeout_s)

    def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> http.client.HTTPResponse:
        connection = self._kept if method == "GET" else None
        is_kept = connection is not None
        if connection is None:
            self.close()
            connection = self._kept = self._open()
        try:
            connection.request(method, self._endpoint.prefix + path, body=body, headers=dict(headers))
            return connection.getresponse()
        except Exception:
            self.close()
            if is_kept:  # the server closed it while we rested: once more on a fresh one
                return self._send(method, path, headers, body)
            raise

    def request(self, *, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        import http.client

        try:
            answer = self._send(method, path, headers, body)
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _failure(self._endpoint, error, self._timeout_s) from error
        return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, content)

    @contextmanager
    def stream(self, *, path: str, headers: Mapping[str, str], method: str = "GET", body: bytes | None = None) -> Iterator[Stream]:
        import http.client

        try:
            answer = self._send(method, path, headers, body)
        except (OSError, http.client.HTTPException) as error:
            raise _failure(self._endpoint, error, self._timeout_s) from error

        def chunks() -> Iterator[bytes]:
            try:
                while chunk := answer.read1(CHUNK):
                    yield chunk
                if answer.length:  # read1 does not raise when a body of known length is cut short
                    raise http.client.IncompleteRead(b"", answer.length)
            except (OSError, http.client.HTTPException) as error:
                raise _failure(self._endpoint, error, self._timeout_s) from error

        try:
            yield Stream(answer.status, {k.lower(): v for k, v in answer.getheaders()}, chunks())
        finally:
            self.close()  # the rest of an unread body must not be taken for the next answer

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None


class HttpxTransport:
    """A connection pool on httpx; safe for several threads. Proxies of the environment serve https only."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, ca_file: str | None) -> None:
        import httpx

        self._endpoint = endpoint
        self._timeout_s = timeout_s
        is_https = endpoint.scheme == "https"
        verify: Any = tls_context(ca_file) if is_https else False  # plain http: loopback only, nothing to verify
        # A loopback address must not go through a proxy: the token would cross the network in the clear.
        self._client: httpx.Client = httpx.Client(timeout=timeout_s, verify=verify, follow_redirects=False, trust_env=is_https)

    def request(self, *, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        import httpx

        try:
            answer = self._client.request(method, self._endpoint.url + path, headers=dict(headers), content=body)
        except httpx.HTTPError as error:
            raise _failure(self._endpoint, error, self._timeout_s) from error
        return Response(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, answer.content)

    @contextmanager
    def stream(self, *, path: str, headers: Mapping[str, str], method: str = "GET", body: bytes | None = None) -> Iterator[Stream]:
        import httpx

        def chunks(answer: httpx.Response) -> Iterator[bytes]:
            try:
                yield from answer.iter_bytes(CHUNK)
            except httpx.HTTPError as error:
                raise _failure(self._endpoint, error, self._timeout_s) from error

        try:
            with self._client.stream(method, self._endpoint.url + path, headers=dict(headers), content=body) as answer:
                yield Stream(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, chunks(answer))
        except httpx.HTTPError as error:
            raise _failure(self._endpoint, error, self._timeout_s) from error

    def close(self) -> None:
        self._client.close()
