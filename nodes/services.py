"""Writes to nodes: enrolment, drains, commands, liveness. A sync is in nodes/sync.py, labels are in nodes/labels.py."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.utils import timezone

from agent.protocol import EnrolAnswer, EnrolRequest
from nodes import live, selectors, telemetry
from nodes.auth import credential_sha256
from nodes.claims import claim_confirm
from nodes.errors import EnrolRefused, NodeRefused
from nodes.inventory import SILENT, UNCONFIRMED
from nodes.labels import node_label
from nodes.liveness import silent_nodes, watch_next
from nodes.models import AgentCommand, EnrolToken, Gpu, GpuState, Installation, Node, NodeState
from nodes.names import name_given, name_of_host
from nodes.sync import NodeSync, node_heard, node_ready, node_sync
from nodes.text import json_clean, text_clean
from quotas.audit import audit

__all__ = [
    "NodeSync",
    "command_create",
    "enrol_token_create",
    "installation_code",
    "last_seen_flush",
    "liveness_check",
    "node_confirm",
    "node_cordon",
    "node_enrol",
    "node_heard",
    "node_label",
    "node_ready",
    "node_resume",
    "node_retire",
    "node_sync",
]

log = logging.getLogger(__name__)

ENROL_TTL_MAX_S = 3600
COMMAND_TTL_MAX_S = 24 * 3600
COMMAND_ARGS_MAX = 16 * 1024
#: What an agent understands; agent/commands has the other side.
VERBS = ("diagnose", "doctor", "drill", "ping", "reset", "selftest", "tail")

# --- joining ------------------------------------------------------------------------------------------------------


@transaction.atomic
def enrol_token_create(
    *, by: AbstractBaseUser | None, node_name: str = "", ttl_s: int = ENROL_TTL_MAX_S, now: datetime | None = None
) -> tuple[EnrolToken, str]:
    """A token that lets one machine join once, and its secret, which is never stored. Raises NodeRefused."""
    if not 0 < ttl_s <= ENROL_TTL_MAX_S:
        raise NodeRefused("token_ttl", params={"ttl_s": ttl_s, "limit_s": ENROL_TTL_MAX_S})
    now = now or timezone.now()
    secret = "nge_" + secrets.token_urlsafe(32)
    token = EnrolToken.objects.create(
        token_sha256=hashlib.sha256(secret.encode()).hexdigest(),
        node_name=name_given(node_name) if node_name else "",
        created_by=by,
        created_at=now,
        expires_at=now + timedelta(seconds=ttl_s),
    )
    audit(by, "node.token", f"node {token.node_name}" if token.node_name else "", {"ttl_s": ttl_s}, now=now)
    return token, secret


@transaction.atomic
def node_enrol(*, request: EnrolRequest, now: datetime | None = None) -> EnrolAnswer:
    """Use up a token and give the machine its identity.

    A token that names a node may bring a known node back (the machine was set up anew); one without a name never takes
    over a node that exists: it gets the next free name. Raises EnrolRefused; NodeRefused (409) if the named node still
    works or holds cards, and the token stays usable then.
    """
    now = now or timezone.now()
    sha256 = hashlib.sha256(request.token.encode()).hexdigest()
    # Compare-and-swap: of many machines with one token the database lets one in.
    used = EnrolToken.objects.filter(token_sha256=sha256, used_at__isnull=True, expires_at__gt=now).update(used_at=now)
    if not used:
        raise EnrolRefused
    token = EnrolToken.objects.get(token_sha256=sha256)
    credential = secrets.token_hex(32)
    if token.node_name and (node := Node.objects.select_for_update().filter(name=token.node_name).first()):
        _node_reenrol(node, credential=credential, now=now)
    else:
        node = _node_create(
            token.node_name or name_of_host(request.name or request.hostname), request=request, credential=credential, now=now
        )
    EnrolToken.objects.filter(pk=token.pk).update(node=node)
    audit(token.created_by, "node.enrolled", f"node {node.name}", {"hostname": text_clean(request.hostname)[:253]}, now=now)
    live.publish("pool", {"node": node.pk, "state": node.state})
    log.info("node %s enrolled as %s", node.pk, node.name)
    return EnrolAnswer(node_id=node.pk, name=node.name, credential=credential, installation=installation_code())


def installation_code() -> str:
    """This control plane's own random name; made when it is first asked for."""
    return Installation.objects.get_or_create(id=1, defaults={"code": secrets.token_hex(6)})[0].code


