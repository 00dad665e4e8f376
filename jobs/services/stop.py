"""One way to stop an attempt, whatever the cause: every rank gets the order, the agents do the polite routine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from jobs.lifecycle import RANK_FINAL, JobState, Want
from jobs.models import Attempt, Rank
from jobs.notify import nodes_nudge
from jobs.services.moves import jobs_move


def attempt_stop(*, attempt: Attempt, reason: str, grace_s: int, params: Mapping[str, Any] | None = None, by: int | None = None) -> None:
    """Orders STOP for every rank that isn't over; the first reason given stays. Call inside a transaction.

    A cancel overrides another reason: what the user asked for is what the job ends with.
    """
    now = timezone.now()
    if not attempt.stop_reason or reason == "cancelled":
        attempt.stop_reason, attempt.stop_params = reason, dict(params or {})
        Attempt.objects.filter(pk=attempt.pk).update(stop_reason=reason, stop_params=attempt.stop_params)
    ranks = Rank.objects.filter(attempt=attempt).exclude(observed__in=RANK_FINAL)
    ranks.filter(desired=Want.RUN).update(desired=Want.STOP, stop_reason=reason, stop_at=now, grace_s=grace_s)
    jobs_move(
        [attempt.job_id], to=JobState.STOPPING, code="stopping", params={"reason": reason, "grace_s": grace_s, **(params or {})}, by=by
    )
    nodes_nudge(ranks.values_list("node_id", flat=True))
