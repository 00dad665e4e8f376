"""What a card counts as, whoever asks."""

from __future__ import annotations

from typing import Any

import pytest

from nodes.pool import CardUse, card_use, totals_of

MIB = 24_576


def use(**changes: Any) -> CardUse:
    plain: dict[str, Any] = {
        "state": "HEALTHY",
        "total_mib": MIB,
        "held_mib": 0,
        "live_slices": 0,
        "is_exclusive": False,
        "node_takes_work": True,
        "status": None,
    }
    return card_use(**plain | changes)


@pytest.mark.parametrize(
    ("changes", "kind", "free"),
    [
        ({}, "idle", MIB),
        ({"held_mib": 8192, "live_slices": 1}, "busy", MIB - 8192),
        ({"held_mib": 8192, "live_slices": 1, "is_exclusive": True}, "busy", 0),
        ({"status": {"foreign_mib": 4096}}, "busy", MIB - 4096),
        ({"status": {"foreign_mib": 512}}, "idle", MIB),  # the driver's own
        ({"status": {"foreign_mib": MIB + 1}}, "busy", 0),
        ({"node_takes_work": False}, "maintenance", MIB),
        ({"node_takes_work": False, "held_mib": 8192, "live_slices": 1}, "busy", MIB - 8192),
        ({"state": "ISOLATED"}, "maintenance", MIB),
        ({"state": "SUSPECT", "held_mib": 8192, "live_slices": 1}, "maintenance", MIB - 8192),
        ({"state": "MISSING"}, "maintenance", None),
        ({"total_mib": None}, "idle", None),
    ],
)
def test_use_and_free_memory_of_a_card(changes: dict[str, Any], kind: str, free: int | None) -> None:
    found = use(**changes)
    assert (found.use, found.free_mib) == (kind, free)


def test_the_totals_add_up() -> None:
    cards = [
        use(),
        use(status={"foreign_mib": 4096}),
        use(node_takes_work=False),
        use(state="MISSING"),
        use(total_mib=None),
        use(held_mib=8192, live_slices=1, is_exclusive=True),
    ]
    found = totals_of(cards)
    assert (found.cards, found.idle, found.busy, found.maintenance, found.ghost) == (6, 2, 2, 2, 1)
    assert found.idle + found.busy + found.maintenance == found.cards
    assert found.total_mib == 5 * MIB
    assert found.free_mib == MIB + (MIB - 4096)  # the drained node's card is empty, but not free
