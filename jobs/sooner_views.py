"""What would start sooner, on the pages: pieces of HTML as JSON lines, each sent as soon as it is found (static/js/stream.js)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from jobs import refusals
from jobs.estimate_api import job_options
from jobs.forecast import ask
from jobs.forms import JobForm
from jobs.lifecycle import JobState
from jobs.models import Job
from jobs.scheduler import Estimate
from jobs.selectors import jobs_visible_to
from jobs.sooner import Option, options
from jobs.streams import lines_stream
from jobs.views import job_get, reader
from jobs.whatif import estimate_of
from jobs.wording import start_text
from quotas.errors import DomainError
from quotas.models import User
from quotas.throttles import throttle_allow

STREAM_HEADER = "X-Stream"


def _busy(user: User) -> HttpResponse | None:
    allowed, wait_s = throttle_allow("estimate", f"user:{user.pk}")
    if allowed:
        return None
    seconds = max(1, math.ceil(wait_s))
    text = _("Too many estimates at once; the next one is possible in %(seconds)d s.") % {"seconds": seconds}
    return HttpResponse(
        text, status=HTTPStatus.TOO_MANY_REQUESTS, content_type="text/plain; charset=utf-8", headers={"Retry-After": str(seconds)}
    )


def _piece(into: str, html: str) -> bytes:
    return json.dumps({"into": into, "html": html}, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _pieces(found: Iterable[Option], *, job: Job | None, now: datetime, user: User | None = None) -> Iterator[bytes]:
    count = 0
    try:
        for option in found:
            count += 1
            yield _piece("options", render_to_string("jobs/_option.html", option_context(option, job=job, now=now, reader=user)))
        if not count:
            yield _piece("options", render_to_string("jobs/_option_none.html"))
    except DomainError as error:
        yield _piece("options", render_to_string("jobs/_option_none.html", {"text": refusals.refusal_text(error)}))
    yield _piece("pending", "")


def option_context(option: Option, *, job: Job | None, now: datetime, reader: User | None = None) -> dict[str, Any]:
    """``job`` None: it is offered to the submit form."""
    return {
        "is_own": job is not None and reader is not None and job.owner_id == reader.pk,
        "option": option,
        "job": job,
        "is_now": option.p50 <= now.timestamp(),
        "start": start_text(option.p50, option.p90, None, now=now),
    }


@login_required
@require_POST
def new_sooner(request: HttpRequest) -> HttpResponseBase:
    """When what is typed into the form would start, and what would start sooner."""
    user = reader(request)
    form = JobForm(request.POST, user=user)
    form.is_valid()
    if form.place_request is None:
        return HttpResponse(status=HTTPStatus.NO_CONTENT)
    busy = _busy(user)
    if busy is not None:
        return busy
    now = timezone.now()
    asked = ask(form.place_request, owner=user, now=now)
    if asked.forecast.kind != "waits" or asked.view is None or asked.job is None:
        return HttpResponse(status=HTTPStatus.NO_CONTENT)
    view, job, policy = asked.view, asked.job, asked.policy

    def lines() -> Iterator[bytes]:
        first = Estimate(job=job.id, p50=None, p90=None)
        try:
            if job.hold is None:
                first = estimate_of(view, job.id, policy)
            yield _piece("start", start_text(first.p50, first.p90, first.after, now=now))
        except DomainError as error:
            yield _piece("start", refusals.refusal_text(error))
            yield _piece("pending", "")
            return
        yield from _pieces(options(view, job, policy, first, name=asked.name), job=None, now=now)

    return lines_stream(request, lines())


@login_required
@require_safe
def job_sooner(request: HttpRequest, id: int) -> HttpResponseBase:
    """What would start sooner than this waiting job: for the script piece by piece, else a page of its own."""
    user = reader(request)
    job = job_get(request, id, jobs_visible_to(user).select_related("project"))
    is_waiting = job.state == JobState.WAITING and not job.held
    is_stream = request.headers.get(STREAM_HEADER) == "1"
    if not is_waiting:
        return HttpResponse(status=HTTPStatus.NO_CONTENT) if is_stream else render(request, "jobs/sooner.html", {"job": job, "found": ()})
    busy = _busy(user)
    if busy is not None:
        return busy
    now = timezone.now()
    if is_stream:
        return lines_stream(request, _pieces(_options(job, now=now), job=job, now=now, user=user))
    trouble, found = "", []
    try:
        found = [option_context(option, job=job, now=now, reader=user) for option in job_options(job, now=now)]
    except DomainError as error:
        trouble = refusals.refusal_text(error)
    return render(request, "jobs/sooner.html", {"job": job, "found": found, "trouble": trouble})


def _options(job: Job, *, now: datetime) -> Iterator[Option]:
    """As ``job_options``; the snapshot is read when the first is asked for, so that what went wrong is told as a piece."""
    yield from job_options(job, now=now)
