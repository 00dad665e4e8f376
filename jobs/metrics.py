"""``GET /metrics`` for Prometheus: the whole installation in a constant number of queries, whatever the number of cards and jobs."""

from __future__ import annotations

import hmac
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from typing import Any

from django.conf import settings
from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from jobs.counts import BOUNDS, pass_counts
from jobs.lifecycle import FINAL, JobState, SliceState
from jobs.models import Job, Slice
from nodes import telemetry
from nodes.card_metrics import MIB, CardRow, NodeRow, card_labels, cards_lines, nodes_lines
from nodes.doubts import doubts_counted
from nodes.exposition import CONTENT_TYPE, histogram, labels, metric, numbers
from nodes.models import Alert, Gpu, GpuState, HealthEvent, Node, NodeState
from quotas.models import NoticeDelivery
from quotas.throttles import peer_address

XID_FOR = timedelta(days=1)
XIDS_MOST = 10_000
AGENT_STATES = tuple(state for state in NodeState.values if state != NodeState.RETIRED)


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    has_token = _has_token(request)
    if not has_token and not _is_let_in(request):
        text = _("Metrics need the installation's token as a bearer token: NEBULA_METRICS_TOKEN, or metrics-token of the data folder.")
        return HttpResponse(text + "\n", status=403, content_type="text/plain; charset=utf-8")
    answer = HttpResponse(metrics_text(now=time.time(), has_names=has_token), content_type=CONTENT_TYPE)
    answer["Cache-Control"] = "no-store"
    return answer


def _has_token(request: HttpRequest) -> bool:
    scheme, _blank, given = request.headers.get("Authorization", "").partition(" ")
    token: str = settings.METRICS_TOKEN
    return bool(token) and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _is_let_in(request: HttpRequest) -> bool:
    """By its address (NEBULA_METRICS_ALLOW). Behind a proxy that nobody told us of, every address looks like its."""
    is_proxied = bool(request.headers.get("X-Forwarded-For") or request.headers.get("Forwarded"))
    if is_proxied and not settings.TRUSTED_PROXIES:
        return False
    try:
        address = ip_address(peer_address(request))
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in ip_network(allowed, strict=False) for allowed in settings.METRICS_ALLOW)


def metrics_text(*, now: float, has_names: bool = True) -> str:
    """All series, with the names of users and projects or without. Ten queries, six round trips to Redis."""
    began = time.perf_counter()
    nodes = list(
        Node.objects.exclude(state=NodeState.RETIRED)
        .order_by("name")
        .values_list("pk", "name", "state", "cordoned", "last_seen_at", "memory_mib")
    )
    latest = telemetry.nodes_latest(row[0] for row in nodes)
    fresh = {pk: found for pk, found in latest.items() if now - found.at < telemetry.STALE_AFTER_S}
    holders = _holders(has_names=has_names)
    lines = [
        *cards_lines(_cards(nodes, fresh, holders, now=now)),
        *nodes_lines(_nodes(nodes, latest, now=now), AGENT_STATES),
        *_job_memory_lines(nodes, holders, now=now),
        *_queue_lines(now=now),
        *_alert_lines(now=now),
        *_doubt_lines(nodes),
        *_pass_lines(),
    ]
    lines += metric("nebula_scrape_seconds", "gauge", "Time that this answer took.", [("", round(time.perf_counter() - began, 4))])
    return "".join(lines)


# --- cards and nodes ----------------------------------------------------------------------------------------------

#: Card id → its live slices: (job, owner, project, rank, MiB).
Holders = dict[int, list[tuple[int, str, str, str, int]]]


def _holders(*, has_names: bool) -> Holders:
    found: Holders = defaultdict(list)
    rows = Slice.objects.exclude(state=SliceState.RELEASED).order_by("pk")
    path = "rank__attempt__job"
    for gpu, *row in rows.values_list("gpu_id", f"{path}_id", f"{path}__owner__email", f"{path}__project__name", "rank__key", "mib"):
        owner, project = (row[1], row[2]) if has_names else ("", "")
        found[gpu].append((row[0], owner, project, row[3], row[4]))
    return found


