"""The submit form: blank or from an earlier job, checked as one types, and what would happen now beside it."""

from __future__ import annotations

import math
import re
import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from jobs import refusals, services
from jobs.clone import initial_from
from jobs.efficiency import advice_of, advice_text
from jobs.errors import IdempotencyConflict
from jobs.forecast import Forecast, forecast
from jobs.forms import JobForm, body_sha256
from jobs.lifecycle import JobState
from jobs.models import Job
from jobs.page_data import jobs_with_places
from jobs.policy import policy_current
from jobs.quota_missing import refused_query
from jobs.scheduler.need import version_key
from jobs.selectors import jobs_visible_to
from jobs.shell_line import command_line
from jobs.views import job_get, reader
from nodes import formats
from nodes.models import Gpu, Node, NodeState
from quotas.errors import DomainError
from quotas.models import User
from quotas.selectors import projects_to_submit
from quotas.services import project_personal
from quotas.throttles import throttle_allow

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
#: Quick choices of memory: those of these that the pool's largest card has, GiB.
SIZES = (4, 8, 16, 24, 40, 80)
#: Fields that a link may set: /jobs/new/?gpu_mem=24
LINKED = (
    *("name", "command", "workdir", "gpu_count", "gpu_mem", "mem_unit", "nodes", "model", "time", "project"),
    *("arch", "vendor", "cuda_min", "driver_min", "labels", "cpus", "host_mem", "host_unit", "exclusive", "queue", "qos"),
)
#: So many models and labels are offered to choose from.
MODELS_MOST = 40
LABELS_MOST = 12
#: What is folded away under "More"; it is open where one of these has an error, or OPEN_FOR a value.
_NEEDS = ("arch", "vendor", "cuda_min", "driver_min", "labels", "cpus", "host_mem", "exclusive")
MORE_FIELDS = (*_NEEDS, "env", "secrets", "on_node_loss", "grace_s", "queue", "qos", "priority", "hold")
#: Choices that can't be wrong: they have no place for a message.
SILENT_FIELDS = ("kind", "mem_unit", "host_unit", "requeue", "hold")
OPEN_FOR = (*_NEEDS, "env", "secrets", "queue", "qos", "hold")
#: Orders in which queues count.
QUEUE_ORDERS = ("capacity", "drf")


def _key_new() -> str:
    return f"form-{uuid.uuid4()}"


