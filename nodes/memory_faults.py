"""Faults of a card's memory that no XID tells of: errors that were not corrected, spare rows that are used up.

Looked at with every round of trends (nodes/trends.py), in what Redis holds of the slow facts. Healthy cards cost no query.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from nodes import care
from nodes.doubts import SESSION
from nodes.health import judge_facts
from nodes.models import Gpu, HealthEvent

KIND = "memory_fault"


def memory_look(facts: Mapping[int, Mapping[str, Any]], *, now: datetime) -> int:
    """Judge the cards whose facts tell of a fault (by their primary key); returns how many changed their state."""
    faulty = [pk for pk, known in sorted(facts.items()) if known.get("remap_failed") or known.get("ecc_uncorrected")]
    return sum(_judge(pk, facts[pk], now=now) for pk in faulty)


def _judge(pk: int, known: Mapping[str, Any], *, now: datetime) -> bool:
    with transaction.atomic():
        gpu = Gpu.objects.select_for_update().filter(pk=pk).first()
        if gpu is None:
            return False
        told = HealthEvent.objects.filter(gpu=gpu, kind=KIND).order_by("-at", "-pk").first()
        answered = int(told.data.get("errors") or 0) if told is not None else 0
        errors = known.get("ecc_uncorrected")
        if isinstance(errors, int) and errors < answered:
            answered = 0  # the driver counts anew since a reset
        verdict = judge_facts(known, care.card_of(gpu), uncorrected=settings.ECC_UNCORRECTED, since_reset=answered)
        if verdict is None:
            return False
        HealthEvent.objects.create(
            node_id=gpu.node_id, gpu=gpu, session=SESSION, eid=int(now.timestamp() * 1000) * 1000 + pk % 1000, kind=KIND, at=now,
            data={"code": verdict.code, "errors": errors if isinstance(errors, int) else 0},
        )  # fmt: skip
        return care.verdict_apply(gpu=gpu, verdict=verdict, now=now)