def _node_reenrol(node: Node, *, credential: str, now: datetime) -> None:
    is_busy = Gpu.objects.filter(node=node, live_slices__gt=0).exists()
    if is_busy or _is_heard(node, now=now):
        raise NodeRefused("node_busy", 409, {"node": node.name, "state": node.state})
    # The boot id is forgotten: it may be another machine, and "another boot id" would then prove nothing about the old one.
    node.credential_sha256, node.boot_id, node.inventory_sha256 = credential_sha256(credential), "", ""
    node.state, node.state_at, node.claim = NodeState.ENROLLING, now, None
    node.next_credential_sha256, node.past_credential_sha256, node.credential_at = "", "", now
    credentials = ("next_credential_sha256", "past_credential_sha256", "credential_at")
    node.save(update_fields=(*credentials, "credential_sha256", "boot_id", "inventory_sha256", "state", "state_at", "claim"))


def _is_heard(node: Node, *, now: datetime) -> bool:
    """Whether its agent reports: a token with a mistyped name must not knock out a machine at work.

    The state alone does not tell: it stays READY while the control plane is stopped.
    """
    if node.state in SILENT:
        return False
    seen = telemetry.node_last_seen(node.pk)
    last = seen.at if seen is not None else node.last_seen_at.timestamp() if node.last_seen_at is not None else 0.0
    return now.timestamp() - last < settings.UNKNOWN_AFTER_S


def _node_create(name: str, *, request: EnrolRequest, credential: str, now: datetime) -> Node:
    for number in range(1, 10_000):
        wanted = name if number == 1 else f"{name[:57]}-{number}"
        if Node.objects.filter(name=wanted).exists():
            continue
        try:
            with transaction.atomic():
                return Node.objects.create(
                    name=wanted,
                    hostname=text_clean(request.hostname)[:253],
                    agent_version=text_clean(request.agent_version or "")[:40],
                    credential_sha256=credential_sha256(credential),
                    credential_at=now,
                    state_at=now,
                    created_at=now,
                )
        except IntegrityError:
            continue  # another machine took the name meanwhile
    raise NodeRefused("node_busy", 409, {"node": name, "state": "taken"})


# --- drains -------------------------------------------------------------------------------------------------------


def node_cordon(
    *, node: Node, by: AbstractBaseUser | None, reason: str, until: datetime | None = None, now: datetime | None = None
) -> Node:
    """No new work for this node; what runs goes on. Idempotent: the last reason counts. Raises NodeRefused."""
    reason = reason.strip()
    if not 1 <= len(reason) <= 200:
        raise NodeRefused("cordon_reason_missing", params={"length": len(reason)})
    if until is not None and until <= (now or timezone.now()):
        raise NodeRefused("cordon_until_past", params={"until": until.isoformat()})
    with transaction.atomic():
        audit(by, "node.drained", f"node {node.name}", {"reason": reason, "until": until}, now=now)
        return _cordon_set(node, cordoned=True, cordon_reason=reason, cordoned_by=by, cordoned_until=until)


def node_resume(*, node: Node, by: AbstractBaseUser | None) -> Node:
    """Takes work again. Idempotent."""
    log.info("node %s resumed by %s", node.name, by or "its time")
    with transaction.atomic():
        audit(by, "node.resumed", f"node {node.name}")
        return _cordon_set(node, cordoned=False, cordon_reason="", cordoned_by=None, cordoned_until=None, spoilt_launches=0)