def _choices(user: User, form: JobForm) -> dict[str, Any]:
    """Projects, card models, sizes, and what nodes have, to choose from. Four queries."""
    own = project_personal(user)
    projects = list(projects_to_submit(user).order_by("name"))
    models: dict[str, dict[str, Any]] = {}
    sizes: set[int] = set()
    archs: dict[str, set[str]] = defaultdict(set)
    vendors: set[str] = set()
    cards = Gpu.objects.exclude(state="MISSING").exclude(node__state=NodeState.RETIRED).order_by("model")
    for model, vendor, arch, nominal, total, is_simulated in cards.values_list(
        "model", "vendor", "compute_capability", "nominal_mib", "total_mib", "is_simulated"
    ):
        found = models.setdefault(model, {"model": model, "short": formats.model_name(model), "count": 0, "simulated": is_simulated})
        found["count"] += 1
        sizes.add((nominal or total or 0) // 1024)
        vendors.add(vendor)
        if arch:
            archs[arch].add(found["short"])
    chosen = [part.strip() for part in str(form["model"].value() or "").split("|") if part.strip()]
    most = max(sizes, default=0)
    return {
        "projects": [project for project in projects if project.pk != own.pk],
        "own_project": own,
        "models": list(models.values())[:MODELS_MOST],
        "models_chosen": chosen,
        "models_other": [part for part in chosen if part not in list(models)[:MODELS_MOST]],
        "archs": [(arch, ", ".join(sorted(archs[arch]))) for arch in sorted(archs, key=version_key)],
        "vendors": sorted(vendors),
        **_nodes_have(),
        **_policy_choices(user, form),
        "sizes": [size for size in SIZES if size <= most],
        "whole_above_pct": round(100 * settings.POLICY_WHOLE_ABOVE),
        "max_grace_s": settings.MAX_GRACE_S,
        "default_grace_s": settings.STOP_GRACE_S,
    }


def _nodes_have() -> dict[str, Any]:
    """Versions and labels that nodes have. One query."""
    cudas: set[str] = set()
    drivers: set[str] = set()
    labels: dict[str, None] = {}
    nodes = Node.objects.exclude(state=NodeState.RETIRED).order_by("name")
    for cuda, driver, of_node in nodes.values_list("cuda_version", "driver_version", "labels"):
        cudas.add(cuda)
        drivers.add(driver)
        labels |= dict.fromkeys(f"{key}={value}" for key, value in of_node.items())
    return {
        "cudas": sorted(cudas - {""}, key=version_key, reverse=True),
        "drivers": sorted((driver for driver in drivers if version_key(driver)), key=version_key, reverse=True),
        "node_labels": sorted(labels)[:LABELS_MOST],
    }


def _policy_choices(user: User, form: JobForm) -> dict[str, Any]:
    """Queues where they count, and qualities of service that the user may choose."""
    policy = policy_current()
    has_queues = len(policy.queues) > 1 and (policy.order in QUEUE_ORDERS or bool(form["queue"].value()))
    return {
        "queues": [queue.name for queue in policy.queues] if has_queues else [],
        "qualities": [(name, points) for name, points in policy.qos if points <= 0 or user.is_staff],
    }


def _verdict(form: JobForm, user: User) -> dict[str, Any]:
    """For ``_verdict.html``: the forecast, or None while the request can't be read; and the shell's line."""
    found: Forecast | None = forecast(form.place_request, owner=user, now=timezone.now()) if form.place_request is not None else None
    body = form.body
    if body.get("project") == project_personal(user).name:
        body = {key: value for key, value in body.items() if key != "project"}  # the default, there as here
    return {"verdict": found, "line": command_line(body), "has_workdir": "workdir" in body}


def _page(request: HttpRequest, form: JobForm, *, status: int = 200, **more: Any) -> HttpResponse:
    user = reader(request)
    if not form.is_bound:
        # What the first values come to is told at once, without calling a missing command an error.
        probe = JobForm(_as_posted(form), user=user)
        probe.is_valid()
        more |= _verdict(probe, user)
    else:
        more |= _verdict(form, user)
    context = {
        "form": form,
        "key": _key_new(),
        "open_more": bool(more.get("left_out"))
        or bool(set(form.errors) & set(MORE_FIELDS))
        or any(form[name].value() for name in OPEN_FOR),
        **_choices(user, form),
        **more,
    }
    return render(request, "jobs/submit.html", context, status=status)


def _as_posted(form: JobForm) -> Mapping[str, Any]:
    """The unbound form's values as a browser would send them."""
    return {name: value for name in form.fields if (value := form.get_initial_for_field(form.fields[name], name)) not in (None, False)}


@login_required
@require_http_methods(["GET", "POST"])
def job_new(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    if request.method == "POST":
        return _submit(request, user)
    initial: dict[str, Any] = {"project": project_personal(user).name}
    more: dict[str, Any] = {}
    kind, _colon, number = request.GET.get("from", "").partition(":")
    if kind == "job" and number.isascii() and number.isdigit() and len(number) < 19:
        source: Job = job_get(request, int(number), jobs_with_places(jobs_visible_to(user)))
        values, left_out = initial_from(source, reader=user)
        initial |= values
        more |= {"source": source, "left_out": left_out, "advice": _advice(source, user)}
        if "instead" in request.GET and _can_replace(source, user):
            more["instead"] = source
    initial |= {name: request.GET[name][:4096] for name in LINKED if name in request.GET}
    return _page(request, JobForm(user=user, initial=initial), **more)


def _advice(source: Job, user: User) -> dict[str, Any] | None:
    """What earlier runs say of the clone's memory, and the values that would take it."""
    advice = advice_of(source, gpu_mem_mib=source.gpu_mem_mib) if source.owner_id == user.pk else None
    if advice is None:
        return None
    return {"text": advice_text(advice), "gib": advice.suggested_mib // 1024, "query": f"gpu_mem={advice.suggested_mib // 1024}&mem_unit=G"}


def _can_replace(job: Job, user: User) -> bool:
    return job.state == JobState.WAITING and job.owner_id == user.pk


def _instead(request: HttpRequest, user: User) -> Job | None:
    """The job of one's own in whose place this one is submitted. Of any state: the service says what is not possible."""
    text = request.POST.get("instead", "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        return None
    return Job.objects.filter(pk=int(text), owner=user).first()


def _submit(request: HttpRequest, user: User) -> HttpResponse:
    form = JobForm(request.POST, user=user)
    instead = _instead(request, user)
    key = request.POST.get("key", "")
    if not _KEY.fullmatch(key):
        key = _key_new()
    allowed, wait_s = throttle_allow("submit", f"user:{user.pk}")
    if not allowed:
        text = _("Too many submits at once; the next one is possible in %(seconds)d s.") % {"seconds": max(1, math.ceil(wait_s))}
        return _page(request, form, status=429, trouble=text, key=key, instead=instead)
    if not form.is_valid() or form.request is None:
        return _page(request, form, key=key, instead=instead)
    if instead is None and request.POST.get("instead"):
        # A second job beside the one that was meant to go would be worse than none.
        text = _("You have no job %(job)s to submit this one in place of, so nothing was submitted.")
        return _page(request, form, status=404, trouble=text % {"job": request.POST["instead"][:20]}, key=key)
    once = {"idempotency_key": key, "body_sha256": body_sha256(form.body)}
    try:
        if instead is None:
            job, _is_new = services.job_submit(owner=user, request=form.request, **once)
        else:
            job, _is_new = services.job_replace(job=instead, by=user, request=form.request, **once)
    except IdempotencyConflict as error:
        # Sent, gone back, changed, sent again: that is a second job, and the person shall say so.
        known = error.params.get("job")
        text = _("This form has already made job #%(job)s. Submit again to make another one.") % {"job": known}
        return _page(request, form, status=409, trouble=text)
    except DomainError as error:
        still = instead if instead is not None and Job.objects.filter(pk=instead.pk, state=JobState.WAITING).exists() else None
        text = refusals.refusal_text(error)
        more = {"ask_for": refused_query(error.params, form.request)} if error.code == "quota_exceeded" else {}
        return _page(request, form, status=error.http_status, trouble=text, key=key, instead=still, **more)
    return HttpResponseRedirect(reverse("job-detail", args=[job.pk]))


@login_required
@require_POST
def job_check(request: HttpRequest) -> HttpResponse:
    """What the typed values come to: the verdict, and the errors of fields that the person has been in."""
    user = reader(request)
    form = JobForm(request.POST, user=user)
    form.is_valid()
    touched = set(request.POST.get("touched", "").split(","))
    shown = {name: form.errors.get(name, []) if name in touched else [] for name in form.fields if name not in SILENT_FIELDS}
    return render(request, "jobs/_check.html", {"form": form, "shown": shown, "oob": True, **_verdict(form, user)})
