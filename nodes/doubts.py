"""What a node says or does that it should not: counted, written down once in ten minutes, and alerted on.

A node is half-trusted: somebody may hold its credential, and its agent may be wrong. Nothing in here stops a node; what refuses
the thing itself calls ``doubt`` to make sure that staff hear of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import redis

from nodes import telemetry
from nodes.models import HealthEvent
from nodes.text import json_clean

#: Code → how serious it is: 1 = the agent errs, 2 = somebody else may be speaking as this node.
DOUBTS: Mapping[str, int] = {
    "bad_event": 1,
    "event_flood": 1,
    "implausible": 1,
    "foreign_rank": 2,
    "session_unproven": 1,
    "session_unconfirmed": 1,
    "second_session": 2,
    "old_credential": 2,
}
#: A doubt is written down once in so long, however often it comes; it is counted each time.
ONCE_S = 600
#: An alert is about the doubts of this time.
RECENT = timedelta(minutes=15)
KEY = "nebula:doubts"
#: What the sessions of these rows begin with; no agent's may.
SESSION = "doubt:"


def doubt_count(node: int, code: str, times: int = 1) -> None:
    """One round trip; nothing happens while Redis is away."""
    telemetry.ask(lambda c: c.hincrby(KEY, f"{node}:{code}", times), None)


def doubt(node: int, code: str, *, now: datetime, data: Mapping[str, Any] | None = None, times: int = 1) -> None:
    """Count it, and write it into the node's history unless that was done in the last minutes. One INSERT."""
    doubt_count(node, code, times)
    eid = int(now.timestamp()) // ONCE_S
    row = HealthEvent(node_id=node, session=f"{SESSION}{code}", eid=eid, kind=code, data=json_clean(dict(data or {})), at=now)
    # (node, session, eid) is unique: of many in the same ten minutes the first one stays.
    HealthEvent.objects.bulk_create([row], ignore_conflicts=True)


def doubts_counted() -> dict[tuple[int, str], int]:
    """(node, code) → how often, since Redis was emptied last. One round trip."""
    found: dict[tuple[int, str], int] = {}

    def read(c: redis.Redis) -> dict[str, str]:
        return c.hgetall(KEY)

    for name, count in (telemetry.ask(read, {}) or {}).items():
        node, _, code = name.partition(":")
        if node.isdigit() and code in DOUBTS:
            found[int(node), code] = int(count)
    return found


def nodes_doubted(nodes: Iterable[int], *, now: datetime) -> dict[int, tuple[int, str]]:
    """Node → the most serious doubt of the last minutes, as (how serious, code). One query."""
    rows = HealthEvent.objects.filter(at__gte=now - RECENT, gpu=None, kind__in=DOUBTS, session__startswith=SESSION).order_by()
    wanted = set(nodes)
    found: dict[int, tuple[int, str]] = {}
    for node, kind in rows.values_list("node_id", "kind")[:10_000]:
        if node in wanted:
            found[node] = max(found.get(node, (0, "")), (DOUBTS[kind], kind))
    return found
