"""The agents' endpoint. Plain views, no REST framework: a sync of an unchanged node must cost next to nothing."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from agent.protocol import CredentialRequest, EnrolRequest, LogAnswer, Orders, ProtocolError, SyncRequest, json_read, rank_parts
from jobs import logs
from jobs.job_secrets import masks_of, results_masked
from jobs.lifecycle import RankState
from jobs.models import Rank
from jobs.notify import pass_nudge
from jobs.services import attempt_maybe_finish, observed_apply, orders_build
from jobs.services.faults import card_holders, faults_apply
from jobs.services.files import LOG_ALWAYS, log_cut
from jobs.services.observe import Applied, ForeignRank, node_holds_jobs, ranks_of
from jobs.services.restore import restore_sync
from nodes import live
from nodes.auth import credential_is_due, credential_next, node_authenticate
from nodes.doubts import doubt
from nodes.models import Node, NodeState
from nodes.services import NodeSync, node_enrol, node_heard, node_ready, node_sync
from quotas.disk import DiskFull, disk_check
from quotas.errors import DomainError
from quotas.secrets import KeyMissing
from quotas.throttles import client_address, throttle_allow

log = logging.getLogger(__name__)

MAX_SYNC_BYTES = 4 * 1024 * 1024
MAX_LOG_CHUNK = 4 * 1024 * 1024
REFUSALS = {
    "superseded_session": "A newer agent has taken this node over; only one may run.",
    "session_busy": "Another agent speaks for this node and was heard of a moment ago. If this is the same machine, wait; if its "
    "configuration was copied from another one, enrol it as a node of its own.",
    "session_unconfirmed": "This agent can't show that it is the one of before, and jobs may still run under that one. "
    "An administrator has to confirm it on the node's page.",
    "retired": "This node was retired. Enrol it again to use it.",
    "unsupported_proto": "The agent and the control plane speak different protocols. Upgrade the older one.",
    "bad_session": "The session, boot id or number of this sync is not valid.",
}


def refuse(status: int, code: str, message: str, **headers: str) -> JsonResponse:
    return JsonResponse({"code": code, "message": message, "fields": {}}, status=status, headers=headers)


def agent_view(method: str) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """A view for one method that gets the authenticated node."""

    def wrap(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @csrf_exempt
        @functools.wraps(view)
        def inner(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if request.method != method:
                return refuse(405, "method_not_allowed", f"Use {method}.", Allow=method)
            node = node_authenticate(request.headers.get("Authorization", ""))
            if node is None:
                return refuse(
                    401, "unauthenticated", "The node's credential is not valid. Enrol the node again.", **{"WWW-Authenticate": "Node"}
                )
            allowed, retry_after = throttle_allow("agent", str(node.pk))
            if not allowed:
                return refuse(429, "throttled", "Too many requests from this node.", **{"Retry-After": str(max(1, round(retry_after)))})
            return view(request, node=node, **kwargs)

        inner.opens_to_nodes_only = True  # type: ignore[attr-defined]
        return inner

    return wrap


@csrf_exempt
def enroll(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return refuse(405, "method_not_allowed", "Use POST.", Allow="POST")
    allowed, retry_after = throttle_allow("anonymous", client_address(request))
    if not allowed:
        return refuse(429, "throttled", "Too many attempts from this address.", **{"Retry-After": str(max(1, round(retry_after)))})
    try:
        wanted = EnrolRequest.from_json(json_read(request.body))
        answer = node_enrol(request=wanted)
    except ProtocolError as error:
        return refuse(400, "invalid", str(error)[:300])
    except DomainError as error:
        return refuse(error.http_status, error.code, str(error.message))
    return JsonResponse(answer.to_json(), status=201)


@agent_view("POST")
def sync(request: HttpRequest, *, node: Node) -> HttpResponse:
    """Takes what the node sees, answers with all that it shall do. 0 writes where nothing changed."""
    # 1. Read.
    body = request.body
    if len(body) > MAX_SYNC_BYTES:
        return refuse(413, "too_large", f"A sync is at most {MAX_SYNC_BYTES} bytes; this one has {len(body)}.")
    try:
        message = SyncRequest.from_json(json_read(body))
        for seen in message.observed:
            rank_parts(seen.rank)
    except ProtocolError as error:
        return refuse(400, "invalid", str(error)[:300])
    now = timezone.now()
    # 2. The node (session, inventory, telemetry, events, commands) and its ranks.
    try:
        if (message.session, message.boot_id) != (node.session, node.boot_id):
            # "Another boot" proves that nothing of before runs, and it is told once: it must not be lost in between.
            with transaction.atomic():
                seen, applied = _sync_apply(node, message, now=now, peer=client_address(request))
        else:
            seen, applied = _sync_apply(node, message, now=now, peer=client_address(request))
    except ForeignRank as error:
        log.error("node %s reported rank %s, which is another node's", node.name, error.key)
        doubt(node.pk, "foreign_rank", now=now, data={"rank": error.key[:60]})
        return refuse(403, "not_yours", f"Rank {error.key} belongs to another node.")
    if not seen.accepted:
        headers = {} if seen.retry_after_s is None else {"Retry-After": str(math.ceil(seen.retry_after_s))}
        return refuse(409, seen.refusal or "refused", REFUSALS.get(seen.refusal or "", "This sync is not accepted."), **headers)
    if not seen.is_repeat:
        node_heard(node=node, sync=message, now=now)
    # 3. A full reconcile is done: the node takes work again.
    if node.state == NodeState.RECOVERING and not seen.is_repeat and not node.restore and node_ready(node=node, now=now):
        pass_nudge()
    # 4. Orders.
    orders = Orders(
        server_time=now.timestamp(),
        ack_seq=message.seq,
        ack_eids=tuple(seen.ack_eids),
        next_in_s=float(settings.SYNC_INTERVAL_S),
        desired=(*orders_build(applied.ranks), *applied.extra),
        commands=tuple(seen.commands),
        want_inventory=seen.want_inventory,
        ask=applied.ask,
        credential_due=credential_is_due(node, now=now),
        columns=True,
    )
    return JsonResponse(orders.to_json())


@agent_view("POST")
def credential(request: HttpRequest, *, node: Node) -> HttpResponse:
    """The node's next credential, by its hash. The present one is good until the new one was used."""
    try:
        wanted = CredentialRequest.from_json(json_read(request.body))
    except ProtocolError as error:
        return refuse(400, "invalid", str(error)[:300])
    if wanted.session != node.session:
        return refuse(409, "superseded_session", REFUSALS["superseded_session"])
    if not credential_next(node=node, sha256=wanted.credential_sha256):
        return refuse(400, "invalid", "credential_sha256 must be 64 hexadecimal digits in lower case.")
    return JsonResponse({})


