from __future__ import annotations

import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent.http import Endpoint, EndpointError, HttpClient, Unreachable, authorization, credential_read, endpoint_parse
from agent.testing import Failure, FakeControlPlane
from agent.ws import Listener
from tests.waiting import PATIENCE_S, wait_until


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://lab.example", Endpoint("lab.example", 443, "", True)),
        ("https://lab.example:8443/nebula/", Endpoint("lab.example", 8443, "/nebula", True)),
        ("http://127.0.0.1:8000", Endpoint("127.0.0.1", 8000, "", False)),
        ("http://localhost", Endpoint("localhost", 80, "", False)),
        ("http://[::1]:8000", Endpoint("::1", 8000, "", False)),
        ("http://127.8.9.1:1", Endpoint("127.8.9.1", 1, "", False)),
    ],
)
def test_an_endpoint(url: str, expected: Endpoint) -> None:
    assert endpoint_parse(url) == expected
    assert endpoint_parse(expected.url) == expected


@pytest.mark.parametrize(
    "url",
    ["http://lab.example", "http://10.0.0.1:8000", "http://0.0.0.0", "http://127.0.0.1.evil.example", "http://localhost.evil.example"],
)
def test_plain_http_is_for_this_machine_only(url: str) -> None:
    with pytest.raises(EndpointError, match="use https"):
        endpoint_parse(url)


@pytest.mark.parametrize("url", ["", "lab.example", "ftp://lab", "https://", "https://lab:99999", "https://a:b@lab", "https://lab/?x=1"])
def test_what_is_no_endpoint_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(EndpointError) as caught:
        endpoint_parse(url)
    assert "\n" not in str(caught.value)


def credential(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_credential_is_read(tmp_path: Path) -> None:
    assert credential_read(credential(tmp_path / "c", "abc\n")) == "abc"


@pytest.mark.parametrize(
    ("text", "mode", "words"), [("abc", 0o640, "chmod 600"), ("abc", 0o604, "chmod 600"), ("", 0o600, "enroll"), ("a b", 0o600, "enroll")]
)
def test_a_bad_credential_file_says_what_to_do(tmp_path: Path, text: str, mode: int, words: str) -> None:
    with pytest.raises(EndpointError, match=words):
        credential_read(credential(tmp_path / "c", text, mode))


def test_a_missing_credential_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="enroll"):
        credential_read(str(tmp_path / "none"))


# --- requests -------------------------------------------------------------------------------------------------


class Recorder(BaseHTTPRequestHandler):
    """Answers everything with what it was asked, and counts connections."""

    protocol_version = "HTTP/1.1"
    connections = 0
    cut_after = 0  # close the connection after so many requests on it, without saying so

    def setup(self) -> None:
        super().setup()
        type(self).connections += 1
        self.served = 0

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = json.dumps({"path": self.path, "auth": self.headers.get("Authorization"), "size": len(body)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.served += 1
        if self.served == self.cut_after:
            self.close_connection = True


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[type[Recorder], int]]]:
    servers: list[ThreadingHTTPServer] = []

    def start(context: ssl.SSLContext | None = None, cut_after: int = 0) -> tuple[type[Recorder], int]:
        class Handler(Recorder):
            pass

        Handler.cut_after = cut_after
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return Handler, server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_requests_share_one_connection_and_carry_the_credential(serve: Callable[..., tuple[type[Recorder], int]]) -> None:
    handler, port = serve()
    client = HttpClient(endpoint_parse(f"http://127.0.0.1:{port}/base"), authorization=authorization(7, "secret"))
    for _ in range(5):
        assert client.request("PUT", "/x?offset=1", b"12345").json() == {"path": "/base/x?offset=1", "auth": "Node 7:secret", "size": 5}
    assert handler.connections == 1
    client.close()


def test_a_connection_that_the_server_dropped_is_replaced(serve: Callable[..., tuple[type[Recorder], int]]) -> None:
    handler, port = serve(cut_after=2)
    client = HttpClient(endpoint_parse(f"http://127.0.0.1:{port}"))
    for _ in range(6):
        assert client.request("PUT", "/x", b"1").status == 200
    assert handler.connections == 3
    client.close()


def test_a_stream_is_sent_with_its_length(serve: Callable[..., tuple[type[Recorder], int]]) -> None:
    _, port = serve()
    client = HttpClient(endpoint_parse(f"http://127.0.0.1:{port}"))
    answer = client.request("PUT", "/x", iter([b"abc", b"def"]), length=6)
    assert answer.json()["size"] == 6
    client.close()


