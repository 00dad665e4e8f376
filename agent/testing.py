"""A control plane that keeps to the protocol, for tests of the agent and of what is built on it.

`FakeControlPlane` is a real HTTP and WebSocket server in this process. It refuses what the real one refuses (a wrong
credential, an old session, an offset that is not its length), so that an agent that works with it keeps the protocol.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from agent.protocol import (
    AgentEvent,
    Command,
    CommandResult,
    Desired,
    EnrolAnswer,
    EnrolRequest,
    Inventory,
    LogAnswer,
    Observed,
    Orders,
    ProtocolError,
    RankId,
    RankSpec,
    RestoreAnswer,
    RestoreAsk,
    SyncRequest,
    rank_parts,
    spec_sha256,
)

_WS_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(slots=True)
class Failure:
    """The next ``times`` requests whose path starts with ``path`` are answered with ``status`` (0 = cut off)."""

    path: str
    status: int
    times: int
    retry_after: str | None = None
    code: str = "made_up"


@dataclass
class FakeControlPlane:
    """Use as a context manager. Everything it knows lies in plain attributes; hold ``lock`` or use `wait` to read them."""

    node_id: int = 7
    credential: str = "c" * 64
    installation: str | None = "1f2e3d4c5b6a"
    next_in_s: float = 5.0
    forgets: bool = True  # say FORGET by itself once a rank has ended, its log is whole and its cards are decided
    log_cap: int | None = None
    tls: ssl.SSLContext | None = None
    lock: threading.Condition = field(default_factory=threading.Condition)
    desired: dict[RankId, Desired] = field(default_factory=dict)
    commands: dict[int, Command] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)  # token → node name
    observed: dict[RankId, Observed] = field(default_factory=dict)  # the last report of each rank, kept after FORGET
    present: set[RankId] = field(default_factory=set)  # ranks in the last sync
    history: list[tuple[RankId, str]] = field(default_factory=list)  # every change of a reported state
    syncs: list[SyncRequest] = field(default_factory=list)
    sync_times: list[float] = field(default_factory=list)
    sync_sizes: list[int] = field(default_factory=list)  # bytes of each of them
    columns: bool = True  # False: as a control plane that does not know statuses in columns
    inventory: Inventory | None = None
    events: dict[tuple[str, int], AgentEvent] = field(default_factory=dict)
    results: dict[int, CommandResult] = field(default_factory=dict)
    result_count: int = 0
    logs: dict[RankId, bytearray] = field(default_factory=dict)
    log_puts: list[tuple[RankId, int, int]] = field(default_factory=list)  # rank, offset, bytes accepted
    artifacts: dict[tuple[RankId, str], bytes] = field(default_factory=dict)
    artifact_most: int = 1024**3
    failures: list[Failure] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # what an honest agent must never do
    sessions: list[str] = field(default_factory=list)
    log_gate: threading.Event = field(default_factory=threading.Event)  # cleared: logs are not answered
    sync_gate: threading.Event = field(default_factory=threading.Event)
    ask: RestoreAsk | None = None  # asked until it is answered
    answers: list[RestoreAnswer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log_gate.set()
        self.sync_gate.set()
        self._seq: dict[str, int] = {}
        self._sockets: list[socket.socket] = []
        self._websockets: list[socket.socket] = []
        self._server: ThreadingHTTPServer | None = None

    # --- life -------------------------------------------------------------------------------------------------

    def __enter__(self) -> FakeControlPlane:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, port: int = 0) -> None:
        plane = self

        class Handler(_Handler):
            pass

        Handler.plane = plane
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        if self.tls is not None:
            server.socket = self.tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self._server = server
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="fake-control-plane", daemon=True).start()

    def stop(self) -> None:
        """Close the door and every open connection, as a killed server would."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        with self.lock:
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @property
    def port(self) -> int:
        if self._server is None:
            raise RuntimeError("the control plane is not started")
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def listeners(self) -> int:
        """How many agents listen on the WebSocket."""
        return len(self._websockets)

    # --- orders -----------------------------------------------------------------------------------------------

    def order(self, *desired: Desired, nudge: bool = True) -> None:
        with self.lock:
            for item in desired:
                self.desired[item.rank] = item
        if nudge:
            self.nudge()

    def run(self, rank: RankId, *argv: str, lease_s: int | None = None, **spec: Any) -> RankSpec:
        """Want this rank to run."""
        job, epoch, index = rank_parts(rank)
        wanted = RankSpec(job=job, index=index, argv=tuple(argv), **spec)
        self.order(Desired(rank=rank, epoch=epoch, want="RUN", spec=wanted, spec_sha256=spec_sha256(wanted), lease_s=lease_s))
        return wanted

    def halt(self, rank: RankId, *, grace_s: int = 5, reason: str = "cancelled") -> None:
        self.order(Desired(rank=rank, epoch=rank_parts(rank)[1], want="STOP", grace_s=grace_s, stop_reason=reason))

    def command(self, cid: int, kind: str, **args: Any) -> None:
        with self.lock:
            self.commands[cid] = Command(cid=cid, kind=kind, args=args)
        self.nudge()

    def nudge(self) -> None:
        """Say "sync now" to every listening agent."""
        payload = b"sync now"
        with self.lock:
            sockets = list(self._websockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.sendall(bytes([0x81, len(payload)]) + payload)

    def wait(self, condition: Callable[[], Any], *, timeout_s: float = 120.0, what: str = "the condition") -> Any:
        """The condition's first true value. Raises TimeoutError."""
        end = time.monotonic() + timeout_s
        with self.lock:
            while True:
                found = condition()
                if found:
                    return found
                left = end - time.monotonic()
                if left <= 0:
                    seen = {r: (o.state, o.released) for r, o in self.observed.items()}
                    raise TimeoutError(f"{what} did not come true in {timeout_s:g} s; ranks: {seen}")
                self.lock.wait(min(left, 0.1))

    def wait_state(self, rank: RankId, state: str, *, timeout_s: float = 120.0) -> Observed:
        def look() -> Observed | None:
            found = self.observed.get(rank)
            return found if found is not None and found.state == state else None

        found: Observed = self.wait(look, timeout_s=timeout_s, what=f"{rank} {state}")
        return found

    # --- answers (called by the handler under the lock) ----------------------------------------------------------

    def enrol(self, request: EnrolRequest) -> tuple[int, dict[str, Any]]:
        name = self.tokens.pop(request.token, None)
        if name is None:
            return 403, {"code": "token_refused", "message": "The token is not known, was used before, or has expired."}
        answer = EnrolAnswer(node_id=self.node_id, name=request.name or name, credential=self.credential, installation=self.installation)
        return 201, answer.to_json()

    def sync(self, request: SyncRequest, *, size: int = 0) -> tuple[int, dict[str, Any]]:
        if request.session not in self.sessions:
            self.sessions.append(request.session)
        elif request.session != self.sessions[-1]:
            return 409, {"code": "session_refused", "message": "A newer session speaks for this node."}
        is_new = request.seq > self._seq.get(request.session, 0)
        if is_new:
            self._seq[request.session] = request.seq
            self._take(request)
            self.sync_sizes.append(size)
        desired = [self._wish(d) for d in self.desired.values()]
        orders = Orders(
            server_time=time.time(),
            ack_seq=request.seq,
            ack_eids=tuple(e.eid for e in request.events),
            next_in_s=self.next_in_s,
            desired=tuple(desired),
            commands=tuple(c for c in self.commands.values() if c.cid not in self.results),
            want_inventory=self.inventory is None,
            ask=self.ask,
            columns=self.columns,
        )
        return 200, orders.to_json()

    def _take(self, request: SyncRequest) -> None:
        self.syncs.append(request)
        self.sync_times.append(time.monotonic())
        if request.inventory is not None:
            self.inventory = request.inventory
        for seen in request.observed:
            old = self.observed.get(seen.rank)
            if old is None or old.state != seen.state:
                self.history.append((seen.rank, seen.state))
            if old is not None and old.state in ("EXITED", "LAUNCH_FAILED") and seen.state != old.state:
                self.problems.append(f"{seen.rank} went from {old.state} to {seen.state}")
            self.observed[seen.rank] = seen
        self.present = {seen.rank for seen in request.observed}
        for event in request.events:
            self.events[event.session or request.session, event.eid] = event
        if request.answer is not None:
            self.answers.append(request.answer)
            if self.ask is not None and request.answer.id == self.ask.id:
                self.ask = None
        for result in request.results:
            self.result_count += 1
            self.results[result.cid] = result
        for rank in list(self.desired):
            if self.desired[rank].want == "FORGET" and rank not in self.present:
                del self.desired[rank]

    def _wish(self, wish: Desired) -> Desired:
        seen = self.observed.get(wish.rank)
        if not self.forgets or seen is None or seen.state not in ("EXITED", "LAUNCH_FAILED") or seen.released is None:
            return wish
        if len(self.logs.get(wish.rank, b"")) < (seen.final_log_offset or 0):
            return wish
        self.desired[wish.rank] = Desired(rank=wish.rank, epoch=wish.epoch, want="FORGET")
        return self.desired[wish.rank]

    def log_put(self, rank: RankId, offset: int, data: bytes, *, tail_of: int | None = None) -> tuple[int, dict[str, Any]]:
        held = self.logs.setdefault(rank, bytearray())
        if len(data) > 256 * 1024:
            self.problems.append(f"a log chunk of {len(data)} bytes")
        if offset != len(held):
            return 409, LogAnswer(length=len(held)).to_json()
        if tail_of is not None:
            held += b"<%d of %d bytes>" % (len(data), tail_of) + data
            return 200, LogAnswer(length=len(held), capped=True).to_json()
        room = len(data) if self.log_cap is None else max(0, self.log_cap - len(held))
        held += data[:room]
        self.log_puts.append((rank, offset, len(data[:room])))
        return 200, LogAnswer(length=len(held), capped=self.log_cap is not None and len(held) >= self.log_cap).to_json()

    def failure(self, path: str) -> Failure | None:
        for item in self.failures:
            if item.times > 0 and path.startswith(item.path):
                item.times -= 1
                return item
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    plane: FakeControlPlane

    def setup(self) -> None:
        super().setup()
        with self.plane.lock:
            self.plane._sockets.append(self.connection)

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        with self.plane.lock:
            for held in (self.plane._sockets, self.plane._websockets):
                if self.connection in held:
                    held.remove(self.connection)

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _answer(self, status: int, value: dict[str, Any], retry_after: str | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(body)

    def _exactly(self, size: int) -> bytes:
        """So many bytes. An agent that was killed in the middle of them has said nothing: `handle` ends its connection."""
        read = self.rfile.read(size)
        if len(read) < size:
            raise ConnectionAbortedError(f"{len(read)} of {size} bytes came")
        return read

    def _body(self) -> bytes:
        return self._exactly(int(self.headers.get("Content-Length") or 0))

    def _is_node(self) -> bool:
        return self.headers.get("Authorization") == f"Node {self.plane.node_id}:{self.plane.credential}"

    def _broken(self) -> bool:
        with self.plane.lock:
            failure = self.plane.failure(self.path)
        if failure is None:
            return False
        self._body()
        if failure.status == 0:
            self.close_connection = True
        else:
            self._answer(failure.status, {"code": failure.code, "message": "a failure for the test"}, failure.retry_after)
        return True

    def do_POST(self) -> None:
        if self._broken():
            return
        body = self._body()
        plane = self.plane
        try:
            if self.path == "/api/agent/v1/enroll":
                with plane.lock:
                    self._answer(*plane.enrol(EnrolRequest.from_json(json.loads(body))))
                return
            if not self._is_node():
                self._answer(401, {"code": "not_authenticated", "message": "No such node credential."})
                return
            plane.sync_gate.wait(300)
            with plane.lock:
                answer = plane.sync(SyncRequest.from_json(json.loads(body)), size=len(body))
                plane.lock.notify_all()
            self._answer(*answer)
        except (ProtocolError, ValueError) as error:
            with plane.lock:
                plane.problems.append(str(error))
            self._answer(400, {"code": "invalid", "message": str(error)})

    def do_PUT(self) -> None:
        if self._broken():
            return
        plane, url = self.plane, urlsplit(self.path)
        parts = [unquote(p) for p in url.path.split("/")]
        if not self._is_node():
            self._body()
            self._answer(401, {"code": "not_authenticated", "message": "No such node credential."})
            return
        if url.path.startswith("/api/agent/v1/logs/"):
            data = self._body()
            plane.log_gate.wait(300)
            with plane.lock:
                query = {name: int(values[0]) for name, values in parse_qs(url.query).items()}
                answer = plane.log_put(parts[-1], query["offset"], data, tail_of=query.get("tail_of"))
                plane.lock.notify_all()
            self._answer(*answer)
        elif url.path.startswith("/api/agent/v1/artifacts/"):
            data = self._body()
            asked = parse_qs(url.query).get("size")
            if asked is not None:
                has_room = int(asked[0]) <= plane.artifact_most
                self._answer(200 if has_room else 413, {} if has_room else {"code": "file_large", "message": "Too large."})
                return
            with plane.lock:
                plane.artifacts[parts[-2], parts[-1]] = data
                plane.lock.notify_all()
            self._answer(201, {})
        else:
            self._body()
            self._answer(404, {"code": "not_found", "message": "No such address."})

    def do_GET(self) -> None:
        if self.path != "/api/agent/v1/ws" or not self._is_node():
            self._answer(403, {"code": "forbidden", "message": "No."})
            return
        key = self.headers["Sec-WebSocket-Key"] + _WS_GUID
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())  # noqa: S324
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        with self.plane.lock:
            self.plane._websockets.append(self.connection)
            self.plane.lock.notify_all()
        for opcode, payload in self._frames():
            if opcode == 0x9:
                self.wfile.write(bytes([0x8A, len(payload)]) + payload)
            elif opcode == 0x8:
                return

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        """A client's small masked frames."""
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            size = head[1] & 0x7F
            if size == 126:
                size = struct.unpack("!H", self._exactly(2))[0]
            mask = self._exactly(4)
            payload = bytes(b ^ mask[i % 4] for i, b in enumerate(self._exactly(size)))
            yield head[0] & 0x0F, payload
