"""Tells owners that their jobs started, ended or failed, as they chose (docs/alerts.md).

A tick looks at the jobs that started or ended in the last minute: whatever commits late is seen by a later one. What was told is
remembered in Redis for ten minutes; with that emptied, a notice's key keeps it from being told twice. Costs a running job nothing:
no statement is added to syncs and passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.lifecycle import JobState
from jobs.models import Job
from jobs.wording.ends import end_reason_text
from jobs.wording.numbers import duration
from nodes import telemetry
from quotas.models import NoticeChannel
from quotas.notify import Kind, notify

EVERY_S = 5
WINDOW = timedelta(seconds=60)
TURN_KEY, TOLD_KEY = "nebula:news:turn", "nebula:news:told"
TOLD_S = 600
#: More of one person and event in one look are told together: nobody reads a hundred messages.
ONE_BY_ONE: Final = 5
JOBS_MAX = 2000
JOBS_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    event: str  # start | end | fail
    job: int
    epoch: int
    owner: int
    params: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.event}:{self.job}:{self.epoch}"


def news_tick(*, now: float) -> int:
    """Returns how many notices were written. ``now``: Unix time. Without news: two SELECTs, three where somebody wants to hear of
    starts; nothing within 5 s of the last look, and nothing while Redis is away."""
    turn = int(now) // EVERY_S
    if not telemetry.ask(lambda c: c.set(f"{TURN_KEY}:{turn}", "1", nx=True, ex=4 * EVERY_S), None):
        return 0
    at = datetime.fromtimestamp(now, UTC)
    wish = _wishes()
    found = [*_ended(at, wish), *(_started(at, wish["start"]) if wish["start"] else ())]
    if not found:
        return 0
    fresh = _fresh(found, now=now)
    by_owner: dict[tuple[int, str], list[News]] = defaultdict(list)
    for news in fresh:
        by_owner[news.owner, news.event].append(news)
    count = 0
    for (owner, event), group in by_owner.items():
        if len(group) > ONE_BY_ONE:
            jobs = [news.job for news in group]
            params = {"n": len(jobs), "jobs": jobs[:JOBS_NAMED], "first": jobs[0]}
            count += notify(f"jobs_{event}", [owner], params, key=f"jobs_{event}:{group[0].key}", path="/jobs/", at=at)
        else:
            for news in group:
                count += notify(f"job_{event}", [owner], news.params, key=f"job_{news.key}", path=f"/jobs/{news.job}/", at=at)
    return count


def _wishes() -> dict[str, set[int]]:
    """Who chose to hear of starts and of ends. Of failures everybody hears: on the page, at least."""
    found: dict[str, set[int]] = {"start": set(), "end": set()}
    for user, events in NoticeChannel.objects.filter(user__isnull=False, is_active=True).values_list("user_id", "events"):
        for event in found:
            if event in events:
                found[event].add(user)
    return found


def _ended(at: datetime, wish: Mapping[str, set[int]]) -> Iterable[News]:
    rows = Job.objects.filter(ended_at__gt=at - WINDOW, ended_at__lte=at, state__in=(JobState.SUCCEEDED, JobState.FAILED)).order_by("pk")
    columns = ("pk", "epoch", "owner_id", "name", "state", "started_at", "ended_at", "end_reason", "end_params", "exit_code")
    for pk, epoch, owner, name, state, started, ended, reason, params, code in rows.values_list(*columns)[:JOBS_MAX]:
        event = "fail" if state == JobState.FAILED else "end"
        if event == "end" and owner not in wish["end"]:
            continue
        ran_s = round((ended - started).total_seconds()) if started is not None else None
        told = {"job": pk, "name": name, "ran_s": ran_s, "reason": reason, "reason_params": params, "exit_code": code}
        yield News(event=event, job=pk, epoch=epoch, owner=owner, params=told)


def _started(at: datetime, wanted: set[int]) -> Iterable[News]:
    rows = Job.objects.filter(state=JobState.RUNNING, started_at__gt=at - WINDOW, started_at__lte=at, owner__in=wanted).order_by("pk")
    for pk, epoch, owner, name, queued, started in rows.values_list("pk", "epoch", "owner_id", "name", "queued_at", "started_at")[
        :JOBS_MAX
    ]:
        waited_s = round((started - queued).total_seconds()) if queued is not None and started >= queued else None
        yield News(event="start", job=pk, epoch=epoch, owner=owner, params={"job": pk, "name": name, "waited_s": waited_s})


def _fresh(found: list[News], *, now: float) -> list[News]:
    """Those that were not told yet; they count as told from now on. One round trip."""

    def mark(c: Any) -> list[Any]:
        pipe = c.pipeline(transaction=False)
        for news in found:
            pipe.zadd(TOLD_KEY, {news.key: now}, nx=True)
        pipe.zremrangebyscore(TOLD_KEY, 0, now - TOLD_S)
        pipe.expire(TOLD_KEY, TOLD_S)
        answers: list[Any] = pipe.execute()
        return answers

    answers = telemetry.ask(mark, None)
    # Redis went away in between: the notices' keys keep repeats off the page.
    return found if answers is None else [news for news, added in zip(found, answers, strict=False) if added]


# --- words ------------------------------------------------------------------------------------------------------------------


def _name(p: Mapping[str, Any]) -> str:
    return f"{p['name']} (#{p['job']})"


def _start_text(p: Mapping[str, Any]) -> str:
    return _("It waited for %(time)s.") % {"time": duration(p["waited_s"])} if p.get("waited_s") is not None else ""


def _end_text(p: Mapping[str, Any]) -> str:
    return _("It ran for %(time)s.") % {"time": duration(p["ran_s"])} if p.get("ran_s") is not None else ""


def _fail_text(p: Mapping[str, Any]) -> str:
    reason = end_reason_text(str(p["reason"]), p.get("reason_params") or {}, exit_code=p.get("exit_code"))
    return f"{reason} {_end_text(p)}".strip()


def _listed(p: Mapping[str, Any]) -> str:
    jobs = p["jobs"]
    text = ", ".join(f"#{job}" for job in jobs)
    return f"{text} …" if p["n"] > len(jobs) else text


KINDS: Final = {
    "job_start": Kind(event="start", title=lambda p: _("Started: %(job)s") % {"job": _name(p)}, text=_start_text, icon="play"),
    "job_end": Kind(event="end", title=lambda p: _("Done: %(job)s") % {"job": _name(p)}, text=_end_text, tone="ok", icon="okc"),
    "job_fail": Kind(event="fail", title=lambda p: _("Failed: %(job)s") % {"job": _name(p)}, text=_fail_text, tone="bad", icon="badc"),
    "node_no_start": Kind(
        event="node",
        title=gettext_lazy("{node} takes no new work"),
        text=gettext_lazy(
            "It reports, but did not start job {job} within 60 s. The job goes back to the queue. Look at its agent's log, then resume it."
        ),
        tone="warn",
        icon="barrier",
    ),
    "jobs_start": Kind(event="start", title=gettext_lazy("{n} jobs started"), text=_listed, icon="play"),
    "jobs_end": Kind(event="end", title=gettext_lazy("{n} jobs are done"), text=_listed, tone="ok", icon="okc"),
    "jobs_fail": Kind(event="fail", title=gettext_lazy("{n} jobs failed"), text=_listed, tone="bad", icon="badc"),
}
