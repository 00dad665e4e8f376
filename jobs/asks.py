"""What a job asks for, in a few words and in rows."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from jobs.models import Job
from jobs.wording.numbers import cores
from nodes.formats import gib, model_name


def alternatives_text(asked: str) -> str:
    """``RTX 4090 / A100 80GB PCIe``: the alternatives of a model constraint."""
    return " / ".join(model_name(part.strip()) for part in asked.split("|") if part.strip()) or asked


def ask_text(job: Job) -> str:
    """``4 × 24 GiB``, ``2 whole cards, A100 / H100, on 2 nodes``, ``1 × 4 GiB, alone on its card``, ``no GPU``."""
    asked = job.constraints
    if job.gpu_count == 0:
        parts = [_("no GPU")]
    elif job.gpu_mem_mib is None:
        parts = [ngettext("%(count)d whole card", "%(count)d whole cards", job.gpu_count) % {"count": job.gpu_count}]
    else:
        parts = [f"{job.gpu_count} × {gib(job.gpu_mem_mib)}"]
        if asked.get("exclusive"):
            parts.append(ngettext("alone on its card", "alone on its cards", job.gpu_count))
    if asked.get("model"):
        parts.append(alternatives_text(asked["model"]))
    parts += [str(asked[key]) for key in ("arch", "vendor") if asked.get(key)]
    if job.nodes > 1:
        parts.append(_("on %(count)d nodes") % {"count": job.nodes})
    return ", ".join(parts)


def need_rows(job: Job) -> list[tuple[str, str]]:
    """(name, value) of everything beyond cards and their memory that was asked for."""
    asked = job.constraints
    newer = pgettext("version", "%(version)s or newer")
    each = _("%(amount)s on each node") if job.nodes > 1 else "%(amount)s"
    rows: list[tuple[str, str]] = []
    if asked.get("model"):
        rows.append((_("Model"), alternatives_text(asked["model"])))
    rows += [(name, str(asked[key])) for key, name in (("arch", _("Architecture")), ("vendor", _("Vendor"))) if asked.get(key)]
    rows += [(name, newer % {"version": asked[key]}) for key, name in (("cuda_min", "CUDA"), ("driver_min", _("Driver"))) if asked.get(key)]
    if asked.get("labels"):
        rows.append((_("Node labels"), ", ".join(f"{key}={value}" for key, value in sorted(asked["labels"].items()))))
    if asked.get("cpu_milli"):
        rows.append((_("CPU cores"), each % {"amount": cores(asked["cpu_milli"])}))
    if asked.get("host_mem_mib"):
        rows.append((_("Main memory"), each % {"amount": gib(asked["host_mem_mib"])}))
    rows += [(name, value) for name, value in ((_("Queue"), job.queue), (_("Quality of service"), job.qos)) if value]
    return rows
