"""What a panel of curves needs: its ranges, and the one that it opens with."""

from __future__ import annotations

import time

from django import template

from jobs.curves import RUN, range_first, ranges, ranges_of_run, sample_first
from jobs.models import Job
from nodes.models import Gpu, GpuSample, Node, NodeSample

register = template.Library()
register.simple_tag(ranges, name="curve_ranges")


@register.simple_tag
def job_ranges(job: Job) -> list[tuple[str, str]]:
    return ranges_of_run(job, now=int(time.time()))


@register.simple_tag
def opening_range(of: Job | Gpu | Node) -> str:
    """``1h`` of a card that is known since twenty minutes. Three queries."""
    if isinstance(of, Job):
        return RUN
    samples = GpuSample.objects.filter(gpu=of) if isinstance(of, Gpu) else NodeSample.objects.filter(node=of)
    return range_first(sample_first(samples), now=int(time.time()))
