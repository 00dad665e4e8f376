"""Somebody who wants to speak for a node and is not believed yet (``Node.claim``): noted, told to staff, confirmed or turned away.

The last one is kept. It may be confirmed as long as it goes on asking; an agent that is still at work while somebody else claims its
node is proof that there are two of them, and that is an alarm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from nodes import live
from nodes.doubts import doubt
from nodes.errors import NodeRefused
from nodes.models import Node
from nodes.text import text_clean
from quotas.audit import audit

#: A claim that was not made again for so long is over: there is nobody to confirm.
CLAIM_S = 90.0
#: The row is written again no more often than this.
NOTE_S = 20.0


@transaction.atomic
def claim_note(node: Node, *, session: str, boot_id: str, code: str, peer: str, hostname: str, now: datetime) -> None:
    """Keep who asked. At most one UPDATE each ``NOTE_S`` for the same asker. Whom staff have confirmed keeps its place until it has asked
    again or is over: nobody else can take it meanwhile."""
    _read_locked(node)
    before = claim_now(node, now=now)
    is_same = before is not None and before["session"] == session and before["code"] == code
    if before is not None and (before["is_confirmed"] or (is_same and now.timestamp() - before["at"] < NOTE_S)):
        return
    claim = {
        "session": session,
        "boot_id": boot_id,
        "code": code,
        "peer": text_clean(peer)[:64],
        "hostname": text_clean(hostname)[:253],
        "at": round(now.timestamp(), 3),
        "is_alarmed": bool(is_same and before is not None and before["is_alarmed"]),
        "is_confirmed": False,
    }
    _save(node, claim)
    if code == "session_unconfirmed" and not is_same:
        doubt(node.pk, "session_unconfirmed", now=now, data={"peer": claim["peer"], "hostname": claim["hostname"]})
    live.publish("pool", {"node": node.pk, "claim": code})


def claim_now(node: Node, *, now: datetime) -> dict[str, Any] | None:
    """The claim that is being made now; None = none is."""
    claim = node.claim
    return claim if claim and 0 <= now.timestamp() - claim["at"] < CLAIM_S else None


def claim_id(claim: Mapping[str, Any]) -> str:
    """Names who asks, for those who decide about it. The session itself is for the agent and us alone."""
    return hashlib.sha256(claim["session"].encode()).hexdigest()[:16]


def claim_alarm(node: Node, *, now: datetime) -> None:
    """The node's own agent is at work while somebody claims to be it: two of them are alive. Once for each asker."""
    claim = claim_now(node, now=now)
    if claim is None or claim["is_alarmed"]:
        return
    with transaction.atomic():
        _read_locked(node)
        claim = claim_now(node, now=now)
        if claim is None or claim["is_alarmed"]:
            return
        _save(node, {**claim, "is_alarmed": True})
    doubt(node.pk, "second_session", now=now, data={"peer": claim["peer"], "hostname": claim["hostname"]})


def claim_is_confirmed(node: Node, *, session: str, now: datetime) -> bool:
    claim = claim_now(node, now=now)
    return claim is not None and claim["session"] == session and bool(claim["is_confirmed"])


@transaction.atomic
def claim_confirm(*, node: Node, by: Any, claim_shown: str, now: datetime) -> None:
    """Believe who claims to be this node now, if it is the one that was looked at (``claim_shown``: its ``claim_id``). What ran there
    under the agent of before counts as gone. Raises NodeRefused."""
    _read_locked(node)
    claim = claim_now(node, now=now)
    if claim is None or claim["code"] != "session_unconfirmed":
        raise NodeRefused("claim_none", 409, {"node": node.name})
    if claim_id(claim) != claim_shown:
        raise NodeRefused("claim_other", 409, {"node": node.name, "hostname": claim["hostname"], "peer": claim["peer"]})
    audit(by, "node.session_confirmed", f"node {node.name}", {"peer": claim["peer"], "hostname": claim["hostname"]}, now=now)
    _save(node, {**claim, "is_confirmed": True, "at": round(now.timestamp(), 3)})


def _read_locked(node: Node) -> None:
    """As another request may have noted or confirmed somebody since ours read the row."""
    node.claim = Node.objects.select_for_update().values_list("claim", flat=True).get(pk=node.pk)


def _save(node: Node, claim: dict[str, Any] | None) -> None:
    Node.objects.filter(pk=node.pk).update(claim=claim)
    node.claim = claim
