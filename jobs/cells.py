"""All cards as one frame of arrays: what the heat map shows, encoded once and the same for every viewer.

A *layout* is the order of cards (node name, index) and what of them does not change by the second; its version is a hash.
A *frame* has one array a figure, in that order. A viewer whose layout is another one fetches the page's piece again.

Frame (JSON):
  v   layout version            at  Unix time
  m   memory used, % of total   u   use, %      t  °C      w  watts      r  free MiB        (null = not told, never 0)
  k   marks, a string of letters, the weightiest first: MARKS
  s   the memory strip: "333:ab12cd,126:!g" = parts in ‰ of the card, each with whose it is: an owner's sign, !g ghost
      use, !q quarantined
  n   node states: "READY", "READY+cordoned", "UNKNOWN", …       z  Unix time of its last word, null while it is READY
An owner's sign is a keyed hash: everybody can tell his own part, and nobody whose the others are.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from jobs.lifecycle import SliceState
from jobs.models import Slice
from nodes import telemetry
from nodes.formats import model_short
from nodes.models import Gpu, GpuState, Node, NodeState
from nodes.pool import CardUse, card_use

#: letter → (table of nodes/states.py, key). The first letter of a card's marks is the one drawn.
MARKS = {
    "S": ("gpu", "SUSPECT"),
    "I": ("gpu", "ISOLATED"),
    "M": ("gpu", "MAINTENANCE"),
    "X": ("gpu", "MISSING"),
    "T": ("mark", "STALE"),
    "H": ("mark", "HOT"),
    "G": ("mark", "GHOST"),
    "C": ("node", "CORDONED"),
}
_STATE_MARK = {GpuState.SUSPECT: "S", GpuState.ISOLATED: "I", GpuState.MAINTENANCE: "M", GpuState.MISSING: "X"}
#: From here a card slows itself down.
HOT_C = 83
#: A frame serves everybody who asks within so many seconds.
FRESH_S = 0.9


@dataclass(frozen=True, slots=True)
class Card:
    """What of a card stays. ``at`` = its place in the layout."""

    at: int
    pk: int
    node: str
    index: int
    model: str
    short: str
    total_mib: int | None
    is_simulated: bool


@dataclass(frozen=True, slots=True)
class NodeRow:
    pk: int
    name: str
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """The layout and the frame of one moment."""

    version: str
    nodes: tuple[NodeRow, ...]
    frame: Mapping[str, Any]
    uses: tuple[CardUse, ...] = ()  # one a card, in the layout's order

    @property
    def cards(self) -> list[Card]:
        return [card for node in self.nodes for card in node.cards]


@functools.lru_cache(maxsize=4096)
def owner_sign(user_id: int) -> str:
    return hmac.new(settings.SECRET_KEY.encode(), f"cells:{user_id}".encode(), hashlib.sha256).hexdigest()[:6]


def picture_read(*, now: float | None = None) -> Picture:
    """Three queries and two Redis round trips, whatever the size."""
    now = time.time() if now is None else now
    node_rows = list(
        Node.objects.exclude(state=NodeState.RETIRED)
        .order_by("name")
        .values_list("pk", "name", "state", "cordoned", "last_seen_at", "is_metrics_only")
    )
    gpu_rows: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in (
        Gpu.objects.exclude(node__state=NodeState.RETIRED)
        .exclude(state=GpuState.RETIRED)
        .order_by("index", "pk")
        .values_list(
            "node_id", "pk", "uuid", "index", "model", "total_mib", "state", "held_mib", "live_slices", "is_exclusive", "is_simulated"
        )
    ):
        gpu_rows[row[0]].append(row)
    parts = _parts_read()
    statuses = telemetry.nodes_statuses((row[0] for row in node_rows), now=now)
    seen = telemetry.nodes_last_seen() or {}

    nodes: list[NodeRow] = []
    columns: dict[str, list[Any]] = {key: [] for key in "mutwrks"}
    states, silent, uses = [], [], []
    at = 0
    for node_id, name, state, cordoned, last_seen_at, is_metrics_only in node_rows:
        cards = []
        is_ready = state == NodeState.READY
        for _, pk, uuid, index, model, total, gpu_state, held, live, exclusive, simulated in gpu_rows[node_id]:
            cards.append(Card(at, pk, name, index, model, model_short(model), total, simulated))
            at += 1
            status = statuses.get(node_id, {}).get(uuid)
            use = card_use(
                state=gpu_state,
                total_mib=total,
                held_mib=held,
                live_slices=live,
                is_exclusive=exclusive,
                node_takes_work=is_ready and not cordoned and not is_metrics_only,
                status=status,
            )
            uses.append(use)
            for key, value in _figures(status, gpu_state, use, parts.get(pk, []), is_ready=is_ready, cordoned=cordoned):
                columns[key].append(value)
        nodes.append(NodeRow(node_id, name, tuple(cards)))
        states.append(f"{state}+cordoned" if cordoned else state)
        last = seen[node_id].at if node_id in seen else last_seen_at.timestamp() if last_seen_at is not None else None
        silent.append(None if state == NodeState.READY or last is None else round(last))
    frame = {"v": _version(nodes), "at": round(now, 1), **columns, "n": states, "z": silent}
    return Picture(frame["v"], tuple(nodes), frame, tuple(uses))


def _parts_read() -> dict[int, list[tuple[int, str]]]:
    """Card id → (MiB, whose) of its live slices, oldest first."""
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    rows = (
        Slice.objects.exclude(state=SliceState.RELEASED)
        .order_by("pk")
        .values_list("gpu_id", "mib", "state", "rank__attempt__job__owner_id")
    )
    for gpu, mib, state, owner in rows:
        found[gpu].append((mib, "!q" if state == SliceState.QUARANTINED else owner_sign(owner)))
    return found


def _figures(
    status: Mapping[str, Any] | None,
    state: str,
    use: CardUse,
    parts: list[tuple[int, str]],
    *,
    is_ready: bool,
    cordoned: bool,
) -> list[tuple[str, Any]]:
    known = status or {}
    used, temp = known.get("used_mib"), known.get("temp_c")
    total = use.total_mib
    marks = _STATE_MARK.get(GpuState(state), "")
    if state != GpuState.MISSING and (known.get("stale", True) or not is_ready):
        marks += "T"
    if temp is not None and temp >= HOT_C:
        marks += "H"
    if use.ghost_mib:
        marks += "G"
        parts = [*parts, (use.ghost_mib, "!g")]
    if cordoned:
        marks += "C"
    strip = ",".join(f"{min(1000, round(1000 * mib / total))}:{whose}" for mib, whose in parts) if total else ""
    return [
        ("m", round(100 * used / total) if used is not None and total else None),
        ("u", known.get("util_pct")),
        ("t", temp),
        ("w", known.get("power_w")),
        ("r", use.free_mib),
        ("k", marks),
        ("s", strip),
    ]


def _version(nodes: list[NodeRow]) -> str:
    still = [(node.pk, node.name, [(c.pk, c.index, c.model, c.total_mib, c.is_simulated) for c in node.cards]) for node in nodes]
    return hashlib.sha256(json.dumps(still).encode()).hexdigest()[:12]


_lock = threading.Lock()
_kept: tuple[float, Picture] | None = None


def picture_latest() -> Picture:
    """At most ``FRESH_S`` old; of many who ask at once one reads."""
    global _kept
    with _lock:
        if _kept is None or time.monotonic() - _kept[0] > FRESH_S or settings.TESTING:
            _kept = (time.monotonic(), picture_read())
        return _kept[1]
