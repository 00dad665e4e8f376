"""What a node's agent reports of its cards once: stored once, judged once (nodes/health.py), carried out (nodes/care.py)."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import DataError, transaction

from agent.protocol import BAD_EVENT, AgentEvent, SyncRequest
from nodes import care, telemetry
from nodes.doubts import SESSION as OURS
from nodes.doubts import doubt
from nodes.health import BURST_S, Rule, Seen, Verdict, judge_kind, judge_xid
from nodes.health_models import XidPolicy
from nodes.incidents import KERNEL_CHARS, KERNEL_LINES, kernel_add
from nodes.models import Gpu, HealthEvent, Node
from nodes.text import NAME, json_clean, text_clean

log = logging.getLogger(__name__)

EVENT_DATA_MAX = 16 * 1024
BIG = 2**63 - 1
PAST = timedelta(days=1)
PAST_MOST = 500
#: So many events of a node are kept in an hour. Agents send far fewer; more are acknowledged and counted, and not kept.
HOUR_MOST = 2000
#: An event that waited longer than this for its sync is one of now.
AGE_MOST_S = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A rank that holds a card, with its job and that one's owner: what the jobs room tells of it."""

    rank: str
    job: int
    owner: int
    epoch: int = 0


#: Card ids → who holds each now. One query.
Holders = Callable[[Iterable[int]], Mapping[int, Sequence[Holder]]]


def events_take(*, node: Node, sync: SyncRequest, now: datetime, holders: Holders | None = None) -> bool:
    """Store and judge the events of a sync; True if a card's state changed or a job has to fail. Call inside a transaction.

    The cards' rows are locked first: of two requests with the same events one sees what the other wrote.
    """
    # 1. What can be taken: an event that can't be read is one for the staff, and a flood is counted only.
    events, dropped = _kept(node, sync)
    for code, found in dropped.items():
        doubt(node.pk, code, now=now, data=found[0].data if code == BAD_EVENT else {"events": len(found)}, times=len(found))
    if not events:
        return False
    # 2. The cards, what is known of them, and who is on them.
    uuids = {event.gpu for event in events if event.gpu and NAME.fullmatch(event.gpu)}
    cards = {gpu.uuid: gpu for gpu in Gpu.objects.select_for_update().filter(node=node, uuid__in=uuids).order_by("pk")} if uuids else {}
    known = set(HealthEvent.objects.filter(node=node, eid__in=[event.eid for event in events]).values_list("session", "eid"))
    history = _History([gpu.pk for gpu in cards.values()], now) if any(event.kind == "xid" for event in events) else None
    held = holders([gpu.pk for gpu in cards.values()]) if holders and cards else {}
    # 3. Each by itself: one that we stumble over is dropped alone, and the others are taken.
    plain: list[HealthEvent] = []
    has_changed = False
    for event in events:
        session = text_clean(event.session or sync.session)[:40]
        if (session, event.eid) in known:
            continue
        known.add((session, event.eid))
        gpu = cards.get(event.gpu or "")
        try:
            with transaction.atomic():  # what was written for it before the fault must not stay
                row = HealthEvent(
                    node=node,
                    gpu=gpu,
                    session=session,
                    eid=event.eid,
                    kind=text_clean(event.kind)[:40],
                    data=_event_data(event),
                    at=_event_at(event, sync, now),
                )
                has_changed |= _take(event, row, gpu, plain, history, held, now=now)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError, DataError) as error:
            log.exception("node %s: event %s (%s) can't be taken", node.name, event.eid, event.kind[:40])
            doubt(node.pk, BAD_EVENT, now=now, data={"problem": f"{type(error).__name__} in an event of the kind {event.kind[:40]}"})
    # (node, session, eid) is unique: what another request wrote meanwhile is dropped.
    HealthEvent.objects.bulk_create(plain, ignore_conflicts=True)
    return has_changed


