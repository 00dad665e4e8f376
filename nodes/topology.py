"""How the cards of a node are joined, as a table: what ``nvidia-smi topo -m`` shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.event_words import link_text
from nodes.models import Gpu, GpuLink

#: A table of more cards is no table; they are listed by pairs instead.
CARDS_MAX = 16
#: Kinds from near to far; the nearest two stand out.
NEAR = ("nvlink", "pcie_switch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """``code`` as nvidia-smi has it: NV4, PIX, PXB, PHB, NODE, SYS; XGMI between AMD cards; X = the card itself; – = not told."""

    code: str
    text: str = ""
    is_near: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    gpu: Gpu
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    rows: tuple[Row, ...]
    legend: tuple[tuple[str, str], ...]  # (code, what it means), near to far

    @property
    def gpus(self) -> list[Gpu]:
        return [row.gpu for row in self.rows]


def link_code(kind: str, count: int, via: str) -> str:
    if kind == "nvlink":
        return "XGMI" if via == "xgmi" else f"NV{count}"
    if kind == "pcie_switch":
        return "PXB" if via == "pxb" else "PIX"
    return {"pcie_host": "PHB", "numa": "NODE", "system": "SYS"}.get(kind, kind)


def topology(gpus: Sequence[Gpu], links: Iterable[GpuLink]) -> Table | None:
    """The table of a node's whole cards that are there; None with fewer than two of them, or too many."""
    cards = [gpu for gpu in gpus if not gpu.parent and gpu.state != "MISSING"]
    if not 2 <= len(cards) <= CARDS_MAX:
        return None
    known = {frozenset((link.a_id, link.b_id)): link for link in links}
    legend: dict[str, tuple[Any, str]] = {}

    def cell(a: Gpu, b: Gpu) -> Cell:
        if a.pk == b.pk:
            return Cell(code="X")
        link = known.get(frozenset((a.pk, b.pk)))
        if link is None:
            return Cell(code="–")
        code, text = link_code(link.kind, link.count, link.via), link_text(link.kind, link.via)
        legend.setdefault("NVn" if code.startswith("NV") else code, (_nearness(link.kind, link.via), text))
        return Cell(code=code, text=text, is_near=link.kind in NEAR)

    rows = tuple(Row(gpu=a, cells=tuple(cell(a, b) for b in cards)) for a in cards)
    if not legend and all(gpu.numa is None and gpu.pcie_hops is None for gpu in cards):
        return None  # nothing is told that a table could show
    return Table(rows=rows, legend=tuple((code, text) for code, (_at, text) in sorted(legend.items(), key=lambda item: item[1][0])))


def _nearness(kind: str, via: str) -> tuple[int, str]:
    order = ("nvlink", "pcie_switch", "pcie_host", "numa", "system")
    return (order.index(kind) if kind in order else len(order), via)


def links_json(links: Iterable[GpuLink]) -> list[dict[str, Any]]:
    """``links`` with both cards loaded."""
    return [{"a": link.a.index, "b": link.b.index, "kind": link.kind, "lanes": link.count, "via": link.via or None} for link in links]