@transaction.atomic
def node_confirm(*, node: Node, by: AbstractBaseUser | None, what: str, claim: str = "", now: datetime | None = None) -> Node:
    """``what`` = agent: believe who asks to speak for this node, ``claim`` being the ``claim_id`` of the one that ``by`` looked at;
    inventory: put the cards to use that were shown anew.

    Raises NodeRefused (409) where there is nothing to confirm, and where somebody else asks meanwhile.
    """
    now = now or timezone.now()
    if what == "agent":
        claim_confirm(node=node, by=by, claim_shown=claim, now=now)
        return node
    cards = Gpu.objects.filter(node=node, state=GpuState.MAINTENANCE, state_reason=UNCONFIRMED)
    count = cards.update(state=GpuState.HEALTHY, state_reason="", state_at=now)
    if not count:
        raise NodeRefused("inventory_none", 409, {"node": node.name})
    audit(by, "node.inventory_confirmed", f"node {node.name}", {"cards": count}, now=now)
    live.publish("pool", {"node": node.pk, "state": node.state})
    return node


def _cordon_set(node: Node, **fields: Any) -> Node:
    Node.objects.filter(pk=node.pk).update(**fields)
    node.refresh_from_db()
    live.publish("pool", {"node": node.pk, "state": node.state, "cordoned": node.cordoned})
    return node


@transaction.atomic
def node_retire(*, node: Node, by: AbstractBaseUser | None, now: datetime | None = None) -> Node:
    """The node leaves the pool for good: its credential opens nothing from now on. Idempotent.

    Raises NodeRefused (409) while its cards are held.
    """
    now = now or timezone.now()
    if Gpu.objects.filter(node=node, live_slices__gt=0).exists():
        raise NodeRefused("node_busy", 409, {"node": node.name, "state": node.state})
    if (
        Node.objects.filter(pk=node.pk)
        .exclude(state=NodeState.RETIRED)
        .update(state=NodeState.RETIRED, state_at=now, credential_sha256=None, next_credential_sha256="", past_credential_sha256="")
    ):
        log.info("node %s retired by %s", node.name, by)
        audit(by, "node.retired", f"node {node.name}", now=now)
        transaction.on_commit(lambda: telemetry.node_forget(node.pk))
        live.publish("pool", {"node": node.pk, "state": NodeState.RETIRED})
    node.refresh_from_db()
    return node


# --- commands -----------------------------------------------------------------------------------------------------


def command_create(
    *,
    node: Node,
    verb: str,
    args: dict[str, Any] | None = None,
    by: AbstractBaseUser | None = None,
    ttl_s: int = 60,
    now: datetime | None = None,
) -> AgentCommand:
    """Ask a node's agent for something; the answer comes with a later sync. Raises NodeRefused."""
    if verb not in VERBS:
        raise NodeRefused("verb_unknown", params={"verb": verb[:40], "verbs": ", ".join(VERBS)})
    if verb == "drill" and not node.is_simulated:
        known = Node.objects.filter(is_simulated=True).exclude(state=NodeState.RETIRED).order_by("name").values_list("name", flat=True)[:10]
        raise NodeRefused("drill_not_simulated", params={"node": node.name, "nodes": ", ".join(known) or "–"})
    args = json_clean(args or {})
    length = len(json.dumps(args))
    if length > COMMAND_ARGS_MAX:
        raise NodeRefused("args_too_long", params={"length": length, "limit": COMMAND_ARGS_MAX})
    if not 0 < ttl_s <= COMMAND_TTL_MAX_S:
        raise NodeRefused("command_ttl", params={"ttl_s": ttl_s, "limit_s": COMMAND_TTL_MAX_S})
    if node.state == NodeState.RETIRED:
        raise NodeRefused("node_retired", 409, {"node": node.name})
    now = now or timezone.now()
    with transaction.atomic():
        command = AgentCommand.objects.create(
            node=node, verb=verb, args=args, created_by=by, created_at=now, expires_at=now + timedelta(seconds=ttl_s)
        )
        if by is not None:
            audit(by, "node.drill" if verb == "drill" else "node.commanded", f"node {node.name}", {"verb": verb, "args": args}, now=now)
    transaction.on_commit(lambda: _nudge_by_task(node.pk), robust=True)
    return command


