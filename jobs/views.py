"""The job pages. One sees one's own jobs and those of one's projects, staff all; for anybody else a job does not exist.

Every action works as a plain form; with htmx the same address answers with the piece that changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from jobs import page_data, refusals, services, waiting_page
from jobs.diagnose import diagnose_context
from jobs.efficiency import efficiency_of
from jobs.errors import FilesRemain, InvalidState
from jobs.kept_words import kept_data
from jobs.ladder import ladder_latest
from jobs.lifecycle import LIVE, JobState
from jobs.models import Job
from jobs.selectors import jobs_changeable_by, jobs_visible_to, jobs_with_output_for, sees_others
from jobs.serializers import ONLY_IN_DETAIL
from jobs.services import retention
from nodes.text import text_clean
from quotas.errors import DomainError
from quotas.models import User

BULK_MOST = 200
EXAMPLE_GIB = 4
EXAMPLE = "nebula-ctl submit --name hello --gpu-mem 4G -- python -c 'print(1)'"


def reader(request: HttpRequest) -> User:
    """Call behind ``login_required``."""
    if not isinstance(request.user, User):
        raise Http404
    return request.user


def job_get(request: HttpRequest, id: int, jobs: QuerySet[Job] | None = None) -> Job:
    """The job, if the reader may see it; the same 404 for one that isn't there and for another's."""
    found = (jobs_visible_to(reader(request)) if jobs is None else jobs).filter(pk=id).first()
    if found is None:
        raise Http404
    return found


def _loaded(request: HttpRequest, id: int) -> Job:
    return job_get(request, id, page_data.jobs_with_places(jobs_visible_to(reader(request))))


def is_piece(request: HttpRequest) -> bool:
    """Asked for by htmx, for a part of a page. On the way back in the browser's history it asks for the whole of it."""
    headers = request.headers
    return headers.get("HX-Request") == "true" and "true" not in (headers.get("HX-Boosted"), headers.get("HX-History-Restore-Request"))


# --- the list -----------------------------------------------------------------------------------------------------


@login_required
@require_safe
def job_list(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    filters = page_data.Filters.of(request.GET)
    jobs = page_data.jobs_with_places(page_data.jobs_listed(user, filters)).defer(*ONLY_IN_DETAIL)
    page = Paginator(jobs, page_data.PAGE).get_page(request.GET.get("page"))
    rows = page_data.rows_data(page, reader(request), now=timezone.now())
    context: dict[str, Any] = {
        "filters": filters,
        "page": page,
        "rows": rows,
        "waiting_ids": waiting_page.jobs_waiting([row["job"] for row in rows]),
        "newest": rows[0]["job"].pk if rows else 0,
        "counts": page_data.state_counts(user, filters),
        "states": [(name, filters.query(state=name)) for name in ("", *page_data.STATES)],
        "projects": page_data.projects_filter(user),
        "sees_others": sees_others(user),
        "all_query": filters.query(mine=False),
        "mine_query": filters.query(mine=True),
        "page_query": filters.query(),
    }
    if not rows and not filters.is_any:
        startable = next((rung.count for rung in ladder_latest().rungs if rung.gib == EXAMPLE_GIB), 0)
        context |= {"startable": startable, "example": EXAMPLE, "example_mib": EXAMPLE_GIB * 1024}
    return render(request, "jobs/_table.html" if is_piece(request) else "jobs/list.html", context)


@login_required
@require_safe
def job_newer(request: HttpRequest) -> HttpResponse:
    """How many jobs of this list are newer than ?after=: rows are not pushed under the reader's hand."""
    text = request.GET.get("after", "0")
    after = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
    filters = page_data.Filters.of(request.GET)
    count = page_data.jobs_listed(reader(request), filters).filter(pk__gt=after).count()
    return render(request, "jobs/_newer.html", {"count": count, "newest": after, "page_query": filters.query()})


@login_required
@require_safe
def job_rows(request: HttpRequest) -> HttpResponse:
    """Of ?row=42-RUNNING&row=… those rows that look different now, each replacing its twin."""
    shown = dict(
        text.split("-", 1) for text in request.GET.getlist("row")[: 2 * page_data.PAGE] if re.fullmatch(r"[0-9]{1,18}-[A-Z]+", text)
    )
    if not is_piece(request):
        return HttpResponseRedirect(reverse("job-list"))
    jobs = page_data.jobs_with_places(jobs_visible_to(reader(request)).filter(pk__in=[int(pk) for pk in shown])).defer(*ONLY_IN_DETAIL)
    rows = page_data.rows_data((job for job in jobs if page_data.state_of(job) != shown[str(job.pk)]), reader(request), now=timezone.now())
    return render(request, "jobs/_rows.html", {"rows": rows, "oob": True, "sees_others": sees_others(reader(request))})


@login_required
@require_safe
def job_row(request: HttpRequest, id: int) -> HttpResponse:
    job = _loaded(request, id)
    if not is_piece(request):
        return HttpResponseRedirect(reverse("job-detail", args=[id]))
    row = page_data.rows_data([job], reader(request), now=timezone.now())[0]
    return render(request, "jobs/_row.html", {"row": row, "sees_others": sees_others(reader(request))})


@login_required
@require_safe
def job_starts(request: HttpRequest) -> HttpResponse:
    """Of ?id=42&id=…: when those that wait will probably start, each replacing its twin in the list."""
    if not is_piece(request):
        return HttpResponseRedirect(reverse("job-list"))
    texts = request.GET.getlist("id")[: 2 * page_data.PAGE]
    ids = [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 19]
    jobs = page_data.jobs_with_places(jobs_visible_to(reader(request)).filter(pk__in=ids, state=JobState.WAITING))
    return render(request, "jobs/_starts.html", {"rows": page_data.rows_data(jobs, reader(request), now=timezone.now())})


@login_required
@require_http_methods(["GET", "POST"])
def jobs_cancel(request: HttpRequest) -> HttpResponse:
    """Several at once: GET asks, POST does it. Those that have ended meanwhile are left alone."""
    asked = (request.POST if request.method == "POST" else request.GET).getlist("id")
    ids = {int(text) for text in asked if text.isascii() and text.isdigit() and len(text) < 19}
    jobs = list(jobs_changeable_by(reader(request)).filter(pk__in=sorted(ids)[:BULK_MOST]).order_by("-id"))
    jobs = [job for job in jobs if not job.is_final]
    if request.method == "GET":
        running = sum(job.state in LIVE for job in jobs)
        return render(request, _dialog(request, "cancel"), {"jobs": jobs, "running": running, "many": True})
    done = 0
    for job in jobs:
        try:
            services.job_cancel(job=job, by=reader(request))
            done += 1
        except InvalidState:
            continue  # it ended between the click and now
    messages.info(request, ngettext("%(count)d job is cancelled.", "%(count)d jobs are cancelled.", done) % {"count": done})
    if is_piece(request):
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})
    return HttpResponseRedirect(reverse("job-list"))