def _kept(node: Node, sync: SyncRequest) -> tuple[list[AgentEvent], dict[str, list[AgentEvent]]]:
    """The events to take, by number, and those that are dropped, by why. One round trip."""
    dropped: dict[str, list[AgentEvent]] = defaultdict(list)
    found = []
    for event in sync.events:
        is_named = 0 <= event.eid <= BIG and not (event.session or "").startswith(OURS)
        is_read = event.kind != BAD_EVENT and is_named and (event.kind != "xid" or _is_xid(event.data.get("xid")))
        if not is_read and event.kind != BAD_EVENT:
            problem = f"an event of the kind {event.kind[:40]} has a number or a session that can't be"
            event = AgentEvent(eid=-1, kind=BAD_EVENT, data={"problem": problem})
        (found if is_read else dropped[BAD_EVENT]).append(event)
    room = HOUR_MOST - telemetry.events_counted(node.pk, len(found)) if found else 0
    if room < 0:
        keep = max(0, len(found) + room)
        found, dropped["event_flood"] = found[:keep], found[keep:]
    return sorted(found, key=lambda event: event.eid), dropped


def _take(
    event: AgentEvent,
    row: HealthEvent,
    gpu: Gpu | None,
    plain: list[HealthEvent],
    history: _History | None,
    held: Mapping[int, Sequence[Holder]],
    *,
    now: datetime,
) -> bool:
    """One event: its row, and what it means for its card. True if a card's state changed or a job has to fail."""
    if event.kind == "kernel_log":
        # Evidence, no event: it goes where the fault is looked into, and a repeat changes nothing.
        if gpu is not None:
            kernel_add(gpu=gpu, lines=_lines(event.data.get("lines")))
        return False
    if gpu is not None and event.kind == "xid" and history is not None:
        return _xid_take(row, gpu, int(event.data["xid"]), history, held.get(gpu.pk, ()), now=now)
    plain.append(row)
    verdict = judge_kind(row.kind, care.card_of(gpu)) if gpu is not None else None
    return gpu is not None and verdict is not None and care.verdict_apply(gpu=gpu, verdict=verdict, now=now)


