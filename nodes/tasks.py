"""Celery doors of the nodes room. Each may be lost, late or repeated."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from nodes import inspections, live, samples, services, telemetry
from quotas import deliver

#: For as long as a sender may take at most; one that was killed blocks the next ones for so long.
SENDER_KEY, SENDER_MS = "nebula:notices:sender", 60_000


@shared_task
def liveness_check() -> None:
    services.liveness_check(now=timezone.now())


@shared_task
def last_seen_flush() -> None:
    services.last_seen_flush()


@shared_task
def samples_tick() -> None:
    samples.samples_tick(now=timezone.now().timestamp())


@shared_task
def inspections_due() -> None:
    """Every few minutes; each node is looked at once a day."""
    inspections.inspections_due(now=timezone.now())


@shared_task
def node_nudge(node_id: int) -> None:
    live.nudge_node(node_id)


@shared_task
def notices_send() -> None:
    """Here, because the room of people knows no Celery. One at a time: a receiver that does not answer may hold one of the worker's
    few threads, never all of them."""
    if telemetry.ask(lambda c: c.set(SENDER_KEY, "1", nx=True, px=SENDER_MS), None):
        try:
            deliver.deliveries_send()
        finally:
            telemetry.ask(lambda c: c.delete(SENDER_KEY), None)
