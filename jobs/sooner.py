"""What would start sooner than what was asked for: the core's alternatives as words, as form fields and as a body for the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.asks import alternatives_text
from jobs.forecast import place_text
from jobs.history import runtimes_of_requests
from jobs.scheduler import Alternative, Estimate, Job, Policy, Request, Snapshot
from jobs.scheduler.estimate import candidates
from jobs.whatif import alternatives_of
from nodes import formats


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """``fields``: what to set in the submit form; ``changes``: what to set in a body of the API (None = leave it out)."""

    title: str
    place: str
    p50: float
    p90: float | None
    fields: Mapping[str, str]
    changes: Mapping[str, Any]


def options(view: Snapshot, job: Job, policy: Policy, first: Estimate, *, name: str) -> Iterator[Option]:
    """Each as soon as it is found; ``first`` is the estimate of the job as it is, ``name`` its name. Raises EstimatesBusy."""
    predicted = runtimes_of_requests(
        candidates(job.request, view, policy),
        owner=job.user,
        project=job.project,
        name=name,
        time_limit_s=job.time_limit_s,
        now=datetime.fromtimestamp(view.now, tz=UTC),
        half_life_s=policy.half_life_s,
    )
    for found in alternatives_of(view, job.id, policy, first, predicted=predicted):
        yield option_of(view, job.request, found)


def option_of(view: Snapshot, asked: Request, found: Alternative) -> Option:
    request = found.request
    titles: list[str] = []
    fields: dict[str, str] = {}
    changes: dict[str, Any] = {}
    if request.gpu_count != asked.gpu_count:
        text = ngettext("%(count)d card instead of %(asked)d", "%(count)d cards instead of %(asked)d", request.gpu_count)
        titles.append(text % {"count": request.gpu_count, "asked": asked.gpu_count})
        fields["gpu_count"] = str(request.gpu_count)
        changes["gpu_count"] = request.gpu_count
    if request.nodes != asked.nodes:
        if request.gpu_count == asked.gpu_count:
            text = ngettext("Spread over %(nodes)d node", "Spread over %(nodes)d nodes", request.nodes)
            titles.append(text % {"nodes": request.nodes})
        fields["nodes"] = str(request.nodes)
        changes["nodes"] = request.nodes
    if request.gpu_mem_mib != asked.gpu_mem_mib and request.gpu_mem_mib is not None:
        size = formats.gib(request.gpu_mem_mib)
        if asked.gpu_mem_mib is None:
            titles.append(_("%(size)s a card instead of whole cards") % {"size": size})
        else:
            titles.append(_("%(size)s a card instead of %(asked)s") % {"size": size, "asked": formats.gib(asked.gpu_mem_mib)})
        whole = request.gpu_mem_mib % 1024 == 0
        amount, unit = (request.gpu_mem_mib // 1024, "G") if whole else (request.gpu_mem_mib, "M")
        fields |= {"gpu_mem": str(amount), "mem_unit": unit}
        changes |= {"gpu_mem": f"{amount}{unit}", "gpu_mem_mib": None}
    if request.is_exclusive != asked.is_exclusive:
        fields["exclusive"] = ""
        changes["exclusive"] = None
    if (request.model, request.arch) != (asked.model, asked.arch):
        before = asked.model or asked.arch or ""
        values = {"model": alternatives_text(request.model or ""), "asked": alternatives_text(before)}
        titles.append(_("%(model)s instead of %(asked)s") % values)
        fields |= {"model": request.model or "", "arch": request.arch or ""}
        changes["constraints"] = {"model": request.model, "arch": request.arch}
    return Option(
        title=", ".join(titles),
        place="" if found.placement is None else place_text(view, found.placement),
        p50=found.p50,
        p90=found.p90,
        fields=fields,
        changes=changes,
    )


def body_with(body: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a submit with an option's changes; what they set to None is left out."""
    merged = {**body, **{key: value for key, value in changes.items() if key != "constraints"}}
    constraints = {**(body.get("constraints") or {}), **(changes.get("constraints") or {})}
    merged["constraints"] = {key: value for key, value in constraints.items() if value is not None} or None
    return {key: value for key, value in merged.items() if value is not None}
