"""The nodes' half of a sync: whose session it is, what it says of the machine, what waits for it.

The jobs room applies ``observed`` and answers with the desired list. A sync of a settled node writes no SQL: that it
was heard of and what its cards are like goes to Redis.

``seq`` of the last sync is kept in Redis with the session's name, not in the node's row (it would be written every
5 s). With Redis empty a repeated request is applied twice, and that is harmless: rank moves, command results and health
events are compare-and-swap or unique. A request that failed half-way is not sent again under its number: each request
of an agent has a new one and carries the complete list.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from agent.protocol import PROTO, Command, CommandResult, SyncRequest
from nodes import care, doubts, live, telemetry
from nodes.claims import claim_alarm, claim_is_confirmed, claim_note
from nodes.events import BIG, Holders, events_take
from nodes.inspections import inspection_results
from nodes.inventory import inventory_apply, inventory_sha256
from nodes.liveness import AHEAD_S
from nodes.models import AgentCommand, Node, NodeState
from nodes.sessions import Known, Verdict, session_judge
from nodes.telemetry import Seen
from nodes.text import NAME, text_cap
from quotas.sql import Select

log = logging.getLogger(__name__)

PAST_SESSIONS = 32
RESULT_MAX = 64 * 1024
#: While Redis is away a node's row says when it was heard of, as often as its flush would.
FLUSH = timedelta(seconds=4)
UPTIME_MOST_S = 1e10  # 300 years
#: So often an agent asks again that waits for somebody to confirm it.
CONFIRM_RETRY_S = 15.0
#: Another request moved the node's session while this one was judged: asked again, it is judged by what is there then.
TAKEN_RETRY_S = 1.0
COMMANDS_MAX = 32  # a sync; the rest comes with the next ones
#: Compiled once, as every sync asks. With room for those that ran out and that upkeep has not taken away yet.
_queued_of_node = Select(
    lambda node: (
        AgentCommand.objects.filter(node_id=node, state=AgentCommand.State.QUEUED)
        .order_by("pk")
        .values_list("pk", "verb", "args", "expires_at")[: 4 * COMMANDS_MAX]
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSync:
    """What came of the nodes' half of a sync. ``refusal`` = superseded_session | session_busy | session_unconfirmed | retired |
    unsupported_proto | bad_session; with the two in the middle, ``retry_after_s`` says when to ask again.

    ``is_repeat``: answer with the orders, but apply nothing. ``boot_changed``: the machine was started anew since its
    last accepted sync, which is proof that nothing of before runs; it is told once, so apply it in the same transaction.
    ``cards_changed``: a card went out of service or came back, or a job has to fail for what its program did to one.
    ``state`` is the node's now: while it is RECOVERING, call ``node_ready`` once the observed list is applied. ``before``: the sync
    that was accepted before this one, the last proof of life of what this one no longer names.
    """

    accepted: bool
    refusal: str | None = None
    is_new_session: bool = False
    is_repeat: bool = False
    boot_changed: bool = False
    ack_eids: tuple[int, ...] = ()
    commands: tuple[Command, ...] = ()
    want_inventory: bool = False
    state: str = ""
    inventory_changed: bool = False
    before: Seen | None = None
    cards_changed: bool = False
    retry_after_s: float | None = None


def node_sync(
    *,
    node: Node,
    sync: SyncRequest,
    now: datetime,
    holders: Holders | None = None,
    holds_jobs: Callable[[Node], bool] | None = None,
    peer: str = "",
) -> NodeSync:
    """Take a sync of ``node``, as loaded by ``node_authenticate`` for this request; its fields are brought up to date.

    Where anything is to be written (new session, changed inventory, events, results) it is one transaction; put the
    applying of ``observed`` in the same one if ``boot_changed`` must not be lost to a crash in between, and call ``node_heard`` when
    all of it is committed. ``holders`` tells who has which card, for faults that a program caused, ``holds_jobs`` whether something of
    ours may run there, ``peer`` the address that it came from.
    """
    if sync.proto != PROTO:
        return NodeSync(accepted=False, refusal="unsupported_proto", state=node.state)
    is_named = all(NAME.fullmatch(name) and len(name) <= 40 for name in (sync.session, sync.boot_id))
    if not is_named or sync.session.startswith(doubts.SESSION) or abs(sync.seq) > BIG:
        return NodeSync(accepted=False, refusal="bad_session", state=node.state)

    # 1. Whose session is it? A sync of the current one that isn't newer than the last changes nothing.
    is_new_session = sync.session != node.session
    last = telemetry.node_last_seen(node.pk)
    if is_new_session and sync.session in node.past_sessions:
        # Whoever spoke for this node before is not gone: there are two of them.
        doubts.doubt(node.pk, "second_session", now=now, data={"peer": peer})
        return NodeSync(accepted=False, refusal="superseded_session", state=node.state)
    if last is not None and last.session == sync.session and sync.seq <= last.seq and not is_new_session:
        return NodeSync(accepted=True, is_repeat=True, commands=commands_for(node=node, now=now), state=node.state)
    before = seen_latest(last, node, now=now)
    if not is_new_session:
        claim_alarm(node, now=now)
    elif (refused := _session_refuse(node, sync, before, holds_jobs, peer=peer, now=now)) is not None:
        return refused

    # 2. Is there anything to write?
    sha256 = inventory_sha256(sync.inventory) if sync.inventory is not None else None
    is_new_boot = sync.boot_id != node.boot_id
    is_back = node.state in (NodeState.ENROLLING, NodeState.UNKNOWN, NodeState.DOWN)
    inventory_changed = sha256 is not None and sha256 != node.inventory_sha256
    boot_changed = is_new_boot and node.boot_id != ""
    cards_changed = False
    if is_new_session or is_new_boot or is_back or inventory_changed or sync.events or sync.results:
        with transaction.atomic():
            if is_new_session or is_new_boot or is_back:
                refusal = _session_take(node, sync, is_new_session=is_new_session, now=now)
                if refusal:
                    wait_s = TAKEN_RETRY_S if refusal == Verdict.BUSY else None
                    return NodeSync(accepted=False, refusal=refusal, state=node.state, retry_after_s=wait_s)
            if inventory_changed and sync.inventory is not None:
                is_settled = inventory_apply(node=node, inventory=sync.inventory, now=now)
                _inventory_mark(node, sha256 if is_settled and sha256 else "")
            _results_take(node, sync.results, now=now)
            if sync.results:
                inspection_results(node=node, cids=[r.cid for r in sync.results if 0 < r.cid <= BIG])
                cards_changed |= care.results_take(node=node, cids=[r.cid for r in sync.results if 0 < r.cid <= BIG], now=now)
            cards_changed |= events_take(node=node, sync=sync, now=now, holders=holders)
            if sync.events or sync.results:
                care.care_run(now=now, node=node)  # a self-test goes out with this very answer
            if is_new_session or is_back or inventory_changed:
                live.publish("pool", {"node": node.pk, "state": node.state})

    # 3. What waits for it.
    return NodeSync(
        accepted=True,
        is_new_session=is_new_session,
        boot_changed=boot_changed,
        ack_eids=tuple(event.eid for event in sync.events),
        commands=commands_for(node=node, now=now),
        want_inventory=node.inventory_sha256 == "",
        state=node.state,
        inventory_changed=inventory_changed,
        cards_changed=cards_changed,
        before=before,
    )


def node_heard(*, node: Node, sync: SyncRequest, now: datetime) -> None:
    """The node was heard of. Call it once all that an accepted sync says is committed: one that failed must neither be a repeat when
    it comes again nor prove that what it no longer named was alive. No SQL, or one statement while Redis is away."""
    uptime_s = sync.uptime_s if sync.uptime_s is not None and 0 <= sync.uptime_s < UPTIME_MOST_S else None
    kept = telemetry.sync_store(
        node_id=node.pk,
        session=sync.session,
        seq=sync.seq,
        at=now.timestamp(),
        statuses=sync.gpus,
        host=sync.host,
        processes=sync.processes,
        health=sync.health,
        skew_s=None if sync.sent_at is None else now.timestamp() - sync.sent_at,
        uptime_s=uptime_s,
    )
    if not kept and (node.last_seen_at is None or now - node.last_seen_at >= FLUSH):
        node.last_seen_at, node.last_uptime_s = now, uptime_s
        Node.objects.filter(pk=node.pk).update(last_seen_at=now, last_uptime_s=uptime_s)


def seen_latest(seen: Seen | None, node: Node, *, now: datetime) -> Seen | None:
    """The last sync of the node by what Redis has (``seen``) and what its row has: the row is a few seconds behind, unless Redis was
    away or emptied. A row that is of the future is of before our clock was set back."""
    at = node.last_seen_at
    if at is None or (seen is not None and not seen.at < at.timestamp() <= now.timestamp()):
        return seen
    return Seen(at=at.timestamp(), uptime_s=node.last_uptime_s)


def nodes_seen(nodes: Iterable[Node], *, now: datetime) -> dict[int, Seen]:
    """The last sync of each of these nodes, where there was one. One round trip to Redis, no SQL."""
    known = telemetry.nodes_last_seen() or {}
    found = ((node.pk, seen_latest(known.get(node.pk), node, now=now)) for node in nodes)
    return {pk: seen for pk, seen in found if seen is not None}


def node_ready(*, node: Node, now: datetime | None = None) -> bool:
    """RECOVERING → READY, after the observed list of the node's session was applied. False if it isn't RECOVERING."""
    at = now or datetime.now(UTC)
    # The session is in the condition: a newer agent start must finish a reconcile of its own.
    moved = Node.objects.filter(pk=node.pk, state=NodeState.RECOVERING, session=node.session).update(state=NodeState.READY, state_at=at)
    if moved:
        node.state, node.state_at = NodeState.READY, at
        live.publish("pool", {"node": node.pk, "state": NodeState.READY})
    return bool(moved)


def commands_for(*, node: Node, now: datetime) -> tuple[Command, ...]:
    """The commands that wait for this node, oldest first. They are given out again until answered. One SELECT."""
    found = (
        Command(cid=pk, kind=verb, args=args, expires_in_s=(expires_at - now).total_seconds())
        for pk, verb, args, expires_at in _queued_of_node(node.pk)
        if expires_at > now
    )
    return tuple(itertools.islice(found, COMMANDS_MAX))


def _session_refuse(
    node: Node, sync: SyncRequest, before: Seen | None, holds_jobs: Callable[[Node], bool] | None, *, peer: str, now: datetime
) -> NodeSync | None:
    """Why a new session does not become the node's, or None. Who is refused is noted for staff."""
    if not node.session or node.state in (NodeState.ENROLLING, NodeState.RETIRED) or node.restore:
        # Nobody is there; or we came back from a backup that may not know the node's present session.
        return None
    silent_s = None if before is None else now.timestamp() - before.at
    known = Known(
        boot_id=node.boot_id,
        proof_sha256=node.session_proof,
        silent_s=silent_s if silent_s is None or silent_s > -AHEAD_S else None,  # else our own clock was set back
        holds_jobs=holds_jobs(node) if holds_jobs is not None else False,
    )
    unknown_after_s = float(settings.UNKNOWN_AFTER_S)
    is_confirmed = claim_is_confirmed(node, session=sync.session, now=now)
    verdict = session_judge(known, boot_id=sync.boot_id, proofs=sync.proofs, is_confirmed=is_confirmed, unknown_after_s=unknown_after_s)
    if verdict is Verdict.TAKE_UNPROVEN:
        doubts.doubt(node.pk, "session_unproven", now=now, data={"peer": peer})
    if verdict in (Verdict.TAKE, Verdict.TAKE_UNPROVEN):
        return None
    hostname = sync.inventory.hostname if sync.inventory is not None else ""
    claim_note(node, session=sync.session, boot_id=sync.boot_id, code=verdict.value, peer=peer, hostname=hostname, now=now)
    log.warning("node %s: a new session from %s is refused (%s)", node.name, peer or "somewhere", verdict.value)
    wait_s = CONFIRM_RETRY_S if verdict is Verdict.UNCONFIRMED else min(unknown_after_s, unknown_after_s - (known.silent_s or 0.0) + 0.5)
    return NodeSync(accepted=False, refusal=verdict.value, state=node.state, retry_after_s=max(1.0, wait_s))


