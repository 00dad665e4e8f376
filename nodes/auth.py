"""Who an agent is. Its credential is a 256-bit secret; SHA-256 is enough for it and costs microseconds."""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from nodes.doubts import doubt
from nodes.models import Node, NodeState
from quotas.audit import audit
from quotas.sql import Select

#: A request that was sent with the old credential may arrive so long after the new one was used.
LATE = timedelta(seconds=60)

_FIELDS = [field.attname for field in Node._meta.concrete_fields]
#: Every sync begins with it: compiled once, it costs a quarter.
_node_of_pk = Select(lambda pk: Node.objects.filter(pk=pk).order_by().values_list(*_FIELDS))


def credential_sha256(credential: str) -> str:
    return hashlib.sha256(credential.encode()).hexdigest()


def node_authenticate(authorization: str) -> Node | None:
    """The node of an ``Authorization: Node <id>:<credential>`` header; None if it is none, wrong, or of a retired node.

    One SELECT; compares in constant time.
    """
    scheme, _, rest = authorization.partition(" ")
    number, _, credential = rest.strip().partition(":")
    if scheme.lower() != "node" or not (number.isascii() and number.isdigit() and len(number) < 19) or not 32 <= len(credential) <= 200:
        return None
    rows = _node_of_pk(int(number))
    node = Node.from_db("default", _FIELDS, rows[0]) if rows else None
    shown = credential_sha256(credential)
    known = (node.credential_sha256 if node is not None else None) or "-"
    is_right = hmac.compare_digest(known, shown)
    if node is not None and not is_right and node.credential_sha256:
        is_right = _is_next(node, shown) or _is_past(node, shown)
    return node if is_right and node is not None and node.state != NodeState.RETIRED else None


def _is_next(node: Node, shown: str) -> bool:
    """Whether it is the one that the agent has just made: then it is the node's from now on."""
    if not node.next_credential_sha256 or not hmac.compare_digest(node.next_credential_sha256, shown):
        return False
    now = timezone.now()
    changes = {
        "credential_sha256": shown,
        "past_credential_sha256": node.credential_sha256,
        "next_credential_sha256": "",
        "credential_at": now,
    }
    with transaction.atomic():
        if Node.objects.filter(pk=node.pk, next_credential_sha256=shown).update(**changes):
            audit(None, "node.credential", f"node {node.name}", now=now)
    for name, value in changes.items():
        setattr(node, name, value)
    return True


def _is_past(node: Node, shown: str) -> bool:
    """Whether it is the one of before, from a request that was on its way when it was exchanged. Later it was stolen: staff hear of it."""
    if not node.past_credential_sha256 or not hmac.compare_digest(node.past_credential_sha256, shown):
        return False
    now = timezone.now()
    if node.credential_at is not None and now - node.credential_at < LATE:
        return True
    doubt(node.pk, "old_credential", now=now)
    return False


def credential_next(*, node: Node, sha256: str) -> bool:
    """Note what the node's next credential will be. False where that is no hash."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        return False
    Node.objects.filter(pk=node.pk).update(next_credential_sha256=sha256)
    return True


def credential_is_due(node: Node, *, now: datetime) -> bool:
    """Whether it is older than NEBULA_CREDENTIAL_DAYS; 0 = none ever is."""
    days = settings.CREDENTIAL_DAYS
    return days > 0 and (node.credential_at is None or now - node.credential_at > timedelta(days=days))
