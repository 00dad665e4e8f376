"""The figures that a rule can watch: what each is called, its unit, what to do about it; and those that this room knows, out of Redis.

Figures of jobs are added by the jobs room (jobs/alert_figures.py), under the names that are listed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from django.utils.translation import gettext_lazy, pgettext_lazy

from nodes import telemetry
from nodes.doubts import nodes_doubted
from nodes.launches import SPOILS
from nodes.liveness import is_half_silent
from nodes.models import Gpu, GpuState, Node, NodeState

Figures = dict[str, dict[str, float | None]]  # metric → subject → figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``scope`` gpu | node | job | owner | pool. ``sentence`` has {value} and {limit} (with unit) and {for} (a time), and names of the
    subject; ``advice`` is the way out. ``unit`` % | °C | s | "" (a figure that is 0, 1 or 2)."""

    scope: str
    unit: str
    title: Any
    sentence: Any
    advice: Any


METRICS: Final[dict[str, Metric]] = {
    "memory_pct": Metric(
        scope="gpu", unit="%", title=gettext_lazy("Memory nearly full"),
        sentence=gettext_lazy("{value} of the memory of {place} is used (limit {limit}, for {for})."),
        advice=gettext_lazy("The next allocation may fail: use a smaller batch, or ask for a larger slice or card."),
    ),
    "idle_held_pct": Metric(
        scope="gpu", unit="%", title=gettext_lazy("Held, but hardly used"),
        sentence=gettext_lazy("{place} is held by a job and used to {value} (limit {limit}, for {for})."),
        advice=gettext_lazy("Look whether the job hangs or waits for data; more loader processes or a smaller slice may help."),
    ),
    "full_idle_tensor_pct": Metric(
        scope="gpu", unit="%", title=gettext_lazy("Memory full, tensor units idle"),
        sentence=gettext_lazy("The memory of {place} is over 90% full, its tensor units are used to {value} (limit {limit}, for {for})."),
        advice=gettext_lazy("Mixed precision or a larger batch would use them."),
    ),
    "temp_c": Metric(
        scope="gpu", unit="°C", title=gettext_lazy("Hot"),
        sentence=gettext_lazy("{place} is at {value} (limit {limit}, for {for})."),
        advice=gettext_lazy("Check fans, filters and the air around it; drain the node if it goes on."),
    ),
    "temp_soon_c": Metric(
        scope="gpu", unit="°C", title=gettext_lazy("Getting hot"),
        sentence=gettext_lazy("{place} warms up so fast that it would be at {value} in ten minutes (limit {limit})."),
        advice=gettext_lazy("Check fans, filters and the air around it before it slows down."),
    ),
    "power_pct": Metric(
        scope="gpu", unit="%", title=gettext_lazy("Power near its limit"),
        sentence=gettext_lazy("{place} draws {value} of its power limit (from {limit} on, for {for})."),
        advice=gettext_lazy("It runs as fast as its limit allows; check the limit and the power supply if it is below its default."),
    ),
    "card_untold": Metric(
        scope="gpu", unit="", title=gettext_lazy("No figures from a card"),
        sentence=gettext_lazy("{node} reports, but tells no figures of {place} (for {for})."),
        advice=gettext_lazy("Ask the agent to diagnose; the driver or the card may hang."),
    ),
    "disk_free_pct": Metric(
        scope="node", unit="%", title=gettext_lazy("Disk nearly full"),
        sentence=gettext_lazy("{value} of the disk of {node} is free (limit {limit}, for {for})."),
        advice=gettext_lazy("Remove old output and environments, or enlarge the disk: without room logs can't be kept."),
    ),
    "node_silent": Metric(
        scope="node", unit="", title=gettext_lazy("A node is silent"),
        sentence=gettext_lazy("{node} is not heard of (for {for})."),
        advice=gettext_lazy("Check its power, its network and nebula-agent on it. Jobs there are kept until it is back."),
    ),
    "clock_skew_s": Metric(
        scope="node", unit="s", title=gettext_lazy("A node's clock is wrong"),
        sentence=gettext_lazy("The clock of {node} differs by {value} from the control plane's (limit {limit}, for {for})."),
        advice=gettext_lazy("Set up NTP there. Until then the times in its programs' own output mislead; nothing here depends on them."),
    ),
    "node_doubted": Metric(
        scope="node", unit="", title=gettext_lazy("A node says what can't be"),
        sentence=gettext_lazy("{node} sent what it may not or can't mean; its page says what."),
        advice=gettext_lazy(
            "If its agent was not just copied or set up anew, somebody may have its credential: drain the node, enrol it again, "
            "and look who could read its files."
        ),
    ),
    "node_spoils": Metric(
        scope="node", unit="", title=gettext_lazy("A node was taken out of service"),
        sentence=gettext_lazy("{node} takes no new work: its agent can't write to its disk, or several launches in a row failed there."),
        advice=gettext_lazy(
            "Its page says what is wrong. With room on its disk it is back by itself; otherwise put it right and resume it."
        ),
    ),
    "control_disk": Metric(
        scope="pool", unit="", title=gettext_lazy("The control plane's disk is nearly full"),
        sentence=gettext_lazy("{free_mib} MiB are free at {disk} of the control plane; below {floor_mib} MiB nothing new is taken."),
        advice=gettext_lazy("Make room there, or let old output and files go sooner: /healthz fails and submits are refused meanwhile."),
    ),
    "silent_nodes_pct": Metric(
        scope="pool", unit="%", title=gettext_lazy("Most nodes are silent"),
        sentence=gettext_lazy("{value} of the nodes are not heard of (limit {limit})."),
        advice=gettext_lazy("The fault is more likely the network's or the control plane's. Nothing is called lost for now."),
    ),
    "wait_s": Metric(
        scope="owner", unit="s", title=gettext_lazy("Long wait in the queue"),
        sentence=gettext_lazy("A job of {owner} has been waiting for {value} (limit {limit})."),
        advice=gettext_lazy("Its page says what it waits for, and what would start sooner."),
    ),
    "over_request_pct": Metric(
        scope="job", unit="%", title=gettext_lazy("More memory than asked for"),
        sentence=gettext_lazy("Job {job} uses {value} of the memory that it asked for on {place} (limit {limit}, for {for})."),
        advice=gettext_lazy("Ask for more memory the next time: it takes from its neighbours, and may be stopped for that."),
    ),
    "launch_failed_pct": Metric(
        scope="pool", unit="%", title=gettext_lazy("Launches fail"),
        sentence=gettext_lazy("{value} of the attempts that ended in the last 15 minutes could not be launched (limit {limit})."),
        advice=gettext_lazy("The jobs' pages say on which nodes and why; drain a node that fails them all."),
    ),
    "pass_late_s": Metric(
        scope="pool", unit="s", title=gettext_lazy("Nothing is scheduled"),
        sentence=gettext_lazy("No scheduling pass has ended well for {value} (limit {limit})."),
        advice=gettext_lazy("The worker's log says why: nothing new starts until then."),
    ),
}  # fmt: skip
LEVEL_WORDS = {1: pgettext_lazy("alert", "Warning"), 2: pgettext_lazy("alert", "Critical")}