def _nudge_by_task(node_id: int) -> None:
    from nodes.tasks import node_nudge

    try:
        node_nudge.apply_async((node_id,), retry=False, expires=30)
    except Exception as error:  # whatever the broker raises: the agent comes by itself within 5 s
        log.warning("no nudge for node %s: %s", node_id, error)


def commands_expire(*, now: datetime) -> int:
    """A silent node ends in a clear time-out. Reads first: an UPDATE each second would take SQLite's write lock."""
    old = list(AgentCommand.objects.filter(state=AgentCommand.State.QUEUED, expires_at__lte=now).values_list("pk", flat=True))
    if not old:
        return 0
    return AgentCommand.objects.filter(pk__in=old, state=AgentCommand.State.QUEUED).update(
        state=AgentCommand.State.EXPIRED, finished_at=now
    )


# --- liveness -----------------------------------------------------------------------------------------------------


def liveness_check(*, now: datetime) -> list[int]:
    """Each second: nodes not heard of for ``UNKNOWN_AFTER_S`` become UNKNOWN; returns those that did just now.

    Without Redis nothing is decided; after a pause of the checks every node has its full time again (nodes/liveness.py).
    Also ends drains whose time is over and commands that nobody answered. A quiet pool costs three SELECTs and no write.
    """
    commands_expire(now=now)
    watched = list(Node.objects.filter(state__in=(NodeState.READY, NodeState.RECOVERING)).values_list("pk", flat=True))
    for node in Node.objects.filter(cordoned=True, cordoned_until__lte=now):
        node_resume(node=node, by=None)
    memory = telemetry.watch_read()
    if memory is None:
        return []
    seen, watch = memory
    unix = now.timestamp()
    watch = watch_next(watch, now=unix)
    if not telemetry.watch_store(watch):
        return []
    silent = silent_nodes(watched, seen=seen, watch=watch, now=unix, after_s=settings.UNKNOWN_AFTER_S)
    return _nodes_unknown(silent, now=now)


def _nodes_unknown(ids: Iterable[int], *, now: datetime) -> list[int]:
    gone = []
    for pk in ids:
        # One row a statement: only those that this call moved are told of, however many checks run at once.
        if Node.objects.filter(pk=pk, state__in=(NodeState.READY, NodeState.RECOVERING)).update(state=NodeState.UNKNOWN, state_at=now):
            gone.append(pk)
            log.warning("node %s is silent: UNKNOWN", pk)
            live.publish("pool", {"node": pk, "state": NodeState.UNKNOWN})
    if gone and selectors.fencing_frozen():
        log.error("more than half of the nodes are silent: nothing is fenced until they are back")
    return gone


def last_seen_flush() -> int:
    """Bring ``last_seen_at`` of all nodes, and the uptime told then, to the database in one statement; returns how many rows.
    Never moves it back."""
    seen = telemetry.nodes_last_seen()
    if not seen:
        return 0
    rows = []
    for node in Node.objects.filter(pk__in=seen).only("pk", "last_seen_at", "last_uptime_s"):
        at = datetime.fromtimestamp(seen[node.pk].at, UTC)
        if node.last_seen_at is None or node.last_seen_at < at:
            node.last_seen_at, node.last_uptime_s = at, seen[node.pk].uptime_s
            rows.append(node)
    return Node.objects.bulk_update(rows, ["last_seen_at", "last_uptime_s"]) if rows else 0
