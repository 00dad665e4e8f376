"""Every write of samples: taking them, rolling them up, throwing old ones away.

A tick does all of it. It may be lost, late or repeated: a sample belongs to the step in which the server took it, whatever the
node's clock says, and a step that is there already stays as it is. What a node told last is taken only while it is fresh, so that
a silent node leaves a gap and no flat line.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.conf import settings
from django.db.models import Max, Min

from nodes import telemetry
from nodes.models import Gpu, GpuSample, GpuState, Level, Node, NodeSample, NodeState, PoolSample, RankSample
from nodes.sample_models import Sample
from nodes.sample_sql import rows_put, rows_roll

log = logging.getLogger(__name__)

MODELS: Final[tuple[type[Sample], ...]] = (GpuSample, NodeSample, PoolSample, RankSample)
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
TAKEN_KEY = "nebula:sampled"
#: A list of processes is made every 30 s and when a rank ends.
PROCESSES_FRESH_S = 45
#: What the database's columns hold; nothing that a card tells is larger.
MOST = 2**31 - 1
#: Of old rows so many steps go in one statement: a cut of the keeping times must not hold SQLite's one writer for long.
PRUNE_STEPS = 10
GPU_FIGURES = (
    "used_mib",
    "util_pct",
    "mem_util_pct",
    "temp_c",
    "power_w",
    "fan_pct",
    "core_mhz",
    "mem_mhz",
    "foreign_mib",
    "throttled_pct",
)


def step_of(level: int) -> int:
    """Seconds between two rows of a level."""
    return {Level.RAW: int(settings.SAMPLE_EVERY_S), Level.MINUTE: MINUTE_S, Level.HOUR: HOUR_S}[Level(level)]


def kept_s(level: int) -> int:
    """For how long rows of a level are kept."""
    return {
        Level.RAW: settings.SAMPLE_KEEP_HOURS * HOUR_S,
        Level.MINUTE: settings.SAMPLE_MINUTES_KEEP_DAYS * DAY_S,
        Level.HOUR: settings.SAMPLE_HOURS_KEEP_DAYS * DAY_S,
    }[Level(level)]


def samples_tick(*, now: float) -> int:
    """Called several times a step; the first of a step does the work. Returns how many card samples came in. ``now``: Unix time."""
    at = int(now) // step_of(Level.RAW) * step_of(Level.RAW)
    if not telemetry.ask(lambda c: c.set(f"{TAKEN_KEY}:{at}", "1", nx=True, ex=2 * step_of(Level.RAW)), None):
        return 0
    try:
        taken = samples_take(at=at, now=now)
    except Exception:
        telemetry.ask(lambda c: c.delete(f"{TAKEN_KEY}:{at}"), None)  # the next tick of this step tries again
        raise
    samples_roll(now=now)
    samples_prune(now=now)
    return taken


# --- taking -------------------------------------------------------------------------------------------------------


def samples_take(*, at: int, now: float) -> int:
    """Keep what Redis holds as the samples of the step ``at``. Two queries, two round trips, four statements that write."""
    nodes = list(Node.objects.exclude(state=NodeState.RETIRED).order_by().values_list("pk", flat=True))
    latest = {pk: found for pk, found in telemetry.nodes_latest(nodes).items() if now - found.at < telemetry.STALE_AFTER_S}
    cards = _cards(nodes)
    gpu_rows, node_rows, told = [], [], []
    for pk, found in latest.items():
        figures = {uuid: card_figures(status) for uuid, status in found.gpus.items() if uuid in cards[pk]}
        known = {uuid: values for uuid, values in figures.items() if any(value is not None for value in values)}
        gpu_rows += [(cards[pk][uuid][0], at, *values) for uuid, values in known.items()]
        told += known.values()
        node_rows.append((pk, at, *host_figures(found.host or {}), *together_figures(known.values())))
    rows_put(NodeSample, _columns(NodeSample, "node_id", ("cpu_pct", "memory_mib", "disk_free_mib", *TOGETHER)), _raw(node_rows))
    taken = rows_put(GpuSample, _columns(GpuSample, "gpu_id", GPU_FIGURES), _raw(gpu_rows))
    if latest:
        _pool_put(at, [card for of_node in cards.values() for card in of_node.values()], told)
        _ranks_put(at, latest, cards, now=now)
    return taken


def _raw(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(Level.RAW.value, 1, *row) for row in rows]


def _columns(model: type[Sample], key: str, figures: Iterable[str]) -> list[str]:
    return ["level", "n", *([key] if key else []), "at", *figures]


#: Node → UUID → (id, MiB, MiB held, live slices) of its cards.
Cards = Mapping[int, Mapping[str, tuple[int, int | None, int, int]]]


def _cards(nodes: list[int]) -> Cards:
    found: dict[int, dict[str, tuple[int, int | None, int, int]]] = {pk: {} for pk in nodes}
    rows = Gpu.objects.exclude(node__state=NodeState.RETIRED).exclude(state=GpuState.RETIRED).order_by()
    for node, uuid, *card in rows.values_list("node_id", "uuid", "pk", "total_mib", "held_mib", "live_slices"):
        if node in found:  # it joined between the two queries
            found[node][uuid] = (card[0], card[1], card[2], card[3])
    return found


def whole(value: Any, *, most: int = MOST) -> int | None:
    """A number as a column takes it; None for what can't be true (another version of the agent, another clock, a torn value)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        return None
    return round(value)


