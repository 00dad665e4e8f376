"""One sync after the other: what is sent, when the next one is due, and what to make of a refusal. Shared by the loop that runs
ranks (runner.py) and the one that only reports (reporter.py)."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from pathlib import Path
from typing import Any

from agent.config import Config
from agent.credential import Credential
from agent.http import Answer, HttpClient, Unreachable
from agent.protocol import CredentialRequest, Orders, ProtocolError, SyncRequest

log = logging.getLogger("nebula-agent")

SYNC_TIMEOUT_S = 10.0
FINAL_TIMEOUT_S = 3.0
RETRY_S = (1.0, 60.0)
#: While no sync is answered the log says so again after one minute, then after two more, four … up to this.
TELL_S = (60.0, 1800.0)
REFUSED_S = (30.0, 60.0)
EVENTS_A_SYNC = 200
EXCHANGE_AGAIN_S = 3600.0
NOT_UNDERSTOOD = (400, 413, 422)


class EventWindow:
    """How many events go with the next sync, so that one which no control plane understands can't keep this node out for ever.

    Each sync that is not understood halves it; when even one alone is refused, and a sync without it is not, that one is given up.
    """

    def __init__(self) -> None:
        self.most = EVENTS_A_SYNC
        self._alone: int | None = None  # this event was sent alone, and the sync was refused

    def refused(self, request: SyncRequest) -> None:
        """The control plane did not understand this sync."""
        if len(request.events) == 1:
            self._alone, self.most = request.events[0].eid, 0
        elif request.events:
            self.most = max(1, len(request.events) // 2)
        else:
            self._alone, self.most = None, 1  # it is not the events that are not understood

    def taken(self, request: SyncRequest) -> tuple[int, ...]:
        """The control plane took this sync. Returns the events to forget besides those that it acknowledged."""
        hopeless = (self._alone,) if self._alone is not None and not request.events else ()
        if hopeless:
            log.error("Event %d is not understood by the control plane and is given up.", *hopeless)
        self._alone, self.most = None, min(EVENTS_A_SYNC, max(1, self.most * 2))
        return hopeless


class SyncLine:
    """One per agent; only the loop's thread uses it. Times are of the monotonic clock unless said otherwise."""

    def __init__(
        self, *, config: Config, client: HttpClient, rng: random.Random, first_at: float, credential: Credential | None = None
    ) -> None:
        self._config, self._client, self._rng, self._credential = config, client, rng, credential
        self._exchange_at = 0.0  # not before this
        self.next_at = first_at
        self.retry_at = 0.0  # not before this, whatever happens
        self.answered_at: float | None = None  # Unix time, for `status`
        self.trouble: str | None = None
        self.is_superseded = False  # a newer agent speaks for this node: this one has to end
        self.events = EventWindow()
        self.is_known = False  # the last answer took this session for the node's; until then each sync shows whose successor it is
        self._retry_s = RETRY_S[0]
        self._away_since: float | None = None  # since the first try that was not answered
        self._tell_at, self._tell_s = 0.0, TELL_S[0]
        self._columns = False  # the control plane reads statuses as columns; it says so with each answer

    def send(self, request: SyncRequest, *, final: bool = False) -> Orders | None:
        """The answer; None when there was none to use, and then it is known when to try again. Blocks for SYNC_TIMEOUT_S at most."""
        body = request.to_json(columns=self._columns)
        try:
            answer = self._client.request_json("POST", "/api/agent/v1/sync", body, timeout_s=FINAL_TIMEOUT_S if final else SYNC_TIMEOUT_S)
        except Unreachable as error:
            self._later(str(error), None)
            return None
        if answer.status in NOT_UNDERSTOOD:
            self.events.refused(request)
        self.is_known = answer.status == 200
        if answer.status != 200:
            self._columns = False  # it may be an older one now
            self._refused(answer)
            return None
        try:
            orders = Orders.from_json(answer.json())
        except (ValueError, ProtocolError) as error:
            self._later(f"the answer to a sync is not understood: {error}", None)
            return None
        self._columns = orders.columns
        if self.trouble is not None or self.answered_at is None:
            away = f" after {_span(time.monotonic() - self._away_since)}" if self._away_since is not None else ""
            log.info("In touch with %s%s.", self._config.endpoint.url, away)
        if self.trouble is not None and self._credential is not None:
            self._credential.taken()
        self._away_since = None
        self.trouble, self._retry_s, self.retry_at = None, RETRY_S[0], 0.0
        self.answered_at = time.time()
        self.next_at = time.monotonic() + max(0.05, orders.next_in_s) * self._rng.uniform(0.9, 1.05)
        return orders

    def _refused(self, answer: Answer) -> None:
        text = f"{answer.status} {answer.error_text()}"
        if answer.status == 409 and answer.error_code() in ("session_busy", "session_unconfirmed"):
            self._later(f"this agent does not speak for node {self._config.node_id} yet ({text})", answer.retry_after_s or REFUSED_S[0])
        elif answer.status == 409:
            self.is_superseded = True
            log.error(
                "The control plane refuses this agent's session for node %d (%s). This agent ends and leaves its ranks to their shims.",
                self._config.node_id,
                text,
            )
        elif answer.status == 401 and self._credential is not None and self._credential.refused():
            self._later(f"the control plane does not take this node's credential ({text}); trying the one of before", None)
        elif answer.status == 401:
            self._later(
                f"the control plane does not take this node's credential ({text}); run `nebula-agent enroll` with a new token",
                self._rng.uniform(*REFUSED_S),
            )
        elif answer.status == 403:
            self._later(
                f"the control plane refuses what node {self._config.node_id} tells ({text}); does data_dir belong to another node?",
                self._rng.uniform(*REFUSED_S),
            )
        elif answer.status in NOT_UNDERSTOOD:
            self._later(f"the control plane does not understand this agent ({text}); are the versions too far apart?", None)
        elif answer.status == 404:
            self._later(f"{self._config.endpoint.url} has no agent API ({text}); check `endpoint`", None)
        else:
            self._later(f"the control plane answered {text}", answer.retry_after_s)

    def _later(self, text: str, wait_s: float | None) -> None:
        """Full jitter between 1 s and a bound that doubles to 60 s, or what the server asked for."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since, self._tell_s = now, TELL_S[0]
            self._tell_at = now + self._tell_s
        if now >= self._tell_at:
            log.warning("Still no sync, for %s now: %s. What runs here goes on.", _span(now - self._away_since), text.rstrip("."))
            self._tell_s = min(TELL_S[1], self._tell_s * 2)
            self._tell_at = now + self._tell_s
        elif text != self.trouble:
            log.warning("No sync: %s.", text.rstrip("."))
        self.trouble = text
        wait_s = wait_s if wait_s is not None else self._rng.uniform(RETRY_S[0], max(RETRY_S[0], self._retry_s))
        self.retry_at = self.next_at = time.monotonic() + wait_s
        self._retry_s = min(RETRY_S[1], self._retry_s * 2)

    def credential_exchange(self, session: str) -> None:
        """Exchange the node's credential for a new one. Blocks for SYNC_TIMEOUT_S at most; what fails is tried again in an hour."""
        if self._credential is None or time.monotonic() < self._exchange_at:
            return
        self._exchange_at = time.monotonic() + EXCHANGE_AGAIN_S
        try:
            request = CredentialRequest(session=session, credential_sha256=self._credential.exchange_begin())
            answer = self._client.request_json("POST", "/api/agent/v1/credential", request.to_json(), timeout_s=SYNC_TIMEOUT_S)
            if answer.status == 200:
                self._credential.exchange_end()
                return
            why = f"{answer.status} {answer.error_text()}"
        except (OSError, Unreachable) as error:
            why = str(error)
        log.warning("This node's credential was not exchanged: %s.", why.rstrip("."))

    def status(self) -> dict[str, Any]:
        return {"endpoint": self._config.endpoint.url, "answered_at": self.answered_at, "trouble": self.trouble}

    def close(self) -> None:
        self._client.close()


def _span(seconds: float) -> str:
    minutes = int(seconds) // 60
    return f"{int(seconds)} s" if minutes < 1 else f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def proof_sha256(proof: str) -> str:
    """What the control plane gets to know of a session's secret while the session lasts."""
    return hashlib.sha256(proof.encode()).hexdigest()


def status_write(folder: Path, status: dict[str, Any]) -> None:
    """What `nebula-agent status` shows. Not fsynced: it is about now."""
    path = folder / "status.json"
    temporary = path.with_suffix(".new")
    try:
        temporary.write_text(json.dumps(status), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        log.debug("%s is not written: %s", path, error)
