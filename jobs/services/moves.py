"""The only writer of Job.state: bulk compare-and-swap plus one JobEvent each, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from jobs.lifecycle import FINAL, InvalidTransition, JobState, sources
from jobs.models import Job, JobEvent
from jobs.notify import jobs_changed
from quotas.counters import Counters
from quotas.services import quota_jobs_done
from quotas.sql import rows_insert, swap

CHUNK = 2000  # parameters of one statement; SQLite allows 32,766


def jobs_move(
    ids: Sequence[int],
    *,
    to: JobState,
    code: str,
    params: Mapping[str, Any] | None = None,
    by: int | None = None,
    fields: Mapping[str, Any] | None = None,
    per_job: Mapping[int, Mapping[str, Any]] | None = None,
    expect: JobState | None = None,
    epoch_step: int = 0,
    epoch_to: int | None = None,
    via: tuple[JobState, str] | None = None,
    locked: Iterable[Job] = (),
    counters: Counters | None = None,
    now: datetime | None = None,
) -> list[int]:
    """Moves those of ``ids`` that may move to ``to``; returns the ids that moved, in order.

    ``fields`` are set in the same statement. ``per_job`` adds to the event's params for one job. ``expect`` allows one
    old state only. ``epoch_step`` 1 begins a new attempt's epoch, above the job's floor; ``epoch_to`` takes one that a node
    already runs. ``via`` (state, code): a job that can move to that state goes through it, with an event of its own.
    ``locked`` are jobs that this transaction has read under their lock and not changed since: they are not read again, and their
    state and epoch are brought up to date. A job in any other state, or already final, is left alone: the caller compares what
    came back. A move to a final state gives back the owner's place among the active jobs, through the caller's ``counters`` if it
    has some to save. ``now`` is the time of the events and of an end; None = the clock. Locks the rows on PostgreSQL.
    """
    now = now or timezone.now()
    direct = (expect,) if expect else sources(to)
    through = sources(via[0]) if via else ()
    allowed = (*direct, *through)
    moved: list[int] = []
    known = {job.pk: job for job in locked}
    with transaction.atomic(savepoint=False):
        for start in range(0, len(ids), CHUNK):
            chunk = list(ids[start : start + CHUNK])
            rows = [
                (job.pk, job.state, job.epoch, job.owner_id, job.project_id, job.epoch_floor)
                for pk in chunk
                if (job := known.get(pk)) is not None and job.state in allowed
            ]
            if missing := [pk for pk in chunk if pk not in known]:
                query = Job.objects.select_for_update().filter(pk__in=missing, state__in=allowed).order_by("pk")
                rows += query.values_list("pk", "state", "epoch", "owner_id", "project_id", "epoch_floor")
            found = {
                pk: (state, epoch_to or (max(epoch, floor) + epoch_step if epoch_step else epoch), owner, project)
                for pk, state, epoch, owner, project, floor in rows
            }
            if not found:
                continue
            changes: dict[str, Any] = {"state": to, **(fields or {})}
            if epoch_to is not None:
                changes["epoch"] = epoch_to
            elif epoch_step:
                changes["epoch"] = Greatest(F("epoch"), F("epoch_floor")) + epoch_step
            if to in FINAL:
                changes.setdefault("ended_at", now)
            for old in sorted({row[0] for row in found.values()}):
                group = [pk for pk, row in found.items() if row[0] == old]
                # INVARIANT: the rows are locked (PostgreSQL) or we are the only writer (SQLite, IMMEDIATE), so the
                # swap takes all of them; the state in the condition keeps it right on any database.
                if len(group) == 1 and not any(hasattr(value, "resolve_expression") for value in changes.values()):
                    count = int(swap(Job, group[0], old={"state": old}, new=changes))
                else:
                    count = Job.objects.filter(pk__in=group, state=old).update(**changes)
                if count != len(group):
                    raise InvalidTransition(f"{len(group) - count} of {len(group)} jobs left {old} during the move to {to}")
            order = [pk for pk in chunk if pk in found]
            events: list[dict[str, Any]] = []
            for pk in order:
                state, epoch, _, _ = found[pk]
                event: dict[str, Any] = {"job_id": pk, "at": now, "epoch": epoch, "by_id": by}
                if via is not None and state in through:
                    events.append({**event, "code": via[1], "params": {}, "from_state": state, "to_state": via[0].value})
                    state = via[0].value
                said = {**(params or {}), **((per_job or {}).get(pk) or {})}
                events.append({**event, "code": code, "params": said, "from_state": state, "to_state": to.value})
                if pk in known:
                    known[pk].state, known[pk].epoch = to, epoch
            rows_insert(JobEvent, events)
            if to in FINAL:
                if counters is None:
                    quota_jobs_done([(found[pk][2], found[pk][3]) for pk in order])
                else:
                    for pk in order:
                        counters.job_done(user=found[pk][2], project=found[pk][3])
            moved.extend(order)
        if moved:
            jobs_changed(moved)
    return moved


def job_move(job_id: int, *, to: JobState, code: str, **more: Any) -> None:
    """One job's move. Raises InvalidTransition when it isn't in a state that allows it."""
    if not jobs_move([job_id], to=to, code=code, **more):
        raise InvalidTransition(f"job {job_id} can't move to {to} from its present state")


def event_add(
    job_id: int,
    *,
    code: str,
    params: Mapping[str, Any] | None = None,
    by: int | None = None,
    epoch: int = 0,
    to: JobState | None = None,
    at: datetime | None = None,
) -> None:
    """Something that happened to a job without moving it, at ``at`` (None = now). ``to`` is the state that a new job is in."""
    event = {"job_id": job_id, "code": code, "params": dict(params or {}), "by_id": by, "epoch": epoch, "at": at or timezone.now()}
    rows_insert(JobEvent, [{**event, "to_state": to.value if to else ""}])