def test_nobody_there_is_unreachable() -> None:
    with FakeControlPlane() as plane:
        url = plane.url
    client = HttpClient(endpoint_parse(url))
    with pytest.raises(Unreachable, match="cannot be reached"):
        client.request("POST", "/x", b"")


def test_an_answer_that_never_comes_is_unreachable() -> None:
    with FakeControlPlane() as plane:
        plane.log_gate.clear()
        client = HttpClient(endpoint_parse(plane.url), authorization=authorization(plane.node_id, plane.credential), timeout_s=0.1)
        with pytest.raises(Unreachable, match="timed out"):
            client.request("PUT", "/api/agent/v1/logs/1.1.0?offset=0", b"x")
        plane.log_gate.set()
        client.close()


def test_an_error_answer_is_put_into_words() -> None:
    with FakeControlPlane() as plane:
        plane.failures.append(Failure("/api/agent/v1/logs/", 429, 1, retry_after="7"))
        client = HttpClient(endpoint_parse(plane.url))
        answer = client.request("PUT", "/api/agent/v1/logs/1.1.0?offset=0", b"x")
        assert (answer.status, answer.retry_after_s, answer.error_code()) == (429, 7.0, "made_up")
        assert answer.error_text() == "a failure for the test"
        answer = client.request("PUT", "/api/agent/v1/logs/1.1.0?offset=0", b"x")
        assert (answer.status, answer.error_code()) == (401, "not_authenticated")
        client.close()


# --- TLS ------------------------------------------------------------------------------------------------------


class Lab:
    """An own CA and two certificates of it: one for 127.0.0.1 and one for another name."""

    def __init__(self, folder: Path) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("tls lane: no openssl to make certificates with")
        self.folder, self.openssl = folder, openssl
        self._run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", "/CN=lab CA",
                  "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
        self._certificate("here", "IP:127.0.0.1")
        self._certificate("other", "DNS:other.example")

    def _run(self, *args: str) -> None:
        subprocess.run([self.openssl, *args], cwd=self.folder, check=True, capture_output=True, timeout=PATIENCE_S)

    def _certificate(self, name: str, alternative: str) -> None:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        self._run("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternative}\n")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile", f"{name}.ext")
        self._run("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.pem")

    def context(self, name: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return context

    def pin(self, name: str) -> str:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert((self.folder / f"{name}.pem").read_text())).hexdigest()

    @property
    def ca_file(self) -> str:
        return str(self.folder / "ca.pem")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("tls"))


def test_an_own_ca_is_trusted_by_its_file(serve: Callable[..., tuple[type[Recorder], int]], certificates: Lab) -> None:
    _, port = serve(certificates.context("here"))
    client = HttpClient(endpoint_parse(f"https://127.0.0.1:{port}"), ca_file=certificates.ca_file)
    assert client.request("PUT", "/x", b"1").status == 200
    client.close()


def test_a_pinned_certificate_is_trusted_in_any_spelling(serve: Callable[..., tuple[type[Recorder], int]], certificates: Lab) -> None:
    _, port = serve(certificates.context("other"))
    pin = certificates.pin("other").upper()
    spelled = ":".join(pin[i : i + 2] for i in range(0, 64, 2))
    client = HttpClient(endpoint_parse(f"https://127.0.0.1:{port}"), pin_sha256=spelled)
    assert client.request("PUT", "/x", b"1").status == 200
    client.close()


@pytest.mark.parametrize(
    ("name", "use_ca", "pin_of"),
    [
        ("here", False, None),  # an unknown CA
        ("other", True, None),  # another machine's certificate
        ("other", False, "here"),  # not the pinned one
        ("other", True, "other"),  # with a CA file the name counts as well
        ("here", True, "other"),
    ],
)
def test_another_certificate_gets_neither_credential_nor_body(
    serve: Callable[..., tuple[type[Recorder], int]], certificates: Lab, name: str, use_ca: bool, pin_of: str | None
) -> None:
    served: list[str] = []
    handler, port = serve(certificates.context(name))
    handler.do_PUT = lambda self: served.append(self.path)  # type: ignore[method-assign]
    client = HttpClient(
        endpoint_parse(f"https://127.0.0.1:{port}"),
        authorization="Node 7:secret",
        ca_file=certificates.ca_file if use_ca else None,
        pin_sha256=certificates.pin(pin_of) if pin_of else None,
    )
    with pytest.raises(Unreachable, match="certificate"):
        client.request("PUT", "/x", b"1")
    assert served == []


