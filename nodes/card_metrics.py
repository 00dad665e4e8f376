"""The series of cards and nodes: DCGM-exporter's names, units and labels where it has the figure, so that its dashboards work; ours
beside them. Pure: rows in, lines out.

DCGM's units are MiB, MHz, W, °C, %, mJ; ours (``nebula_``) are Prometheus' base units. A figure that the hardware does not tell has
no series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodes.exposition import labels, metric, numbers

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """A card and what is known of it. ``status``: latest figures, empty where they are stale or none came; ``facts``: the slow ones."""

    labels: str
    state: str
    total_mib: int | None
    held_mib: int
    slices: int
    score: int
    xid: int | None
    status: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def card_labels(*, index: int, uuid: str, vendor: str, model: str, node: str, jobs: str = "", users: str = "", projects: str = "") -> str:
    """DCGM-exporter's labels, then whose job is on the card; several of parts of a card are joined by commas."""
    of_job = {"job": jobs, "user": users, "project": projects} if jobs else {}
    return labels(gpu=index, UUID=uuid, device=f"{vendor}{index}", modelName=model, Hostname=node, **of_job)


def _status(name: str, factor: int = 1) -> Callable[[CardRow], float | int | None]:
    return lambda card: None if (value := card.status.get(name)) is None else value * factor


def _fact(name: str, factor: int = 1) -> Callable[[CardRow], float | int | None]:
    # True and False are told as 1 and 0.
    return lambda card: None if (value := card.facts.get(name)) is None else value * factor


def _free(card: CardRow) -> int | None:
    used = card.status.get("used_mib")
    return None if used is None or card.total_mib is None else max(0, card.total_mib - used - (card.status.get("reserved_mib") or 0))


def _size(card: CardRow) -> int | None:
    return None if card.total_mib is None else card.total_mib * MIB


#: name, kind, help, figure.
CARD_METRICS: Sequence[tuple[str, str, str, Callable[[CardRow], float | int | None]]] = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", _status("core_mhz")),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", _status("mem_mhz")),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", _status("temp_c")),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", _status("power_w")),
    ("DCGM_FI_DEV_FAN_SPEED", "gauge", "Fan speed (in %).", _status("fan_pct")),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", _status("util_pct")),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", _status("mem_util_pct")),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", _status("used_mib")),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _free),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).", _status("reserved_mib")),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered, within a day.", lambda card: card.xid),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).", _fact("energy_j", 1000)),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.", _fact("pcie_replays")),
    ("DCGM_FI_DEV_PCIE_LINK_GEN", "gauge", "Generation of the PCIe link now.", _fact("pcie_gen")),
    ("DCGM_FI_DEV_PCIE_LINK_WIDTH", "gauge", "Lanes of the PCIe link now.", _fact("pcie_width")),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Power limit in force (in W).", _fact("power_limit_w")),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors.", _fact("ecc_corrected")),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors.", _fact("ecc_uncorrected")),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "counter", "Total number of double-bit persistent ECC errors.", _fact("ecc_uncorrected_total")),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors.", _fact("remapped_rows")),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed.", _fact("remap_failed")),
    ("nebula_gpu_memory_bytes", "gauge", "Memory of the card.", _size),
    ("nebula_gpu_memory_held_bytes", "gauge", "Memory of the card that is given to jobs.", lambda card: card.held_mib * MIB),
    ("nebula_gpu_memory_foreign_bytes", "gauge", "Memory of programs that belong to no job.", _status("foreign_mib", MIB)),
    ("nebula_gpu_slices", "gauge", "Jobs that hold the card or a part of it.", lambda card: card.slices),
    ("nebula_gpu_health_score", "gauge", "Health of the card, 0 to 100.", lambda card: card.score),
)


def cards_lines(cards: Sequence[CardRow]) -> list[str]:
    lines: list[str] = []
    for name, kind, text, figure in CARD_METRICS:
        lines += metric(name, kind, text, [(card.labels, _number(figure(card))) for card in cards])
    lines += metric(
        "nebula_gpu_state", "gauge", "1 for the state that the card is in.", [_with(card, "state", card.state) for card in cards]
    )
    throttled = [_with(card, "reason", reason) for card in cards for reason in card.status.get("throttle") or ()]
    return lines + metric("nebula_gpu_throttled", "gauge", "1 for each reason that holds the card's clocks down now.", throttled)


def _with(card: CardRow, name: str, value: str) -> tuple[str, int]:
    return f"{card.labels},{labels(**{name: value})}", 1


def _number(value: float | int | None) -> float | int | None:
    """True is 1. What is no number (another version wrote it) has no series."""
    return value + 0 if isinstance(value, bool | int | float) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """``silent_s``: since its last sync; None = never heard of."""

    name: str
    state: str
    cordoned: bool
    silent_s: float | None
    memory_mib: int | None
    host: Mapping[str, Any] = field(default_factory=dict)


def nodes_lines(nodes: Sequence[NodeRow], states: Sequence[str]) -> list[str]:
    counts = {state: sum(node.state == state for node in nodes) for state in states}
    named = [(labels(Hostname=node.name), node) for node in nodes]

    def host(name: str, factor: float = 1) -> list[tuple[str, float | int | None]]:
        return [(of, None if (value := _number(node.host.get(name))) is None else value * factor) for of, node in named]

    return [
        *metric("nebula_agents", "gauge", "Nodes by the state of their agent.", numbers(counts, "state")),
        *metric("nebula_node_cordoned", "gauge", "1 while the node takes no new work.", [(of, int(node.cordoned)) for of, node in named]),
        *metric(
            "nebula_node_silent_seconds",
            "gauge",
            "Time since the node's last report.",
            [(of, None if node.silent_s is None else round(node.silent_s, 1)) for of, node in named],
        ),
        *metric("nebula_node_cpu_ratio", "gauge", "Share of the node's processors in use.", host("cpu_pct", 0.01)),
        *metric("nebula_node_memory_used_bytes", "gauge", "Main memory in use.", host("memory_mib", MIB)),
        *metric(
            "nebula_node_memory_bytes",
            "gauge",
            "Main memory.",
            [(of, None if node.memory_mib is None else node.memory_mib * MIB) for of, node in named],
        ),
        *metric("nebula_node_disk_free_bytes", "gauge", "Free on the disk of the agent's data.", host("disk_free_mib", MIB)),
        *metric("nebula_node_disk_bytes", "gauge", "Size of the disk of the agent's data.", host("disk_total_mib", MIB)),
    ]