def _sync_apply(node: Node, message: SyncRequest, *, now: datetime, peer: str) -> tuple[NodeSync, Applied]:
    if message.results:
        message = dataclasses.replace(message, results=results_masked(node, message.results))
    seen = node_sync(node=node, sync=message, now=now, holders=card_holders, holds_jobs=node_holds_jobs, peer=peer)
    if not seen.accepted:
        return seen, Applied()
    if seen.cards_changed:
        faults_apply(node=node, now=now)
        pass_nudge()
    if node.restore:
        # Back from a backup: no orders for this node until it has said what ran on it since.
        answer = None if seen.is_repeat else message.answer
        applied = restore_sync(node=node, observed=message.observed, answer=answer, now=now, last=seen.before, uptime_s=message.uptime_s)
        return seen, applied
    if seen.is_repeat:
        return seen, Applied(ranks=ranks_of(node))  # an answer that was lost: say it again, change nothing
    if seen.inventory_changed:
        pass_nudge()
    return seen, observed_apply(
        node=node,
        observed=message.observed,
        now=now,
        boot_changed=seen.boot_changed,
        last=seen.before,
        uptime_s=message.uptime_s,
    )


def own_rank(node: Node, key: str) -> Rank | HttpResponse:
    """The node's own rank, or the refusal."""
    try:
        rank_parts(key)
    except ProtocolError as error:
        return refuse(400, "invalid", str(error))
    rank = Rank.objects.filter(key=key).select_related("attempt").first()
    if rank is None:
        return refuse(404, "not_found", f"There is no rank {key}.")
    if rank.node_id != node.pk:
        log.error("node %s wrote to rank %s, which is another node's", node.name, key)
        doubt(node.pk, "foreign_rank", now=timezone.now(), data={"rank": key})
        return refuse(403, "not_yours", f"Rank {key} belongs to another node.")
    return rank