def test_a_missing_ca_file_is_one_sentence() -> None:
    with pytest.raises(EndpointError, match="cannot be read"):
        HttpClient(endpoint_parse("https://lab.example"), ca_file="/nowhere/ca.pem")


# --- the WebSocket --------------------------------------------------------------------------------------------


@pytest.fixture
def quick_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.ws.RETRY_S", (0.1, 0.2))


def listener(plane: FakeControlPlane, wakes: list[int], credential: str | None = None, pin: str | None = None) -> Listener:
    def wake() -> None:
        with plane.lock:
            wakes.append(1)
            plane.lock.notify_all()

    auth = authorization(plane.node_id, credential or plane.credential)
    return Listener(endpoint_parse(plane.url), authorization=auth, wake=wake, pin_sha256=pin)


@pytest.mark.parametrize("sent", [b"", b'{"seq"'])
@pytest.mark.parametrize(
    "line", ["POST /api/agent/v1/sync", "PUT /api/agent/v1/logs/1.1.0?offset=0", "PUT /api/agent/v1/artifacts/1.1.0/a"]
)
def test_who_is_killed_between_two_packets_has_said_nothing(line: str, sent: bytes) -> None:
    """As an agent that gets SIGKILL once its header is out; what came of the body is not taken for a request."""
    with FakeControlPlane() as plane:
        head = f"{line} HTTP/1.1\r\nAuthorization: Node {plane.node_id}:{plane.credential}\r\nContent-Length: 20\r\n\r\n"
        with socket.create_connection(("127.0.0.1", plane.port), timeout=PATIENCE_S) as agent:
            agent.sendall(head.encode() + sent)
            agent.shutdown(socket.SHUT_WR)
            assert agent.recv(100) == b""
        assert (plane.problems, plane.syncs, plane.logs, plane.artifacts) == ([], [], {}, {})


def test_a_nudge_wakes(quick_retry: None) -> None:
    wakes: list[int] = []
    with FakeControlPlane() as plane:
        found = listener(plane, wakes)
        found.start()
        plane.wait(lambda: plane.listeners and wakes)  # once at the start: something may have been said before
        before = len(wakes)
        plane.nudge()
        plane.wait(lambda: len(wakes) > before)
        found.stop()


def test_a_lost_socket_is_opened_again(quick_retry: None) -> None:
    wakes: list[int] = []
    with FakeControlPlane() as plane:
        port = plane.port
        found = listener(plane, wakes)
        found.start()
        plane.wait(lambda: wakes)
        plane.stop()
        plane.start(port)
        plane.wait(lambda: len(wakes) > 1 and plane.listeners)
        before = len(wakes)
        plane.nudge()
        plane.wait(lambda: len(wakes) > before)
        found.stop()


def test_a_refused_socket_harms_nobody_and_stops(quick_retry: None) -> None:
    wakes: list[int] = []
    with FakeControlPlane() as plane:
        found = listener(plane, wakes, credential="wrong")
        found.start()
        found.stop()
        wait_until(lambda: not found._thread.is_alive(), "the end of its thread")
        assert wakes == []


def test_the_socket_too_goes_over_tls_to_the_pinned_certificate(quick_retry: None, certificates: Lab) -> None:
    wakes: list[int] = []
    with FakeControlPlane(tls=certificates.context("here")) as plane:
        found = listener(plane, wakes, pin=certificates.pin("here"))
        found.start()
        plane.wait(lambda: plane.listeners and wakes)
        before = len(wakes)
        plane.nudge()
        plane.wait(lambda: len(wakes) > before)
        found.stop()


def test_the_socket_sends_no_credential_to_another_certificate(
    quick_retry: None, certificates: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    wakes: list[int] = []
    caplog.set_level("DEBUG", logger="nebula-agent")
    with FakeControlPlane(tls=certificates.context("other")) as plane:
        found = listener(plane, wakes, pin=certificates.pin("here"))
        found.start()
        plane.wait(lambda: any("not the pinned one" in r.getMessage() for r in caplog.records))
        found.stop()
        assert (plane.listeners, wakes) == (0, [])