def _is_xid(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


class _History:
    """Earlier XIDs of these cards, and the rules. Two queries, when the first XID of a sync comes."""

    def __init__(self, gpus: Sequence[int], now: datetime) -> None:
        self.rules = {row.xid: row for row in XidPolicy.objects.all()}
        self._rows: dict[int, list[HealthEvent]] = defaultdict(list)
        rows = HealthEvent.objects.filter(gpu__in=gpus, kind="xid", at__gte=now - PAST).order_by("-at", "-pk")[:PAST_MOST]
        for row in rows:
            # Rows without a number may be there from before such events were refused.
            if row.gpu_id is not None and _is_xid(row.data.get("xid")):
                self._rows[row.gpu_id].append(row)

    def burst(self, gpu: int, xid: int, at: datetime) -> HealthEvent | None:
        """The occurrence that one at ``at`` belongs to. A storm that a program causes is one for as long as it lasts; a fault of the
        card that goes on has come again."""
        rule = self.rules.get(xid)
        for row in self._rows[gpu]:
            last = row.at.timestamp()
            if rule is None or rule.is_users:
                last = float(row.data.get("last_at") or last)
            if row.data.get("xid") == xid and row.at.timestamp() - BURST_S <= at.timestamp() <= last + BURST_S:
                return row
        return None

    def seen(self, gpu: int) -> list[Seen]:
        return [_seen(row) for row in self._rows[gpu]]

    def add(self, row: HealthEvent) -> None:
        if row.gpu_id is not None:
            self._rows[row.gpu_id].insert(0, row)

    def rule(self, xid: int) -> Rule | None:
        row = self.rules.get(xid)
        return None if row is None else Rule(xid=xid, action=row.action, is_users=row.is_users, again_s=row.again_s)


def _seen(row: HealthEvent) -> Seen:
    owner = row.data.get("owner")
    return Seen(xid=int(row.data["xid"]), at=row.at.timestamp(), owner=owner if isinstance(owner, int) else None)


def _xid_take(row: HealthEvent, gpu: Gpu, xid: int, history: _History, holders: Sequence[Holder], *, now: datetime) -> bool:
    times = 1 + _whole(row.data.get("unsent_before"))
    burst = history.burst(gpu.pk, xid, row.at)
    if burst is not None:
        last = max(float(burst.data.get("last_at") or 0), row.at.timestamp())
        burst.data = {**burst.data, "count": _whole(burst.data.get("count")) + times, "last_at": last}
        HealthEvent.objects.filter(pk=burst.pk).update(data=burst.data)
        return False
    culprit = _culprit(row.data.get("rank"), holders)
    # Of a rank that the agent named itself, the epoch says which attempt it was, whatever the clocks say.
    named = {} if not isinstance(row.data.get("rank"), str) or culprit is None else {"epoch": culprit.epoch}
    whose = {} if culprit is None else {"job": culprit.job, "owner": culprit.owner, **named}
    # Who it was is ours to say, never the agent's.
    row.data = {**{k: v for k, v in row.data.items() if k not in ("job", "owner", "epoch", "last_at")}, **whose, "count": times}
    rule = history.rule(xid)
    verdict = judge_xid(rule, _seen(row), care.card_of(gpu), history.seen(gpu.pk))
    if (verdict.fails_job or verdict.restarts_job) and culprit is not None:
        row.fails_job = culprit.job
        if verdict.restarts_job:
            row.data["restarts"] = True
    row.save()
    history.add(row)
    kernel = [*row.data.get("log", [])] if isinstance(row.data.get("log"), list) else []
    text = row.data.get("text")
    kernel += [text] if isinstance(text, str) and text not in kernel else []
    changed = _is_telling(verdict) and care.verdict_apply(
        gpu=gpu, verdict=_with_drill(verdict, row), now=now, kernel=kernel, is_users=rule is not None and rule.is_users
    )
    log.warning("XID %s on card %s: %s", xid, gpu.uuid, verdict.code if verdict.state is None else verdict.state)
    return changed or row.fails_job is not None


def _lines(value: Any) -> list[str]:
    """Of an agent's list of lines, what is one."""
    return [text_clean(line)[:KERNEL_CHARS] for line in value[:KERNEL_LINES] if isinstance(line, str)] if isinstance(value, list) else []


def _with_drill(verdict: Verdict, row: HealthEvent) -> Verdict:
    if not row.data.get("drill"):
        return verdict
    return replace(verdict, params={**verdict.params, "drill": True})


def _is_telling(verdict: Verdict) -> bool:
    """Whether anything but the row itself comes of it."""
    return verdict.state is not None or verdict.wants is not None


def _culprit(rank: Any, holders: Sequence[Holder]) -> Holder | None:
    """Whose program it was: the one that the agent found by its process, else the only one there. Never a guess among several."""
    if isinstance(rank, str):
        return next((holder for holder in holders if holder.rank == rank), None)
    return holders[0] if len(holders) == 1 else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else 0


def _event_data(event: AgentEvent) -> dict[str, Any]:
    data = json_clean(event.data if event.gpu is None else {**event.data, "uuid": event.gpu})
    length = len(json.dumps(data))
    return data if length <= EVENT_DATA_MAX else {"too_long": length} | ({"xid": event.data["xid"]} if "xid" in event.data else {})


def _event_at(event: AgentEvent, sync: SyncRequest, now: datetime) -> datetime:
    """When it was, by our clock: as long before now as the node's clock counted from the event to its sync.

    No time of the node is compared with one of ours, so a clock that is wrong moves nothing. An agent that does not tell when it
    sent means now.
    """
    age = sync.sent_at - event.at if sync.sent_at is not None and event.at is not None else 0.0
    return now - timedelta(seconds=age) if 0 <= age <= AGE_MOST_S else now
