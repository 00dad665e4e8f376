"""What a submit asks for, checked and in whole units: what serializers, forms and the CLI's text all end in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.lifecycle import OnNodeLoss
from jobs.scheduler import Request
from jobs.scheduler.access import NOTHING
from quotas.models import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """Sizes in MiB, times in seconds. ``gpu_count`` is for the whole job (D30); ``gpu_mem_mib`` None = whole cards;
    ``time_limit_s`` None = none; ``grace_s`` None = the installation's.

    ``constraints`` may have ``arch``, ``model``, ``vendor``, ``cuda_min``, ``driver_min`` (texts), ``labels`` ({key: value},
    texts), ``cpu_milli`` and ``host_mem_mib`` (whole numbers, for each node of the job) and ``exclusive`` (a truth value).
    """

    name: str
    argv: Sequence[str]
    project: Project
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()  # NAME = a file, NAME=VARIABLE
    gpu_count: int = 1
    gpu_mem_mib: int | None = None
    nodes: int = 1
    time_limit_s: int | None = None
    checkpoint: str = ""
    requeue: bool = True
    on_node_loss: str = OnNodeLoss.HOLD.value
    grace_s: int | None = None
    idle_after_s: int | None = None  # stopped when its cards do nothing for so long; None = as the queue and the installation say
    priority: int = 0
    hold: bool = False
    queue: str = ""  # one of Policy.queues; "" = the first
    qos: str = ""  # one of Policy.qos; "" = none
    constraints: Mapping[str, Any] = field(default_factory=dict)


def request_make(
    gpu_count: int, gpu_mem_mib: int | None, nodes: int, constraints: Mapping[str, Any], lacks: frozenset[str] = NOTHING
) -> Request:
    """What a job's columns ask for, in the core's words; ``lacks``: see jobs/admission.py."""
    if not constraints:
        return Request(gpu_count=gpu_count, gpu_mem_mib=gpu_mem_mib, nodes=nodes, lacks=lacks)
    return Request(
        gpu_count=gpu_count,
        gpu_mem_mib=gpu_mem_mib,
        nodes=nodes,
        arch=constraints.get("arch"),
        model=constraints.get("model"),
        vendor=constraints.get("vendor"),
        cuda_min=constraints.get("cuda_min"),
        driver_min=constraints.get("driver_min"),
        labels=tuple(sorted((constraints.get("labels") or {}).items())),
        cpu_milli=constraints.get("cpu_milli"),
        host_mem_mib=constraints.get("host_mem_mib"),
        is_exclusive=bool(constraints.get("exclusive")),
        lacks=lacks,
    )


class Requests:
    """Makes one object of equal requests: the core need not hash each."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Request] = {}

    def __call__(
        self, gpu_count: int, gpu_mem_mib: int | None, nodes: int, constraints: Mapping[str, Any], lacks: frozenset[str] = NOTHING
    ) -> Request:
        shape = (gpu_count, gpu_mem_mib, nodes, repr(constraints) if constraints else "", lacks)
        found = self._made.get(shape)
        if found is None:
            found = self._made[shape] = request_make(gpu_count, gpu_mem_mib, nodes, constraints, lacks)
        return found
