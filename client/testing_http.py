"""FakeApi's HTTP side: routes, sign-in, the error shape, and faults."""

from __future__ import annotations

import codecs
import json
import re
import shlex
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from client.shapes import FINAL
from client.testing import FakeApi, FakeAttempt, FakeJob, Seen, _now

_WHAT = ("name", "argv", "command", "workdir", "env", "project", "checkpoint")
_NEEDS = ("gpu_count", "gpu_mem", "gpu_mem_mib", "nodes", "constraints", "time", "time_limit_s", "grace_s")
_HOST = ("exclusive", "cpus", "cpu_milli", "host_mem", "host_mem_mib")
_HOW = ("requeue", "on_node_loss", "priority", "hold", "queue", "qos")
SUBMIT_FIELDS = frozenset((*_WHAT, *_NEEDS, *_HOST, *_HOW))
MAX_PAGE = 200
LOG_LIMIT = 262_144


class Refusal(Exception):
    """An answer in the error shape."""

    def __init__(self, status: int, code: str, message: str, fields: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"code": code, "message": message, "fields": fields or {}}


def _size_mib(text: str) -> int:
    if re.fullmatch(r"0?\.\d{1,6}|1\.0+", text):  # a share of a GPU, as if all were sold with 24 GiB
        return int(float(text) * 24_576)
    match = re.fullmatch(r"(\d+)([GM])", text)
    if match is None:
        raise Refusal(400, "invalid", f"gpu_mem: {text!r} is not a size; write it like 24G.", {"gpu_mem": ["not a size"]})
    return int(match[1]) * (1024 if match[2] == "G" else 1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: the second would wait 40 ms for the client's ACK

    @property
    def api(self) -> FakeApi:
        return self.server.api  # type: ignore[attr-defined,no-any-return]

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PATCH(self) -> None:
        self._handle("PATCH")

    def do_DELETE(self) -> None:
        self._handle("DELETE")

    # --- one request ---------------------------------------------------------------------------------------------

    def _handle(self, method: str) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.api.seen.append(Seen(method, self.path, {k.lower(): v for k, v in self.headers.items()}, raw))
        fault = self.api.fault_next()
        if fault is not None and fault.kind == "status":
            body: dict[str, Any] = {"code": "throttled" if fault.status == 429 else "away", "message": "Not now.", "fields": {}}
            self._send(fault.status, body, {"Retry-After": fault.retry_after} if fault.retry_after else {})
            return
        try:
            with self.api.lock:
                status, answer = self._route(method, raw)
        except Refusal as refusal:
            status, answer = refusal.status, refusal.body
        if fault is not None:  # "cut": carried out, but nobody hears of it
            self.close_connection = True
            return
        self._send(status, answer, {})

    def _send(self, status: int, answer: Any, headers: dict[str, str]) -> None:
        body = bytes(answer) if isinstance(answer, bytes | bytearray) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream" if isinstance(answer, bytes | bytearray) else "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _user(self) -> dict[str, Any]:
        scheme, _space, token = (self.headers.get("Authorization") or "").partition(" ")
        user = self.api.users.get(token) if scheme == "Bearer" else None
        if user is None:
            raise Refusal(401, "not_authenticated", "Sign in first: the token is missing, wrong or has expired.")
        return user

    def _route(self, method: str, raw: bytes) -> tuple[int, Any]:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if (method, parts.path) == ("GET", "/healthz"):
            return 200, {"status": "ok", "database": "ok", "redis": "ok"}
        if (method, parts.path) == ("GET", "/install.json"):
            return 200, {"endpoint": "https://grid.lab:8443", "ca_sha256": "c" * 64, "install_sha256": "a" * 64}
        if not parts.path.startswith("/api/v1/"):
            raise Refusal(404, "not_found", "There is nothing at this address.")
        path = parts.path.removeprefix("/api/v1/")
        try:
            body: dict[str, Any] = json.loads(raw) if raw else {}
        except ValueError as error:
            raise Refusal(400, "not_json", "The body is not valid JSON.") from error
        if (method, path) == ("POST", "token"):
            return self._token(body)
        user = self._user()
        match path.split("/"), method:
            case ["me"], "GET":
                return 200, {"id": 1, **user, "language": "en", "zone": "UTC", "projects": [{"name": "lab"}], "quota": self.api.quota}
            case ["tokens", ""], "GET":
                prefix = (self.headers.get("Authorization") or "").partition(" ")[2][:12]
                return 200, self._page([{"id": 7, "name": "cli", "prefix": prefix}], query)
            case ["tokens", "7"], "DELETE":
                self.api.users.pop((self.headers.get("Authorization") or "").partition(" ")[2])
                return 204, b""
            case ["jobs", ""], "GET":
                return 200, self._page(self._jobs(user, query), query)
            case ["jobs", "submit"], "POST":
                return self._submit(user, body, raw)
            case ["jobs", "estimate"], "POST":
                return self._estimate(body, query)
            case ["jobs", number, *rest], _:
                return self._job(user, self._find(user, number), rest, method, query, body)
            case ["nodes", ""], "GET":
                return 200, self._page(self.api.nodes_json(), query)
            case ["nodes", "enroll-token"], "POST":
                self._staff(user)
                return 201, {"token": "nge_secret", "expires_at": "2030-01-01T00:00:00Z", "name": body.get("name", "")}
            case ["nodes", name, *rest], _:
                return self._node(user, unquote(name), rest, method, body)
            case ["incidents", ""], "GET":
                return 200, self._page(self._incidents(query), query)
            case ["incidents", number, *rest], _:
                return self._incident(user, number, rest, method, body)
            case ["alerts", *rest], _:
                return self._alerts(user, rest, method, body, query)
            case ["gpus", ""], "GET":
                return 200, self._page([gpu for node in self.api.nodes_json() for gpu in node["gpus"]], query)
            case ["resources", "usage"], "GET":
                return 200, self.api.usage_json()
        raise Refusal(404, "not_found", "There is nothing at this address.")

    def _page(self, rows: list[Any], query: dict[str, str]) -> dict[str, Any]:
        number, size = int(query.get("page", 1)), min(int(query.get("page_size", 50)), MAX_PAGE)
        part = rows[(number - 1) * size : number * size]
        if not part and number > 1:
            raise Refusal(404, "not_found", "There is no such page.")
        # As behind a proxy: the host in these links is not one that a client should go to.
        following = f"http://internal:1/api?page={number + 1}" if number * size < len(rows) else None
        return {"count": len(rows), "next": following, "previous": None, "results": part}

    def _token(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.api.passwords.get(body.get("email", "")) != body.get("password"):
            raise Refusal(401, "bad_credentials", "E-mail address and password don't match.")
        return 201, self.api.token_json()

    def _staff(self, user: dict[str, Any]) -> None:
        if not user["is_staff"]:
            raise Refusal(403, "permission_denied", "You may not do this: it is for staff.")

    # --- jobs ------------------------------------------------------------------------------------------------------

    def _jobs(self, user: dict[str, Any], query: dict[str, str]) -> list[Any]:
        jobs = [job for job in self.api.jobs.values() if user["is_staff"] or job.owner == user["email"]]
        if query.get("owner") == "me":
            jobs = [job for job in jobs if job.owner == user["email"]]
        if states := query.get("state"):
            known = states.split(",")
            jobs = [job for job in jobs if job.row["state"] in known]
        if text := query.get("q"):
            jobs = [job for job in jobs if text in job.row["name"]]
        jobs.sort(key=lambda job: -int(job.row["id"]))
        return [self.api.job_json(job, is_detail=False) for job in jobs]

    def _find(self, user: dict[str, Any], number: str) -> FakeJob:
        job = self.api.jobs.get(int(number)) if number.isdigit() else None
        if job is None or not (user["is_staff"] or job.owner == user["email"]):
            raise Refusal(404, "not_found", f"There is no job {number} that you may see.")
        return job

    def _estimate(self, body: dict[str, Any], query: dict[str, str]) -> tuple[int, Any]:
        """What the test wrote into ``api.forecast`` and ``api.alternatives``: there is no scheduler here."""
        for name in body:
            if name not in SUBMIT_FIELDS:
                raise Refusal(400, "unknown_field", f"{name}: There is no such field.", {name: ["There is no such field."]})
        found = self.api.alternatives if self.api.forecast["verdict"] == "waits" else []
        if query.get("stream") != "1":
            return 200, {**self.api.forecast, "alternatives": found}
        lines = [{"type": "estimate", **self.api.forecast}, *({"type": "alternative", **one} for one in found)]
        return 200, _json_lines([*lines, {"type": "end", "count": len(found)}])

    def _submit(self, user: dict[str, Any], body: dict[str, Any], raw: bytes) -> tuple[int, Any]:
        for name in body:
            if name not in SUBMIT_FIELDS:
                raise Refusal(400, "unknown_field", f"{name}: There is no such field.", {name: ["There is no such field."]})
        if ("argv" in body) == ("command" in body):
            raise Refusal(400, "invalid", "argv: Give either argv or command.", {"argv": ["Give either argv or command."]})
        key = self.headers.get("Idempotency-Key")
        if key is not None and (user["email"], key) in self.api.keys:
            first_body, number = self.api.keys[(user["email"], key)]
            if first_body != raw:
                raise Refusal(409, "idempotency_conflict", "This Idempotency-Key belongs to another job.", {"job": number})
            return 200, self.api.job_json(self.api.jobs[number], is_detail=True)
        quota = self.api.quota
        if quota["gpu_hours"] is not None and quota["used_gpu_hours"] >= quota["gpu_hours"]:
            fields = {"used": quota["used_gpu_hours"], "limit": quota["gpu_hours"], "resets_at": quota["resets_at"]}
            raise Refusal(403, "quota_exceeded", f"You have used {fields['used']} of {fields['limit']} GPU hours.", fields)
        mib = body.get("gpu_mem_mib")
        if isinstance(body.get("gpu_mem"), str):
            mib = _size_mib(body["gpu_mem"])
        largest = max((g["nominal_mib"] or 0 for n in self.api.nodes for g in n["gpus"]), default=None)
        if mib is not None and largest is not None and mib > largest:
            raise Refusal(
                400, "never_fits", f"Needs {mib} MiB on one GPU; the largest has {largest} MiB.", {"mib": mib, "largest": largest}
            )
        argv = body["argv"] if "argv" in body else shlex.split(body["command"])
        aside = {"argv", "command", "gpu_mem", "gpu_mem_mib", "time", "hold", "cpus", "host_mem"}
        given = {k: v for k, v in body.items() if k not in aside}
        if "cpus" in body:
            given["cpu_milli"] = round(float(body["cpus"]) * 1000)
        if "host_mem" in body:
            given["host_mem_mib"] = _size_mib(body["host_mem"])
        number = self.api.job_add(user["email"], **given, argv=argv, gpu_mem_mib=mib, held=bool(body.get("hold")))
        if key is not None:
            self.api.keys[(user["email"], key)] = (raw, number)
        return 201, self.api.job_json(self.api.jobs[number], is_detail=True)

    def _job(
        self, user: dict[str, Any], job: FakeJob, rest: list[str], method: str, query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        state = job.row["state"]
        match rest, method:
            case [] | ["wait"], "GET":  # waits for nobody: it answers with the job as it is
                pass
            case ["cancel"], "POST":
                self.api.job_cancel(job)
            case ["hold" | "release" as verb], "POST":
                if state != "WAITING":
                    raise Refusal(
                        409, "invalid_state", f"Job {job.row['id']} is {state}; only a WAITING job can be held.", {"state": state}
                    )
                job.row |= {"held": verb == "hold", "held_why": body.get("why", "") if verb == "hold" else ""}
            case ["why"], "GET":
                reason = job.row["wait"] or job.row["end"] or {}
                why = {"code": reason.get("code") or reason.get("reason", ""), "params": {}, "text": reason.get("text", "")}
                position = reason.get("position")
                ahead = None if position is None else position - 1
                told = {"checked_at": reason.get("checked_at"), "ahead": ahead, "estimate": reason.get("estimate")}
                return 200, {"state": state, **why, "position": position, **told}
            case ["alternatives"], "GET":
                if state != "WAITING":
                    raise Refusal(409, "invalid_state", f"Job {job.row['id']} is {state}; it does not wait.", {"state": state})
                found = self.api.alternatives
                return 200, _json_lines([*({"type": "alternative", **one} for one in found), {"type": "end", "count": len(found)}])
            case ["events"], "GET":
                return 200, self._page(job.events, query)
            case ["logs"], "GET":
                return 200, self._log(job, query)
            case ["logs", "download"], "GET":
                attempt, rank = self._attempt(job, query)
                return 200, b"" if attempt is None else bytes(attempt.logs[rank])
            case ["artifacts"], "GET":
                rows = [
                    {"attempt": a.epoch, "rank": rank, "name": name, "size": len(data), "sha256": "", "created_at": _now()}
                    for a in reversed(job.attempts)
                    for (rank, name), data in sorted(a.artifacts.items())
                ]
                return 200, self._page(rows, query)
            case ["artifacts", rank_text, name], "GET":
                for attempt in reversed(job.attempts):
                    data = attempt.artifacts.get((int(rank_text), unquote(name)))
                    if data is not None and query.get("attempt") in {None, str(attempt.epoch)}:
                        return 200, data
                raise Refusal(404, "not_found", "The job left no file of this name.")
            case _:
                raise Refusal(404, "not_found", "There is nothing at this address.")
        return 200, self.api.job_json(job, is_detail=True)

    def _attempt(self, job: FakeJob, query: dict[str, str]) -> tuple[FakeAttempt | None, int]:
        epoch, rank = query.get("attempt"), int(query.get("rank", 0))
        if not job.attempts and epoch is None and rank == 0:
            return None, 0
        for attempt in reversed(job.attempts):
            if epoch in {None, str(attempt.epoch)} and rank in attempt.logs:
                return attempt, rank
        raise Refusal(404, "log_gone", "There is no such output.")

    def _log(self, job: FakeJob, query: dict[str, str]) -> dict[str, Any]:
        attempt, rank = self._attempt(job, query)
        if attempt is None:
            empty = {"offset": 0, "next_offset": 0, "length": 0, "is_complete": job.row["state"] in FINAL, "text": ""}
            return {"job": job.row["id"], "attempt": None, "rank": 0, **empty}
        log = attempt.logs[rank]
        offset, limit = min(int(query.get("offset", 0)), len(log)), int(query.get("limit", LOG_LIMIT))
        if "tail" in query:
            limit = int(query["tail"])
            offset = max(0, len(log) - limit)
            while offset > 0 and offset < len(log) and log[offset] & 0xC0 == 0x80:
                offset += 1
        data = bytes(log[offset : offset + limit])
        is_end = attempt.is_complete and offset + len(data) == len(log)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final=is_end)
        following = offset + len(data) - len(decoder.getstate()[0])
        where = {"offset": offset, "next_offset": following, "length": len(log), "is_complete": is_end}
        return {"job": job.row["id"], "attempt": attempt.epoch, "rank": rank, **where, "text": text}

    # --- alerts ----------------------------------------------------------------------------------------------------

    def _alerts(self, user: dict[str, Any], rest: list[str], method: str, body: dict[str, Any], query: dict[str, str]) -> tuple[int, Any]:
        match rest, method:
            case [""], "GET":
                state, wanted = query.get("state", "active"), [name for name in ("level", "node", "rule") if name in query]
                rows = [row for row in self.api.alerts if all(row[name] == query[name] for name in wanted)]
                is_over = {"active": ("OPEN", "ACKNOWLEDGED"), "all": ("OPEN", "ACKNOWLEDGED", "RESOLVED")}.get(state, (state.upper(),))
                return 200, self._page([row for row in rows if row["state"] in is_over], query)
            case [number], "GET":
                return 200, self._alert(number)
            case ["mutes", ""], "GET":
                self._staff(user)
                return 200, self._page(self.api.mutes, query)
            case ["mutes", ""], "POST":
                self._staff(user)
                text = " · ".join(str(body[name]) for name in ("rule", "node", "gpu") if name in body)
                until = "2030-01-01T10:00:00Z" if body.get("for_s") else None
                mute = {
                    "id": len(self.api.mutes) + 1,
                    "text": text,
                    "reason": body["reason"],
                    "until": until,
                    "by": user["email"],
                    "active": True,
                }
                self.api.mutes.insert(0, mute | {name: body.get(name) for name in ("rule", "node", "gpu", "for_s")})
                return 201, self.api.mutes[0]
            case ["mutes", number, "lift"], "POST":
                self._staff(user)
                found = next((mute for mute in self.api.mutes if str(mute["id"]) == number), None)
                if found is None:
                    raise Refusal(404, "not_found", f"There is no mute {number}.")
                found["active"] = False
                return 200, found
            case [number, ("acknowledge" | "reopen") as verb], "POST":
                self._staff(user)
                row = self._alert(number)
                if row["state"] == "RESOLVED":
                    raise Refusal(409, "alert_resolved", f"Alert {number} is resolved; there is nothing to acknowledge any more.")
                row |= {"state": "ACKNOWLEDGED" if verb == "acknowledge" else "OPEN", "note": body.get("note", "")}
                return 200, row
        raise Refusal(404, "not_found", "There is nothing at this address.")

    def _alert(self, number: str) -> dict[str, Any]:
        row = next((row for row in self.api.alerts if str(row["id"]) == number), None)
        if row is None:
            raise Refusal(404, "not_found", f"There is no alert {number}.")
        return row

    # --- incidents -------------------------------------------------------------------------------------------------

    def _incidents(self, query: dict[str, str]) -> list[Any]:
        phase, node = query.get("phase", ""), query.get("node")
        rows = [row for row in self.api.incidents if node in (None, row["node"])]
        if phase == "open":
            rows = [row for row in rows if row["phase"] != "CLOSED"]
        elif phase:
            rows = [row for row in rows if row["phase"] == phase.upper()]
        return [{k: v for k, v in row.items() if k not in ("timeline", "evidence")} for row in rows]

    def _incident(self, user: dict[str, Any], number: str, rest: list[str], method: str, body: dict[str, Any]) -> tuple[int, Any]:
        row = next((row for row in self.api.incidents if str(row["id"]) == number), None)
        if row is None:
            raise Refusal(404, "not_found", f"There is no incident {number}.")
        if rest:
            self._staff(user)
        match rest, method:
            case [], "GET":
                pass
            case ["notes"], "POST":
                line = {"at": row["opened_at"], "code": "note", "params": {}, "text": body["text"], "by": user["email"]}
                row["timeline"].append(line)
            case ["close"], "POST":
                if row["phase"] != "REVIEW":
                    raise Refusal(409, "incident_not_over", f"Incident {number} is not over.")
                row |= {"phase": "CLOSED", "closed_at": row["opened_at"], "review": body["text"]}
            case _:
                raise Refusal(404, "not_found", "There is nothing at this address.")
        return 200, row

    # --- nodes -----------------------------------------------------------------------------------------------------

    def _node(self, user: dict[str, Any], name: str, rest: list[str], method: str, body: dict[str, Any]) -> tuple[int, Any]:
        node = next((node for node in self.api.nodes if node["name"] == name), None)
        if node is None:
            raise Refusal(404, "not_found", f"There is no node {name}.")
        match rest, method:
            case [], "GET":
                return 200, node
            case [], "PATCH":
                self._staff(user)
                merged = {**node["labels"], **body["labels"]}
                node["labels"] = {key: value for key, value in sorted(merged.items()) if value is not None}
                return 200, node
            case ["drain"], "POST":
                self._staff(user)
                node |= {"cordoned": True, "cordon_reason": body["reason"], "cordoned_until": body.get("until")}
                return 200, node
            case ["resume"], "POST":
                self._staff(user)
                node |= {"cordoned": False, "cordon_reason": "", "cordoned_until": None}
                return 200, node
        raise Refusal(404, "not_found", "There is nothing at this address.")


def _json_lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
