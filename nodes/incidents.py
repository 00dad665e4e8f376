"""Writes of incidents: detect → diagnose → recover → review. Call inside a transaction that has locked the card's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.utils import timezone

from nodes import live
from nodes.errors import NodeRefused
from nodes.health_models import Incident, IncidentEntry
from nodes.models import Gpu, GpuSample, Level
from quotas.audit import audit

#: XIDs by the class of fault that they belong to; all others are "xid".
KINDS: dict[int, str] = dict.fromkeys((48, 63, 64, 94, 95), Incident.Kind.ECC) | {
    74: Incident.Kind.NVLINK,
    79: Incident.Kind.LOSS,
}
CODE_KINDS = {
    "remap_failed": Incident.Kind.ECC,
    "ecc_uncorrected": Incident.Kind.ECC,
    "lost": Incident.Kind.LOSS,
    "missing": Incident.Kind.LOSS,
    "cooling": Incident.Kind.HEAT,
    "throttle": Incident.Kind.HEAT,
    "hot": Incident.Kind.HEAT,
}
KERNEL_LINES, KERNEL_CHARS = 40, 400
POWER_BEFORE_S = 600
REVIEW_MAX = 4000


def incident_open(*, gpu: Gpu, code: str, params: Mapping[str, Any], now: datetime, kernel: Sequence[str] = ()) -> Incident:
    """The card's incident that is not closed, or a new one; the evidence goes there."""
    incident = Incident.objects.filter(gpu=gpu).exclude(phase=Incident.Phase.CLOSED).first()
    if incident is None:
        kind = KINDS.get(int(params.get("xid") or 0)) or CODE_KINDS.get(code)
        kind = kind or (Incident.Kind.XID if params.get("xid") else Incident.Kind.OTHER)
        evidence = {"power": _power_log(gpu, now), "kernel": _kernel(kernel)}
        try:
            with transaction.atomic():
                incident = Incident.objects.create(
                    node_id=gpu.node_id, gpu=gpu, kind=kind, code=code, params=dict(params), evidence=evidence, opened_at=now,
                    is_drill=bool(params.get("drill")),
                )  # fmt: skip
        except IntegrityError:  # another sync opened it
            incident = Incident.objects.exclude(phase=Incident.Phase.CLOSED).get(gpu=gpu)
    elif kernel:
        found = [*incident.evidence.get("kernel", []), *_kernel(kernel)][-KERNEL_LINES:]
        incident.evidence = {**incident.evidence, "kernel": found}
        Incident.objects.filter(pk=incident.pk).update(evidence=incident.evidence)
    incident_add(incident, code=code, params=params, now=now)
    return incident


def kernel_add(*, gpu: Gpu, lines: Sequence[str]) -> None:
    """What the kernel wrote around a fault, told a little after it: in place of the single lines that came with it. Nothing without an
    incident that is not closed."""
    incident = incident_of(gpu.pk)
    if incident is None:
        return
    known = list(incident.evidence.get("kernel", []))
    new = _kernel(lines)
    # The lines that came with the events are among these.
    kept = [line for line in known if line not in new]
    found = [*kept, *new][-KERNEL_LINES:]
    if found != known:
        Incident.objects.filter(pk=incident.pk).update(evidence={**incident.evidence, "kernel": found})
        live.publish("pool", {"incident": incident.pk})


def _kernel(lines: Sequence[str]) -> list[str]:
    return [str(line)[:KERNEL_CHARS] for line in lines[:KERNEL_LINES]]


def _power_log(gpu: Gpu, now: datetime) -> list[list[int | None]]:
    """What the card drew, how warm it was and how fast it ran in the minutes before. One query."""
    since = (now - timedelta(seconds=POWER_BEFORE_S)).timestamp()
    rows = GpuSample.objects.filter(gpu=gpu, level=Level.RAW, at__gte=int(since)).order_by("at")
    return [list(row) for row in rows.values_list("at", "power_w", "temp_c", "core_mhz")[:60]]


def incident_of(gpu_id: int) -> Incident | None:
    return Incident.objects.filter(gpu_id=gpu_id).exclude(phase=Incident.Phase.CLOSED).first()


def incident_add(
    incident: Incident,
    *,
    code: str,
    params: Mapping[str, Any] | None = None,
    by: AbstractBaseUser | None = None,
    now: datetime,
    phase: str | None = None,
) -> None:
    """A line of the timeline, and the phase that it brings about. Back in service (REVIEW) sets the time of recovery; trouble anew
    takes it back."""
    IncidentEntry.objects.create(incident=incident, at=now, code=code, params=dict(params or {}), by=by)  # type: ignore[misc]
    if phase is not None and phase != incident.phase:
        recovered_at = now if phase == Incident.Phase.REVIEW else None
        Incident.objects.filter(pk=incident.pk).exclude(phase=Incident.Phase.CLOSED).update(phase=phase, recovered_at=recovered_at)
        incident.phase, incident.recovered_at = phase, recovered_at
    live.publish("pool", {"incident": incident.pk})


def incident_end(*, gpu_id: int, code: str, params: Mapping[str, Any], now: datetime) -> None:
    """Close the card's incident, if it has one, with this as its last line: nothing is left that a person could look into."""
    incident = incident_of(gpu_id)
    if incident is not None and Incident.objects.filter(pk=incident.pk, closed_at=None).update(
        phase=Incident.Phase.CLOSED, closed_at=now, recovered_at=None, review=code
    ):
        incident_add(incident, code=code, params=params, now=now)


def incident_note(*, incident: Incident, text: str, by: AbstractBaseUser, now: datetime | None = None) -> None:
    """A person's note. Raises NodeRefused without text."""
    now = now or timezone.now()
    with transaction.atomic():
        incident_add(incident, code="note", params={"text": _text(text)}, by=by, now=now)
        audit(by, "incident.noted", f"incident {incident.pk}", now=now)


@transaction.atomic
def incident_close(*, incident: Incident, text: str, by: AbstractBaseUser, now: datetime | None = None) -> Incident:
    """The review: what it was and what came of it. Raises NodeRefused without a note, or while the card is not back or out for good."""
    now = now or timezone.now()
    text = _text(text)
    if incident.phase == Incident.Phase.CLOSED:
        return incident
    changed = Incident.objects.filter(pk=incident.pk, phase=Incident.Phase.REVIEW).update(
        phase=Incident.Phase.CLOSED, closed_at=now, closed_by=by, review=text
    )
    if not changed:
        incident.refresh_from_db()
        raise NodeRefused("incident_not_over", 409, {"incident": incident.pk})
    IncidentEntry.objects.create(incident=incident, at=now, code="closed", params={"text": text}, by=by)  # type: ignore[misc]
    audit(by, "incident.closed", f"incident {incident.pk}", {"review": text}, now=now)
    incident.refresh_from_db()
    live.publish("pool", {"incident": incident.pk})
    return incident


def _text(text: str) -> str:
    text = text.strip()
    if not 3 <= len(text) <= REVIEW_MAX:
        raise NodeRefused("incident_note", params={"limit": REVIEW_MAX, "length": len(text)})
    return text
