"""Deciding requests from a page: one or many at once, with amount and last day of each. Shared by the admin and the portal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from django.utils.translation import gettext as _

from quotas import calendar
from quotas.errors import BadValue, DomainError
from quotas.models import QuotaRequest, User
from quotas.moments import moment_check
from quotas.requests import AMOUNT_MOST, request_approve, request_decline, requests_to_decide

SHOWN = 50
NOTE_MOST = 500


def last_day(until: datetime) -> date:
    """The last local day (installation's zone) that a grant until then is in force on."""
    return (until.astimezone(calendar.zone()) - timedelta(microseconds=1)).date()


def until_of(text: str) -> datetime:
    """``2026-07-31``: to the end of that local day. Raises BadValue."""
    try:
        day = date.fromisoformat(text.strip())
        end = datetime.combine(day + timedelta(days=1), time(), tzinfo=calendar.zone())
        moment_check(end)
        return end
    except (ValueError, OverflowError) as error:
        raise BadValue("request_day", params={"field": "until", "value": text.strip()[:40]}) from error


def amount_of(text: str) -> int:
    """A whole number from 1 to the most that may be asked for. Raises BadValue, which quotes what was typed."""
    typed = text.strip()
    if not (typed.isascii() and typed.isdigit() and len(typed) < 10 and 1 <= int(typed) <= AMOUNT_MOST):
        code = "request_amount" if typed else "request_amount_empty"
        raise BadValue(code, params={"field": "amount", "value": typed[:20], "most": AMOUNT_MOST})
    return int(typed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as the pages show it. ``used`` and ``limit`` in the request's own unit; limit None = there is none any more."""

    request: QuotaRequest
    used: float | None
    limit: int | None
    last_day: date

    @property
    def pct(self) -> float:
        return 0.0 if not self.limit or self.used is None else min(100.0, 100 * self.used / self.limit)

    @property
    def tone(self) -> str:
        return "bad" if self.pct >= 100 else "warn" if self.pct >= 80 else "me"


def asked_of(request: QuotaRequest) -> Asked:
    """``request.quota`` loaded."""
    quota, what = request.quota, QuotaRequest.What
    used: float | None
    used, limit = {
        what.GPU_HOURS: (quota.spent_gpu_s / 3600, quota.gpu_hours_limit),
        what.CARDS: (float(quota.held_cards), quota.cards_limit),
        what.ACTIVE_JOBS: (float(quota.active_jobs), quota.active_jobs_limit),
        what.MODEL_CARDS: (None, quota.model_limits.get(request.model)),
    }[what(request.what)]
    return Asked(request=request, used=used, limit=limit, last_day=last_day(request.granted_until or request.until))


def waiting_for(user: User) -> list[Asked]:
    """What this person may decide now, the oldest first. One query."""
    return [asked_of(request) for request in requests_to_decide(user)[:SHOWN]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    done: int
    refused: tuple[str, ...]  # a sentence each


def nothing_chosen_text() -> str:
    return _("Nothing was chosen, so nothing was decided: tick at least one request first.")


def decide(*, user: User, ids: Iterable[int], act: str, values: Mapping[str, Any], now: datetime) -> Decided:
    """``act``: approve | decline. ``values`` may have ``amount-ID`` and ``until-ID`` (a day) of each, and ``note`` for all.

    One that can't be decided (somebody was before, a wrong amount) does not keep the others from it.
    """
    note = str(values.get("note", "")).replace("\x00", "").strip()[:NOTE_MOST]
    found = {request.pk: request for request in requests_to_decide(user).filter(pk__in=sorted(set(ids))[:SHOWN])}
    done, refused = 0, [_("#%(id)d is not open any more.") % {"id": pk} for pk in sorted(set(ids) - set(found))]
    for pk, request in sorted(found.items()):
        try:
            if act == "approve":
                request_approve(request=request, by=user, now=now, note=note, **wanted_of(request, values))
            else:
                request_decline(request=request, by=user, now=now, note=note)
            done += 1
        except DomainError as error:
            refused.append(f"#{pk}: {error.message}")
    return Decided(done=done, refused=tuple(refused))


def wanted_of(request: QuotaRequest, values: Mapping[str, Any]) -> dict[str, Any]:
    """``amount`` and ``until`` of the form, where they are not as asked. Raises BadValue."""
    found: dict[str, Any] = {}
    if text := str(values.get(f"amount-{request.pk}", "")).strip():
        found["amount"] = amount_of(text)
    day = str(values.get(f"until-{request.pk}", "")).strip()
    if day and day != last_day(request.until).isoformat():
        found["until"] = until_of(day)
    return found
