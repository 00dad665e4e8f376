"""What the job pages show, read in a constant number of queries."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, F, Prefetch, Q, QuerySet
from django.utils.translation import gettext as _

from jobs import logs
from jobs.asks import ask_text
from jobs.clone import env_is_secret
from jobs.lifecycle import FINAL, LIVE, JobState
from jobs.models import Artifact, Attempt, Job, JobEvent, Rank, Slice
from jobs.outlooks import Told, told_read
from jobs.selectors import Reader, jobs_visible_to, reader_of
from jobs.services.known import known_error, last_words
from jobs.timeline import timeline
from jobs.waiting_page import jobs_waiting, where_text
from jobs.wording import end_text, event_text
from nodes import formats, telemetry
from nodes.serializers import uuid_short
from quotas.models import Project, User

PAGE = 50
EVENTS_ASIDE = 8
#: So many of a job's latest events make its time line.
EVENTS_MOST = 1000
PLACES_MOST = 2

# --- the list -----------------------------------------------------------------------------------------------------

#: What the state filter offers: name → condition.
STATES: dict[str, Q] = {
    "waiting": Q(state=JobState.WAITING),
    "running": Q(state__in=LIVE),
    "succeeded": Q(state=JobState.SUCCEEDED),
    "failed": Q(state=JobState.FAILED),
    "cancelled": Q(state=JobState.CANCELLED),
    "held": Q(state=JobState.WAITING, held=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What the list is narrowed to. An unknown value narrows nothing: an old link must not end in an error."""

    state: str = ""
    q: str = ""
    project: str = ""
    mine: bool = False

    @classmethod
    def of(cls, query: Any) -> Filters:
        state = str(query.get("state", "")).lower()
        return cls(
            state=state if state in STATES else "",
            q=str(query.get("q", "")).strip()[:200],
            project=str(query.get("project", ""))[:60],
            mine=query.get("mine") == "1",
        )

    @property
    def is_any(self) -> bool:
        return bool(self.state or self.q or self.project or self.mine)

    def query(self, **changes: Any) -> str:
        """``?state=…`` with some filters changed, or an empty string."""
        now = replace(self, **changes)
        pairs = [(key, value) for key, value in (("state", now.state), ("q", now.q), ("project", now.project)) if value]
        return urlencode([*pairs, ("mine", "1")] if now.mine else pairs)


def jobs_listed(user: User, filters: Filters) -> QuerySet[Job]:
    """Newest first."""
    jobs = jobs_visible_to(user)
    if filters.mine:
        jobs = jobs.filter(owner=user)
    if filters.state:
        jobs = jobs.filter(STATES[filters.state])
    if filters.project:
        jobs = jobs.filter(project__name=filters.project)
    if filters.q:
        number = filters.q.removeprefix("#")
        match = Q(name__icontains=filters.q)
        jobs = jobs.filter(match | Q(pk=int(number)) if re.fullmatch(r"[0-9]{1,18}", number) else match)
    return jobs.order_by("-id")


def state_counts(user: User, filters: Filters) -> dict[str, int]:
    """How many wait and run under the other filters. One query, by the index on the state."""
    jobs = jobs_listed(user, replace(filters, state="")).exclude(state__in=FINAL)
    found = dict(jobs.order_by().values_list("state").annotate(Count("pk")))
    return {"waiting": found.get(JobState.WAITING, 0), "running": sum(found.get(state, 0) for state in LIVE)}


def projects_filter(user: User) -> list[str]:
    """Projects to narrow the list to: those of the reader, or all (staff)."""
    projects = Project.objects.filter(is_active=True)
    return list(
        (projects if user.is_staff else projects.filter(memberships__user=user)).order_by("name").values_list("name", flat=True)[:200]
    )


_SLICES = Prefetch("slices", Slice.objects.select_related("gpu").order_by("position", "pk"))
_RANKS = Rank.objects.select_related("node").prefetch_related(_SLICES).order_by("index")