@agent_view("PUT")
def logs_put(request: HttpRequest, *, node: Node, rank: str) -> HttpResponse:
    """Raw bytes at ``?offset=N``; 409 with the true length when N is not where the log ends. With ``?tail_of=N`` they are the end of an
    output of N bytes, of which what is missing is left out. ``?inserted=N``: so much of the log the agent knows to be our own lines."""
    numbers: dict[str, int | None] = {"offset": None, "tail_of": None, "inserted": None}
    for name in numbers:
        text = request.GET.get(name)
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 19):
            return refuse(400, "invalid", f"?{name}=N must be a whole number of bytes.")
        numbers[name] = None if text is None else int(text)
    offset, total = numbers["offset"], numbers["tail_of"]
    if offset is None:
        return refuse(400, "invalid", "?offset=N must be a whole number of bytes.")
    data = request.body
    if len(data) > MAX_LOG_CHUNK:
        return refuse(413, "too_large", f"A chunk is at most {MAX_LOG_CHUNK} bytes; this one has {len(data)}.")
    row = own_rank(node, rank)
    if isinstance(row, HttpResponse):
        return row
    if row.attempt.ended_at is not None and not logs.log_is_closed(rank):
        # All of its output had arrived before the attempt was ended: nothing is added to what people have read as whole.
        return JsonResponse(LogAnswer(length=logs.log_length(rank), capped=True).to_json())
    try:
        disk_check((settings.LOG_DIR,))
        masks = masks_of(row.spec)
        if total is not None:
            answer = logs.log_tail(rank, offset=offset, data=data, total=total, masks=masks)
        else:
            cut = log_cut(job=row.attempt.job_id)
            cap = (LOG_ALWAYS, cut) if cut else None
            is_end = request.GET.get("end") == "1"
            answer = logs.log_append(rank, offset=offset, data=data, masks=masks, is_end=is_end, inserted=numbers["inserted"], cap=cap)
    except DiskFull as error:
        # The node keeps it, and asks again; other ranks wait each for themselves.
        return refuse(error.http_status, error.code, error.message, **{"Retry-After": "30"})
    except KeyMissing as error:
        # Rather no output than one with a secret in it: the agent keeps it and asks again.
        log.error("the output of rank %s can't be masked: %s", rank, error.__doc__)
        message = "The key of the secrets is missing; output is taken again when it is back."
        # 500: of this rank alone; a 503 would hold up the output of all others of the node.
        return refuse(500, "secrets_key", message, **{"Retry-After": "30"})
    except logs.LogBusy as error:
        # An earlier try of this chunk is still at work. 409, not 503: it is this rank alone that waits.
        body = {"code": "busy", "message": str(error), "fields": {}, "length": error.length}
        return JsonResponse(body, status=409, headers={"Retry-After": "1"})
    except logs.WrongOffset as error:
        told = LogAnswer(length=error.length, inserted=error.inserted).to_json()
        return JsonResponse({"code": "offset", "message": str(error), "fields": {}, **told}, status=409)
    live.publish(f"job.{row.attempt.job_id}", {"job": row.attempt.job_id, "log": answer.length, "rank": row.index})
    if row.observed == RankState.EXITED and row.attempt.ended_at is None:
        # The exit was reported before its last output: this may be what the attempt's end waits for.
        with transaction.atomic():
            attempt_maybe_finish(row.attempt, now=timezone.now())
    return JsonResponse(answer.to_json())