def _cards(nodes: list[Any], fresh: dict[int, telemetry.Latest], holders: Holders, *, now: float) -> list[CardRow]:
    names = {row[0]: row[1] for row in nodes}
    since = datetime.fromtimestamp(now, UTC) - XID_FOR
    xids: dict[int, int] = {}
    seen = HealthEvent.objects.filter(kind="xid", at__gte=since, gpu__isnull=False).order_by("-at", "-pk")
    for gpu, data in seen.values_list("gpu_id", "data")[:XIDS_MOST]:
        if isinstance(data.get("xid"), int):
            xids.setdefault(gpu, data["xid"])
    rows = [
        row
        for row in Gpu.objects.exclude(node__state=NodeState.RETIRED)
        .exclude(state=GpuState.RETIRED)
        .order_by("node__name", "index", "pk")
        .values_list("pk", "node_id", "uuid", "index", "vendor", "model", "state", "total_mib", "held_mib", "live_slices", "health_score")
        if row[1] in names  # else it joined between the two queries
    ]
    facts = telemetry.cards_health([row[:3] for row in rows])
    found = []
    for pk, node, uuid, index, vendor, model, state, total, held, slices, score in rows:
        of = holders.get(pk, ())
        found.append(
            CardRow(
                labels=card_labels(
                    index=index,
                    uuid=uuid,
                    vendor=vendor,
                    model=model,
                    node=names[node],
                    jobs=_joined(str(row[0]) for row in of),
                    users=_joined(row[1] for row in of),
                    projects=_joined(row[2] for row in of),
                ),
                state=state,
                total_mib=total,
                held_mib=held,
                slices=slices,
                score=score,
                xid=xids.get(pk),
                status=fresh[node].gpus.get(uuid, {}) if node in fresh else {},
                facts=facts.get(pk, {}) if node in fresh else {},
            )
        )
    return found


def _joined(words: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(words))


def _nodes(nodes: list[Any], latest: dict[int, telemetry.Latest], *, now: float) -> list[NodeRow]:
    seen = telemetry.nodes_last_seen() or {}
    found = []
    for pk, name, state, cordoned, last_seen_at, memory in nodes:
        last = seen[pk].at if pk in seen else last_seen_at.timestamp() if last_seen_at is not None else None
        host = latest[pk].host or {} if pk in latest and now - latest[pk].at < telemetry.STALE_AFTER_S else {}
        silent = None if last is None else max(0.0, now - last)
        found.append(NodeRow(name=name, state=state, cordoned=cordoned, silent_s=silent, memory_mib=memory, host=host))
    return found


def _job_memory_lines(nodes: list[Any], holders: Holders, *, now: float) -> list[str]:
    """What each job was given on each card, and what its processes hold there where the driver tells it."""
    used: dict[tuple[str, str], int | None] = {}
    for _pk, (at, processes) in telemetry.nodes_processes(row[0] for row in nodes).items():
        for process in processes if now - at < telemetry.PROCESSES_TTL_S else ():
            key, mib = (str(process.get("rank")), str(process.get("uuid"))), process.get("used_mib")
            before = used.get(key, 0)
            used[key] = None if before is None or not isinstance(mib, int) else before + mib
    uuids = dict(Gpu.objects.filter(live_slices__gt=0).order_by().values_list("pk", "uuid"))
    granted, held = [], []
    for gpu, of in holders.items():
        for job, owner, project, rank, mib in of:
            uuid = uuids.get(gpu, "")
            name = labels(job=job, user=owner, project=project, rank=rank, UUID=uuid)
            granted.append((name, mib * MIB))
            told = used.get((rank, uuid))
            held.append((name, None if told is None else told * MIB))
    return [
        *metric("nebula_job_gpu_memory_granted_bytes", "gauge", "Memory of a card that was given to a job.", granted),
        *metric("nebula_job_gpu_memory_used_bytes", "gauge", "Memory of a card that a job's processes hold.", held),
    ]


# --- the queue and the passes -------------------------------------------------------------------------------------