def _session_take(node: Node, sync: SyncRequest, *, is_new_session: bool, now: datetime) -> str | None:
    """Make the sync's session the node's and put the node to RECOVERING. Returns a refusal, or None.

    Compare-and-swap on the session as this request read it: of two new agent starts at once, or of a first sync that was sent twice,
    one is first, and the other is judged by what is there when it asks again. Only a session that has had its time is superseded.
    """
    changes: dict[str, Any] = {"boot_id": sync.boot_id, "state": NodeState.RECOVERING, "state_at": now}
    if is_new_session:
        past = [*node.past_sessions, node.session] if node.session else node.past_sessions
        proof = sync.proof_sha256 or ""
        changes |= {
            "session": sync.session,
            "past_sessions": past[-PAST_SESSIONS:],
            "session_proof": proof if len(proof) == 64 and NAME.fullmatch(proof) else "",
            "claim": None,
        }
        if sync.inventory is None:
            changes["inventory_sha256"] = ""  # none of this session: the agent is asked for it
    took = Node.objects.filter(pk=node.pk, session=node.session).exclude(state=NodeState.RETIRED).update(**changes)
    if not took:
        node.refresh_from_db()
        if node.state == NodeState.RETIRED:
            return "retired"
        return "superseded_session" if sync.session in node.past_sessions else Verdict.BUSY.value
    for name, value in changes.items():
        setattr(node, name, value)
    log.info("node %s is recovering (%s)", node.name, "new session" if is_new_session else "back")
    return None


def _inventory_mark(node: Node, sha256: str) -> None:
    if node.inventory_sha256 != sha256:
        Node.objects.filter(pk=node.pk).update(inventory_sha256=sha256)
        node.inventory_sha256 = sha256


def _results_take(node: Node, results: Sequence[CommandResult], *, now: datetime) -> None:
    for result in results:
        if not 0 < result.cid <= BIG:
            continue
        state = AgentCommand.State.DONE if result.ok else AgentCommand.State.FAILED
        # Only a command of this node, and only the first answer.
        AgentCommand.objects.filter(pk=result.cid, node=node, state=AgentCommand.State.QUEUED).update(
            state=state, text=text_cap(result.text, RESULT_MAX), finished_at=now
        )
