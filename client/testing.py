"""FakeApi: a small control plane in this process, for tests of programs that use the SDK or nebula-ctl.

Real HTTP on a loopback port, the real API's shapes, errors and rules (sign-in, unknown fields, idempotency keys, log
offsets, pagination); no scheduler: the test moves jobs itself.

    with FakeApi() as api:
        client = NebulaClient(api.url, api.token)
        job = client.job_submit(argv=["true"])
        api.job_start(job["id"]); api.log_write(job["id"], b"hello\\n"); api.job_finish(job["id"])

Faults: ``fail(n, status)``, ``cut(n)`` (the request is carried out, its answer lost), ``throttle(n, seconds)``, ``stop()``
and ``start()`` on the same port.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Any

from client.shapes import FINAL

CARD_MIB = 24_564


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


@dataclass(slots=True)
class FakeAttempt:
    epoch: int
    logs: dict[int, bytearray] = field(default_factory=lambda: {0: bytearray()})
    artifacts: dict[tuple[int, str], bytes] = field(default_factory=dict)
    started_at: str | None = None
    ended_at: str | None = None
    is_complete: bool = False


@dataclass(slots=True)
class FakeJob:
    row: dict[str, Any]
    owner: str
    attempts: list[FakeAttempt] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Fault:
    """What happens to the next request instead of, or after, its being carried out."""

    kind: str  # "status" | "cut"
    status: int = 0
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    api: FakeApi

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class FakeApi:
    """Signed-in users by token: ``token`` (user@lab.example), ``stranger_token``, ``staff_token``."""

    def __init__(self) -> None:
        self.token, self.stranger_token, self.staff_token = "ngt_lin", "ngt_mallory", "ngt_root"
        self.users = {
            self.token: {"email": "user@lab.example", "is_staff": False},
            self.stranger_token: {"email": "mallory@lab.example", "is_staff": False},
            self.staff_token: {"email": "root@lab.example", "is_staff": True},
        }
        self.passwords = {"user@lab.example": "correct horse"}
        self.quota: dict[str, Any] = {
            "gpu_hours": 2000,
            "used_gpu_hours": 12.5,
            "resets_at": "2030-01-01T00:00:00Z",
            "max_active_jobs": 100,
            "active_jobs": 0,
            "max_cards": None,
            "held_cards": 0,
        }
        self.jobs: dict[int, FakeJob] = {}
        self.nodes: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        self.incidents: list[dict[str, Any]] = []
        self.alerts: list[dict[str, Any]] = []
        self.mutes: list[dict[str, Any]] = []
        self.forecast: dict[str, Any] = {
            "verdict": "starts",
            "code": "",
            "params": {},
            "text": "Starts at once on node01 gpu0",
            "position": None,
            "p50": _now(),
            "p90": _now(),
            "later_than": None,
            "start": "Starts now.",
            "place": "node01 gpu0",
            "age_s": 0.0,
        }
        self.alternatives: list[dict[str, Any]] = []
        self.keys: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.seen: list[Seen] = []
        self.lock = threading.RLock()
        self._faults: deque[Fault] = deque()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.port = 0
        self.start()

    # --- the server's own life -----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; after ``stop`` on the same port, with all that was there."""
        from client.testing_http import Handler

        server = _Server(("127.0.0.1", self.port), Handler)
        server.api = self
        self.port = server.server_address[1]
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nothing listens any more: connections are refused."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            for connection in list(self._server.connections):  # kept-alive ones would go on being answered
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._server = None

    def __enter__(self) -> FakeApi:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # --- faults ------------------------------------------------------------------------------------------------------

    def fail(self, count: int, status: int, *, retry_after: str | None = None) -> None:
        self._faults.extend(Fault("status", status, retry_after) for _n in range(count))

    def throttle(self, count: int, seconds: int) -> None:
        self.fail(count, 429, retry_after=str(seconds))

    def cut(self, count: int) -> None:
        self._faults.extend(Fault("cut") for _n in range(count))

    def fault_next(self) -> Fault | None:
        with self.lock:
            return self._faults.popleft() if self._faults else None

    # --- what a test makes happen --------------------------------------------------------------------------------

    def job_add(self, owner: str = "user@lab.example", **fields: Any) -> int:
        """A WAITING job; ``fields`` replace parts of its row."""
        with self.lock:
            number = len(self.jobs) + 1
            row: dict[str, Any] = {
                "id": number,
                "name": "job",
                "state": "WAITING",
                "owner": owner,
                "project": owner.split("@")[0],
                "argv": ["true"],
                "workdir": "",
                "env": {},
                "gpu_count": 1,
                "gpu_mem_mib": None,
                "nodes": 1,
                "constraints": {},
                "cpu_milli": None,
                "host_mem_mib": None,
                "exclusive": False,
                "time_limit_s": None,
                "grace_s": None,
                "priority": 0,
                "queue": "",
                "qos": "",
                "requeue": True,
                "requeues": 0,
                "on_node_loss": "hold",
                "checkpoint": "",
                "held": False,
                "held_why": "",
                "want_cancel": False,
                "kind": "batch",
                "wait": {"code": "not_planned", "params": {}, "text": "The next pass looks at it.", "position": 1, "checked_at": _now()},
                "end": None,
                "submitted_at": _now(),
                "queued_at": _now(),
                "started_at": None,
                "ended_at": None,
            }
            row |= fields
            self.jobs[number] = FakeJob(row, owner)
            self._event(number, "submitted", "", row["state"])
            return number

    def _event(self, number: int, code: str, old: str, new: str) -> None:
        job = self.jobs[number]
        epoch = job.attempts[-1].epoch if job.attempts else 0
        event = {"id": len(job.events) + 1, "at": _now(), "code": code, "params": {}, "text": code, "from_state": old, "to_state": new}
        job.events.append(event | {"epoch": epoch, "by": job.owner if code in {"submitted", "cancelled"} else None})

    def _move(self, number: int, state: str, code: str) -> FakeJob:
        job = self.jobs[number]
        old, job.row["state"] = job.row["state"], state
        if state != "WAITING":
            job.row["wait"] = None
        self._event(number, code, old, state)
        return job

    def job_start(self, number: int) -> None:
        with self.lock:
            job = self._move(number, "RUNNING", "started")
            job.attempts.append(FakeAttempt(len(job.attempts) + 1, started_at=_now()))
            job.row["started_at"] = _now()

    def job_requeue(self, number: int) -> None:
        """The attempt ends with its log complete; the job waits again."""
        with self.lock:
            self.attempt_end(number)
            job = self._move(number, "WAITING", "requeued")
            job.row |= {"requeues": job.row["requeues"] + 1, "started_at": None}
            job.row["wait"] = {"code": "requeued", "params": {}, "text": "Its node was lost.", "position": 1, "checked_at": _now()}

    def attempt_end(self, number: int) -> None:
        attempt = self.jobs[number].attempts[-1]
        attempt.is_complete, attempt.ended_at = True, _now()

    def job_finish(
        self, number: int, state: str = "SUCCEEDED", *, exit_code: int | None = 0, text: str = "", log_complete: bool = True
    ) -> None:
        with self.lock:
            job = self._move(number, state, state.lower())
            reason = {"SUCCEEDED": "completed", "CANCELLED": "cancelled"}.get(state, "nonzero_exit")
            job.row |= {"end": {"reason": reason, "params": {}, "text": text or reason, "exit_code": exit_code}, "ended_at": _now()}
            if job.attempts and log_complete:
                self.attempt_end(number)

    def log_write(self, number: int, data: bytes, *, rank: int = 0) -> None:
        with self.lock:
            self.jobs[number].attempts[-1].logs.setdefault(rank, bytearray()).extend(data)

    def artifact_add(self, number: int, name: str, data: bytes, *, rank: int = 0) -> None:
        with self.lock:
            self.jobs[number].attempts[-1].artifacts[(rank, name)] = data

    def node_add(self, name: str, *models: str, total_mib: int | None = CARD_MIB, busy: int = 0, **fields: Any) -> None:
        """A READY node with these cards, the first ``busy`` of them held whole."""
        gpus = []
        for index, model in enumerate(models):
            is_busy = index < busy
            gpus.append(
                {
                    "uuid": f"GPU-{len(self.nodes):04d}{index:04d}-0000-0000-0000-000000000000",
                    "short": f"GPU-{len(self.nodes):04d}{index:04d}",
                    "node": name,
                    "index": index,
                    "model": model,
                    "vendor": "nvidia",
                    "state": "HEALTHY",
                    "state_reason": "",
                    "total_mib": total_mib,
                    "nominal_mib": total_mib,
                    "held_mib": (total_mib or 0) if is_busy else 0,
                    "free_mib": None if total_mib is None else 0 if is_busy else total_mib,
                    "live_slices": int(is_busy),
                    "exclusive": is_busy,
                    "simulated": bool(fields.get("simulated")),
                    "compute_capability": "8.9",
                    "pci_bus_id": f"0000:{index:02x}:00.0",
                    "used_mib": None,
                    "util_pct": None,
                    "mem_util_pct": None,
                    "temp_c": None,
                    "power_w": None,
                    "foreign_mib": None,
                    "nvlink": False,
                    "slices": [],
                    "sampled_at": None,
                    "stale": False,
                    "is_idle": not is_busy,
                }
            )
        node: dict[str, Any] = {
            "name": name,
            "state": "READY",
            "state_at": _now(),
            "cordoned": False,
            "cordon_reason": "",
            "cordoned_until": None,
            "simulated": False,
            "hostname": name,
            "address": "10.0.0.1",
            "os": "Debian 12",
            "agent_version": "0.1.0",
            "driver_version": "550.54",
            "cuda_version": "12.4",
            "cpu_cores": 16,
            "memory_mib": 65_536,
            "labels": {},
            "last_seen_at": _now(),
            "advice": [],
            "load_pct": 0,
            "gpus": gpus,
        }
        self.nodes.append(node | fields)

    # --- what the API answers ----------------------------------------------------------------------------------------

    def incident_add(self, node: str, gpu: int = 0, **fields: Any) -> int:
        """A fault of a card, as one that is being looked into; its number."""
        number = len(self.incidents) + 1
        self.incidents.insert(
            0,
            {
                "id": number, "node": node, "gpu": gpu, "uuid": f"GPU-{node}-{gpu}", "kind": "loss", "phase": "DIAGNOSING", "code": "xid",
                "text": "The driver reported XID 79. (GPU has fallen off the bus)", "drill": False, "opened_at": _now(),
                "recovered_at": None, "recovered_s": None, "closed_at": None, "review": "", "timeline": [],
                "evidence": {"power": [], "kernel": []}, **fields,
            },
        )  # fmt: skip
        return number

    def alert_add(self, text: str = "node01 gpu0 is at 87 °C.", **fields: Any) -> int:
        """An open warning; its number."""
        number = len(self.alerts) + 1
        row = {"id": number, "rule": "hot", "metric": "temp_c", "state": "OPEN", "level": "warning", "title": "Hot", "text": text}
        row |= {"node": "node01", "gpu": 0, "jobs": [], "opened_at": _now(), "muted": False, "note": "", "acked_by": None, **fields}
        self.alerts.insert(0, row)
        return number

    def job_json(self, job: FakeJob, *, is_detail: bool) -> dict[str, Any]:
        attempt = job.attempts[-1] if job.attempts else None
        shown: dict[str, Any] | None = None
        if attempt is not None:
            shown = {"epoch": attempt.epoch, "started_at": attempt.started_at, "ended_at": attempt.ended_at}
            ranks = [self._rank_json(job, attempt, index) for index in sorted(attempt.logs)]
            shown["nodes"] = [rank["node"] for rank in ranks]
            if is_detail:
                shown["ranks"] = ranks
        row = job.row if is_detail else {key: value for key, value in job.row.items() if key not in ("argv", "env")}
        return row | {"attempt": shown}

    def _rank_json(self, job: FakeJob, attempt: FakeAttempt, index: int) -> dict[str, Any]:
        is_over = attempt.ended_at is not None
        end = job.row["end"] or {}
        return {
            "index": index,
            "node": self.nodes[0]["name"] if self.nodes else "node01",
            "desired": "FORGET" if is_over else "RUN",
            "observed": "EXITED" if is_over else "RUNNING",
            "exit_code": end.get("exit_code") if is_over else None,
            "exit_signal": None,
            "log_bytes": len(attempt.logs[index]),
            "gpus": [],
        }

    def job_cancel(self, job: FakeJob) -> None:
        job.row["want_cancel"] = True
        if job.row["state"] == "WAITING":
            self.job_finish(job.row["id"], "CANCELLED", exit_code=None)
        elif job.row["state"] not in FINAL:
            self._move(job.row["id"], "STOPPING", "cancelled")

    def nodes_json(self) -> list[dict[str, Any]]:
        """The nodes as they are now: what their cards are used for follows from both states."""
        for node in self.nodes:
            takes_work = node["state"] == "READY" and not node["cordoned"]
            for gpu in node["gpus"]:
                is_busy = gpu["live_slices"] > 0
                gpu["use"] = "maintenance" if not takes_work or gpu["state"] != "HEALTHY" else "busy" if is_busy else "idle"
        return self.nodes

    def usage_json(self) -> dict[str, Any]:
        gpus = [gpu for node in self.nodes_json() for gpu in node["gpus"]]
        uses = [gpu["use"] for gpu in gpus]
        states = [job.row["state"] for job in self.jobs.values()]
        return {
            "nodes": {"total": len(self.nodes), "ready": sum(n["state"] == "READY" for n in self.nodes)},
            "gpus": {"total": len(gpus), **{part: uses.count(part) for part in ("idle", "busy", "maintenance")}},
            "vram": {
                "total_mib": sum(g["total_mib"] or 0 for g in gpus),
                "free_mib": sum(g["free_mib"] or 0 for g, part in zip(gpus, uses, strict=True) if part != "maintenance"),
            },
            "jobs": {"waiting": states.count("WAITING"), "running": states.count("RUNNING")},
            "mine": self.quota,
            "simulated": any(node["simulated"] for node in self.nodes),
            "notices": self.notices,
        }

    def token_json(self) -> dict[str, Any]:
        expires = (datetime.now(UTC) + timedelta(days=365)).isoformat().replace("+00:00", "Z")
        return {"token": self.token, "prefix": self.token[:12], "expires_at": expires}
