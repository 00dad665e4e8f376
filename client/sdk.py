"""NebulaClient: the control plane's REST API, typed, with safe retries.

    from client.sdk import NebulaClient

    with NebulaClient("https://nebula.lab.example", token) as nebula:
        job = nebula.job_submit(argv=["python", "train.py"], gpu_count=1, gpu_mem="12G")
        for text in nebula.follow_logs(job["id"]):
            print(text, end="")

Every method answers with the API's JSON (client.shapes) and raises NebulaError: ``code``, ``message``, ``fields``,
``status``. Reads, submits and the repeatable writes are tried again when the connection breaks or the control plane is
away (502, 503, 504); a submit always carries an Idempotency-Key, so a repeat never makes a second job. A 429 is waited
out as Retry-After asks, for every method: it was not carried out.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, cast
from urllib.parse import quote, urlencode

from client import follow, shapes
from client.encoding import body_encode
from client.errors import NebulaError, Unreachable
from client.i18n import _, http_language
from client.quota_calls import QuotaCalls
from client.retry import AWAY, RetryPolicy, retry_after_s
from client.sdk_apply import ApplyCalls
from client.sdk_people import PeopleCalls
from client.sdk_secrets import SecretCalls
from client.transport import ConnectionFailed, HttpxTransport, Stream, Transport, endpoint_parse

API = "/api/v1"
PAGE_SIZE = 200
#: Called before each wait with the seconds to come and the reason in words.
OnRetry = Callable[[float, str], None]


class NebulaClient(ApplyCalls, SecretCalls, PeopleCalls, QuotaCalls):
    """One control plane, one token. Safe for several threads with the default transport (httpx)."""

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        *,
        timeout_s: float = 30,
        ca_file: str | None = None,
        transport: Transport | None = None,
        retry: RetryPolicy | None = None,
        on_retry: OnRetry | None = None,
        language: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``token`` None is for ``token_create`` and ``healthz`` alone. Raises NebulaError (bad_endpoint, insecure_endpoint:
        plain http is for loopback only, D35; bad_token; bad_ca_file)."""
        place = endpoint_parse(endpoint)
        self.endpoint = place.url
        if token is not None and (not token or not token.isascii() or any(not "!" <= c <= "~" for c in token)):
            raise NebulaError("bad_token", _("That is not a token: a token has letters, digits and signs, without spaces or line breaks."))
        self._token = token
        self._transport = transport or HttpxTransport(place, timeout_s=timeout_s, ca_file=ca_file)
        self._retry = retry or RetryPolicy()
        self._on_retry = on_retry or (lambda seconds, why: None)
        self._language = language or http_language()
        self.sleep = sleep
        self.clock = clock

    def __repr__(self) -> str:  # never the token
        return f"NebulaClient({self.endpoint!r})"

    def __enter__(self) -> NebulaClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    # --- sign-in ---------------------------------------------------------------------------------------------------

    def token_create(self, *, email: str, password: str, name: str | None = None) -> shapes.Token:
        """A new API token for this e-mail and password (five tries a minute and address, D17)."""
        body = {"email": email, "password": password} | ({"name": name} if name else {})
        return cast(shapes.Token, self._call("POST", "/token", body=body, is_anonymous=True))

    def token_revoke(self) -> bool:
        """Revoke the token that this client uses; False when the control plane does not list it (it is gone already)."""
        for row in self._pages("/tokens/", {}):
            if self._token is not None and row["prefix"] and self._token.startswith(row["prefix"]):
                self._call("DELETE", f"/tokens/{int(row['id'])}")
                return True
        return False

    def me(self) -> shapes.Me:
        """Who the token belongs to, with quota."""
        return cast(shapes.Me, self._call("GET", "/me"))

    # --- jobs ------------------------------------------------------------------------------------------------------

    def job_submit(
        self,
        *,
        argv: Sequence[str] | None = None,
        command: str | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> shapes.Job:
        """Submit a job; exactly one of ``argv`` and ``command`` (split into words, never run by a shell).

        ``fields``: name, gpu_count (for the whole job), gpu_mem ("24G") or gpu_mem_mib (a card; none = whole cards), nodes,
        workdir, env, secrets ["NAME", "NAME=VARIABLE"], time ("01:00:00", "90m", seconds) or time_limit_s, project, checkpoint,
        requeue, on_node_loss ("hold", "requeue"), grace_s, idle_after_s, priority, hold, exclusive, queue, qos, cpus (8, "0.5") and
        host_mem ("64G") on each node, constraints {arch, model ("A100|H100"), vendor, cuda_min, driver_min, labels {name: value}}.
        None = the server's default.

        Raises NebulaError: bad_idempotency_key, never_fits, quota_exceeded, idempotency_conflict, or 400 that names the field.
        """
        body = _body(argv, command, fields)
        key = idempotency_key or uuid.uuid4().hex
        if not (len(key) <= 200 and key.isascii() and key.isprintable() and " " not in key):
            raise NebulaError("bad_idempotency_key", _("An idempotency key has 1 to 200 visible ASCII characters."))
        return cast(shapes.Job, self._call("POST", "/jobs/submit", body=body, headers={"Idempotency-Key": key}, is_repeatable=True))

    def job_estimate(self, *, argv: Sequence[str] | None = None, command: str | None = None, **fields: Any) -> shapes.Forecast:
        """When a job would start, and what would start sooner; ``job_submit``'s fields. Submits nothing."""
        body = _body(argv, command, fields)
        return cast(shapes.Forecast, self._call("POST", "/jobs/estimate", body=body, is_repeatable=True))

    def job_estimate_live(
        self, *, argv: Sequence[str] | None = None, command: str | None = None, **fields: Any
    ) -> Iterator[dict[str, Any]]:
        """The same as it becomes known: first the estimate, then each alternative."""
        return self._lines("/jobs/estimate", {"stream": 1}, method="POST", body=_body(argv, command, fields))

    def job_alternatives(self, job_id: int) -> Iterator[shapes.Alternative]:
        """What would start sooner than this waiting job, each as soon as it is found; cancel the job when you take one."""
        return cast("Iterator[shapes.Alternative]", self._lines(f"/jobs/{int(job_id)}/alternatives", {"stream": 1}))

    def job_list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        owner: str | None = None,
        project: str | None = None,
        q: str | None = None,
        ordering: str | None = None,
        page: int = 1,
        page_size: int = 50,
    ) -> shapes.Page:
        """One page of jobs, newest first. ``owner``: "me" or "all" (staff)."""
        states = state if state is None or isinstance(state, str) else ",".join(state)
        params = {"state": states, "owner": owner, "project": project, "q": q, "ordering": ordering, "page": page, "page_size": page_size}
        return cast(shapes.Page, self._call("GET", "/jobs/", params=params))

    def jobs(self, **filters: Any) -> Iterator[shapes.JobRow]:
        """All jobs of ``job_list``'s filters, page after page; ``job_get`` has the command and the environment of one."""
        return cast("Iterator[shapes.JobRow]", self._pages("/jobs/", filters))

    def job_get(self, job_id: int) -> shapes.Job:
        return cast(shapes.Job, self._call("GET", f"/jobs/{int(job_id)}"))

    def job_cancel(self, job_id: int) -> shapes.Job:
        """Ask for the end of a job; repeating it changes nothing. A running job is stopped politely."""
        return cast(shapes.Job, self._call("POST", f"/jobs/{int(job_id)}/cancel", is_repeatable=True))

    def job_hold(self, job_id: int, *, why: str = "") -> shapes.Job:
        """Keep a waiting job from starting."""
        return cast(shapes.Job, self._call("POST", f"/jobs/{int(job_id)}/hold", body={"why": why} if why else {}, is_repeatable=True))

    def job_release(self, job_id: int) -> shapes.Job:
        """End a hold."""
        return cast(shapes.Job, self._call("POST", f"/jobs/{int(job_id)}/release", is_repeatable=True))

    def job_why(self, job_id: int) -> shapes.Why:
        """Why the job waits, or how it ended."""
        return cast(shapes.Why, self._call("GET", f"/jobs/{int(job_id)}/why"))

    def job_events(self, job_id: int) -> Iterator[shapes.Event]:
        """All that happened to the job, in order."""
        return cast("Iterator[shapes.Event]", self._pages(f"/jobs/{int(job_id)}/events", {}))

    def job_logs(
        self,
        job_id: int,
        *,
        attempt: int | None = None,
        rank: int = 0,
        offset: int | None = None,
        limit: int | None = None,
        tail: int | None = None,
    ) -> shapes.LogChunk:
        """A piece of a rank's output: from byte ``offset``, or its last ``tail`` bytes. ``attempt`` None = the latest."""
        params = {"attempt": attempt, "rank": rank, "offset": offset, "limit": limit, "tail": tail}
        return cast(shapes.LogChunk, self._call("GET", f"/jobs/{int(job_id)}/logs", params=params))

    def job_log_download(self, job_id: int, *, attempt: int | None = None, rank: int = 0) -> Iterator[bytes]:
        """A rank's whole output so far, byte for byte."""
        return self._bytes(f"/jobs/{int(job_id)}/logs/download", {"attempt": attempt, "rank": rank})

    def job_artifacts(self, job_id: int) -> list[shapes.Artifact]:
        """The files that the job left in $NEBULA_ARTIFACTS."""
        return cast("list[shapes.Artifact]", list(self._pages(f"/jobs/{int(job_id)}/artifacts", {})))

    def job_artifact_download(self, job_id: int, *, rank: int, name: str, attempt: int | None = None) -> Iterator[bytes]:
        """``attempt`` None = the latest that left it."""
        return self._bytes(f"/jobs/{int(job_id)}/artifacts/{int(rank)}/{quote(name, safe='')}", {"attempt": attempt})

    def wait(
        self, job_id: int, timeout_s: float | None = None, *, patience_s: float = 600, on_change: Callable[[shapes.Job], None] | None = None
    ) -> shapes.Job:
        """Until the job is final; answers with it. Raises WaitTimeout after ``timeout_s`` (the job goes on) and Unreachable
        when the control plane stays away for ``patience_s``."""
        return follow.job_wait(self, job_id, timeout_s=timeout_s, patience_s=patience_s, on_change=on_change)

    def follow_logs(
        self,
        job_id: int,
        *,
        rank: int = 0,
        attempt: int | None = None,
        offset: int = 0,
        patience_s: float = 600,
        on_notice: Callable[[str], None] | None = None,
    ) -> Iterator[str]:
        """A rank's output as it grows: no byte left out, none twice, until the log is complete and the job final.

        Outlives restarts of the control plane (up to ``patience_s`` away). After a requeue it goes on with the next attempt, unless
        ``attempt`` names one. ``on_notice`` hears of such turns. Raises NebulaError (log_gap, Unreachable, …).
        """
        chunks = follow.log_chunks(self, job_id, rank=rank, attempt=attempt, offset=offset, patience_s=patience_s, on_notice=on_notice)
        return (chunk["text"] for chunk in chunks)

    # --- nodes and GPUs --------------------------------------------------------------------------------------------

    def node_list(self) -> list[shapes.Node]:
        return cast("list[shapes.Node]", list(self._pages("/nodes/", {})))

    def node_get(self, name: str) -> shapes.Node:
        return cast(shapes.Node, self._call("GET", f"/nodes/{quote(name, safe='')}"))

    def node_drain(self, name: str, *, reason: str, until: str | None = None) -> shapes.Node:
        """No new work for this node; what runs there goes on. ``until``: ISO 8601. Staff."""
        body = {"reason": reason} | ({"until": until} if until else {})
        return cast(shapes.Node, self._call("POST", f"/nodes/{quote(name, safe='')}/drain", body=body, is_repeatable=True))

    def node_resume(self, name: str) -> shapes.Node:
        """The node takes work again. Staff."""
        return cast(shapes.Node, self._call("POST", f"/nodes/{quote(name, safe='')}/resume", is_repeatable=True))

    def node_label(self, name: str, labels: Mapping[str, str | None]) -> shapes.Node:
        """Give the node these labels, which jobs may ask for; None takes one away, others stay. Staff."""
        body = {"labels": dict(labels)}
        return cast(shapes.Node, self._call("PATCH", f"/nodes/{quote(name, safe='')}", body=body, is_repeatable=True))

    def node_enroll_token(self, *, name: str = "") -> shapes.EnrollToken:
        """A token with which one machine may join once, within the hour. Staff."""
        return cast(shapes.EnrollToken, self._call("POST", "/nodes/enroll-token", body={"name": name} if name else {}))

    def node_command(self, name: str, *, verb: str, args: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask the node's agent for something (diagnose, selftest, …); read its answer with ``node_command_get``. Staff."""
        body = {"verb": verb} | ({"args": dict(args)} if args else {})
        return cast("dict[str, Any]", self._call("POST", f"/nodes/{quote(name, safe='')}/commands", body=body))

    def node_command_get(self, name: str, command_id: int) -> dict[str, Any]:
        return cast("dict[str, Any]", self._call("GET", f"/nodes/{quote(name, safe='')}/commands/{int(command_id)}"))

    def gpu_list(self) -> list[shapes.Gpu]:
        return cast("list[shapes.Gpu]", list(self._pages("/gpus/", {})))

    def gpu_health(self, uuid: str) -> dict[str, Any]:
        """State with its reason, score, last self-test, open incident and the last events of a card."""
        return cast("dict[str, Any]", self._call("GET", f"/gpus/{quote(uuid, safe='')}/health"))

    def gpu_act(self, uuid: str, *, action: str, reason: str, checked: bool = False) -> dict[str, Any]:
        """isolate, maintain, selftest, reset or return a card. Staff."""
        body: dict[str, Any] = {"action": action, "reason": reason} | ({"checked": True} if checked else {})
        return cast("dict[str, Any]", self._call("POST", f"/gpus/{quote(uuid, safe='')}/act", body=body))

    def node_drill(self, name: str, *, fault: str, gpu: int = 0, test: str | None = None) -> dict[str, Any]:
        """Throw a fault (xid79, gone) at a card of a simulated node. Staff."""
        body: dict[str, Any] = {"fault": fault, "gpu": gpu} | ({"test": test} if test else {})
        return cast("dict[str, Any]", self._call("POST", f"/nodes/{quote(name, safe='')}/drill", body=body))

    def incident_list(self, *, phase: str | None = None, node: str | None = None) -> list[dict[str, Any]]:
        """``phase``: open, or one of the phases; None = all."""
        filters = {name: value for name, value in (("phase", phase), ("node", node)) if value}
        return cast("list[dict[str, Any]]", list(self._pages("/incidents/", filters)))

    def incident_get(self, incident: int) -> dict[str, Any]:
        """With its timeline and evidence."""
        return cast("dict[str, Any]", self._call("GET", f"/incidents/{int(incident)}"))

    def incident_note(self, incident: int, *, text: str) -> dict[str, Any]:
        """Staff."""
        return cast("dict[str, Any]", self._call("POST", f"/incidents/{int(incident)}/notes", body={"text": text}))

    def incident_close(self, incident: int, *, text: str) -> dict[str, Any]:
        """With its review; its card must be back in service. Staff."""
        return cast("dict[str, Any]", self._call("POST", f"/incidents/{int(incident)}/close", body={"text": text}))

    def alert_list(
        self, *, state: str | None = None, level: str | None = None, node: str | None = None, rule: str | None = None
    ) -> list[dict[str, Any]]:
        """Open ones first. ``state``: active (the default), open, acknowledged, resolved, all."""
        filters = {k: v for k, v in (("state", state), ("level", level), ("node", node), ("rule", rule)) if v}
        return cast("list[dict[str, Any]]", list(self._pages("/alerts/", filters)))

    def alert_get(self, alert: int) -> dict[str, Any]:
        return cast("dict[str, Any]", self._call("GET", f"/alerts/{int(alert)}"))

    def alert_acknowledge(self, alert: int, *, note: str = "") -> dict[str, Any]:
        """Somebody looks after it. Staff."""
        body = {"note": note} if note else {}
        return cast("dict[str, Any]", self._call("POST", f"/alerts/{int(alert)}/acknowledge", body=body, is_repeatable=True))

    def alert_reopen(self, alert: int) -> dict[str, Any]:
        """Take an acknowledgement back. Staff."""
        return cast("dict[str, Any]", self._call("POST", f"/alerts/{int(alert)}/reopen", is_repeatable=True))

    def alert_mute(
        self, *, reason: str, rule: str | None = None, node: str | None = None, gpu: str | None = None, for_s: int | None = None
    ) -> dict[str, Any]:
        """Nobody is told of what it names (``gpu``: UUID), for so long; None = until it is lifted. Staff."""
        wanted = {"rule": rule, "node": node, "gpu": gpu, "for_s": for_s}
        body = {"reason": reason} | {name: value for name, value in wanted.items() if value is not None}
        return cast("dict[str, Any]", self._call("POST", "/alerts/mutes/", body=body))

    def alert_mute_list(self) -> list[dict[str, Any]]:
        """The latest first; ``active`` tells those that hold. Staff."""
        return cast("list[dict[str, Any]]", list(self._pages("/alerts/mutes/", {})))

    def alert_unmute(self, mute: int) -> dict[str, Any]:
        """Staff."""
        return cast("dict[str, Any]", self._call("POST", f"/alerts/mutes/{int(mute)}/lift", is_repeatable=True))

    def usage(self) -> shapes.Usage:
        """The pool in numbers, and what of it is mine."""
        return cast(shapes.Usage, self._call("GET", "/resources/usage"))

    def join_facts(self) -> shapes.JoinFacts:
        """Where a new machine joins, and the hashes of the control plane's own CA and of its installer."""
        return cast(shapes.JoinFacts, self._call("GET", "/install.json", is_anonymous=True, base=""))

    def healthz(self) -> dict[str, Any]:
        """Whether the control plane and its database answer. Raises Unreachable when they don't."""
        return cast("dict[str, Any]", self._call("GET", "/healthz", is_anonymous=True, base=""))

    # --- the one way out -------------------------------------------------------------------------------------------

    def _pages(self, path: str, filters: Mapping[str, Any]) -> Iterator[Any]:
        """Items of a paginated answer, or of a plain list. Goes by page number, never by the answer's own links."""
        page = 1
        while True:
            answer = self._call("GET", path, params={**filters, "page": page, "page_size": PAGE_SIZE})
            if isinstance(answer, list):
                yield from answer
                return
            yield from answer["results"]
            if not answer.get("next"):
                return
            page += 1

    def _headers(self, *, is_anonymous: bool, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            "Accept-Language": self._language,
            "User-Agent": "nebulagrid-client",
            "Time-Zone": _offset(),
        }
        if not is_anonymous and self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers | dict(extra or {})

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        is_repeatable: bool = False,
        is_anonymous: bool = False,
        base: str = API,
    ) -> Any:
        """One call with its retries; the body is serialised once, so that repeats are the same bytes."""
        sent = self._headers(is_anonymous=is_anonymous, extra=headers)
        content: bytes | None = None
        if method in {"POST", "PUT", "PATCH"}:
            content = body_encode(body or {})
            sent["Content-Type"] = "application/json"
        target = base + path + _query(params)

        def attempt() -> Any:
            answer = self._transport.request(method=method, path=target, headers=sent, body=content)
            return _decode(answer.status, answer.headers, answer.body)

        return self._with_retries(attempt, is_repeatable=is_repeatable or method == "GET")

    def _with_retries(self, attempt: Callable[[], Any], *, is_repeatable: bool) -> Any:
        waited_s, failures = 0.0, 0
        problem: NebulaError
        while True:
            try:
                return attempt()
            except ConnectionFailed as error:
                failures += 1
                problem = Unreachable("unreachable", str(error))
                problem.__cause__ = error
                may_repeat = is_repeatable and not error.is_final and failures < self._retry.tries
                delay_s = self._retry.delay_s(failures, random.random())
            except _Answered as answered:
                failures += 1
                problem = answered.error
                asked_s = retry_after_s(answered.retry_after, time.time())
                delay_s = self._retry.delay_s(failures, random.random()) if asked_s is None else asked_s
                if problem.status == HTTPStatus.TOO_MANY_REQUESTS:
                    may_repeat = True  # refused before anything was done; bounded by max_wait_s
                    problem.fields.setdefault("retry_after_s", delay_s)
                else:
                    may_repeat = is_repeatable and problem.status in AWAY and failures < self._retry.tries
            # A wait of 0 s would let a broken server turn this into a busy loop.
            delay_s = max(delay_s, 0.05)
            if not may_repeat or waited_s + delay_s > self._retry.max_wait_s:
                raise problem
            self._on_retry(delay_s, problem.message)
            self.sleep(delay_s)
            waited_s += delay_s

    def _lines(
        self, path: str, params: Mapping[str, Any], *, method: str = "GET", body: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """JSON lines without their ``type``, up to the one of type end. Raises what a line of type error says."""
        rest = b""
        for chunk in self._bytes(path, params, method=method, body=body):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                found: dict[str, Any] = json.loads(line)
                kind = found.pop("type", "")
                if kind == "error":
                    raise NebulaError(found["code"], found["message"])
                if kind == "end":
                    return
                yield found
        raise Unreachable("unreachable", _("The connection broke before the answer was complete."))

    def _bytes(
        self, path: str, params: Mapping[str, Any], *, method: str = "GET", body: Mapping[str, Any] | None = None
    ) -> Iterator[bytes]:
        """A streamed body. Retried until its first byte only: later a repeat would give bytes twice."""
        target = API + path + _query(params)
        headers = self._headers(is_anonymous=False, extra=None if body is None else {"Content-Type": "application/json"})
        content = None if body is None else body_encode(body)

        @contextmanager
        def opened() -> Iterator[Stream]:
            with self._transport.stream(path=target, headers=headers, method=method, body=content) as stream:
                if stream.status != HTTPStatus.OK:
                    _decode(stream.status, stream.headers, b"".join(stream.chunks))
                    raise NebulaError("bad_answer", _("The control plane answered with status {status}.").format(status=stream.status))
                yield stream

        def start() -> tuple[Any, Stream]:
            manager = opened()
            return manager, manager.__enter__()

        manager, stream = self._with_retries(start, is_repeatable=True)
        try:
            yield from stream.chunks
        except ConnectionFailed as error:
            raise Unreachable("unreachable", str(error)) from error
        finally:
            manager.__exit__(None, None, None)


class _Answered(Exception):
    """An answer that is an error, with what it says about trying again."""

    def __init__(self, error: NebulaError, retry_after: str | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after = retry_after


def _body(argv: Sequence[str] | None, command: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a submit; what is None is left out."""
    body: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if argv is not None:
        body["argv"] = list(argv)
    if command is not None:
        body["command"] = command
    return body


def _offset() -> str:
    """This machine's zone now, as ``+08:00``: the API's sentences tell times in it."""
    text = time.strftime("%z")
    return f"{text[:3]}:{text[3:5]}"


def _query(params: Mapping[str, Any] | None) -> str:
    kept = {name: value for name, value in (params or {}).items() if value is not None}
    return "?" + urlencode(kept) if kept else ""


def _decode(status: int, headers: Mapping[str, str], body: bytes) -> Any:
    """The JSON of a good answer; else raises _Answered with the API's error, or with words for what came instead."""
    try:
        data = json.loads(body) if body.strip() else None
    except ValueError:
        data = None
        is_json = False
    else:
        is_json = True
    if 200 <= status < 300 and is_json:
        return data
    if 200 <= status < 300:
        kind = headers.get("content-type", "?")
        message = _("The answer is not NebulaGrid's ({kind}); is the endpoint the control plane's address?").format(kind=kind)
        raise NebulaError("bad_answer", message, status=status)
    if 300 <= status < 400:
        message = _("The control plane sends us on to {place}; use that address as the endpoint.")
        raise NebulaError("redirected", message.format(place=headers.get("location", "?")), status=status)
    if isinstance(data, dict) and isinstance(data.get("message"), str):
        fields = data.get("fields")
        known = fields if isinstance(fields, dict) else {}
        code, message = str(data.get("code") or f"http_{status}"), data["message"]
    else:
        known = {}
        code = f"http_{status}"
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        message = _("The control plane answered {status} {phrase} without saying why.").format(status=status, phrase=phrase)
    kind_of = Unreachable if status in AWAY else NebulaError
    raise _Answered(kind_of(code, message, known, status), headers.get("retry-after"))
