"""What a node's agent reports of its cards once: stored once, judged once (nodes/health.py), carried out (nodes/care.py)."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from agent.protocol import AgentEvent, SyncRequest
from nodes import care
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A rank that holds a card, with its job and that one's owner: what the jobs room tells of it."""

    rank: str
    job: int
    owner: int


#: Card ids → who holds each now. One query.
Holders = Callable[[Iterable[int]], Mapping[int, Sequence[Holder]]]


def events_take(*, node: Node, sync: SyncRequest, now: datetime, holders: Holders | None = None) -> bool:
    """Store and judge the events of a sync; True if a card's state changed or a job has to fail. Call inside a transaction.

    The cards' rows are locked first: of two requests with the same events one sees what the other wrote.
    """
    events = sorted((event for event in sync.events if 0 <= event.eid <= BIG), key=lambda event: event.eid)
    if not events:
        return False
    uuids = {event.gpu for event in events if event.gpu and NAME.fullmatch(event.gpu)}
    cards = {gpu.uuid: gpu for gpu in Gpu.objects.select_for_update().filter(node=node, uuid__in=uuids).order_by("pk")} if uuids else {}
    known = set(HealthEvent.objects.filter(node=node, eid__in=[event.eid for event in events]).values_list("session", "eid"))
    history = _History([gpu.pk for gpu in cards.values()], now) if any(event.kind == "xid" for event in events) else None
    held = holders([gpu.pk for gpu in cards.values()]) if holders and cards else {}
    plain: list[HealthEvent] = []
    has_changed = False
    for event in events:
        session = text_clean(event.session or sync.session)[:40]
        if (session, event.eid) in known:
            continue
        known.add((session, event.eid))
        gpu = cards.get(event.gpu or "")
        if event.kind == "kernel_log":
            # Evidence, no event: it goes where the fault is looked into, and a repeat changes nothing.
            if gpu is not None:
                kernel_add(gpu=gpu, lines=_lines(event.data.get("lines")))
            continue
        row = HealthEvent(
            node=node,
            gpu=gpu,
            session=session,
            eid=event.eid,
            kind=text_clean(event.kind)[:40],
            data=_event_data(event),
            at=_event_at(event, now),
        )
        xid = event.data.get("xid")
        if gpu is None or not (event.kind != "xid" or (isinstance(xid, int) and 0 <= xid < 2**31)):
            plain.append(row)
        elif event.kind == "xid" and history is not None:
            has_changed |= _xid_take(row, gpu, int(xid), history, held.get(gpu.pk, ()), now=now)
        else:
            plain.append(row)
            verdict = judge_kind(row.kind, care.card_of(gpu))
            if verdict is not None:
                has_changed |= care.verdict_apply(gpu=gpu, verdict=verdict, now=now)
    # (node, session, eid) is unique: what another request wrote meanwhile is dropped.
    HealthEvent.objects.bulk_create(plain, ignore_conflicts=True)
    return has_changed


class _History:
    """Earlier XIDs of these cards, and the rules. Two queries, when the first XID of a sync comes."""

    def __init__(self, gpus: Sequence[int], now: datetime) -> None:
        self.rules = {row.xid: row for row in XidPolicy.objects.all()}
        self._rows: dict[int, list[HealthEvent]] = defaultdict(list)
        rows = HealthEvent.objects.filter(gpu__in=gpus, kind="xid", at__gte=now - PAST).order_by("-at", "-pk")[:PAST_MOST]
        for row in rows:
            if row.gpu_id is not None:
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
    whose = {} if culprit is None else {"job": culprit.job, "owner": culprit.owner}
    # Who it was is ours to say, never the agent's.
    row.data = {**{k: v for k, v in row.data.items() if k not in ("job", "owner", "last_at")}, **whose, "count": times}
    rule = history.rule(xid)
    verdict = judge_xid(rule, _seen(row), care.card_of(gpu), history.seen(gpu.pk))
    if verdict.fails_job and culprit is not None:
        row.fails_job = culprit.job
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
    return Verdict(
        code=verdict.code, params={**verdict.params, "drill": True}, state=verdict.state, wants=verdict.wants, fails_job=verdict.fails_job
    )


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


def _event_at(event: AgentEvent, now: datetime) -> datetime:
    """The node's own time of the event, unless it can't be: a week old, or later than now."""
    if event.at is None or not now.timestamp() - 7 * 86400 <= event.at <= now.timestamp():
        return now
    return datetime.fromtimestamp(event.at, UTC)
