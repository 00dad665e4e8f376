"""A look at each node once a day: what the control plane knows of its last day, and what `nebula-agent doctor` finds on the machine.

The report is a list of findings, codes and numbers; nodes/inspection_words.py puts ours into words, the agent's bring their own in
both languages. A node that is silent is looked at all the same: then its silence is what is found.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Avg, Count, Exists, Max, Min, OuterRef
from django.db.models.functions import Coalesce

from nodes import live
from nodes.health_models import Incident, Inspection
from nodes.models import AgentCommand, Gpu, GpuSample, GpuState, HealthEvent, Level, Node, NodeSample, NodeState
from nodes.text import text_clean

log = logging.getLogger(__name__)

EVERY = timedelta(days=1)
KEPT = timedelta(days=30)
#: So many nodes at each call: a pool that was down for a day does not ask all its agents at once.
AT_ONCE = 20
COMMAND_TTL_S = 1800
FINDINGS_MOST, TEXT_MOST = 100, 400
LEVELS = ("fail", "warn", "pass")

DAY = timedelta(days=1)
HOT_C = 85
THROTTLED_PCT = 10
SCORE_LOW = 70
DISK_LOW_MIB = 10 * 1024
OPEN_FOR = timedelta(days=3)
TOLD_PCT = 90

Finding = dict[str, Any]


def inspections_due(*, now: datetime) -> int:
    """Begin the inspections that are due; returns how many. Without any one query."""
    recent = Inspection.objects.filter(node=OuterRef("pk"), at__gt=now - EVERY)
    due = Node.objects.exclude(state__in=(NodeState.RETIRED, NodeState.ENROLLING)).filter(~Exists(recent)).order_by("pk")[:AT_ONCE]
    count = 0
    for node in due:
        inspection_begin(node=node, now=now)
        count += 1
    if count:
        old = Inspection.objects.filter(at__lt=now - KEPT)
        commands = [pk for pk in old.values_list("command_id", flat=True) if pk is not None]
        old.delete()
        AgentCommand.objects.filter(pk__in=commands).delete()  # the doctor's whole answer: one a node and day
    return count


def inspection_begin(*, node: Node, now: datetime, by: AbstractBaseUser | None = None) -> Inspection:
    """Look at what is known, and ask the agent for its doctor; its answer is added when it comes."""
    from nodes.services import command_create

    command = None
    if node.state in (NodeState.READY, NodeState.RECOVERING) and not node.is_metrics_only:
        command = command_create(node=node, verb="doctor", by=by, ttl_s=COMMAND_TTL_S, now=now)
    found = Inspection.objects.create(node=node, at=now, command=command, findings=node_findings(node, now=now))
    live.publish("pool", {"node": node.pk, "inspection": found.pk})
    return found


def inspection_results(*, node: Node, cids: Collection[int]) -> None:
    """Add what the doctor said, where one of these answers is its. Call inside a transaction; one query without any."""
    for found in Inspection.objects.filter(node=node, command__in=list(cids), is_told=False).select_related("command"):
        if found.command is None or found.command.state == AgentCommand.State.QUEUED:
            continue
        told = doctor_findings(found.command.text)
        found.findings = sorted([*found.findings, *told], key=lambda finding: LEVELS.index(finding["level"]))[:FINDINGS_MOST]
        found.is_told = True
        found.save(update_fields=("findings", "is_told"))
        live.publish("pool", {"node": node.pk, "inspection": found.pk})


def doctor_findings(text: str) -> list[Finding]:
    """The checks of an answer; an answer that is none is itself a finding."""
    try:
        checks = json.loads(text)["checks"]
        found = [_check(check) for check in checks[:FINDINGS_MOST] if isinstance(check, dict) and check.get("level") in LEVELS]
    except (ValueError, KeyError, TypeError, RecursionError):
        return [{"level": "warn", "code": "doctor_silent", "params": {"text": text_clean(text)[:TEXT_MOST]}}]
    return found


def _check(check: Mapping[str, Any]) -> Finding:
    chinese = check.get("zh") if isinstance(check.get("zh"), dict) else {}
    says = {
        "text": check.get("text"),
        "advice": check.get("advice"),
        "text_zh": chinese.get("text"),
        "advice_zh": chinese.get("advice"),
    }
    gpu = check.get("gpu")
    return {
        "level": check["level"],
        "code": "doctor",
        "gpu": gpu if isinstance(gpu, int) and not isinstance(gpu, bool) else None,
        "params": {name: text_clean(str(value))[:TEXT_MOST] for name, value in says.items() if value},
    }


# --- what is known here ---------------------------------------------------------------------------------------------


def node_findings(node: Node, *, now: datetime) -> list[Finding]:
    """The gravest first. Seven queries."""
    found: list[Finding] = []

    def add(level: str, code: str, gpu: int | None = None, **params: Any) -> None:
        found.append({"level": level, "code": code, "gpu": gpu, "params": params})

    if node.state in (NodeState.UNKNOWN, NodeState.DOWN):
        add("fail", "silent", hours=_hours(now - node.state_at))
    if node.cordoned:
        add("warn", "cordoned", why=node.cordon_reason)
    _of_host(node, now, add)
    gpus = list(Gpu.objects.filter(node=node).exclude(state=GpuState.RETIRED).order_by("index", "pk"))
    troubled = _of_cards(gpus, now, add)
    well = sum(gpu.pk not in troubled for gpu in gpus)
    if well:
        add("pass", "cards_well", count=well)
    return sorted(found, key=lambda finding: LEVELS.index(finding["level"]))


def _hours(span: timedelta) -> int:
    return max(0, round(span.total_seconds() / 3600))


def _of_host(node: Node, now: datetime, add: Any) -> None:
    since = int((now - DAY).timestamp())
    rows = NodeSample.objects.filter(node=node, level=Level.MINUTE, at__gte=since).aggregate(disk=Min("disk_free_mib"), n=Count("pk"))
    if rows["disk"] is not None and rows["disk"] < DISK_LOW_MIB:
        add("warn", "disk_low", free_mib=rows["disk"])
    joined = max(since, int(node.created_at.timestamp()))
    due = (int(now.timestamp()) - joined) // 60
    # Of a whole hour at least: a node that has just come has few.
    if due >= 60 and 100 * rows["n"] < TOLD_PCT * due and node.state == NodeState.READY:
        add("warn", "samples_missing", told_pct=round(100 * rows["n"] / due))


def _of_cards(gpus: list[Gpu], now: datetime, add: Any) -> set[int]:
    """The ids of the cards that something is found of."""
    since = int((now - DAY).timestamp())
    samples = GpuSample.objects.filter(gpu__in=gpus, level=Level.MINUTE, at__gte=since).order_by().values("gpu")
    figures = {
        row["gpu"]: row for row in samples.annotate(hot=Max(Coalesce("temp_max_c", "temp_c")), slow=Avg("throttled_pct"), n=Count("pk"))
    }
    events = HealthEvent.objects.filter(gpu__in=gpus, kind="xid", at__gte=now - DAY).values_list("gpu_id", "data__xid", "data__count")
    xids: dict[int, Counter[int]] = {}
    for gpu_id, xid, times in events:
        if isinstance(xid, int):
            xids.setdefault(gpu_id, Counter())[xid] += times if isinstance(times, int) else 1
    incidents = {row.gpu_id: row for row in Incident.objects.filter(gpu__in=gpus).exclude(phase=Incident.Phase.CLOSED)}
    troubled: set[int] = set()
    for gpu in gpus:
        said: list[tuple[str, str, dict[str, Any]]] = []
        if gpu.state != GpuState.HEALTHY:
            level = "fail" if gpu.state in (GpuState.ISOLATED, GpuState.MISSING) else "warn"
            said.append((level, "card_state", {"state": gpu.state, "why": gpu.state_reason, "hours": _hours(now - gpu.state_at)}))
        incident = incidents.get(gpu.pk)
        if incident is not None and now - incident.opened_at >= OPEN_FOR:
            said.append(("warn", "incident_open", {"incident": incident.pk, "days": (now - incident.opened_at).days}))
        if gpu.health_score < SCORE_LOW:
            said.append(("warn", "score_low", {"score": gpu.health_score}))
        row = figures.get(gpu.pk, {})
        if row.get("hot") is not None and row["hot"] >= HOT_C:
            said.append(("warn", "hot", {"temp_c": row["hot"]}))
        if row.get("slow") is not None and row["slow"] >= THROTTLED_PCT:
            said.append(("warn", "throttled", {"pct": round(row["slow"])}))
        for xid, times in sorted(xids.get(gpu.pk, Counter()).items()):
            said.append(("warn", "xids", {"xid": xid, "times": times}))
        for level, code, params in said:
            add(level, code, gpu.index, **params)
        if said:
            troubled.add(gpu.pk)
    return troubled