RAMP_KEY = "nebula:alerts:ramp"
RAMP_READINGS = 12  # three minutes
RAMP_LEAST = 12
RAMP_AHEAD_S = 600
#: Below this nobody cares how fast a card warms up: a job that begins takes it from 30 °C to 60 in a minute.
RAMP_FROM_C = 75
FULL_PCT = 90
STALE_AFTER_S = telemetry.STALE_AFTER_S


@dataclass(slots=True)
class Pool:
    """Cards and nodes of the pool as one look read them, for figures and for words. ``cards``: card id → row."""

    nodes: dict[int, tuple[str, str]] = field(default_factory=dict)  # id → name, state
    cards: dict[int, tuple[int, str, int, str, int | None, int, str, bool]] = field(default_factory=dict)
    spoiling: frozenset[int] = frozenset()  # nodes that were cordoned because nothing can be launched there

    def place(self, gpu: int) -> str:
        node, _uuid, index, *_ = self.cards[gpu]
        return f"{self.nodes[node][0]} gpu{index}"


def pool_read() -> Pool:
    """Two SELECTs."""
    listed = Node.objects.exclude(state=NodeState.RETIRED).order_by().values_list("pk", "name", "state", "cordoned", "cordon_reason")
    told = list(listed)
    nodes = {pk: (name, state) for pk, name, state, _cordoned, _reason in told}
    spoiling = frozenset(
        pk for pk, _name, _state, cordoned, reason in told if cordoned and reason in (SPOILS, "disk_full", "store_unwritable")
    )
    rows = (
        Gpu.objects.filter(node__in=nodes)
        .exclude(state=GpuState.RETIRED)
        .order_by()
        .values_list("pk", "node_id", "uuid", "index", "model", "total_mib", "live_slices", "state", "is_exclusive")
    )
    return Pool(nodes=nodes, cards={pk: (*row,) for pk, *row in rows}, spoiling=spoiling)


def _part(value: Any, whole: Any) -> float | None:
    """In percent; None where either is not told or makes no sense."""
    if not isinstance(value, int | float) or not isinstance(whole, int | float) or isinstance(value, bool) or whole <= 0 or value < 0:
        return None
    return 100.0 * value / whole


def _number(value: Any, *, least: float = 0, most: float = 1e6) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return float(value)


