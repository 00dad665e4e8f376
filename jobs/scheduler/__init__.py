"""The pure scheduling core: what runs where, and why not. Standard library only; imported by jobs, bench and tests."""

from __future__ import annotations

from jobs.scheduler.estimate import Alternative, Budget, Estimate, alternatives, estimate_start, forecast
from jobs.scheduler.fit import fits, grant_for, rank_fits
from jobs.scheduler.need import nominal_mib, request_error
from jobs.scheduler.never import never_reason
from jobs.scheduler.plan import plan
from jobs.scheduler.predict import Finished, History
from jobs.scheduler.simulate import Arrival, Drain, Started, Trace, simulate
from jobs.scheduler.types import (
    Came,
    Gpu,
    Grant,
    Job,
    Kept,
    Link,
    Node,
    Placement,
    Plan,
    Policy,
    Queue,
    RankPlacement,
    Reason,
    Refusal,
    Request,
    Running,
    Slice,
    Snapshot,
)

__all__ = [
    "Alternative",
    "Arrival",
    "Budget",
    "Came",
    "Drain",
    "Estimate",
    "Finished",
    "Gpu",
    "Grant",
    "History",
    "Job",
    "Kept",
    "Link",
    "Node",
    "Placement",
    "Plan",
    "Policy",
    "Queue",
    "RankPlacement",
    "Reason",
    "Refusal",
    "Request",
    "Running",
    "Slice",
    "Snapshot",
    "Started",
    "Trace",
    "alternatives",
    "estimate_start",
    "fits",
    "forecast",
    "grant_for",
    "never_reason",
    "nominal_mib",
    "plan",
    "rank_fits",
    "request_error",
    "simulate",
]