def card_figures(status: Mapping[str, Any]) -> tuple[int | None, ...]:
    """``GPU_FIGURES`` of a card's status as JSON. All None for a card that tells nothing."""
    found = [whole(status.get(name), most=100 if name.endswith("_pct") else MOST) for name in GPU_FIGURES[:-2]]
    if status.get("error") is not None or all(value is None for value in found):
        return (None,) * len(GPU_FIGURES)
    throttle = status.get("throttle")
    throttled = None if throttle is None else 100 if throttle else 0
    return (*found, whole(status.get("foreign_mib", 0)), throttled)


def host_figures(host: Mapping[str, Any]) -> tuple[int | None, ...]:
    return whole(host.get("cpu_pct"), most=100), whole(host.get("memory_mib")), whole(host.get("disk_free_mib"))


TOGETHER = ("util_pct", "used_mib", "power_w")


def together_figures(cards: Iterable[tuple[int | None, ...]]) -> tuple[int | None, ...]:
    """Mean use, and memory and power in all, of the cards that tell them; None where none does."""
    columns = dict(zip(GPU_FIGURES, zip(*cards, strict=True), strict=False))
    told = {name: [value for value in columns.get(name, ()) if value is not None] for name in TOGETHER}
    return (
        round(sum(told["util_pct"]) / len(told["util_pct"])) if told["util_pct"] else None,
        sum(told["used_mib"]) if told["used_mib"] else None,
        sum(told["power_w"]) if told["power_w"] else None,
    )


def _pool_put(at: int, cards: list[tuple[int, int | None, int, int]], told: list[tuple[int | None, ...]]) -> None:
    sums = (
        len(cards), len(told), sum(live > 0 for *_, live in cards),
        sum(held for _, _, held, _ in cards), sum(total or 0 for _, total, _, _ in cards),
    )  # fmt: skip
    columns = _columns(PoolSample, "", ("cards", "told", "busy", "held_mib", "total_mib", *TOGETHER))
    rows_put(PoolSample, columns, _raw([(at, *sums, *together_figures(told))]))


def _ranks_put(at: int, latest: Iterable[int], cards: Cards, *, now: float) -> None:
    """What the driver's list of processes says of each rank on each card. A process without a figure leaves its rank's unknown."""
    held: dict[tuple[str, int], list[tuple[int | None, int | None]]] = defaultdict(list)
    for pk, (listed_at, processes) in telemetry.nodes_processes(latest).items():
        if now - listed_at >= PROCESSES_FRESH_S:
            continue
        for process in processes:
            rank, card = process.get("rank"), cards[pk].get(str(process.get("uuid")))
            if isinstance(rank, str) and 0 < len(rank) <= 48 and card is not None:
                held[rank, card[0]].append((whole(process.get("used_mib")), whole(process.get("util_pct"), most=100)))
    rows = []
    for (rank, gpu), told in held.items():
        used, util = (_sum_if_all(column) for column in zip(*told, strict=True))
        if used is not None or util is not None:
            # Kernels of several processes may run at once: together they keep the card busy at most all the time.
            rows.append((rank, gpu, at, used, None if util is None else min(100, util)))
    rows_put(RankSample, ["level", "n", "rank", "gpu_id", "at", "used_mib", "util_pct"], _raw(rows))


def _sum_if_all(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


# --- rolling up, throwing away ------------------------------------------------------------------------------------


def samples_roll(*, now: float) -> None:
    """Steps that are over become rows of the next level, from where the last roll-up ended: a pause of the worker is made up for."""
    for model in MODELS:
        for source, target in ((Level.RAW, Level.MINUTE), (Level.MINUTE, Level.HOUR)):
            step = step_of(target)
            until = int(now) // step * step
            last = _bound(model, target, Max)
            since = last + step if last is not None else _bound(model, source, Min)
            if since is not None and since < until:
                rows_roll(model, source=source, target=target, step_s=step, since=since, until=until)


def samples_prune(*, now: float) -> int:
    """Throw away what is older than it is kept, oldest first, a little at a time. Returns how many rows went."""
    gone = 0
    for model in MODELS:
        for level in Level:
            oldest = _bound(model, level, Min)
            before = int(now) - kept_s(level)
            if oldest is not None and oldest < before:
                before = min(before, oldest + PRUNE_STEPS * step_of(level))
                gone += model._default_manager.filter(level=level, at__lt=before)._raw_delete(using="default")
    return gone


def _bound(model: type[Sample], level: int, of: type[Max] | type[Min]) -> int | None:
    found: int | None = model._default_manager.filter(level=level).aggregate(at=of("at"))["at"]
    return found