def jobs_with_places(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Each job with ``current``: its running or last attempt, ranks, slices and cards loaded. Three queries more."""
    attempts = Attempt.objects.filter(epoch=F("job__epoch")).prefetch_related(Prefetch("ranks", _RANKS))
    return jobs.select_related("owner", "project").prefetch_related(Prefetch("attempts", attempts, to_attr="current"))


def rank_cards(rank: Rank) -> list[Any]:
    return [part.gpu for part in rank.slices.all()]


def place_of(ranks: Sequence[Rank]) -> str:
    """``node03 gpu3``, ``node03 gpu0, gpu1; node04 gpu0``; beyond ``PLACES_MOST`` nodes how many more."""
    places = [" ".join([rank.node.name, ", ".join(f"gpu{gpu.index}" for gpu in rank_cards(rank))]).strip() for rank in ranks]
    shown, more = "; ".join(places[:PLACES_MOST]), len(places) - PLACES_MOST
    return shown if more <= 0 else _("%(place)s and %(more)d more") % {"place": shown, "more": more}


def state_of(job: Job) -> str:
    """The state as shown: a held job is not just waiting."""
    return "HELD" if job.held and job.state == JobState.WAITING else job.state


def rows_data(jobs: Iterable[Job], user: User, *, now: datetime) -> list[dict[str, Any]]:
    """Rows of the list as the user sees them; ``jobs`` loaded by ``jobs_with_places``. One round trip to Redis, one query where
    some are others'."""
    shown = list(jobs)
    told, reader = told_read(jobs_waiting(shown)), reader_of(user, shown)
    return [row_data(job, told.get(job.pk), reader, now=now) for job in shown]


def row_data(job: Job, told: Told | None, reader: Reader, *, now: datetime) -> dict[str, Any]:
    attempt = job.current[0] if job.current else None  # type: ignore[attr-defined]
    place = place_of(list(attempt.ranks.all())) if attempt is not None else ""
    start, start_title = "", ""
    if job.state == JobState.WAITING:
        start, start_title, text = where_text(job, told, now=now)
    elif job.state in LIVE or job.state == JobState.SUCCEEDED:
        text = place
    else:
        text = end_text(job)
    return {
        "job": job,
        "state": state_of(job),
        "asks": ask_text(job),
        "text": text,
        "start": start,
        "start_title": start_title,
        "is_final": job.is_final,
        "can_cancel": not job.is_final and not job.want_cancel and reader.may_change(job),
        "ran_from": job.started_at if job.state in LIVE or job.is_final else None,
        "ran_to": _row_ran_to(job, attempt),
        "since": job.ended_at if job.is_final else job.queued_at if job.state == JobState.WAITING else job.started_at,
    }


def _row_ran_to(job: Job, attempt: Attempt | None) -> datetime | None:
    """When its program ended, as its own page has it; None = it runs."""
    if not job.is_final or attempt is None:
        return job.ended_at
    parts = [part for rank in attempt.ranks.all() for part in rank.slices.all()]
    return ran_until(attempt, parts, since=job.started_at) or job.ended_at


# --- one job -----------------------------------------------------------------------------------------------------

#: Event code → tone, icon.
EVENT_LOOKS = {
    "submitted": ("", "plus"),
    "placed": ("info", "flag"),
    "running": ("info", "play"),
    "stopping": ("warn", "stop"),
    "requeued": ("warn", "rotate"),
    "succeeded": ("ok", "okc"),
    "failed": ("bad", "badc"),
    "cancelled": ("", "ban"),
    "cancel_wanted": ("warn", "ban"),
    "held": ("warn", "pause"),
    "released": ("", "play"),
    "node_silent": ("warn", "help"),
    "slice_over": ("warn", "warn"),
    "idle": ("warn", "hourglass"),
    "slice_over_stop": ("warn", "warn"),
    "files_refused": ("warn", "folder"),
    "files_removed": ("", "folder"),
    "logs_removed": ("", "terminal"),
}


def event_data(event: JobEvent) -> dict[str, Any]:
    """``event.by`` loaded."""
    tone, icon = EVENT_LOOKS.get(event.code, ("", "info"))
    return {"event": event, "tone": tone, "icon": icon, "text": event_text(event), "by": event.by.email if event.by else ""}


def job_events(job: Job) -> QuerySet[JobEvent]:
    return JobEvent.objects.filter(job=job).select_related("by").order_by("-id")


def command_text(argv: Sequence[str], *, most: int = 2000) -> str:
    """The command as a shell takes it, cut after ``most`` characters: of a hundred thousand words the first few are quoted."""
    words: list[str] = []
    length = 0
    for word in argv:
        words.append(shlex.quote(word[: most + 1]))
        length += len(words[-1]) + 1
        if length > most:
            break
    return " ".join(words)[:most]


def job_page(job: Job, user: User, *, now: datetime) -> dict[str, Any]:
    """Everything of the page's living parts, as the user sees it; ``job`` loaded by ``jobs_with_places``. Seven queries, one more for
    another's job, 20 more while it waits."""
    attempts = list(Attempt.objects.filter(job=job).prefetch_related(Prefetch("ranks", _RANKS)).order_by("epoch"))
    events = list(JobEvent.objects.filter(job=job).select_related("by").order_by("-id")[:EVENTS_MOST])[::-1]
    current = attempts[-1] if attempts else None
    ranks = list(current.ranks.all()) if current is not None else []
    places = {attempt.epoch: place_of(list(attempt.ranks.all())) for attempt in attempts}
    queued = waits(job, events, now=now)
    reader = reader_of(user, [job])
    known = known_error(job) if reader.may_read_output(job) else None
    can_move = not job.is_final and not job.want_cancel and reader.may_change(job)
    return {
        "job": job,
        "state": state_of(job),
        "asks": ask_text(job),
        "command": command_text(job.argv),
        "attempt": current,
        "attempts": attempts,
        "ranks": ranks,
        "facts": facts(job, current, ranks) | {"waited_s": sum(wait["seconds"] for wait in queued)},
        "line": timeline(job, events, now=now, places=places, ran=_seconds_ran(attempts)),
        "events": [event_data(event) for event in reversed(events[-EVENTS_ASIDE:])],
        "events_count": len(events),
        "files_count": Artifact.objects.filter(rank__attempt__job=job).count(),
        "waits": queued,
        "end": end_text(job) if job.is_final else "",
        "known": known,
        "last_words": last_words(job) if known is None and reader.may_read_output(job) else [],
        "can_read": reader.may_read_output(job),
        "can_renew": can_move and job.lease_until is not None,
        "can_cancel": can_move,
        "can_hold": job.state == JobState.WAITING and not job.held and can_move,
        "can_release": job.state == JobState.WAITING and job.held and can_move,
        "is_waiting": job.state == JobState.WAITING,
    }


def facts(job: Job, attempt: Attempt | None, ranks: Sequence[Rank]) -> dict[str, Any]:
    """Where and how long. Sizes in MiB; what is not known yet is None."""
    parts = [part for rank in ranks for part in rank.slices.all()]
    run_from = attempt.started_at or job.started_at if attempt is not None else None
    run_to = ran_until(attempt, parts, since=run_from) if attempt is not None else None
    limit_at = None
    if job.time_limit_s and job.state in (JobState.RUNNING, JobState.STOPPING) and job.started_at:
        limit_at = job.started_at + timedelta(seconds=job.time_limit_s)
    signal = next((rank.exit_signal for rank in ranks if rank.exit_signal), None)
    return {
        "place": place_of(ranks),
        "node": ranks[0].node if ranks else None,
        "card": parts[0].gpu if parts else None,
        "models": formats.models_text(part.gpu.model for part in parts),
        "is_whole": bool(parts) and all(part.is_exclusive for part in parts),
        "mib": sum(part.mib for part in parts) if parts else None,
        "cards": len(parts),
        "share": sum(part.share for part in parts) if parts else None,
        "run_from": run_from,
        "run_to": run_to,
        "limit_at": limit_at,
        "exit_signal": signal,
        "checkpoint_seen": any(rank.checkpoint_seen for rank in ranks),
    }


def ran_until(attempt: Attempt, parts: Sequence[Slice], *, since: datetime | None) -> datetime | None:
    """When the program ended, by its node's word where it held cards: the attempt ends when the control plane hears of it, and that
    may have been away. None = it runs."""
    left = [part.releasing_at for part in parts if part.releasing_at is not None]
    if attempt.ended_at is None or not left or len(left) < len(parts):
        return attempt.ended_at
    return min(attempt.ended_at, max(left if since is None else [*left, since]))


def _seconds_ran(attempts: Sequence[Attempt]) -> dict[int, float]:
    """Attempt → for how long its program ran, as ``facts`` has it; those that are over."""
    found = {}
    for attempt in attempts:
        parts = [part for rank in attempt.ranks.all() for part in rank.slices.all()]
        until = ran_until(attempt, parts, since=attempt.started_at)
        if attempt.started_at is not None and until is not None:
            found[attempt.epoch] = (until - attempt.started_at).total_seconds()
    return found


def waits(job: Job, events: Sequence[JobEvent], *, now: datetime) -> list[dict[str, Any]]:
    """Each time in the queue: from, to (None = still), why it came into it."""
    found: list[dict[str, Any]] = []
    for event in events:
        if event.to_state == JobState.WAITING:
            found.append({"begin": event.at, "end": None, "why": event_text(event) if event.code == "requeued" else ""})
        elif event.to_state and found and found[-1]["end"] is None:
            found[-1]["end"] = event.at
    return [wait | {"seconds": ((wait["end"] or now) - wait["begin"]).total_seconds()} for wait in found]


def cards_data(ranks: Sequence[Rank], *, now: datetime) -> list[dict[str, Any]]:
    """The cards of a live attempt with what is on them and their latest figures. One query, one round trip to Redis."""
    parts = [(rank, part) for rank in ranks for part in rank.slices.all()]
    latest = telemetry.gpus_latest([part.gpu for _rank, part in parts], now=now.timestamp())
    others: dict[int, list[tuple[int, int]]] = {}
    live = Slice.objects.filter(gpu_id__in=[part.gpu_id for _rank, part in parts]).exclude(state="RELEASED")
    for pk, gpu_id, mib in live.order_by("pk").values_list("pk", "gpu_id", "mib"):
        others.setdefault(gpu_id, []).append((pk, mib))
    found = []
    for rank, part in parts:
        gpu, told = part.gpu, latest.get(part.gpu_id)
        status = dict.fromkeys(("util_pct", "used_mib", "temp_c", "power_w")) | (told or {})
        total = gpu.total_mib or part.mib
        pieces = [{"kind": "mine", "mib": part.mib}]
        pieces += [{"kind": "other", "mib": mib} for pk, mib in others.get(part.gpu_id, []) if pk != part.pk]
        if free := max(0, total - sum(int(str(piece["mib"])) for piece in pieces)):
            pieces.append({"kind": "free", "mib": free})
        for piece in pieces:
            piece["pct"] = round(100 * int(str(piece["mib"])) / max(total, 1), 2)
        found.append(
            {
                "rank": rank,
                "slice": part,
                "gpu": gpu,
                "short": uuid_short(gpu.uuid),
                "pieces": pieces,
                "status": status,
                "told": told is not None,
            }
        )
    return found


# --- the other tabs -----------------------------------------------------------------------------------------------


def job_files(job: Job) -> QuerySet[Artifact]:
    """The latest attempt's first."""
    found = Artifact.objects.filter(rank__attempt__job=job).select_related("rank__attempt", "rank__node")
    return found.order_by("-rank__attempt__epoch", "rank__index", "name")


def env_shown(job: Job, *, reader: User) -> list[dict[str, Any]]:
    """Names, and the values that may be shown: to the owner, and no secrets."""
    is_own = job.owner_id == reader.pk
    return [
        {"name": name, "value": str(value), "is_hidden": not is_own or env_is_secret(name, str(value))}
        for name, value in sorted(job.env.items())
    ]


def log_data(job: Job, attempts: Sequence[Attempt], query: Any) -> dict[str, Any]:
    """Which attempt's and rank's output is shown: ?attempt= and ?rank=, else the last attempt's rank 0."""
    wanted, index = str(query.get("attempt", "")), str(query.get("rank", "0"))
    chosen = next((attempt for attempt in attempts if str(attempt.epoch) == wanted), attempts[-1] if attempts else None)
    ranks = list(chosen.ranks.all()) if chosen is not None else []
    rank = next((rank for rank in ranks if str(rank.index) == index), ranks[0] if ranks else None)
    return {
        "chosen": chosen,
        "chosen_ranks": ranks,
        "rank": rank,
        "log_bytes": logs.log_length(rank.key) if rank is not None else 0,
        "is_live_log": rank is not None and chosen is not None and chosen.ended_at is None and not job.is_final,
    }
