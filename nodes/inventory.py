"""What a node is made of: an agent's inventory → rows. Read all, compare, write only what differs.

A card is known by its UUID for ever: a shifted index never makes one card into another (jobs keep their UUIDs).
"""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Q

from agent.protocol import CARDS_MOST, GpuInfo, Inventory, RdmaInfo
from nodes.doubts import doubt
from nodes.health_models import CardCare
from nodes.incidents import incident_end
from nodes.isolation import isolation_json
from nodes.models import Gpu, GpuLink, GpuState, Node, NodeState
from nodes.text import NAME, text_clean

log = logging.getLogger(__name__)

#: Sizes that makers print on the box, in GiB (D1).
BOX_GIB = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141, 192)
NOT_SEEN = "not_seen"
#: Of a card whose slot has another one now, and of the one that came there.
REPLACED, NEW_CARD = "replaced", "new_card"
#: The state reason of a card that waits in maintenance until staff have confirmed what its node tells of it.
UNCONFIRMED = "unconfirmed"
#: No card and no machine has more: whoever tells so errs or lies.
CARD_MIB_MOST, HOST_MIB_MOST, CORES_MOST = 1 << 20, 1 << 26, 1 << 14
#: More ports of RDMA than this are no machine.
PORTS_MAX = 64
#: Advice that keeps new work from a node while it lasts: programs that start now would fail, those that run go on. The first that
#: is told is also the reason of that cordon, put into words at the edge (nodes/wording.py).
CORDONING = ("driver_mismatch", "disk_full", "store_unwritable")
#: A card may leave a node of these states: it is not there any more, or nobody says that it is.
SILENT = (NodeState.UNKNOWN, NodeState.DOWN, NodeState.RETIRED, NodeState.ENROLLING)


