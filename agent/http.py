"""The agent's HTTP: one keep-alive connection, standard library only (httpx would cost half of the memory budget).

Plain HTTP is for loopback alone; elsewhere the connection is TLS with a verified name, an own CA file, or the server's
certificate pinned by its SHA-256 (D35).
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 5.0
#: No answer of the control plane is larger; more is not read into memory.
MAX_ANSWER = 32 * 1024 * 1024


class EndpointError(ValueError):
    """The endpoint cannot be used."""


class Unreachable(OSError):
    """The control plane cannot be reached."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    path: str  # prefix without a slash at its end
    tls: bool

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path}"


def endpoint_parse(url: str) -> Endpoint:
    """``"https://lab:8443/nebula"`` → its parts. Raises EndpointError with one sentence."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise EndpointError(f"The endpoint {url!r} is not a URL: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EndpointError(f"The endpoint {url!r} must look like https://HOST[:PORT].")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise EndpointError("The endpoint must hold no user, password, query or fragment.")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise EndpointError(
            f"Plain http is allowed to this machine only, and {parts.hostname} is another: "
            "use https:// (with ca_file or pin_sha256 for an own CA)."
        )
    tls = parts.scheme == "https"
    return Endpoint(parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), tls)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_context(*, ca_file: str | None, pin_sha256: str | None) -> ssl.SSLContext:
    """A context that verifies by the system's CAs, by ``ca_file``, or (checked after the handshake) by the pin.

    Raises EndpointError when the CA file is not readable.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise EndpointError(f"The CA file {ca_file} cannot be read: {error}.") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if pin_sha256 and not ca_file:
        # The pin names one certificate exactly, which says more than any chain does.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def pin_plain(pin_sha256: str | None) -> str | None:
    """A fingerprint in any usual spelling → 64 lower-case digits."""
    return pin_sha256.lower().replace(":", "") if pin_sha256 else None


def socket_open(endpoint: Endpoint, *, context: ssl.SSLContext | None, pin_sha256: str | None) -> socket.socket:
    """A connection over which the credential may go: with TLS, the certificate is checked before anything is sent.

    Raises Unreachable (wrong pin) or OSError, SSLCertVerificationError among them.
    """
    sock = socket.create_connection((endpoint.host, endpoint.port), timeout=CONNECT_TIMEOUT_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return sock
        wrapped = context.wrap_socket(sock, server_hostname=endpoint.host)
        found = hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
        if pin_sha256 is not None and found != pin_sha256:
            wrapped.close()
            raise Unreachable(f"{endpoint.url} shows the certificate {found}, not the pinned one; nothing was sent")
        return wrapped
    except BaseException:
        sock.close()
        raise


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    retry_after_s: float | None = None
    date: str | None = None  # the server's clock, as the header has it

    def json(self) -> Any:
        """Raises ValueError when the body is not JSON."""
        return json.loads(self.body)

    def error_code(self) -> str | None:
        """The API's machine-readable code, if the body has one."""
        try:
            found = self.json()
        except ValueError:
            return None
        code = found.get("code") if isinstance(found, dict) else None
        return code if isinstance(code, str) else None

    def error_text(self) -> str:
        """The API's message, or the first words of what came instead."""
        try:
            found = self.json()
            if isinstance(found, dict) and isinstance(found.get("message"), str):
                return str(found["message"])[:300]
        except ValueError:
            pass
        return self.body[:120].decode("utf-8", "replace").strip() or http.client.responses.get(self.status, "no text")


class HttpClient:
    """One connection, reused. Not for two threads at once: each thread has its own client."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        authorization: str | Callable[[], str] | None = None,
        ca_file: str | None = None,
        pin_sha256: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self.endpoint = endpoint
        self._authorization = authorization
        self._pin = pin_plain(pin_sha256)
        self._context = tls_context(ca_file=ca_file, pin_sha256=pin_sha256) if endpoint.tls else None
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.endpoint.host, self.endpoint.port)
        connection.sock = socket_open(self.endpoint, context=self._context, pin_sha256=self._pin)
        self._connection = connection
        return connection

    def request(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | Iterator[bytes] | None = None,
        *,
        length: int | None = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> Answer:
        """One request. ``length`` is needed with a stream, which is never sent twice.

        A kept connection that the server has closed meanwhile is replaced once; every request of the protocol may be
        repeated safely (seq, offset and name say what it is). Raises Unreachable.
        """
        headers = {"Content-Type": content_type, "Accept": "application/json", "User-Agent": "nebula-agent"}
        if self._authorization:
            headers["Authorization"] = self._authorization if isinstance(self._authorization, str) else self._authorization()
        if length is not None:
            headers["Content-Length"] = str(length)
        may_repeat = body is None or isinstance(body, bytes)
        for _ in range(2):
            reused = self._connection is not None
            try:
                connection = self._connection or self._connect()
                if connection.sock is not None:
                    connection.sock.settimeout(timeout_s or self._timeout_s)
                try:
                    connection.request(method, self.endpoint.path + path, body=body, headers=headers)
                except (BrokenPipeError, ConnectionResetError):
                    # A server that refuses a large body answers before it has read it: the answer says why.
                    if may_repeat:
                        raise
                response = connection.getresponse()
                data = response.read(MAX_ANSWER)
                retry_after = _seconds(response.getheader("Retry-After"))
                if response.will_close or not response.isclosed():
                    self.close()
                return Answer(response.status, data, retry_after, response.getheader("Date"))
            except (http.client.RemoteDisconnected, http.client.CannotSendRequest, ConnectionResetError, BrokenPipeError) as error:
                self.close()
                if not (reused and may_repeat):
                    raise Unreachable(f"{self.endpoint.url} closed the connection: {error}") from error
            except ssl.SSLCertVerificationError as error:
                self.close()
                raise Unreachable(f"{self.endpoint.url} shows a certificate that is not trusted: {error.verify_message}") from error
            except Unreachable:
                self.close()
                raise
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise Unreachable(f"{self.endpoint.url} cannot be reached: {error}") from error
        raise Unreachable(f"{self.endpoint.url} closed the connection twice")

    def request_json(self, method: str, path: str, value: Any, *, timeout_s: float | None = None) -> Answer:
        return self.request(method, path, json.dumps(value, separators=(",", ":")).encode(), timeout_s=timeout_s)


def _seconds(value: str | None) -> float | None:
    """A Retry-After header in its seconds form, at most an hour; the date form is not used by our server."""
    try:
        return min(3600.0, max(0.0, float(value))) if value else None
    except ValueError:
        return None


def authorization(node_id: int, credential: str) -> str:
    return f"Node {node_id}:{credential}"


def credential_read(path: str) -> str:
    """The credential in ``path``. Raises EndpointError when it is missing, empty or open to others."""
    try:
        with open(path, encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EndpointError(f"The credential file {path} cannot be read ({error}); run `nebula-agent enroll` first.") from error
    if mode & 0o077 and os.name != "nt":  # Windows tells nothing of this kind by a mode
        raise EndpointError(f"The credential file {path} has mode {mode:04o} and is open to others: chmod 600 {path}")
    if not text or any(c.isspace() for c in text):
        raise EndpointError(f"The credential file {path} does not hold one credential; run `nebula-agent enroll` again.")
    return text
