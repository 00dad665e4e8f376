"""What the page of a waiting job shows: why, its place, when it will probably start, and what each node lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from jobs import snapshot
from jobs.models import Job
from jobs.outlooks import Told, reason_dated
from jobs.scheduler import fits
from jobs.scheduler.until import Ends
from jobs.selectors import queue_position, told_of
from jobs.timeline import Tick, ticks
from jobs.wording import about, reason_text, start_text
from nodes import formats

NODES_MOST = 40
#: The lanes show so much more than the p90, and at least so many seconds.
LANE_ROOM = 1.15
LANE_LEAST_S = 120.0
#: Of the axis, in per cent: what the word "now" at its left takes on a telephone.
NOW_ROOM = 15
#: A run that takes less of the lane has no room for its words.
RUN_LEAST = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWhy:
    """``at``: when its cards will have room, in words; empty = nobody knows, or they have it now."""

    name: str
    models: str
    text: str
    fits: bool
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The wait and the start on a time axis that begins now, in per cent: waiting up to ``begin`` (p50), then ``width`` up to p90."""

    begin: float
    width: float
    text: str
    run_text: str  # empty: nothing is known of how long it runs
    run_width: float
    ticks: tuple[Tick, ...]


def lead_data(job: Job, *, now: datetime) -> dict[str, Any]:
    """The sentence, the place in the queue, and the estimate. One round trip to Redis, at most one query."""
    told = told_of(job)
    position = queue_position(job, told)
    return {
        "sentence": reason_text(job.wait_code, reason_dated(job.wait_code, job.wait_params, told, now=now)),
        "ask_for": ask_for(job),
        "position": position,
        "ahead": None if position is None else position - 1,
        "told": told,
        "start": "" if told is None else start_text(told.p50, told.p90, told.after, now=now),
        "age_s": None if told is None else told.age_s(now),
        "is_stale": told is not None and told.is_stale(now),
        "range": None if told is None else start_range(told, job, now=now),
    }


def ask_for(job: Job) -> str:
    """Which limit a higher one of which would let it start, as the quota page's form names it; "" = none."""
    if job.held:
        return ""
    if job.wait_code == "quota_exceeded":
        return str(job.wait_params.get("what") or "gpu_hours")
    model = job.wait_params.get("model")
    return {"cards_exceeded": "cards", "model_cards_exceeded": f"model_cards:{model}"}.get(job.wait_code, "")


def start_range(told: Told, job: Job, *, now: datetime) -> Range | None:
    """None where no start is known, or it is now."""
    if told.p50 is None or told.p50 <= now.timestamp():
        return None
    first = told.p50 - now.timestamp()
    last = max(first, (told.p90 or told.p50) - now.timestamp())
    run_s = job.predicted_s if job.predicted_s is not None else job.time_limit_s
    # A run that is much longer than the wait would make a hairline of it: it is left out then.
    shown_run = run_s is not None and first + run_s <= 6 * max(last, LANE_LEAST_S)
    whole = max(last * LANE_ROOM, LANE_LEAST_S, first + run_s if shown_run and run_s is not None else 0.0)

    def x(seconds: float) -> float:
        return round(100 * min(1.0, seconds / whole), 2)

    begin_text, end_text = about(told.p50, now=now), about(now.timestamp() + last, now=now)
    run_text = ""
    if shown_run and run_s is not None and run_s >= RUN_LEAST * whole:
        values = {"time": about(told.p50 + run_s, now=now), "duration": formats.duration(run_s)}
        run_text = (
            _("ends ≈ %(time)s, if it runs %(duration)s") if job.predicted_s is not None else _("ends by %(time)s, its limit")
        ) % values
    return Range(
        begin=x(first),
        width=round(x(last) - x(first), 2),
        text=f"≈ {begin_text}" if begin_text == end_text else f"≈ {begin_text} – {end_text}",
        run_text=run_text,
        run_width=round(100 - x(first) if run_s is None else x(first + run_s) - x(first), 2),
        ticks=tuple(tick for tick in ticks(now, now + timedelta(seconds=whole), now=now) if tick.x >= NOW_ROOM),
    )


def _room_text(queued: Any, ahead: int | None) -> str:
    """Why a node that has room does not get the job: a limit, else who is ahead. ``queued``: the scheduler's view of the job."""
    if queued is not None and queued.hold == "cards_exceeded":
        return _("Has room now; the limit on cards held at once leaves %(room)d, and this job asks for %(needed)d.") % queued.hold_params
    if queued is not None and queued.hold == "quota_exceeded":
        return _("Has room now; the quota of GPU-hours is used up.")
    if queued is not None and queued.hold == "model_cards_exceeded":
        return _("Has room now; the limit of %(limit)d cards of %(model)s held at once leaves %(room)d.") % queued.hold_params
    return _("Has room now; jobs ahead come first.") if ahead else _("Has room now; the next pass looks again.")


def why_data(job: Job, *, now: datetime) -> dict[str, Any]:
    """``lead_data``, and what each node lacks until when. About 20 queries."""
    data: dict[str, Any] = {**lead_data(job, now=now), "nodes": (), "can_look": False}
    if job.held:
        return data
    view = snapshot.build(now)
    policy = snapshot.policy_current()
    request = snapshot.request_of(job, snapshot.lacks_of(job.owner_id, has_secrets=bool(job.secrets), parts=job.nodes, nodes=view.nodes))
    queued = next((item for item in view.jobs if item.id == job.pk), None)
    ends = Ends(view, policy)
    whys: list[NodeWhy] = []
    for node in sorted(view.nodes, key=lambda node: node.name)[:NODES_MOST]:
        reason = fits(request, node, view.slices, policy)
        text = reason_text(reason.code, reason.params) if reason else _room_text(queued, data["ahead"])
        models = formats.models_text(gpu.model for gpu in node.gpus) or _("no GPU")
        at = ends.room_at(request, node.name) if reason else None
        shown = "" if at is None else f"≈ {about(at, now=now)}"
        whys.append(NodeWhy(name=node.name, models=models, text=text, fits=reason is None, at=shown))
    return data | {"nodes": whys, "can_look": queued is not None and queued.hold in (None, "cards_exceeded")}


def where_text(job: Job, told: Told | None, *, now: datetime) -> tuple[str, str, str]:
    """For a row of the list: when it starts, in a word; the same in a sentence; why it waits."""
    reason = reason_text(job.wait_code, reason_dated(job.wait_code, job.wait_params, told, now=now))
    if told is None or job.held:
        return "", "", reason
    sentence = start_text(told.p50, told.p90, told.after, now=now)
    if told.p50 is not None:
        return (_("now") if told.p50 <= now.timestamp() else f"≈ {about(told.p50, now=now)}"), sentence, reason
    return (f"> {about(told.after, now=now)}" if told.after is not None else ""), sentence, reason


def jobs_waiting(jobs: Sequence[Job]) -> list[int]:
    """Those of whom a forecast may know something."""
    return [job.pk for job in jobs if job.state == "WAITING" and not job.held]
