"""What a job asks for, in a few words."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.models import Job
from nodes.formats import gib


def ask_text(job: Job) -> str:
    """``4 × 24 GiB``, ``2 whole cards, A100, on 2 nodes``, ``no GPU``."""
    if job.gpu_count == 0:
        parts = [_("no GPU")]
    elif job.gpu_mem_mib is None:
        parts = [ngettext("%(count)d whole card", "%(count)d whole cards", job.gpu_count) % {"count": job.gpu_count}]
    else:
        parts = [f"{job.gpu_count} × {gib(job.gpu_mem_mib)}"]
    parts += [str(job.constraints[key]) for key in ("model", "arch", "vendor") if job.constraints.get(key)]
    if job.nodes > 1:
        parts.append(_("on %(count)d nodes") % {"count": job.nodes})
    return ", ".join(parts)