def figures_read(pool: Pool, *, now: float) -> Figures | None:
    """Every figure of this room. Two round trips, or three with cards that warm up. None while Redis is away: then nobody knows
    anything, and nothing has changed."""
    if telemetry.is_away():
        return None
    latest = telemetry.nodes_latest(pool.nodes)
    slow = telemetry.cards_health([(pk, row[0], row[1]) for pk, row in pool.cards.items()])
    found: Figures = {name: {} for name, metric in METRICS.items() if metric.scope in ("gpu", "node")}
    temps: dict[str, float] = {}
    for pk, (node, uuid, _index, _model, total, slices, state, is_whole) in pool.cards.items():
        if state == GpuState.MISSING:
            continue  # not a figure's business any more: it is an incident
        subject = f"gpu:{pk}"
        heard = latest.get(node)
        is_fresh = heard is not None and now - heard.at < STALE_AFTER_S
        told = heard.gpus.get(uuid) if heard is not None and is_fresh else None
        status: Mapping[str, Any] = told or {}
        is_told = told is not None and status.get("error") is None
        facts = slow.get(pk, {}) if is_fresh else {}
        memory = _part(status.get("used_mib"), total)
        use, temp = _number(status.get("util_pct"), most=100), _number(status.get("temp_c"), most=150)
        if not is_whole:  # who has a card to himself may fill it
            found["memory_pct"][subject] = memory
        if slices:
            found["idle_held_pct"][subject] = use
        tensor = _number(status.get("tensor_pct"), most=100)
        if memory is None or memory >= FULL_PCT:
            found["full_idle_tensor_pct"][subject] = tensor
        found["temp_c"][subject] = temp
        found["power_pct"][subject] = _part(status.get("power_w"), facts.get("power_limit_w"))
        found["card_untold"][subject] = (0.0 if is_told else 1.0) if is_fresh else None
        if temp is not None and temp >= RAMP_FROM_C:
            temps[subject] = temp
        found["temp_soon_c"][subject] = None
    ramps = temps_soon(temps, now=now)
    found["temp_soon_c"] |= {subject: ramps.get(subject, found["temp_c"][subject]) for subject in found["temp_soon_c"]}
    _nodes(found, pool, latest, now=now)
    return found


def _nodes(found: Figures, pool: Pool, latest: Mapping[int, telemetry.Latest], *, now: float) -> None:
    """One query."""
    doubted = nodes_doubted(pool.nodes, now=datetime.fromtimestamp(now, UTC))
    watched = [pk for pk, (_name, state) in pool.nodes.items() if state != NodeState.ENROLLING]
    unknown = [pk for pk in watched if pool.nodes[pk][1] == NodeState.UNKNOWN]
    is_ours = is_half_silent(unknown=len(unknown), watched=len(watched))
    for pk in watched:
        state = pool.nodes[pk][1]
        # With most of them silent it is one alert about all: who is to look at fifty?
        silent = (
            None if is_ours and state == NodeState.UNKNOWN else {NodeState.UNKNOWN: 1.0, NodeState.DOWN: 2.0}.get(NodeState(state), 0.0)
        )
        found["node_silent"][f"node:{pk}"] = silent
        found["node_doubted"][f"node:{pk}"] = float(doubted.get(pk, (0, ""))[0])
        found["node_spoils"][f"node:{pk}"] = 1.0 if pk in pool.spoiling else 0.0
        heard = latest.get(pk)
        is_fresh = heard is not None and now - heard.at < STALE_AFTER_S
        skew = heard.skew_s if heard is not None and is_fresh else None
        found["clock_skew_s"][f"node:{pk}"] = None if skew is None else abs(skew)
        host = (heard.host or {}) if heard is not None and is_fresh else {}
        found["disk_free_pct"][f"node:{pk}"] = _part(host.get("disk_free_mib"), host.get("disk_total_mib"))
    found["silent_nodes_pct"] = {"pool": 100.0 * len(unknown) / len(watched) if len(watched) > 1 else 0.0}


def temps_soon(temps: Mapping[str, float], *, now: float) -> dict[str, float]:
    """Where each card's temperature would be in ten minutes if it went on (least squares, of the last three minutes);
    without a rise, and before there are as many, it is what it is now. One round trip, and one more where a card is warm."""
    before = telemetry.ask(lambda c: c.hgetall(RAMP_KEY), {}) or {}
    kept, found = {}, {}
    for subject, temp in temps.items():
        readings = [*_readings(before.get(subject)), (now, temp)][-RAMP_READINGS:]
        kept[subject] = json.dumps([[round(at), value] for at, value in readings])
        found[subject] = temp + max(0.0, slope(readings)) * RAMP_AHEAD_S if len(readings) >= RAMP_LEAST else temp
    gone = [subject for subject in before if subject not in kept]

    def write(c: Any) -> None:
        pipe = c.pipeline(transaction=False)
        if kept:
            pipe.hset(RAMP_KEY, mapping=kept)
        if gone:
            pipe.hdel(RAMP_KEY, *gone)
        pipe.execute()

    if kept or gone:
        telemetry.ask(write, None)
    return found


def _readings(text: str | None) -> list[tuple[float, float]]:
    try:
        return [(float(at), float(value)) for at, value in json.loads(text or "[]")]
    except (ValueError, TypeError):
        return []


def slope(readings: Iterable[tuple[float, float]]) -> float:
    """°C per second, by least squares; 0 for less than two times."""
    points = list(readings)
    if len(points) < 2:
        return 0.0
    mean_at = sum(at for at, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    return sum((at - mean_at) * (value - mean) for at, value in points) / spread if spread else 0.0
