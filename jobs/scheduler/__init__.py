"""The pure scheduling core: what runs where, and why not. Standard library only; imported by jobs, bench and tests."""

from __future__ import annotations

from jobs.scheduler.fit import fits, grant_for, rank_fits
from jobs.scheduler.need import nominal_mib, request_error
from jobs.scheduler.never import never_reason
from jobs.scheduler.plan import plan
from jobs.scheduler.types import (
    Gpu,
    Grant,
    Job,
    Link,
    Node,
    Placement,
    Plan,
    Policy,
    RankPlacement,
    Reason,
    Refusal,
    Request,
    Running,
    Slice,
    Snapshot,
)

__all__ = [
    "Gpu",
    "Grant",
    "Job",
    "Link",
    "Node",
    "Placement",
    "Plan",
    "Policy",
    "RankPlacement",
    "Reason",
    "Refusal",
    "Request",
    "Running",
    "Slice",
    "Snapshot",
    "fits",
    "grant_for",
    "never_reason",
    "nominal_mib",
    "plan",
    "rank_fits",
    "request_error",
]
