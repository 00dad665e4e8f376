"""Where a client may connect (D35), verified TLS, and what it refuses to do with a token."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.errors import NebulaError, Unreachable
from client.retry import RetryPolicy
from client.sdk import NebulaClient
from client.transport import HttpxTransport, StdlibTransport, endpoint_parse, transport_for_command
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.8.9.1/", "http://127.8.9.1"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://nebula.lab.example", "https://nebula.lab.example"),
        ("https://lab.example:8443/nebula/", "https://lab.example:8443/nebula"),
        (" https://lab.example\n", "https://lab.example"),
    ],
)
def test_it_takes_https_anywhere_and_http_on_this_machine(text: str, url: str) -> None:
    assert endpoint_parse(text).url == url


@pytest.mark.parametrize(
    "text", ["http://10.0.0.5:8000", "http://nebula.lab.example", "http://localhost.evil.example", "http://0.0.0.0:80"]
)
def test_it_refuses_plain_http_to_another_machine_and_says_what_to_do(text: str) -> None:
    with pytest.raises(NebulaError, match=r"use https://.*tunnel") as caught:
        NebulaClient(text, "ngt_x")
    assert caught.value.code == "insecure_endpoint"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lab.example",
        "ftp://lab",
        "https://",
        "http://127.0.0.1:99999",
        "https://a b",
        "https://u:p@lab",
        "https://lab?x=1",
        "https://l\x00",
    ],
)
def test_it_refuses_what_is_no_address(text: str) -> None:
    with pytest.raises(NebulaError) as caught:
        endpoint_parse(text)
    assert caught.value.code == "bad_endpoint"


class _Answer(http.server.BaseHTTPRequestHandler):
    status, content, extra = 200, b'{"status": "ok"}', {}

    def do_GET(self) -> None:
        self.server.seen.append(dict(self.headers))  # type: ignore[attr-defined]
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.content) + self.extra.get("missing", 0)))
        if "location" in self.extra:
            self.send_header("Location", self.extra["location"])
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *args: object) -> None:
        return


def serve(
    status: int = 200, content: bytes = b'{"status": "ok"}', tls: ssl.SSLContext | None = None, **extra: object
) -> http.server.HTTPServer:
    handler = type("Answer", (_Answer,), {"status": status, "content": content, "extra": extra})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    server.seen = []  # type: ignore[attr-defined]
    server.handle_error = lambda *args: None  # type: ignore[method-assign]
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server


@pytest.fixture(params=[StdlibTransport, HttpxTransport])
def kind(request: pytest.FixtureRequest) -> type[StdlibTransport] | type[HttpxTransport]:
    return request.param  # type: ignore[no-any-return]


Kind = type[StdlibTransport] | type[HttpxTransport]


@pytest.fixture
def open_client(kind: Kind) -> Iterator[object]:
    opened: list[NebulaClient] = []
    servers: list[http.server.HTTPServer] = []

    def make(server: http.server.HTTPServer, scheme: str = "http", host: str = "127.0.0.1", ca_file: str | None = None) -> NebulaClient:
        servers.append(server)
        url = f"{scheme}://{host}:{server.server_address[1]}"
        transport = kind(endpoint_parse(url), timeout_s=PATIENCE_S, ca_file=ca_file)
        client = NebulaClient(url, "ngt_secret", transport=transport, retry=RetryPolicy(tries=2), sleep=lambda seconds: None)
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.close()
    for server in servers:
        server.shutdown()
        server.server_close()


def test_it_follows_no_redirect(open_client: object) -> None:
    client = open_client(serve(302, location="https://evil.example/"))  # type: ignore[operator]
    with pytest.raises(NebulaError, match=r"https://evil.example/") as caught:
        client.me()
    assert caught.value.code == "redirected"


def test_another_servers_page_is_not_taken_for_an_answer(open_client: object) -> None:
    client = open_client(serve(200, b"<html>It works!</html>"))  # type: ignore[operator]
    with pytest.raises(NebulaError, match="endpoint") as caught:
        client.me()
    assert caught.value.code == "bad_answer"


def test_a_proxys_error_page_becomes_a_sentence(open_client: object) -> None:
    client = open_client(serve(502, b"<html>Bad Gateway</html>"))  # type: ignore[operator]
    with pytest.raises(Unreachable, match="502 Bad Gateway"):
        client.me()


def test_an_answer_cut_short_is_an_error(open_client: object) -> None:
    client = open_client(serve(200, b'{"id": 1}', missing=10))  # type: ignore[operator]
    with pytest.raises(Unreachable):
        client.me()
    with pytest.raises(Unreachable):
        list(client.job_log_download(1))


def test_loopback_never_goes_through_a_proxy(kind: Kind, open_client: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert open_client(serve()).healthz() == {"status": "ok"}  # type: ignore[operator]


def test_commands_use_httpx_only_where_a_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    place = endpoint_parse("https://lab.example")
    assert isinstance(transport_for_command(place, timeout_s=1, ca_file=None), StdlibTransport)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    through = transport_for_command(place, timeout_s=1, ca_file=None)
    assert isinstance(through, HttpxTransport)
    through.close()
    assert isinstance(transport_for_command(endpoint_parse("http://127.0.0.1"), timeout_s=1, ca_file=None), StdlibTransport)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a self-signed certificate for 127.0.0.1, in one PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lab")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "lab.pem"
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*plain) + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_that_nobody_vouches_for_is_refused_and_no_token_sent(open_client: object, tls: ssl.SSLContext) -> None:
    server = serve(tls=tls)
    client = open_client(server, "https")  # type: ignore[operator]
    with pytest.raises(Unreachable, match=r"not trusted .*--ca-file"):
        client.me()
    assert server.seen == []  # type: ignore[attr-defined]


def test_the_labs_own_authority_is_taken_from_the_ca_file(open_client: object, tls: ssl.SSLContext, certificate: Path) -> None:
    assert open_client(serve(tls=tls), "https", ca_file=str(certificate)).me() == {"status": "ok"}  # type: ignore[operator]


def test_the_name_in_the_certificate_counts(open_client: object, tls: ssl.SSLContext, certificate: Path) -> None:
    client = open_client(serve(tls=tls), "https", host="localhost", ca_file=str(certificate))  # type: ignore[operator]
    with pytest.raises(Unreachable, match="not trusted"):
        client.me()


def test_a_ca_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(NebulaError, match=r"none\.pem"):
        NebulaClient("https://lab.example", "ngt_x", ca_file=str(tmp_path / "none.pem"))
