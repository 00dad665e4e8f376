"""How near two NVIDIA cards are: what ``nvidia-smi topo -m`` shows, from NVML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from agent.backends.base import bus_slot
from agent.backends.nvml_lib import Nvml
from agent.protocol import LinkInfo

NVLINKS_MAX = 18  # NVML_NVLINK_MAX_LINKS
Kind = Literal["nvlink", "pcie_switch", "pcie_host", "numa", "system"]


class Place(NamedTuple):
    handle: Any
    uuid: str
    pci_bus_id: str | None


def links_find(nvml: Nvml, places: Sequence[Place]) -> list[LinkInfo]:
    """One link a pair whose way is told: NVLink, else the nearest common point on the bus (PIX and PXB: a switch, PHB,
    NODE, SYS)."""
    raw = nvml.raw
    kinds: dict[int, tuple[Kind, str | None]] = {
        raw.NVML_TOPOLOGY_INTERNAL: ("pcie_switch", None),  # two chips on one board
        raw.NVML_TOPOLOGY_SINGLE: ("pcie_switch", "pix"),
        raw.NVML_TOPOLOGY_MULTIPLE: ("pcie_switch", "pxb"),
        raw.NVML_TOPOLOGY_HOSTBRIDGE: ("pcie_host", None),
        raw.NVML_TOPOLOGY_NODE: ("numa", None),
        raw.NVML_TOPOLOGY_SYSTEM: ("system", None),
    }
    lanes, switched = _nvlinks(nvml, places)
    links: list[LinkInfo] = []
    for i, a in enumerate(places):
        for b in places[i + 1 :]:
            if lanes.get((a.uuid, b.uuid)):
                via = "nvswitch" if (a.uuid, b.uuid) in switched else None
                links.append(LinkInfo(a=a.uuid, b=b.uuid, kind="nvlink", count=lanes[a.uuid, b.uuid], via=via))
                continue
            found = kinds.get(nvml.ask_any("nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle))
            if found is not None:
                links.append(LinkInfo(a=a.uuid, b=b.uuid, kind=found[0], via=found[1]))
    return links


def _nvlinks(nvml: Nvml, places: Sequence[Place]) -> tuple[dict[tuple[str, str], int], set[tuple[str, str]]]:
    """(uuid, uuid) in index order → active NVLink lanes that end at each other or meet in an NVSwitch; and those that do the latter."""
    by_slot = {slot: p.uuid for p in places if (slot := bus_slot(p.pci_bus_id)) is not None}
    order = [p.uuid for p in places]
    lanes: dict[tuple[str, str], int] = {}
    switched: dict[str, int] = {}
    meet: set[tuple[str, str]] = set()
    for place in places:
        for link in range(NVLINKS_MAX):
            if not nvml.ask_any("nvmlDeviceGetNvLinkState", place.handle, link):
                continue
            remote = nvml.ask_any("nvmlDeviceGetNvLinkRemotePciInfo", place.handle, link)
            if remote is None:
                continue
            slot = bus_slot(text(remote.busId))
            other = by_slot.get(slot) if slot is not None else None
            if other is None:
                switched[place.uuid] = switched.get(place.uuid, 0) + 1
            elif order.index(place.uuid) < order.index(other):
                lanes[place.uuid, other] = lanes.get((place.uuid, other), 0) + 1
    for i, a in enumerate(order):
        for b in order[i + 1 :]:
            if a in switched and b in switched:
                lanes[a, b] = min(switched[a], switched[b])
                meet.add((a, b))
    return lanes, meet


def text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