def nominal_mib(total_mib: int) -> int:
    """D1: the smallest box size of which the total is 92–100 %, else the total rounded up to a whole GiB; MiB.

    The same rule as the scheduling core's, which this room can't import; a test compares them for every size.
    """
    for gib in BOX_GIB:
        if gib * 1024 * 92 <= total_mib * 100 and total_mib <= gib * 1024:
            return gib * 1024
    return -(-total_mib // 1024) * 1024


def implausible(inventory: Inventory) -> list[dict[str, Any]]:
    """What of it can't be: what, the value, the limit. Such values are not taken over (an unknown size is never scheduled)."""
    sizes = [card.total_mib for card in inventory.gpus if card.total_mib is not None and card.total_mib > CARD_MIB_MOST]
    found = [{"what": "card_mib", "value": size, "limit": CARD_MIB_MOST} for size in sizes]
    if len(inventory.gpus) > CARDS_MOST:
        found.append({"what": "cards", "value": len(inventory.gpus), "limit": CARDS_MOST})
    for what, value, limit in (("cpu_cores", inventory.cpu_cores, CORES_MOST), ("memory_mib", inventory.memory_mib, HOST_MIB_MOST)):
        if value is not None and value > limit:
            found.append({"what": what, "value": value, "limit": limit})
    return found


def inventory_sha256(inventory: Inventory) -> str:
    return hashlib.sha256(json.dumps(inventory.to_json(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def inventory_apply(*, node: Node, inventory: Inventory, now: datetime) -> bool:
    """Bring node facts, cards and links in line; writes only what differs. Call inside a transaction.

    Returns False if something could not be taken over yet (a card is still held on another node): ask again later.
    """
    wrong = implausible(inventory)
    if wrong:
        log.warning("node %s tells of what can't be: %s", node.name, wrong[:3])
        doubt(node.pk, "implausible", now=now, data=wrong[0], times=len(wrong))
    # A node that was seen before and now has other cards: staff look first, where the setting says so.
    must_confirm = settings.CONFIRM_INVENTORY and node.isolation is not None
    _facts_apply(node, inventory)
    _cordon_apply(node)
    is_settled, cards = _gpus_apply(node, inventory, now=now, must_confirm=must_confirm)
    _links_apply(node, inventory, cards)
    return is_settled


def _facts_apply(node: Node, inventory: Inventory) -> None:
    facts: dict[str, Any] = {
        "hostname": _text(inventory.hostname, 253),
        "address": _text(inventory.address, 253),
        "os": _text(inventory.os, 120),
        "agent_version": _text(inventory.agent_version, 40),
        "driver_version": _text(inventory.driver_version, 40),
        "cuda_version": _text(inventory.cuda_version, 20),
        "cpu_cores": _positive(inventory.cpu_cores, CORES_MOST),
        "memory_mib": _positive(inventory.memory_mib, HOST_MIB_MOST),
        "has_rdma": inventory.rdma,
        "rdma_ports": [_port(port) for port in inventory.rdma_ports[:PORTS_MAX]],
        "numa_nodes": _positive(inventory.numa_nodes, 32767),
        "backends": [_text(name, 20) for name in inventory.backends[:10]],
        "is_metrics_only": inventory.metrics_only,
        "is_simulated": inventory.simulated,
        "advice": [_text(code, 60) for code in inventory.advice[:50]],
        "isolation": isolation_json(inventory.isolation),
    }
    changed = {name: value for name, value in facts.items() if getattr(node, name) != value}
    if changed:
        Node.objects.filter(pk=node.pk).update(**changed)
        for name, value in changed.items():
            setattr(node, name, value)


def _cordon_apply(node: Node) -> None:
    """Cordon a node that tells of one of CORDONING, and end that cordon, and no other, when it is over.

    Compare-and-swap: an admin's cordon stays as it is, and so does a node that an admin resumed in spite of the advice,
    until the agent tells something new.
    """
    told = next((code for code in CORDONING if code in node.advice), None)
    if told is not None:
        found = Node.objects.filter(pk=node.pk, cordoned=False)
        changes: dict[str, Any] = {"cordoned": True, "cordon_reason": told, "cordoned_by": None, "cordoned_until": None}
    else:
        found = Node.objects.filter(pk=node.pk, cordoned=True, cordon_reason__in=CORDONING, cordoned_by=None)
        changes = {"cordoned": False, "cordon_reason": "", "cordoned_until": None}
    # Most inventories change nothing here, and then nothing is written.
    if node.cordoned != changes["cordoned"] and found.update(**changes):
        log.warning("node %s: %s", node.name, f"cordoned, {told}" if told is not None else "resumed, what it was cordoned for is over")
        for name, value in changes.items():
            setattr(node, name, value)


def _gpus_apply(node: Node, inventory: Inventory, *, now: datetime, must_confirm: bool) -> tuple[bool, dict[str, Gpu]]:
    """Returns whether all could be taken over, and the node's present cards by UUID. ``must_confirm``: what is new waits for staff."""
    waits = {"state": GpuState.MAINTENANCE, "state_reason": UNCONFIRMED, "state_at": now} if must_confirm else {}
    wanted = {info.uuid: info for info in inventory.gpus[:CARDS_MOST] if NAME.fullmatch(info.uuid) and len(info.uuid) <= 80}
    rows = {gpu.uuid: gpu for gpu in Gpu.objects.select_related("node").filter(Q(node=node) | Q(uuid__in=wanted)).order_by("pk")}
    is_settled = True
    cards: dict[str, Gpu] = {}
    new: list[Gpu] = []
    for uuid, info in wanted.items():
        facts = _gpu_facts(info)
        gpu = rows.get(uuid)
        if gpu is None:
            new.append(Gpu(node=node, uuid=uuid, **{"state_at": now, **facts, **waits}))
            continue
        is_new_here = gpu.node_id != node.pk
        if is_new_here and not _gpu_move(gpu, node, now=now):
            is_settled = False
            continue
        cards[uuid] = gpu
        changed = {name: value for name, value in facts.items() if getattr(gpu, name) != value}
        if gpu.held_mib > (changed.get("total_mib", gpu.total_mib) or 0) and "total_mib" in changed:
            # Slices are on it that the new size does not hold: the size changes once they are gone.
            del changed["total_mib"]
            changed.pop("nominal_mib", None)
            is_settled = False
        if waits and gpu.live_slices and changed.get("total_mib") is not None:
            del changed["total_mib"]
            changed.pop("nominal_mib", None)
            is_settled = False
        if gpu.state == GpuState.MISSING:
            changed |= {"state": _state_before(gpu.state_reason), "state_reason": "", "state_at": now}
        elif gpu.state == GpuState.RETIRED:
            changed |= {"state": GpuState.SUSPECT, "state_reason": NEW_CARD, "state_at": now}
        if waits and (is_new_here or changed.get("total_mib") is not None):
            changed |= waits
        if changed:
            # The held memory is in the condition: a pass may place a slice while we look.
            room = Q() if changed.get("total_mib") is None else Q(held_mib__lte=changed["total_mib"])
            if not Gpu.objects.filter(room, pk=gpu.pk).update(**changed):
                is_settled = False
            elif changed.get("state_reason") == NEW_CARD:
                _test_wish(gpu)
    if new:
        # Another node may report the same new card at the same moment (copied machines): the first one has it.
        Gpu.objects.bulk_create(new, ignore_conflicts=True)
        for gpu in Gpu.objects.filter(uuid__in=[card.uuid for card in new]):
            if gpu.node_id == node.pk:
                cards[gpu.uuid] = gpu
            else:
                is_settled = False
    for gpu in rows.values():
        if gpu.node_id == node.pk and gpu.uuid not in wanted and gpu.state not in (GpuState.MISSING, GpuState.RETIRED):
            # Compare-and-swap: an admin may have changed the state since we read it.
            reason = NOT_SEEN if gpu.state == GpuState.HEALTHY else f"{NOT_SEEN}:{gpu.state}"
            if Gpu.objects.filter(pk=gpu.pk, state=gpu.state).update(state=GpuState.MISSING, state_reason=reason, state_at=now):
                gpu.state = GpuState.MISSING
    is_settled &= _replaced_retire(node, [gpu for gpu in rows.values() if gpu.node_id == node.pk], [gpu.uuid for gpu in new], now=now)
    return is_settled, cards


def _replaced_retire(node: Node, known: list[Gpu], new: list[str], *, now: datetime) -> bool:
    """A card that is new where another one was has replaced it: the old one is retired with its incident closed, and the new one gets no
    work before it has passed a self-test. False while the old one still holds something: ask again later."""
    missing = {slot: gpu for gpu in known if gpu.state == GpuState.MISSING and (slot := _slot(gpu)) is not None}
    if not missing:
        return True
    is_settled = True
    for gpu in Gpu.objects.filter(node=node).exclude(state__in=(GpuState.MISSING, GpuState.RETIRED)).order_by("pk"):
        old = missing.get(slot) if (slot := _slot(gpu)) is not None else None
        if old is None or old.pk > gpu.pk:
            continue
        if not Gpu.objects.filter(pk=old.pk, state=GpuState.MISSING, live_slices=0).update(
            state=GpuState.RETIRED, state_reason=REPLACED, state_at=now
        ):
            is_settled = False
            continue
        GpuLink.objects.filter(Q(a=old) | Q(b=old)).delete()
        log.warning("card %s of node %s is retired: %s is in its slot", old.uuid, node.name, gpu.uuid)
        incident_end(gpu_id=old.pk, code=REPLACED, params={"uuid": gpu.uuid}, now=now)
        if gpu.uuid in new and Gpu.objects.filter(pk=gpu.pk, state=GpuState.HEALTHY, live_slices=0).update(
            state=GpuState.SUSPECT, state_reason=NEW_CARD, state_at=now
        ):
            _test_wish(gpu)
    return is_settled


def _test_wish(gpu: Gpu) -> None:
    """The card is not known here: it gets work once it has passed a self-test."""
    CardCare.objects.update_or_create(gpu=gpu, defaults={"wants": "test", "tries": 0, "needs_human": False, "is_users": False})


def _slot(gpu: Gpu) -> str | None:
    """Where the card sits; of one machine, so that one agent has spelt all of them. None for a part of a card, and where it is not told."""
    return None if gpu.parent else gpu.pci_bus_id.lower() or None


def _gpu_facts(info: GpuInfo) -> dict[str, Any]:
    total = _positive(info.total_mib, CARD_MIB_MOST)
    return {
        "index": min(max(0, info.index), 2**31 - 1),
        "model": _text(info.model, 120),
        "vendor": _text(info.vendor, 20),
        "total_mib": total,
        "nominal_mib": None if total is None else nominal_mib(total),
        "compute_capability": _text(info.compute_capability, 12),
        "pci_bus_id": _text(info.pci_bus_id, 32),
        "pcie_gen": _positive(info.pcie_gen, 32767),
        "pcie_width": _positive(info.pcie_width, 32767),
        "pcie_hops": info.pcie_hops if info.pcie_hops is not None and 0 <= info.pcie_hops <= 32767 else None,
        "parent": info.parent if info.parent is not None and NAME.fullmatch(info.parent) and len(info.parent) <= 80 else "",
        "profile": _text(info.profile, 32),
        "numa": info.numa if info.numa is not None and -1 <= info.numa < 2**31 else None,
        "is_unified": info.unified,
        "is_simulated": info.simulated,
    }


def _gpu_move(gpu: Gpu, node: Node, *, now: datetime) -> bool:
    """Give a card to the node that has it now. False while something holds it where it was.

    Only a card that its old node misses, or whose old node is silent, moves: two machines that both claim a UUID (a
    copied image, one scenario used twice) would else pull it back and forth for ever.
    """
    old = gpu.node
    if gpu.live_slices or not (gpu.state == GpuState.MISSING or old.state in SILENT):
        log.warning("node %s reports card %s, which node %s has (%s slices)", node.name, gpu.uuid, old.name, gpu.live_slices)
        return False
    if not Gpu.objects.filter(pk=gpu.pk, node_id=old.pk, live_slices=0).update(node=node):
        return False
    GpuLink.objects.filter(Q(a=gpu) | Q(b=gpu)).delete()
    # The old node's inventory is no longer what the rows say: it must be looked at again when that node comes back.
    Node.objects.filter(pk=old.pk).update(inventory_sha256="")
    log.info("card %s moved from node %s to %s", gpu.uuid, old.name, node.name)
    gpu.node = node
    return True


def _state_before(reason: str) -> str:
    """A card that vanished while it was isolated comes back isolated."""
    _, _, state = reason.partition(":")
    return state if state in GpuState.values else GpuState.HEALTHY


def _links_apply(node: Node, inventory: Inventory, cards: dict[str, Gpu]) -> None:
    wanted: dict[tuple[int, int], tuple[str, int, str]] = {}
    for link in inventory.links:
        if link.a in cards and link.b in cards and link.a != link.b:
            low, high = sorted((cards[link.a].pk, cards[link.b].pk))
            wanted[low, high] = (link.kind, max(1, min(link.count, 32767)), _text(link.via, 12))
    existing = {(row.a_id, row.b_id): row for row in GpuLink.objects.filter(a__node=node)}
    gone = [row.pk for pair, row in existing.items() if wanted.get(pair) != (row.kind, row.count, row.via)]
    if gone:
        GpuLink.objects.filter(pk__in=gone).delete()
    GpuLink.objects.bulk_create(
        (
            GpuLink(a_id=low, b_id=high, kind=kind, count=count, via=via)
            for (low, high), (kind, count, via) in wanted.items()
            if (row := existing.get((low, high))) is None or row.pk in gone
        ),
        ignore_conflicts=True,
    )


def _port(port: RdmaInfo) -> dict[str, Any]:
    return {
        "name": _text(port.name, 40),
        "state": _text(port.state, 20),
        "rate_gbps": _positive(port.rate_gbps),
        "layer": _text(port.layer, 20),
    }


def _positive(value: int | None, most: int = 2**31 - 1) -> int | None:
    """None for what is not known or can't be: 0 MiB of memory is a driver that does not tell, not a small card."""
    return value if value is not None and 0 < value <= most else None


def _text(text: str | None, most: int) -> str:
    return text_clean(text or "")[:most]