def _queue_lines(*, now: float) -> list[str]:
    states: dict[str, int] = {state.value: 0 for state in JobState if state not in FINAL}
    ended: dict[str, int] = {state.value: 0 for state in FINAL}
    for state, count in Job.objects.order_by().values_list("state").annotate(Count("pk")):
        (states if state in states else ended)[state] = count
    reasons: dict[str, int] = {}
    oldest: float | None = None
    waiting = Job.objects.filter(state=JobState.WAITING).order_by()
    for code, held, count, since in waiting.values_list("wait_code", "held").annotate(Count("pk"), Min("queued_at")):
        reason = "held" if held else code
        reasons[reason] = reasons.get(reason, 0) + count
        if not held:
            oldest = min(oldest if oldest is not None else now, since.timestamp())
    failures = dict(Job.objects.filter(state=JobState.FAILED).order_by().values_list("end_reason").annotate(Count("pk")))
    wait = 0.0 if oldest is None else max(0.0, round(now - oldest, 1))
    return [
        *metric("nebula_jobs", "gauge", "Jobs that have not ended, by state.", numbers(states, "state")),
        *metric("nebula_jobs_waiting", "gauge", "Jobs in the queue, by why they wait.", numbers(reasons, "reason")),
        *metric("nebula_queue_oldest_seconds", "gauge", "How long the job that waits longest has been waiting.", [("", wait)]),
        *metric("nebula_jobs_ended_total", "counter", "Jobs that have ended, by state.", numbers(ended, "state")),
        *metric("nebula_job_failures_total", "counter", "Jobs that failed, by reason.", numbers(failures, "reason")),
    ]


def _alert_lines(*, now: float) -> list[str]:
    """What is open, and whether messages get out: those that should have been sent by now."""
    alerts = Alert.objects.exclude(state=Alert.State.RESOLVED).order_by()
    found = sorted(alerts.values_list("rule__code", "level").annotate(n=Count("pk")), key=str)
    levels = {Alert.Level.WARNING: "warning", Alert.Level.CRITICAL: "critical"}
    series = [(labels(rule=rule or "", level=levels[Alert.Level(level)]), n) for rule, level, n in found]
    waiting = NoticeDelivery.objects.filter(state=NoticeDelivery.State.WAITING).order_by()
    late = waiting.aggregate(n=Count("pk"), since=Min("created_at"))
    age = 0.0 if late["since"] is None else max(0.0, round(now - late["since"].timestamp(), 1))
    return [
        *metric("nebula_alerts", "gauge", "Alerts that are not resolved, by rule and level.", series),
        *metric("nebula_notices_waiting", "gauge", "Messages that are not delivered yet.", [("", late["n"])]),
        *metric("nebula_notices_oldest_seconds", "gauge", "How long the oldest of them has been waiting.", [("", age)]),
    ]


def _doubt_lines(nodes: list[Any]) -> list[str]:
    """What nodes sent that was not taken, by why (nodes/doubts.py)."""
    names = {row[0]: row[1] for row in nodes}
    counted = sorted((names[node], code, n) for (node, code), n in doubts_counted().items() if node in names)
    series = [(labels(Hostname=name, reason=code), n) for name, code, n in counted]
    return metric("nebula_node_refused_total", "counter", "What nodes sent that was refused or dropped, by reason.", series)


def _pass_lines() -> list[str]:
    found = pass_counts()
    up = metric("nebula_redis_up", "gauge", "1 while Redis answers.", [("", int(found is not None))])
    if found is None:
        return up
    parts = numbers({part: round(seconds, 6) for part, seconds in found.parts.items()}, "part")
    return [
        *up,
        *histogram("nebula_schedule_attempts_duration_seconds", "Duration of a scheduling pass.", BOUNDS, found.buckets, found.seconds),
        *metric("nebula_schedule_part_seconds_total", "counter", "Time in each part of all passes.", parts),
        *metric("nebula_schedule_failures_total", "counter", "Scheduling passes that ended with an error.", [("", found.failed)]),
        *metric("nebula_jobs_started_total", "counter", "Jobs that a pass found a place for.", [("", found.started)]),
    ]
