"""The curves of cards, nodes and jobs: which samples, which panels, what happened meanwhile. The pages fetch them when they are seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from jobs.models import Job, JobEvent, Slice
from jobs.page_data import EVENT_LOOKS
from jobs.pool_pages import gpu_find
from jobs.samples import JobCurves, job_curves
from jobs.views import job_get
from jobs.wording import event_text
from nodes.charts import Line, Mark, Panel, brief, figure
from nodes.event_words import event_kind_text, event_look
from nodes.health_words import line_look, line_text
from nodes.models import Gpu, GpuSample, HealthEvent, IncidentEntry, Level, Node, NodeSample
from nodes.series import RANGE_MOST_S, Curve, Span, curves_read, span_make

RANGES = {"1h": 3600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
RANGE = "24h"
#: Of a job: from its start to its end, or to now.
RUN = "run"
#: An axis is never shorter than this.
AXIS_LEAST_S = 300
MARKS_MOST = 60
#: Events of a job that are worth a mark; all of them are on its page of events.
JOB_EVENTS = ("running", "requeued", "stopping", "succeeded", "failed", "cancelled", "node_silent")

#: Lines of an incident that change a card's state; what led to them is reported by the agent and marked as such.
STATE_LINES = ("suspect", "isolated", "maintenance", "healthy", "returned", "out", "reset_done")


def ranges() -> list[tuple[str, str]]:
    """(key, words) for the switch on the pages."""
    return [("1h", _("1 h")), ("24h", _("24 h")), ("7d", _("7 d")), ("30d", _("30 d"))]


def ranges_of_run(job: Job, *, now: int) -> list[tuple[str, str]]:
    """The same for a job: all of it, and what is shorter than that."""
    began, ended = job.started_at or job.submitted_at, job.ended_at
    length = (int(ended.timestamp()) if ended is not None else now) - int(began.timestamp())
    return [(RUN, _("whole run")), *((key, words) for key, words in ranges() if RANGES[key] < length)]


def range_first(first: int | None, *, now: int) -> str:
    """Which range the curves of a card or node open with: a day, or the shorter one that holds all figures since ``first``."""
    if first is None:
        return RANGE
    return next(key for key, seconds in RANGES.items() if now - first <= seconds or key == RANGE)


def sample_first(samples: QuerySet[Any]) -> int | None:
    """When the first figure that is kept of one subject was taken. A query a level: each is one step into the index."""
    found = [samples.filter(level=level).order_by("at").values_list("at", flat=True).first() for level in Level]
    return min((at for at in found if at is not None), default=None)


def _span(request: HttpRequest) -> tuple[Span, int] | None:
    """The range that is asked for and the time now; None if there is no such range."""
    seconds = RANGES.get(request.GET.get("range", RANGE))
    now = int(timezone.now().timestamp())
    return None if seconds is None else (span_make(since=now - seconds, until=now, now=now), now)


def _refused() -> HttpResponse:
    message = _("There is no such range; there are: %(ranges)s.") % {"ranges": ", ".join(RANGES)}
    return JsonResponse({"code": "invalid", "message": message, "fields": {"range": [message]}}, status=400)


@login_required
@require_safe
def gpu_curves(request: HttpRequest, name: str, index: int) -> HttpResponse:
    gpu = gpu_find(name, index)
    if (found := _span(request)) is None:
        return _refused()
    span, _now = found
    figures = (
        "util_pct",
        "util_max_pct",
        "mem_util_pct",
        "used_mib",
        "used_max_mib",
        "temp_c",
        "temp_max_c",
        "power_w",
        "power_max_w",
        "throttled_pct",
    )
    samples = GpuSample.objects.filter(gpu=gpu)
    curve = curves_read(samples, span=span, figures=figures).get((), Curve())
    panels = [
        Panel(
            title=_("Use"),
            unit="%",
            lines=_lines(curve, ("util_pct", _("use"), "--c1"), ("mem_util_pct", _("memory traffic"), "--c3")),
            top=100,
            is_fixed=True,
        ),
        Panel(
            title=_("Memory used"),
            unit="GiB",
            lines=_lines(curve, ("used_mib", _("used"), "--c2"), scale=1 / 1024),
            top=gpu.total_mib / 1024 if gpu.total_mib else None,
        ),
        Panel(title=_("Temperature"), unit="°C", lines=_lines(curve, ("temp_c", _("temperature"), "--c4")), top=90),
        Panel(title=_("Power"), unit="W", lines=_lines(curve, ("power_w", _("power"), "--c5"))),
    ]
    marks = [
        *_health_marks(HealthEvent.objects.filter(gpu=gpu), span),
        *_state_marks(IncidentEntry.objects.filter(incident__gpu=gpu), span),
        *_slice_marks(gpu, span),
        *throttle_marks(curve),
    ]
    return _answer(panels, curve, span, marks=marks, first=sample_first(samples))


@login_required
@require_safe
def node_curves(request: HttpRequest, name: str) -> HttpResponse:
    node = get_object_or_404(Node, name=name)
    if (found := _span(request)) is None:
        return _refused()
    span, _now = found
    figures = ("util_pct", "used_mib", "power_w", "cpu_pct", "cpu_max_pct", "memory_mib", "memory_max_mib")
    samples = NodeSample.objects.filter(node=node)
    curve = curves_read(samples, span=span, figures=figures).get((), Curve())
    total = sum(mib or 0 for mib in node.gpus.exclude(state="MISSING").values_list("total_mib", flat=True))
    panels = [
        Panel(title=_("Use of its GPUs"), unit="%", lines=_lines(curve, ("util_pct", _("mean"), "--c1")), top=100, is_fixed=True),
        Panel(
            title=_("Memory used on its GPUs"),
            unit="GiB",
            lines=_lines(curve, ("used_mib", _("used"), "--c2"), scale=1 / 1024),
            top=total / 1024 or None,
        ),
        Panel(title=_("Power of its GPUs"), unit="W", lines=_lines(curve, ("power_w", _("power"), "--c5"))),
        Panel(title=_("CPU"), unit="%", lines=_lines(curve, ("cpu_pct", _("all cores"), "--c3")), top=100, is_fixed=True),
        Panel(
            title=_("Main memory used"),
            unit="GiB",
            lines=_lines(curve, ("memory_mib", _("used"), "--c4"), scale=1 / 1024),
            top=node.memory_mib / 1024 if node.memory_mib else None,
        ),
    ]
    marks = [
        *_health_marks(HealthEvent.objects.filter(node=node), span),
        *_state_marks(IncidentEntry.objects.filter(incident__node=node), span),
    ]
    return _answer(panels, curve, span, marks=marks, first=sample_first(samples))


@login_required
@require_safe
def job_curves_data(request: HttpRequest, id: int) -> HttpResponse:
    """The time that it ran, within the range that is asked for."""
    job = job_get(request, id)
    if request.GET.get("range", RUN) == RUN:
        now = int(timezone.now().timestamp())
        span = span_make(since=min(max(int(job.submitted_at.timestamp()), now - RANGE_MOST_S), now - 1), until=now, now=now)
    elif (found := _span(request)) is None:
        return _refused()
    else:
        span, now = found
    ran = job_curves(job, span=span, now=now)
    if ran is None:
        return _answer([], Curve(), span, notes=[_("It has not run in this time.")])
    # A step that the job began in belongs to it from there on: no point and no axis lies before its start.
    span = replace(ran.span, since=ran.began)
    ran.curve.at[:] = [max(at, ran.began) for at in ran.curve.at]
    return _answer(job_panels(ran), ran.curve, span, marks=_job_marks(job, span), notes=job_notes(ran))


def job_panels(ran: JobCurves) -> list[Panel]:
    curve, is_many = ran.curve, ran.cards > 1
    use = [("util_pct", _("mean of its GPUs") if is_many else _("use"), "--c1")]
    use += [("util_least_pct", _("the least busy"), "--c4"), ("util_most_pct", _("the busiest"), "--c3")] if is_many else []
    use += [("own_util_pct", _("its processes"), "--c2")] if ran.has_own_use else []
    memory = [("used_mib", _("its GPUs, all programs") if ran.is_shared else _("its GPUs"), "--c6")]
    memory += [("own_mib", _("its processes"), "--c2")] if ran.has_own else []
    return [
        Panel(title=_("Use"), unit="%", lines=_lines(curve, *use), top=100, is_fixed=True),
        Panel(title=_("Memory used"), unit="GiB", lines=_lines(curve, *memory, scale=1 / 1024), top=ran.granted_mib / 1024 or None),
        Panel(title=_("Temperature"), unit="°C", lines=_lines(curve, ("temp_most_c", _("the hottest") if is_many else "", "--c4")), top=90),
        Panel(title=_("Power"), unit="W", lines=_lines(curve, ("power_w", _("all its GPUs") if is_many else "", "--c5"))),
    ]


def job_notes(ran: JobCurves) -> list[str]:
    notes = []
    if not ran.has_own:
        notes.append(_("Its processes' own memory was not told by the driver: what is shown is that of its GPUs while it held them."))
    if ran.is_shared:
        notes.append(
            _("Temperature and power are those of whole GPUs; other jobs may have been on them.")
            if ran.has_own_use
            else _("Use, temperature and power are those of whole GPUs; other jobs may have been on them.")
        )
    return notes


# --- what all of them share ---------------------------------------------------------------------------------------


def _lines(curve: Curve, *wanted: tuple[str, str, str], scale: float = 1) -> list[Line]:
    """A line for each (figure, name, colour), and a faint one for its peaks where a step has them."""
    found = []
    for name, words, colour in wanted:
        head, dash, tail = name.rpartition("_")
        peaks = curve.figures.get(f"{head}_max_{tail}" if dash else "")
        values = curve.figures.get(name, [])
        if peaks is not None and peaks != values:
            found.append(Line(name=_("at most"), at=curve.at, values=_scaled(peaks, scale), colour=colour, is_faint=True))
        found.append(Line(name=words, at=curve.at, values=_scaled(values, scale), colour=colour))
    return found


def _scaled(values: Sequence[int | None], scale: float) -> list[float | None]:
    return list(values) if scale == 1 else [None if value is None else round(value * scale, 2) for value in values]


def _answer(
    panels: Sequence[Panel],
    curve: Curve,
    span: Span,
    *,
    marks: Iterable[Mark] = (),
    notes: Sequence[str] = (),
    first: int | None = None,
) -> HttpResponse:
    """Figure, its main numbers in a sentence (what a screen reader says), and what must be known to read it. None: nothing to draw.

    ``first``: when the first figure was taken; the axis does not begin long before it.
    """
    if first is not None and first > span.since:
        span = replace(span, since=max(span.since, min(first, span.until - AXIS_LEAST_S)))
    said = []
    for panel in panels:
        told = next((brief(line.values) for line in panel.lines if not line.is_faint), None)
        values = {"title": panel.title, "mean": f"{told[0]:.4g}", "most": f"{told[1]:.4g}", "unit": panel.unit} if told else {}
        said.append(
            _("%(title)s: %(mean)s %(unit)s on average, %(most)s %(unit)s at most") % values
            if told
            else _("%(title)s: n/a") % {"title": panel.title}
        )
    drawn = None
    if curve.at:
        zone = timezone.get_current_timezone()
        drawn = figure(panels, since=span.since, until=span.until, step_s=span.step_s, zone=zone, marks=marks)
    answer = JsonResponse({"figure": drawn, "summary": "; ".join(said), "notes": list(notes), "step_s": span.step_s})
    answer["Cache-Control"] = "no-store"
    return answer


def _between(span: Span) -> tuple[Any, Any]:
    zone = timezone.get_current_timezone()
    return tuple(timezone.datetime.fromtimestamp(at, zone) for at in (span.since, span.until))


def _health_marks(events: QuerySet[HealthEvent], span: Span) -> list[Mark]:
    found = events.filter(at__range=_between(span)).select_related("gpu").order_by("-at", "-pk")[:MARKS_MOST]
    marks = []
    for event in found:
        place = f"gpu{event.gpu.index}: " if event.gpu else ""
        marks.append(Mark(at=event.at.timestamp(), text=place + event_kind_text(event.kind, event.data), tone=event_look(event.kind)[0]))
    return marks


def _state_marks(entries: QuerySet[IncidentEntry], span: Span) -> list[Mark]:
    found = entries.filter(at__range=_between(span), code__in=STATE_LINES).select_related("incident__gpu").order_by("-at", "-pk")
    return [
        Mark(
            at=entry.at.timestamp(),
            text=f"gpu{entry.incident.gpu.index}: {line_text(entry.code, entry.params)}",
            tone=line_look(entry.code)[0],
        )
        for entry in found[:MARKS_MOST]
    ]


def throttle_marks(curve: Curve) -> list[Mark]:
    """When the card began to slow itself down and when that ended, as its samples tell; a gap is neither."""
    marks: list[Mark] = []
    before: int | None = None
    for at, share in zip(curve.at, curve.figures.get("throttled_pct", ()), strict=False):
        if share is None:
            continue
        if share and not before:
            marks.append(Mark(at=at, text=_("slows itself down"), tone="warn"))
        elif before and not share:
            marks.append(Mark(at=at, text=_("at full clocks again"), tone="ok"))
        before = share
    return marks[-MARKS_MOST:]


def _slice_marks(gpu: Gpu, span: Span) -> list[Mark]:
    """Jobs that came to the card and left it: by number, everybody may see that."""
    began, ended = _between(span)
    parts = Slice.objects.filter(Q(held_at__range=(began, ended)) | Q(released_at__range=(began, ended)), gpu=gpu)
    marks = []
    for job, held, released in (
        parts.order_by("-pk").annotate(job=F("rank__attempt__job_id")).values_list("job", "held_at", "released_at")[:MARKS_MOST]
    ):
        marks.append(Mark(at=held.timestamp(), text=_("#%(id)d came") % {"id": job}, tone="info"))
        if released is not None:
            marks.append(Mark(at=released.timestamp(), text=_("#%(id)d left") % {"id": job}))
    return marks


def _job_marks(job: Job, span: Span) -> list[Mark]:
    events = JobEvent.objects.filter(job=job, at__range=_between(span), code__in=JOB_EVENTS).order_by("-id")[:MARKS_MOST]
    return [Mark(at=event.at.timestamp(), text=event_text(event), tone=EVENT_LOOKS.get(event.code, ("", ""))[0]) for event in events]
