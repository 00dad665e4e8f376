"""A message goes to public addresses by HTTPS and nowhere else, and no answer can hold the sender."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from typing import Any

import pytest

from nebulagrid.tls import TlsFiles, ca_make, server_make
from quotas.special_networks import is_public
from quotas.webhooks import ANSWER_MAX, WebhookFailed, WebhookRefused, target_check, url_check, webhook_post
from tests.waiting import PATIENCE_S


class Receiver(BaseHTTPRequestHandler):
    """Keeps what came, and answers as the test says."""

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.got.append((self.path, dict(self.headers), self.rfile.read(length)))  # type: ignore[attr-defined]
        self.server.answer(self)  # type: ignore[attr-defined]

    def log_message(self, *args: Any) -> None:
        pass


def plain(status: int, body: bytes = b"ok", **headers: str) -> Callable[[Receiver], None]:
    def answer(handler: Receiver) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.fixture
def receiver(settings: Any) -> Iterator[HTTPServer]:
    settings.WEBHOOK_ALLOW = ["127.0.0.0/8"]
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    server.got, server.answer = [], plain(200)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(PATIENCE_S)


def url_of(server: HTTPServer, path: str = "/hook?token=1") -> str:
    return f"http://127.0.0.1:{server.server_address[1]}{path}"


def at(*addresses: str) -> Callable[[str, int], list[str]]:
    return lambda host, port: list(addresses)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254",
        "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::", "2002:a00:1::",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "192.0.0.192", "192.0.0.9", "168.63.129.16",
        "192.88.99.1", "203.0.113.7", "198.51.100.1", "198.19.255.255", "240.0.0.1", "64:ff9b::808:808", "64:ff9b:1::808:808",
        "2002:808:808::", "2001:db8::1", "2001:20::1", "3fff::1", "::808:808", "100::1", "4000::1", "ff0e::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    with pytest.raises(WebhookRefused) as caught:
        webhook_post("https://hooks.example.org/x", b"{}", {}, resolver=at(address))
    assert caught.value.code == "webhook_private"
    assert "NEBULA_WEBHOOK_ALLOW" in caught.value.message
    assert address not in caught.value.message + repr(caught.value.params)


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "192.0.1.1", "2606:4700::6810:85e5", "2a00:1450:4001:831::200e"])
def test_addresses_that_are_public_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("port", [22, 25, 80, 6379, 8080])
def test_public_addresses_are_reached_at_the_ports_of_https_only(settings: Any, port: int) -> None:
    parts = url_check(f"https://hooks.example.org:{port}/x")
    with pytest.raises(WebhookRefused) as caught:
        target_check(parts, resolver=at("93.184.215.14"))
    assert caught.value.code == "webhook_port"
    settings.WEBHOOK_PORTS = [port]
    assert target_check(parts, resolver=at("93.184.215.14")).address == "93.184.215.14"
    settings.WEBHOOK_PORTS, settings.WEBHOOK_ALLOW = [], ["10.0.0.0/8"]
    assert target_check(parts, resolver=at("10.0.0.1")).is_named


def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    with pytest.raises(WebhookRefused):
        webhook_post("https://hooks.example.org/x", b"{}", {}, resolver=at("93.184.215.14", "10.0.0.1"))


@pytest.mark.parametrize("host", ["localhost", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]"])
def test_spellings_of_this_machine_are_seen_through(host: str) -> None:
    with pytest.raises((WebhookRefused, WebhookFailed)) as caught:
        webhook_post(f"https://{host}/x", b"{}", {})
    assert "webhook_private" in repr(caught.value) or isinstance(caught.value, WebhookFailed)


def test_plain_http_goes_to_allowed_networks_only() -> None:
    with pytest.raises(WebhookRefused) as caught:
        webhook_post("http://hooks.example.org/x", b"{}", {}, resolver=at("93.184.215.14"))
    assert caught.value.code == "webhook_scheme"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://example.org/x", "webhook_url"), ("file:///etc/passwd", "webhook_url"), ("https://", "webhook_url"), ("", "webhook_url"),
        ("https://example.org:99999/", "webhook_url"), ("https://example.org/a b", "webhook_url"),
        ("https://example.org/\r\nX: y", "webhook_url"),
        ("https://example.org\\@127.0.0.1/", "webhook_url"), ("https://user:pw@example.org/", "webhook_userinfo"),
        ("https://example.org/" + "x" * 2000, "webhook_url"), ("https://exa\0mple.org/", "webhook_url"),
        ("https://例子.中国/钩", "webhook_url"),
        ("https://" + "a" * 70 + ".org/", "webhook_url"),
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_a_sentence(url: str, code: str) -> None:
    with pytest.raises(WebhookRefused) as caught:
        url_check(url)
    assert caught.value.code == code
    assert caught.value.message


def test_the_connection_goes_to_the_address_that_was_checked(receiver: HTTPServer) -> None:
    # The name means 127.0.0.1 at the check; were it resolved again, .invalid would fail.
    answer = webhook_post(f"http://hooks.invalid:{receiver.server_address[1]}/hook", b"{}", {}, resolver=at("127.0.0.1"))
    assert answer.status == 200
    [(path, headers, body)] = receiver.got  # type: ignore[attr-defined]
    assert (path, headers["Host"].partition(":")[0], body) == ("/hook", "hooks.invalid", b"{}")


def test_a_proxy_of_the_environment_is_not_used(receiver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert webhook_post(url_of(receiver), b"{}", {}).status == 200


def test_redirects_are_not_followed(receiver: HTTPServer) -> None:
    receiver.answer = plain(302, b"", Location="http://169.254.169.254/latest/meta-data/")  # type: ignore[attr-defined]
    with pytest.raises(WebhookFailed) as caught:
        webhook_post(url_of(receiver), b"{}", {})
    assert (caught.value.is_final, caught.value.status, len(receiver.got)) == (True, 302, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("status", "is_final"), [(400, True), (404, True), (410, True), (408, False), (429, False), (500, False), (503, False)]
)
def test_a_refusal_is_final_and_an_illness_is_not(receiver: HTTPServer, status: int, is_final: bool) -> None:
    receiver.answer = plain(status, b"why", Retry_After="7")  # type: ignore[attr-defined]
    with pytest.raises(WebhookFailed) as caught:
        webhook_post(url_of(receiver), b"{}", {})
    assert (caught.value.is_final, caught.value.retry_after_s) == (is_final, 7)
    assert "why" not in caught.value.text  # what stands inside of our network is read by nobody


def test_a_long_answer_is_read_in_part_only(receiver: HTTPServer) -> None:
    receiver.answer = plain(200, b"x" * (ANSWER_MAX + 5000))  # type: ignore[attr-defined]
    assert len(webhook_post(url_of(receiver), b"{}", {}).body) == ANSWER_MAX


def test_a_server_that_drips_bytes_is_cut_off(settings: Any) -> None:
    settings.WEBHOOK_ALLOW = ["127.0.0.1"]
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def drip() -> None:
        client, _ = listener.accept()
        with client:
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.02):
                try:
                    client.sendall(b"x")
                except OSError:
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        with pytest.raises(WebhookFailed) as caught:
            webhook_post(f"http://127.0.0.1:{listener.getsockname()[1]}/", b"{}", {}, total_s=0.3)
    finally:
        over.set()
        listener.close()
        thread.join(PATIENCE_S)
    assert not caught.value.is_final


@pytest.fixture(scope="module")
def own_ca(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    # OpenSSL looks at the machine's own clock, whatever day the test run plays: a file's time tells that one.
    folder = tmp_path_factory.mktemp("tls")
    files, now = TlsFiles(folder=folder), datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    ca_make(files, now=now)
    server_make(files, hosts=["hooks.invalid"], now=now)
    return files


@pytest.mark.parametrize("name", ["hooks.invalid", "other.invalid"])
def test_the_certificate_has_to_be_of_the_name(receiver: HTTPServer, own_ca: TlsFiles, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own_ca.cert, own_ca.key)
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True, suppress_ragged_eofs=True)
    receiver.handle_error = lambda *args: None  # type: ignore[method-assign]
    monkeypatch.setenv("SSL_CERT_FILE", str(own_ca.ca))
    url = f"https://{name}:{receiver.server_address[1]}/hook"
    if name == "hooks.invalid":
        assert webhook_post(url, b"{}", {}, resolver=at("127.0.0.1")).status == 200
    else:
        with pytest.raises(WebhookFailed, match="Hostname mismatch"):
            webhook_post(url, b"{}", {}, resolver=at("127.0.0.1"))
        assert receiver.got == []  # type: ignore[attr-defined]


def test_a_handshake_that_never_ends_is_cut_off(settings: Any) -> None:
    settings.WEBHOOK_ALLOW = ["127.0.0.1"]
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(WebhookFailed) as caught:
        webhook_post(f"https://127.0.0.1:{silent.getsockname()[1]}/", b"{}", {}, total_s=0.2)
    assert not caught.value.is_final


def test_nobody_listens_is_a_failure_that_may_pass(settings: Any) -> None:
    settings.WEBHOOK_ALLOW = ["127.0.0.1"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(WebhookFailed) as caught:
        webhook_post(f"http://127.0.0.1:{port}/", b"{}", {})
    assert (caught.value.is_final, caught.value.text) == (False, "no connection")


def test_a_name_that_is_not_known_is_a_failure_that_may_pass() -> None:
    def nothing(host: str, port: int) -> list[str]:
        raise socket.gaierror("unknown")

    with pytest.raises(WebhookFailed) as caught:
        webhook_post("https://hooks.example.org/", b"{}", {}, resolver=nothing)
    assert not caught.value.is_final
