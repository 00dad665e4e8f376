"""Celery doors. Nudges only: short, idempotent, and the sweep alone is enough."""

from __future__ import annotations

import logging
from typing import Any

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from jobs import alert_figures
from jobs.forecaster import forecast_wanted
from jobs.job_news import news_tick
from jobs.services.faults import faults_apply
from jobs.services.idle import idle_turn
from jobs.services.overuse import overuse_look
from jobs.services.schedule import PassResult
from jobs.services.schedule import schedule_pass as pass_do
from jobs.services.upkeep import ranks_silence, upkeep_run
from nodes.alerts import alerts_tick
from nodes.care import care_run
from nodes.trends import trends_tick
from quotas.requests import grants_expire

log = logging.getLogger(__name__)


def _told(result: PassResult | None) -> None:
    if result is not None and settings.MAKES_FORECASTS:
        forecast_wanted(waiting=result.waiting)


@shared_task(name="jobs.tasks.schedule_pass")
def schedule_pass() -> Any:
    result = pass_do()
    _told(result)
    if result is not None and result.started:
        log.info(
            "pass: %d started, %d waiting; %.0f + %.0f + %.0f + %.0f ms",
            len(result.started), result.waiting, result.snapshot_ms, result.plan_ms, result.apply_ms, result.reasons_ms,
        )  # fmt: skip


@shared_task(name="jobs.tasks.schedule_sweep")
def schedule_sweep() -> None:
    """Every 3 s: enough by itself, should every nudge be lost. Steps aside for a pass that is running."""
    ranks_silence(now=timezone.now())
    grants_expire(now=timezone.now())
    _told(pass_do(wait_s=0.0))


@shared_task(name="jobs.tasks.upkeep")
def upkeep() -> None:
    upkeep_run(now=timezone.now())


@shared_task(name="jobs.tasks.health")
def health() -> None:
    """Every 5 s: self-tests and resets whose cards have become free, and jobs on cards that were taken out by hand or are
    gone; every 30 s what the figures of the cards tell, and who holds more of one than they asked for."""
    now = timezone.now()
    care_run(now=now)
    trends_tick(now=now.timestamp())
    overuse_look(now=now.timestamp())
    idle_turn(now=now)
    if faults_apply(now=now):
        pass_do(wait_s=0.0)


@shared_task(name="jobs.tasks.alerts")
def alerts() -> None:
    """Every 5 s: what owners want to hear of their jobs; the first of each 15 s looks at the rules."""
    now = timezone.now().timestamp()
    news_tick(now=now)
    alerts_tick(now=now, more=alert_figures.figures, owners=alert_figures.owners)
