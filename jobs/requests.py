"""What a submit asks for, checked and in whole units: what serializers, forms and the CLI's text all end in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobs.lifecycle import OnNodeLoss
from quotas.models import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """Sizes in MiB, times in seconds. ``gpu_count`` is for the whole job (D30); ``gpu_mem_mib`` None = whole cards;
    ``time_limit_s`` None = none; ``grace_s`` None = the installation's."""

    name: str
    argv: Sequence[str]
    project: Project
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    gpu_count: int = 1
    gpu_mem_mib: int | None = None
    nodes: int = 1
    time_limit_s: int | None = None
    checkpoint: str = ""
    requeue: bool = True
    on_node_loss: str = OnNodeLoss.HOLD.value
    grace_s: int | None = None
    priority: int = 0
    hold: bool = False
    constraints: Mapping[str, str] = field(default_factory=dict)  # arch, model, vendor