# --- one job ------------------------------------------------------------------------------------------------------


@login_required
@require_safe
def job_detail(request: HttpRequest, id: int, tab: str = "") -> HttpResponse:
    now = timezone.now()
    job = _loaded(request, id)
    context = page_data.job_page(job, reader(request), now=now)
    tab = tab or ("log" if context["can_read"] else "events")
    if tab in ("log", "files") and not context["can_read"]:
        raise Http404  # what a job wrote is its owner's
    context |= {"tab": tab}
    if context["is_waiting"]:
        context["why"] = waiting_page.why_data(job, now=now)
    elif job.state in LIVE:
        context["cards"] = page_data.cards_data(context["ranks"], now=now)
        if context["can_read"] and context["cards"]:
            context |= {"can_diagnose": True, **diagnose_context(job)}
    elif job.is_final:
        context["use"] = efficiency_of(job)
    if tab == "log":
        context |= page_data.log_data(job, context["attempts"], request.GET)
    elif tab == "events":
        page = Paginator(page_data.job_events(job), page_data.PAGE).get_page(request.GET.get("page"))
        context |= {"page": page, "all_events": [page_data.event_data(event) for event in page]}
    if tab in ("log", "files"):
        context |= kept_data(job)
    if tab == "files":
        context["page"] = Paginator(page_data.job_files(job), page_data.PAGE).get_page(request.GET.get("page"))
    if tab == "request":
        context["env"] = page_data.env_shown(job, reader=reader(request))
    return render(request, "jobs/detail.html", context)


@login_required
@require_safe
def job_live(request: HttpRequest, id: int) -> HttpResponse:
    """The parts of the page that change with the job, each replacing its twin (htmx, out of band)."""
    job = _loaded(request, id)
    if not is_piece(request):
        return HttpResponseRedirect(reverse("job-detail", args=[id]))
    return _live(request, job)


def _live(request: HttpRequest, job: Job) -> HttpResponse:
    now = timezone.now()
    context = page_data.job_page(job, reader(request), now=now) | {"oob": True, "tab": request.GET.get("tab", "")}
    epoch = context["attempt"].epoch if context["attempt"] is not None else 0
    # An action comes without ?state= and ?tab=: the source, which knows what the page shows, is left alone then.
    context["new_source"] = request.GET.get("state") not in (None, context["state"])
    if context["tab"] == "log" and context["can_read"] and request.GET.get("epoch") not in (None, str(epoch)):
        # A new attempt has begun since the page was made: its log takes the place of what was shown.
        context |= page_data.log_data(job, context["attempts"], {}) | {"new_log": True}
    if context["is_waiting"]:
        context["why"] = waiting_page.why_data(job, now=now)
    elif job.state in LIVE:
        context["cards"] = page_data.cards_data(context["ranks"], now=now)
    return render(request, "jobs/_live.html", context)


@login_required
@require_safe
def job_start(request: HttpRequest, id: int) -> HttpResponse:
    """Why it waits and when it will probably start, by the latest forecast."""
    job = job_get(request, id)
    if not is_piece(request):
        return HttpResponseRedirect(reverse("job-detail", args=[id]))
    if job.state != JobState.WAITING:
        return HttpResponse(status=204)  # the socket says the rest
    return render(request, "jobs/_lead.html", {"job": job, "why": waiting_page.lead_data(job, now=timezone.now())})


@login_required
@require_safe
def job_cards(request: HttpRequest, id: int) -> HttpResponse:
    """The cards of a live job with their figures of this moment."""
    job = _loaded(request, id)
    if not is_piece(request):
        return HttpResponseRedirect(reverse("job-detail", args=[id]))
    ranks = [rank for attempt in job.current for rank in attempt.ranks.all()] if job.state in LIVE else []  # type: ignore[attr-defined]
    return render(request, "jobs/_cards.html", {"job": job, "cards": page_data.cards_data(ranks, now=timezone.now())})


# --- what one does to it ------------------------------------------------------------------------------------------


def _dialog(request: HttpRequest, name: str) -> str:
    """The same question, in a dialog or on a page of its own."""
    return f"jobs/_{name}.html" if is_piece(request) else f"jobs/{name}.html"


def _done(request: HttpRequest, job: Job, act: Callable[[], Any], said: str) -> HttpResponse:
    """Do it; then the job's page, or with htmx its living parts."""
    try:
        act()
        text, level = said, messages.INFO
    except DomainError as error:
        text, level = refusals.refusal_text(error), messages.ERROR
    if not is_piece(request):
        messages.add_message(request, level, text)
        return HttpResponseRedirect(reverse("job-detail", args=[job.pk]))
    if level == messages.ERROR:
        answer = render(request, "jobs/_refused.html", {"text": text})
        answer["HX-Retarget"], answer["HX-Reswap"] = "#dialog", "innerHTML"
        return answer
    answer = _live(request, _loaded(request, job.pk))
    answer["HX-Trigger-After-Swap"] = "dialog:close"  # not before: the form in it is what the swap starts from
    return answer


@login_required
@require_http_methods(["GET", "POST"])
def job_cancel(request: HttpRequest, id: int) -> HttpResponse:
    """GET asks and says what would be lost; POST does it."""
    job = _loaded(request, id)
    if request.method == "GET":
        context = page_data.job_page(job, reader(request), now=timezone.now()) | {
            "jobs": [job],
            "many": False,
            "running": int(job.state in LIVE),
        }
        return render(request, _dialog(request, "cancel"), context)
    return _done(request, job, lambda: services.job_cancel(job=job, by=reader(request)), _("Cancelling #%(id)d.") % {"id": job.pk})


@login_required
@require_http_methods(["GET", "POST"])
def job_hold(request: HttpRequest, id: int) -> HttpResponse:
    job = _loaded(request, id)
    if request.method == "GET":
        return render(request, _dialog(request, "hold"), {"job": job})
    why = text_clean(request.POST.get("why", "")).strip()[:200]
    return _done(
        request,
        job,
        lambda: services.job_hold(job=job, by=reader(request), why=why),
        _("#%(id)d is held until it is released.") % {"id": job.pk},
    )


@login_required
@require_POST
def job_release(request: HttpRequest, id: int) -> HttpResponse:
    job = _loaded(request, id)
    said = _("#%(id)d takes part again.") % {"id": job.pk}
    return _done(request, job, lambda: services.job_release(job=job, by=reader(request)), said)


@login_required
@require_POST
def job_files_remove(request: HttpRequest, id: int) -> HttpResponse:
    job = job_get(request, id, jobs_with_output_for(reader(request)))
    try:
        retention.job_files_remove(job=job, by=reader(request))
        messages.info(request, _("The files of #%(id)d are removed.") % {"id": job.pk})
    except (FilesRemain, InvalidState) as error:
        messages.error(request, refusals.refusal_text(error))
    return HttpResponseRedirect(reverse("job-files", args=[job.pk]))


@login_required
@require_POST
def job_renew(request: HttpRequest, id: int) -> HttpResponse:
    job, now = _loaded(request, id), timezone.now()
    return _done(request, job, lambda: services.job_renew(job=job, by=reader(request), now=now), _("#%(id)d is renewed.") % {"id": job.pk})
